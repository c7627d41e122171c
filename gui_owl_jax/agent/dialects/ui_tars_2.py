"""UI-TARS-2: calls in XML-like tags (trycua/cua, `loops/uitars2.py`).

    <gui_think>I go on.</gui_think>
    <seed:tool_call><function=click><parameter=point><point>3 4</point></parameter></function></seed:tool_call>

Values have no escapes. Typed text is taken as it stands between its tags, line breaks at its end included, because
they submit it; other values lose outer white space. `finished` and `call_user` are read as in `ui_tars`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from gui_owl_jax.agent.actions import ToolCall
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.dialects.base import Dialect, Said
from gui_owl_jax.agent.dialects.marks import block, check_end, thought_before
from gui_owl_jax.agent.dialects.ui_tars import DESKTOP, DESKTOP_RULES, MOBILE, POINTS_AND_KEYS, TOUCH_RULES
from gui_owl_jax.agent.dialects.vocabulary import Rule, Style
from gui_owl_jax.agent.errors import ParseError, ParseReason

_OPEN = "<seed:tool_call>"
_THINK = ("gui_think", "think", "think_never_used_51bce0c785ca2f68081bfa7d91973934")
_FUNCTION = re.compile(r"\s*<function=(\w+)>")
_PARAMETER = re.compile(r"\s*<parameter=(\w+)>(.*?)</parameter>", re.DOTALL)
_FUNCTION_END = re.compile(r"\s*</function>")
_NO_COUNTERPART = {
    "open_computer": "the computer is always open",
    "take_screenshot": "every step shows the screen",
    "press": "the family has no way to hold a key",
    "release": "the family has no way to hold a key",
    "mouse_down": "the family has no way to hold a mouse button",
    "mouse_up": "the family has no way to hold a mouse button",
}
_RULES = {
    DESKTOP: (
        *DESKTOP_RULES,
        Rule("move_to", "mouse_move", {"point": "coordinate"}),
        *(Rule(name, "", note=why) for name, why in _NO_COUNTERPART.items()),
    ),
    MOBILE: TOUCH_RULES,
}


@dataclasses.dataclass(frozen=True)
class UiTars2(Dialect):
    """UI-TARS-2."""

    style: ClassVar[Style] = POINTS_AND_KEYS

    def rules(self) -> Mapping[DeviceFamily, Sequence[Rule]]:
        """The actions of the dialect by device family."""
        return _RULES

    def split(self, text: str, family: DeviceFamily) -> Said:
        """Takes an output apart; ParseError if it is not exactly one function in one call."""
        thought, start = thought_before(text, _OPEN, _THINK)
        call, end = block(text, start, _OPEN, _read_function)
        check_end(text, end, _OPEN)
        return Said(thought, "", call)

    def call_text(self, call: ToolCall, family: DeviceFamily) -> str:
        """The call alone."""
        parameters = "".join(f"<parameter={name}>{value}</parameter>" for name, value in call.arguments.items())
        return f"<function={call.name}>{parameters}</function>"

    def join(self, said: Said, family: DeviceFamily) -> str:
        """Puts an output together."""
        thought = f"<gui_think>{said.thought}</gui_think>\n" if said.thought else ""
        return f"{thought}{_OPEN}{self.call_text(said.call, family)}</seed:tool_call>"


def _read_function(text: str, start: int) -> tuple[ToolCall, int]:
    opening = _FUNCTION.match(text, start)
    if not opening:
        raise ParseError(ParseReason.BAD_JSON, f"'<function=NAME>' should stand before {text[start:][:80]!r}")
    arguments: dict[str, object] = {}
    at = opening.end()
    while parameter := _PARAMETER.match(text, at):
        name, value = parameter.groups()
        if name in arguments:
            raise ParseError(ParseReason.BAD_JSON, f"the parameter {name} comes twice")
        arguments[name] = value if name == "content" else value.strip()
        at = parameter.end()
    closing = _FUNCTION_END.match(text, at)
    if not closing:
        raise ParseError(ParseReason.BAD_JSON, f"'</function>' should stand before {text[at:][:80]!r}")
    if _FUNCTION.match(text, closing.end()):
        raise ParseError(ParseReason.SEVERAL_TOOL_CALLS, "a second function follows the first")
    return ToolCall(opening[1], arguments), closing.end()
