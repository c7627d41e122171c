"""What all dialects have in common."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from gui_owl_jax.agent.actions import Action, ToolCall
from gui_owl_jax.agent.devices import BUTTONS, DIRECTIONS, STATUSES, DeviceFamily
from gui_owl_jax.agent.dialects.grid import RESIZED, Grid
from gui_owl_jax.agent.dialects.vocabulary import (
    POINTS,
    Rule,
    Style,
    call_of,
    described,
    read_action,
    same_action,
    write_action,
)
from gui_owl_jax.agent.errors import ConfigError, DataError, ParseError
from gui_owl_jax.agent.parsing import ParsedResponse

REFUSE = Action("terminate", status="failure")
_POINTING = {DeviceFamily.MOBILE: "click", DeviceFamily.DESKTOP: "left_click"}
_DEVICES = {DeviceFamily.MOBILE: "a phone", DeviceFamily.DESKTOP: "a computer", DeviceFamily.WEB: "a web browser"}
_REASONING, _SENTENCE = "<your reasoning>", "<what you do, in one sentence>"
# Stand-ins of the arguments in prompts. The numbers are replaced by the names of coordinates.
_STAND_INS: Mapping[str, object] = {
    "coordinate": (7001.0, 7002.0),
    "coordinate2": (7003.0, 7004.0),
    "text": "...",
    "keys": ("ctrl", "c"),
    "time": 2,
    "pixels": -300,
    "label": 7,
    "option": "...",
    "direction": "|".join(DIRECTIONS),
    "button": "|".join(BUTTONS),
    "status": "|".join(STATUSES),
}
_COORDINATES = {"7001": "x", "7002": "y", "7003": "x2", "7004": "y2"}


class Said(NamedTuple):
    """The parts of an output.

    Attributes:
      thought: the reasoning, "" for none.
      conclusion: the sentence that sums the step up, "" for none.
      call: the dialect's name of the action with its arguments, as the rules know them.
      written: the call as the model wrote it, None if it is the same.
    """

    thought: str
    conclusion: str
    call: ToolCall
    written: ToolCall | None = None


@dataclasses.dataclass(frozen=True)
class Dialect(ABC):
    """A format in which agents say what they do.

    A dialect differs from another in how the parts of an output are marked (`split`, `join`), in what the actions are
    called (`rules`, `style`) and in the numbers of its points (`scale`). The rest is the same for all: one action or a
    `ParseError`, and a refusal is `Action("terminate", status="failure")`.

    Attributes:
      name: the key in `DIALECTS`.
      scale: 1000.0 or 999.0, the number of the right and lower edge of the screen, or "resized": points are pixels of
        the picture that the image processor made.
    """

    name: str
    scale: float | str

    style: ClassVar[Style] = Style()
    concludes: ClassVar[bool] = False  # whether the format has a place for the conclusion
    reasons: ClassVar[bool] = True  # whether the prompt asks for a thought

    @abstractmethod
    def rules(self) -> Mapping[DeviceFamily, Sequence[Rule]]:
        """The actions of the dialect by device family."""

    @abstractmethod
    def split(self, text: str, family: DeviceFamily) -> Said:
        """Takes an output apart.

        Raises:
          ParseError: it is not exactly one call.
        """

    @abstractmethod
    def call_text(self, call: ToolCall, family: DeviceFamily) -> str:
        """The call alone, without what marks it in an output."""

    def signature(self, call: ToolCall, family: DeviceFamily) -> str:
        """The call as the prompt lists it."""
        return self.call_text(call, family)

    @abstractmethod
    def join(self, said: Said, family: DeviceFamily) -> str:
        """Puts an output together."""

    def parse(self, text: str, family: DeviceFamily, shown: tuple[int, int] | None = None) -> ParsedResponse:
        """Reads one model output.

        Args:
          text: the output, without the prompt.
          family: the device family that the action is for.
          shown: (width, height) in pixels of the picture that the model saw; needed where `scale` is "resized".

        Returns:
          The parts; points of the action on the 0-1000 grid, not rounded; `call` as it was written.

        Raises:
          ParseError: the output is not exactly one action of the family; `.reason` says why.
          DataError: a point is in pixels of the picture, and `shown` is not known.
          ConfigError: the dialect cannot act on the family.
        """
        rules = self._rules(family)
        said = self.split(text, family)
        action = read_action(rules, said.call, family, self.style, Grid(self.scale, shown))
        return ParsedResponse(said.thought, said.conclusion, action, said.written or said.call)

    def render(
        self,
        action: Action,
        family: DeviceFamily,
        *,
        thought: str = "",
        conclusion: str = "",
        shown: tuple[int, int] | None = None,
    ) -> str:
        """Writes an output that `parse` reads back as the same action and thought.

        Points become whole numbers on every grid but that of 1000. A format without a conclusion gets it as the last
        line of the thought. Outer white space of both is dropped.

        Raises:
          ParseError: UNKNOWN_ACTION, the dialect cannot say exactly this action.
          DataError: thought, conclusion or text would be read as something else (they spell a tag, say), or `shown`
            is needed and not known.
          ConfigError: the dialect cannot act on the family.
        """
        grid = Grid(self.scale, shown)
        call = write_action(self._rules(family), action, family, self.style, grid)
        said = self._said(thought, conclusion, call)
        text = self.join(said, family)
        try:
            back = self.parse(text, family, shown)
        except ParseError as error:
            raise DataError(f"{self.name} cannot say {action.kind} in these words: {error}") from error
        parts = (back.thought, back.conclusion)
        if parts != (said.thought, said.conclusion) or not same_action(back.action, action, grid):
            raise DataError(f"{self.name} would read {text!r:.200} as something else: a part spells one of its tags")
        return text

    def instructions(self, family: DeviceFamily) -> str:
        """The system prompt for acting on a family: actions, numbers, form of the answer.

        Raises:
          ConfigError: the dialect cannot act on the family.
        """
        rules = [rule for rule in self._rules(family) if rule.kind and not rule.type_only]
        lines = [
            f"- {_named(self.signature(self._example(rule), family))}: {described(rule, family)}" for rule in rules
        ]
        example = self._example(next((rule for rule in rules if rule.kind == _POINTING.get(family)), rules[0]))
        return "\n\n".join(
            [
                f"You operate {_DEVICES[family]}. You are given a task, what was done so far, and the screen as it is "
                "now. Do the next step: one action, no more.",
                "\n".join(["The actions:", *lines]),
                self.scale_note(),
                f"The form of the answer, here with one of the actions:\n{self._form(family, example)}",
            ]
        )

    def grounding_instructions(self, family: DeviceFamily | None = None) -> str:
        """The system prompt for pointing at one element, or refusing.

        Args:
          family: the family of the screen; None states the forms of all families where they differ.

        Raises:
          ConfigError: the dialect cannot point on the family.
        """
        if family and family not in _POINTING:
            raise ConfigError(f"nothing is pointed at on the family {family}: its elements have labels")
        families = [family] if family else [one for one in _POINTING if one in self.rules()]
        forms = {one: self._pointing_forms(one) for one in families}
        differ = len(set(forms.values())) > 1
        texts = [
            "You are shown a screen and told which of its elements is meant. Point at the middle of that element, and "
            "do nothing else.",
            self.scale_note(),
        ]
        for one, (point, refusal) in forms.items() if differ else list(forms.items())[:1]:
            where = f"On the screen of {_DEVICES[one]} the" if differ else "The"
            texts.append(f"{where} form of the answer is:\n{point}\n\nIf no element is meant, answer:\n{refusal}")
        return "\n\n".join(texts)

    def scale_note(self) -> str:
        """What the numbers of points mean, for the prompt."""
        if self.scale == RESIZED:
            return "Points are pixels of the picture as you see it: x counts from its left edge, y from its top edge."
        return (
            f"Points lie on a grid over the screen, whatever its real size: x runs from 0 (left) to {self.scale:g} "
            f"(right), y from 0 (top) to {self.scale:g} (bottom)."
        )

    def _rules(self, family: DeviceFamily) -> Sequence[Rule]:
        rules = self.rules()
        if family not in rules:
            why = "has no Set-of-Marks labels for" if family == DeviceFamily.WEB else "has no actions for"
            raise ConfigError(f"dialect {self.name} {why} the family {family}; it can act on {', '.join(rules)}")
        return rules[family]

    def _said(self, thought: str, conclusion: str, call: ToolCall) -> Said:
        thought, conclusion = thought.strip(), conclusion.strip()
        if self.concludes:
            return Said(thought, conclusion, call)
        return Said("\n".join(filter(None, [thought, conclusion])), "", call)

    def _example(self, rule: Rule) -> ToolCall:
        fields = {field: value for field, value in _STAND_INS.items() if field in POINTS or field not in rule.defaults}
        return call_of(rule, fields, self.style)

    def _form(self, family: DeviceFamily, call: ToolCall) -> str:
        return _named(self.join(self._said(_REASONING if self.reasons else "", _SENTENCE, call), family))

    def _pointing_forms(self, family: DeviceFamily) -> tuple[str, str]:
        rules = self._rules(family)
        pointing = next(rule for rule in rules if rule.kind == _POINTING[family])
        refusal = write_action(rules, REFUSE, family, self.style, Grid(self.scale))
        return self._form(family, self._example(pointing)), self._form(family, refusal)


def _named(text: str) -> str:
    for number, name in _COORDINATES.items():
        text = text.replace(number, name)
    return text
