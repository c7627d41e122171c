"""UI-Venus 1.5: thinking, a call in the style of Python, and a conclusion, each in tags (report, appendix A).

    <think>The list goes on.</think>
    <action>Scroll(start=(500, 700), end=(500, 300))</action>
    <conclusion>Scrolled the list.</conclusion>

- `Finished` is success, whatever its optional words say. `CallUser` with words is an answer (appendix A), without it is
  a refusal. To a grounding prompt the model answers `[x, y]` alone, or [-1, -1] for nothing.
- `Drag` and `Scroll` on a phone are both a swipe, the one way in which its finger moves. On a desktop `Scroll` turns
  the wheel by its direction, and there is no drag from one point to another.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from gui_owl_jax.agent.actions import ToolCall
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.dialects.base import Dialect, Said
from gui_owl_jax.agent.dialects.grid import LONG_PRESS_SECONDS, WAIT_SECONDS, pair
from gui_owl_jax.agent.dialects.literals import read_call, read_value, write_call
from gui_owl_jax.agent.dialects.marks import block, check_end, thought_before
from gui_owl_jax.agent.dialects.ui_tars import DESKTOP, MOBILE, scroll_wheel
from gui_owl_jax.agent.dialects.vocabulary import Rule, Style

_OPEN = "<action>"
_BARE_POINT = re.compile(r"\s*\[[^\[\]]*\]\s*(?:<\|im_end\|>|<\|endoftext\|>|\s)*")
_CONCLUSION = re.compile(r"\s*<conclusion>((?:(?!</?conclusion>).)*)</conclusion>", re.DOTALL)
_NOWHERE = (-1, -1)
_AT, _BETWEEN = {"box": "coordinate"}, {"start": "coordinate", "end": "coordinate2"}
_WORDS = (
    Rule("Type", "type", {"content": "text"}),
    Rule("Wait", "wait", {"time": "time"}, defaults={"time": WAIT_SECONDS}),
    Rule("Finished", "terminate", fixed={"status": "success"}, ignored=("content",)),
    Rule("CallUser", "terminate", when={"content": ("",)}, fixed={"status": "failure"}),
    Rule("CallUser", "answer", {"content": "text"}),
)
_BUTTONS = {"PressBack": "Back", "PressHome": "Home", "PressEnter": "Enter", "PressRecent": "Menu"}
_RULES = {
    MOBILE: (
        Rule("Click", "click", _AT),
        Rule("LongPress", "long_press", {**_AT, "time": "time"}, defaults={"time": LONG_PRESS_SECONDS}),
        Rule("Scroll", "swipe", _BETWEEN, ignored=("direction",)),
        Rule("Drag", "swipe", _BETWEEN),
        Rule("Launch", "open", {"app": "text"}),
        *(Rule(name, "system_button", fixed={"button": button}) for name, button in _BUTTONS.items()),
        *_WORDS,
        Rule("DoubleClick", "", note="the family has no double tap"),
        Rule("Hover", "", note="a finger does not hover"),
        Rule("Hotkey", "", note="a phone has no keyboard with chords"),
    ),
    DESKTOP: (
        Rule("Click", "left_click", _AT),
        Rule("DoubleClick", "double_click", _AT),
        Rule("Hover", "mouse_move", _AT),
        Rule("Hotkey", "key", {"keys": "keys"}),
        Rule("PressEnter", "key", fixed={"keys": ("enter",)}),
        *scroll_wheel("Scroll", ignored=("start", "end")),
        *_WORDS,
        Rule("Drag", "", note="left_click_drag starts where the cursor is and has no place for the start"),
        *(Rule(name, "", note="a desktop has no such button") for name in ("PressBack", "PressHome", "PressRecent")),
        *(Rule(name, "", note="the family has no such action") for name in ("LongPress", "Launch")),
    ),
}


@dataclasses.dataclass(frozen=True)
class UiVenus(Dialect):
    """UI-Venus 1.5."""

    style: ClassVar[Style] = Style(read_point=pair, write_point=lambda x, y: (x, y))
    concludes: ClassVar[bool] = True

    def rules(self) -> Mapping[DeviceFamily, Sequence[Rule]]:
        """The actions of the dialect by device family."""
        return _RULES

    def split(self, text: str, family: DeviceFamily) -> Said:
        """Takes an output apart; ParseError if it is not exactly one call in `<action>`, or a bare point."""
        if _BARE_POINT.fullmatch(text):
            point, _ = read_value(text)
            if tuple(point) == _NOWHERE:  # type: ignore[arg-type]
                return Said("", "", ToolCall("CallUser", {}))
            return Said("", "", ToolCall("Click", {"box": point}))
        thought, start = thought_before(text, _OPEN, ("think",))
        call, end = block(text, start, _OPEN, read_call)
        conclusion = ""
        if said := _CONCLUSION.match(text, end):
            conclusion, end = " ".join(said[1].split()), said.end()
        check_end(text, end, _OPEN)
        return Said(thought, conclusion, call)

    def call_text(self, call: ToolCall, family: DeviceFamily) -> str:
        """The call alone."""
        return write_call(call)

    def join(self, said: Said, family: DeviceFamily) -> str:
        """Puts an output together."""
        action = f"{_OPEN}{self.call_text(said.call, family)}</action>"
        return f"<think>{said.thought}</think>\n{action}\n<conclusion>{said.conclusion}</conclusion>"
