"""How the grounding evaluation of GUI-Owl-1.5 reads answers (`grounding_and_kb/eval_grounding_benchmarks.py`).

The last `(a, b)` of the text is the answer, else the last `[a, b]` with one comma and one space, both of whole numbers,
wherever they stand: "(3, 4)" in the reasoning beats the coordinate of the call, and `[712,45]` is not seen. Scores that
shall be comparable with published ones need this; where a model follows its format, `gui_owl_1_5` reads more. Unlike in
the release an answer without a point is a `ParseError`, not (0, 0), and a refusal is the call that its prompt asks for.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from gui_owl_jax.agent.actions import ToolCall
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.dialects.base import REFUSE, Said
from gui_owl_jax.agent.dialects.tool_calls import DESKTOP, MOBILE, ToolCallDialect
from gui_owl_jax.agent.dialects.vocabulary import Rule
from gui_owl_jax.agent.errors import ParseError, ParseReason

_ROUND = re.compile(r"\((\d+),\s*(\d+)\)")
_SQUARE = re.compile(r"\[(\d+), (\d+)\]")
_REFUSAL = Rule(
    "terminate", "terminate", when={"status": ("failure",)}, fixed={"status": "failure"}, note="No element is meant."
)
_RULES = {
    family: (Rule("left_click", kind, {"coordinate": "coordinate"}), _REFUSAL)
    for family, kind in ((MOBILE, "click"), (DESKTOP, "left_click"))
}


@dataclasses.dataclass(frozen=True)
class GuiOwlEval(ToolCallDialect):
    """The regular expressions of GUI-Owl-1.5's grounding evaluation; on every screen the tool is `computer_use`."""

    def rules(self) -> Mapping[DeviceFamily, Sequence[Rule]]:
        """The actions of the dialect by device family."""
        return _RULES

    def split(self, text: str, family: DeviceFamily) -> Said:
        """Takes an output apart; ParseError if no point can be found and it is no refusal."""
        points = list(_ROUND.finditer(text)) or list(_SQUARE.finditer(text))
        if points:
            x, y = points[-1].groups()
            return Said("", "", ToolCall("left_click", {"coordinate": [x, y]}))
        try:
            said = super().split(text, DESKTOP)
        except ParseError as error:
            raise ParseError(ParseReason.NO_TOOL_CALL, f"no (a, b) or [a, b] in {text[-80:]!r}") from error
        if said.call != ToolCall(REFUSE.kind, {"status": REFUSE.status}):
            raise ParseError(ParseReason.NO_TOOL_CALL, f"no (a, b) or [a, b], and no refusal in {text[-80:]!r}")
        return Said("", "", said.call)

    def join(self, said: Said, family: DeviceFamily) -> str:
        """Puts an output together: the call alone, whose words the evaluation would search as well."""
        return self.call_block(said, family)

    def _said(self, thought: str, conclusion: str, call: ToolCall) -> Said:
        return Said("", "", call)

    def call_text(self, call: ToolCall, family: DeviceFamily) -> str:
        """The JSON of the call."""
        return super().call_text(call, DESKTOP)
