"""MAI-UI: its agent for phones, and its grounding format (`src/prompt.py`).

    <thinking>I scroll on.</thinking>
    <tool_call>
    {"name": "mobile_use", "arguments": {"action": "swipe", "direction": "up"}}
    </tool_call>

    <grounding_think>The gear opens the settings.</grounding_think>
    <answer>
    {"coordinate":[983,174]}
    </answer>

The direction of `swipe` is the finger's; how far it goes is said in `grid`. The prompt asks for the conclusion within
the thinking. A refusal in the grounding format is our addition: `{"coordinate": null}`.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gui_owl_jax.agent.actions import ToolCall
from gui_owl_jax.agent.devices import BUTTONS, DeviceFamily
from gui_owl_jax.agent.dialects.answers import AnswerDialect
from gui_owl_jax.agent.dialects.base import Said
from gui_owl_jax.agent.dialects.grid import LONG_PRESS_SECONDS, OPPOSITE, WAIT_SECONDS, pair
from gui_owl_jax.agent.dialects.tool_calls import DESKTOP, MOBILE, ToolCallDialect
from gui_owl_jax.agent.dialects.vocabulary import Rule
from gui_owl_jax.agent.errors import ParseError, ParseReason

_SURPLUS = re.compile(r"\s*\}(?=\s*</answer>)")
_POINT = {"coordinate": "coordinate"}
_AGENT = {
    MOBILE: (
        Rule("click", "click", _POINT),
        Rule("long_press", "long_press", {**_POINT, "time": "time"}, defaults={"time": LONG_PRESS_SECONDS}),
        Rule("type", "type", {"text": "text"}),
        *(
            Rule(
                "swipe",
                "swipe",
                _POINT,
                when={"direction": (way,)},
                defaults={"coordinate": None},
                finger=way,
                note=f"Move a finger {way}, from the point or, without one, across the middle of the screen.",
            )
            for way in OPPOSITE
        ),
        Rule("open", "open", {"text": "text"}),
        Rule("drag", "swipe", {"start_coordinate": "coordinate", "end_coordinate": "coordinate2"}),
        *(
            Rule("system_button", "system_button", when={"button": (button.lower(), button)}, fixed={"button": button})
            for button in BUTTONS
        ),
        Rule("wait", "wait", {"time": "time"}, defaults={"time": WAIT_SECONDS}),
        Rule("terminate", "terminate", when={"status": ("success",)}, fixed={"status": "success"}),
        Rule("terminate", "terminate", when={"status": ("fail", "failure")}, fixed={"status": "failure"}),
        Rule("answer", "answer", {"text": "text"}),
        Rule("ask_user", "interact", {"text": "text"}),
        Rule("double_click", "", note="the family has no double tap"),
    ),
}
_GROUNDING = {
    family: (
        Rule("point", kind, _POINT),
        Rule("refuse", "terminate", fixed={"status": "failure"}, note="No element of the screen is meant."),
    )
    for family, kind in ((MOBILE, "click"), (DESKTOP, "left_click"))
}


@dataclasses.dataclass(frozen=True)
class MaiUi(ToolCallDialect):
    """The agent of MAI-UI."""

    concludes: ClassVar[bool] = False

    def rules(self) -> Mapping[DeviceFamily, Sequence[Rule]]:
        """The actions of the dialect by device family."""
        return _AGENT

    def join(self, said: Said, family: DeviceFamily) -> str:
        """Puts an output together."""
        thought = f"<thinking>\n{said.thought}\n</thinking>\n" if said.thought else ""
        return thought + self.call_block(said, family)


@dataclasses.dataclass(frozen=True)
class MaiUiGrounding(AnswerDialect):
    """The grounding format of MAI-UI: a point and nothing else."""

    think: ClassVar[str] = "grounding_think"
    around: ClassVar[str] = "\n"

    def rules(self) -> Mapping[DeviceFamily, Sequence[Rule]]:
        """The actions of the dialect by device family."""
        return _GROUNDING

    def value_at(self, text: str, start: int) -> tuple[object, int]:
        """The value within `<answer>` and where it ends; published answers have a brace too many now and then."""
        value, end = super().value_at(text, start)
        surplus = _SURPLUS.match(text, end)
        return value, surplus.end() if surplus else end

    def call_in(self, value: object) -> ToolCall:
        """The call that an answer holds: "point", or "refuse" without one."""
        if not isinstance(value, dict) or set(value) != {"coordinate"}:
            raise ParseError(ParseReason.BAD_JSON, f'the answer is {value!r:.80}, must be {{"coordinate": [x, y]}}')
        if value["coordinate"] is None:
            return ToolCall("refuse", {})
        pair(value["coordinate"])
        return ToolCall("point", value)

    def call_text(self, call: ToolCall, family: DeviceFamily) -> str:
        """The value that stands in `<answer>`."""
        point: Any = call.arguments.get("coordinate")
        if point is not None:
            point = [int(value) if float(value).is_integer() else value for value in point]
        return json.dumps({"coordinate": point}, separators=(",", ":"))
