"""GUI-R1: think, then a list of one dict of action, point and text.

    <think>The shop has a search field.</think>
    <answer>[{'action': 'type', 'point': [-100, -100], 'input_text': 'tea'}]</answer>

`point` and `input_text` are always there, [-100, -100] and 'no input text' where there is none. `scroll` has its
direction as text. 'complete' is success, 'impossible' a refusal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from gui_owl_jax.agent.actions import ToolCall
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.dialects.answers import REFUSAL, AnswerDialect
from gui_owl_jax.agent.dialects.grid import LONG_PRESS_SECONDS, WAIT_SECONDS
from gui_owl_jax.agent.dialects.ui_tars import DESKTOP, MOBILE, scroll_finger, scroll_wheel
from gui_owl_jax.agent.dialects.vocabulary import Rule

_AT, _TYPED = {"point": "coordinate"}, {"input_text": "text"}
_IGNORED = ("point",)
_BUTTONS = {"press_back": "Back", "press_home": "Home", "press_recent": "Menu"}
_NOTHING: Mapping[str, object] = {"point": [-100, -100], "input_text": "no input text"}
_BOTH = (
    Rule("type", "type", _TYPED, ignored=_IGNORED),
    Rule("wait", "wait", {"time": "time"}, defaults={"time": WAIT_SECONDS}, ignored=_IGNORED),
    Rule("complete", "terminate", fixed={"status": "success"}, ignored=_IGNORED),
    dataclasses.replace(REFUSAL, ignored=_IGNORED),
    Rule("select", "", note="the family has no way to choose an option by its name"),
    Rule("close/delete", "", note="it does not say where"),
)
_RULES = {
    MOBILE: (
        Rule("click", "click", _AT),
        Rule("long_press", "long_press", {**_AT, "time": "time"}, defaults={"time": LONG_PRESS_SECONDS}),
        *scroll_finger("scroll", _IGNORED, key="input_text"),
        Rule("open_app", "open", _TYPED, ignored=_IGNORED),
        *(
            Rule(name, "system_button", fixed={"button": button}, ignored=_IGNORED)
            for name, button in {**_BUTTONS, "enter": "Enter"}.items()
        ),
        *_BOTH,
    ),
    DESKTOP: (
        Rule("click", "left_click", _AT),
        *scroll_wheel("scroll", _IGNORED, key="input_text"),
        Rule("enter", "key", fixed={"keys": ("enter",)}, ignored=_IGNORED),
        *_BOTH,
        *(Rule(name, "", note="a desktop has no such button") for name in _BUTTONS),
    ),
}


@dataclasses.dataclass(frozen=True)
class GuiR1(AnswerDialect):
    """GUI-R1."""

    def rules(self) -> Mapping[DeviceFamily, Sequence[Rule]]:
        """The actions of the dialect by device family."""
        return _RULES

    def call_in(self, value: object) -> ToolCall:
        """The call that an answer holds, without what stands for nothing."""
        call = super().call_in(value)
        given = {name: item for name, item in call.arguments.items() if name not in _NOTHING or item != _NOTHING[name]}
        return ToolCall(call.name, given)

    def call_text(self, call: ToolCall, family: DeviceFamily) -> str:
        """The value that stands in `<answer>`."""
        return super().call_text(ToolCall(call.name, {**_NOTHING, **call.arguments}), family)
