"""Dialects that think and then answer with a value: UI-R1; the base of GUI-R1 and MAI-UI's grounding.

    <think>The search field is at the top.</think><answer>[{'action': 'click', 'coordinate': [240, 96]}]</answer>

UI-R1 (`grpo_json_action_coord.py`) says which type an action has and where a click goes. Its answers have no place for
an app, a text or a direction: without one, the action that is read has none either, fit to be compared with a label by
its kind alone. Our additions are the names that its test labels use (`app_name`, `text`, `direction`), and 'impossible'
for a refusal. The published prompt has an unbalanced quote in its list of actions; ours has not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

from gui_owl_jax.agent.actions import ToolCall
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.dialects.base import Dialect, Said
from gui_owl_jax.agent.dialects.literals import read_value, write_value
from gui_owl_jax.agent.dialects.marks import block, check_end, thought_before
from gui_owl_jax.agent.dialects.ui_tars import DESKTOP, MOBILE, scroll_finger, scroll_wheel
from gui_owl_jax.agent.dialects.vocabulary import Rule
from gui_owl_jax.agent.errors import ParseError, ParseReason

_OPEN = "<answer>"
REFUSAL = Rule("impossible", "terminate", fixed={"status": "failure"}, note="Nothing on the screen serves the task.")

_IGNORED = ("coordinate",)
_REFUSAL = dataclasses.replace(REFUSAL, ignored=_IGNORED)
_RULES = {
    MOBILE: (
        Rule("click", "click", {"coordinate": "coordinate"}),
        Rule("navigate_back", "system_button", fixed={"button": "Back"}, ignored=_IGNORED),
        *scroll_finger("scroll", _IGNORED),
        Rule("scroll", "swipe", when={"direction": ("",)}, ignored=_IGNORED, type_only=True),
        Rule("open_app", "open", when={"app_name": ("",)}, ignored=_IGNORED, type_only=True),
        Rule("open_app", "open", {"app_name": "text"}, ignored=_IGNORED),
        Rule("input_text", "type", when={"text": ("",)}, ignored=_IGNORED, type_only=True),
        Rule("input_text", "type", {"text": "text"}, ignored=_IGNORED),
        _REFUSAL,
    ),
    DESKTOP: (
        Rule("click", "left_click", {"coordinate": "coordinate"}),
        *scroll_wheel("scroll", _IGNORED),
        Rule("input_text", "type", {"text": "text"}, ignored=_IGNORED),
        _REFUSAL,
        Rule("open_app", "", note="the family has no way to open an app by its name"),
        Rule("navigate_back", "", note="a desktop has no such button"),
    ),
}


@dataclasses.dataclass(frozen=True)
class AnswerDialect(Dialect):
    """UI-R1.

    Attributes:
      think: the tag of the reasoning.
      around: what stands around the value within `<answer>`.
    """

    think: ClassVar[str] = "think"
    around: ClassVar[str] = ""

    def rules(self) -> Mapping[DeviceFamily, Sequence[Rule]]:
        """The actions of the dialect by device family."""
        return _RULES

    def split(self, text: str, family: DeviceFamily) -> Said:
        """Takes an output apart; ParseError if it is not exactly one action in `<answer>`."""
        thought, start = thought_before(text, _OPEN, (self.think,))
        value, end = block(text, start, _OPEN, self.value_at)
        check_end(text, end, _OPEN)
        return Said(thought, "", self.call_in(value))

    def value_at(self, text: str, start: int) -> tuple[object, int]:
        """The value within `<answer>` and where it ends."""
        return read_value(text, start)

    def call_in(self, value: object) -> ToolCall:
        """The call that an answer holds: a list of one dict."""
        items = value if isinstance(value, list) else [value]
        if not items:
            raise ParseError(ParseReason.NO_TOOL_CALL, "the answer is an empty list")
        if len(items) > 1 and all(isinstance(item, dict) for item in items):
            raise ParseError(ParseReason.SEVERAL_TOOL_CALLS, f"the answer lists {len(items)} actions")
        if len(items) > 1 or not isinstance(items[0], dict):
            raise ParseError(ParseReason.BAD_JSON, f"the answer is {value!r:.80}, must be a list of one dict")
        arguments = dict(items[0])
        name = arguments.pop("action", None)
        if name is None:
            raise ParseError(ParseReason.MISSING_ARGUMENT, "'action' is missing")
        if not isinstance(name, str):
            raise ParseError(ParseReason.UNKNOWN_ACTION, f"{name!r:.80} is not the name of an action")
        return ToolCall(name, arguments)

    def call_text(self, call: ToolCall, family: DeviceFamily) -> str:
        """The value that stands in `<answer>`."""
        return write_value([{"action": call.name, **call.arguments}])

    def join(self, said: Said, family: DeviceFamily) -> str:
        """Puts an output together."""
        value = f"{self.around}{self.call_text(said.call, family)}{self.around}"
        return f"<{self.think}>{said.thought}</{self.think}>\n{_OPEN}{value}</answer>"
