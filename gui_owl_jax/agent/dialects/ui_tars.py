r"""UI-TARS 1 and 1.5: a Thought line and a call in the style of Python (`codes/ui_tars/prompt.py`).

    Thought: The field is empty, I fill it in.
    Action: type(content='one line\n')

Arguments of all releases are read: `point`, `start_box`, `start_point` and `end_box`, `end_point`, each as
`<point>3 4</point>`, `(3,4)` or `[3,4]`, with or without box tokens. Boxes of four numbers are not.

- `finished` with words is an answer, without it is success. `call_user` with words asks the user, without it is a
  refusal: the prompt of version 1 offers it for tasks that cannot be solved.
- `scroll` on a desktop turns the wheel where the cursor is; our action has no place for its point.
- `wait` and `long_press` may have a `time`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from gui_owl_jax.agent.actions import ToolCall
from gui_owl_jax.agent.devices import DEVICE_FAMILIES, DeviceFamily
from gui_owl_jax.agent.dialects.base import Dialect, Said
from gui_owl_jax.agent.dialects.grid import (
    CLICK_PIXELS,
    LONG_PRESS_SECONDS,
    OPPOSITE,
    WAIT_SECONDS,
    WHEEL_CLICKS,
    pair,
)
from gui_owl_jax.agent.dialects.literals import read_call, write_call
from gui_owl_jax.agent.dialects.marks import check_end
from gui_owl_jax.agent.dialects.vocabulary import Rule, Style
from gui_owl_jax.agent.errors import ParseError, ParseReason

MOBILE, DESKTOP, _ = DEVICE_FAMILIES
_CALL = r"Action:(?=\s*[A-Za-z_]\w*\()"
_AT_LINE, _ANYWHERE = re.compile(rf"^[ \t]*{_CALL}", re.MULTILINE), re.compile(_CALL)
_NUMBER = r"([+-]?[0-9]{1,40}(?:\.[0-9]{1,40})?)"
_POINT = re.compile(
    rf"<point>\s*{_NUMBER}[\s,]+{_NUMBER}\s*</point>"
    rf"|(?:<\|box_start\|>)?\s*\(\s*{_NUMBER}\s*,\s*{_NUMBER}\s*\)\s*(?:<\|box_end\|>)?"
    rf"|\[\s*{_NUMBER}\s*,\s*{_NUMBER}\s*\]"
)
_NAMES = {"start_box": "point", "start_point": "point"}
_DRAG_NAMES = {"start_box": "start_point", "end_box": "end_point"}
_BOXES = {"point": "start_box", "start_point": "start_box", "end_point": "end_box"}
_WHEEL = (("down", "scroll", -1), ("up", "scroll", 1), ("left", "hscroll", 1), ("right", "hscroll", -1))


def read_point(value: object) -> tuple[object, object]:
    """The two numbers of a point in one of the forms that UI-TARS writes; ParseError (BAD_ARGUMENT) otherwise."""
    if not isinstance(value, str):
        return pair(value)
    found = _POINT.fullmatch(value.strip())
    if not found:
        raise ParseError(ParseReason.BAD_ARGUMENT, f"the point is {value!r:.80}, must be '<point>x y</point>', say")
    x, y = (part for part in found.groups() if part is not None)
    return x, y


def read_keys(value: object) -> object:
    """The names in 'ctrl c'. 'ctrl+c' may be a chord or a name: ParseError (BAD_ARGUMENT)."""
    if not isinstance(value, str) or any("+" in key and key != "+" for key in value.split()):
        raise ParseError(ParseReason.BAD_ARGUMENT, f"the keys are {value!r:.80}, must be names and spaces")
    return value.split()


POINTS_AND_KEYS = Style(
    read_point=read_point,
    write_point=lambda x, y: f"<point>{x:.12g} {y:.12g}</point>",
    read_keys=read_keys,
    write_keys=" ".join,
)


@dataclasses.dataclass(frozen=True)
class UiTars(Dialect):
    """UI-TARS 1.5.

    Attributes:
      boxes: whether points are written as version 1 does, `start_box='<|box_start|>(x,y)<|box_end|>'`.
    """

    boxes: bool = False

    style: ClassVar[Style] = POINTS_AND_KEYS

    def rules(self) -> Mapping[DeviceFamily, Sequence[Rule]]:
        """The actions of the dialect by device family."""
        return RULES

    def split(self, text: str, family: DeviceFamily) -> Said:
        """Takes an output apart; ParseError if it is not exactly one call behind `Action:`."""
        # A thought may mention "Action: click(...)", so a line that begins with it comes first; what follows the first
        # call, further calls included, must not be there.
        mark = _AT_LINE.search(text) or _ANYWHERE.search(text)
        if not mark:
            raise ParseError(ParseReason.NO_TOOL_CALL, f"no call stands behind 'Action:' in {text[-80:]!r}")
        call, end = read_call(text, mark.end())
        check_end(text, end, r"\w\(")
        names = _DRAG_NAMES if call.name == "drag" else _NAMES
        arguments = {names.get(name, name): value for name, value in call.arguments.items()}
        if len(arguments) < len(call.arguments):
            raise ParseError(ParseReason.BAD_ARGUMENT, f"{call.name} has two points for one: {list(call.arguments)}")
        thought = text[: mark.start()].strip().removeprefix("Thought:").strip()
        return Said(thought, "", ToolCall(call.name, arguments), call)

    def call_text(self, call: ToolCall, family: DeviceFamily) -> str:
        """The call alone."""
        if not self.boxes:
            return write_call(call)
        boxes = {_BOXES[name]: _boxed(value) for name, value in call.arguments.items() if name in _BOXES}
        others = {name: value for name, value in call.arguments.items() if name not in _BOXES}
        return write_call(ToolCall(call.name, {**boxes, **others}))

    def join(self, said: Said, family: DeviceFamily) -> str:
        """Puts an output together."""
        return f"Thought: {said.thought}\nAction: {self.call_text(said.call, family)}"


def _boxed(point: object) -> str:
    x, y = read_point(point)
    return f"<|box_start|>({x},{y})<|box_end|>"


def scroll_wheel(name: str, ignored: tuple[str, ...], key: str = "direction") -> tuple[Rule, ...]:
    """Rules for scrolling a desktop by the direction in the argument `key`: pixels are positive up and left."""
    return tuple(
        Rule(
            name,
            kind,
            when={key: (way,)},
            fixed={"pixels": sign * WHEEL_CLICKS * CLICK_PIXELS},
            ignored=ignored,
            note=f"Turn the wheel to see what is further {way}.",
        )
        for way, kind, sign in _WHEEL
    )


def scroll_finger(
    name: str, ignored: tuple[str, ...] = (), key: str = "direction", arguments: Mapping[str, str] | None = None
) -> tuple[Rule, ...]:
    """Rules for scrolling a phone by the direction in the argument `key`: the finger goes the other way."""
    return tuple(
        Rule(
            name,
            "swipe",
            arguments or {},
            when={key: (way,)},
            defaults={"coordinate": None},
            ignored=ignored,
            finger=OPPOSITE[way],
            note=f"Swipe to see what is further {way}.",
        )
        for way in ("down", "up", "left", "right")
    )


_AT = {"point": "coordinate"}
WORDS = (
    Rule("type", "type", {"content": "text"}),
    Rule("wait", "wait", {"time": "time"}, defaults={"time": WAIT_SECONDS}),
    Rule("finished", "terminate", when={"content": ("",)}, fixed={"status": "success"}),
    Rule("finished", "answer", {"content": "text"}),
    Rule("call_user", "terminate", when={"content": ("",)}, fixed={"status": "failure"}),
    Rule("call_user", "interact", {"content": "text"}),
)
DESKTOP_RULES = (
    Rule("click", "left_click", _AT),
    Rule("left_double", "double_click", _AT),
    Rule("right_single", "right_click", _AT),
    Rule("hotkey", "key", {"key": "keys"}),
    *scroll_wheel("scroll", ignored=("point",)),
    *WORDS,
    Rule("drag", "", note="left_click_drag starts where the cursor is and has no place for start_point"),
)
TOUCH_RULES = (
    Rule("click", "click", _AT),
    *scroll_finger("scroll", arguments=_AT),
    Rule("drag", "swipe", {"start_point": "coordinate", "end_point": "coordinate2"}),
    *WORDS,
)
RULES: Mapping[DeviceFamily, Sequence[Rule]] = {
    DESKTOP: DESKTOP_RULES,
    MOBILE: (
        *TOUCH_RULES,
        Rule("long_press", "long_press", {**_AT, "time": "time"}, defaults={"time": LONG_PRESS_SECONDS}),
        Rule("open_app", "open", {"app_name": "text"}),
        Rule("press_home", "system_button", fixed={"button": "Home"}),
        Rule("press_back", "system_button", fixed={"button": "Back"}),
    ),
}
