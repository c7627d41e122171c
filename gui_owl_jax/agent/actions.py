"""Actions, tool calls, and the way between them; relative coordinates and pixels.

An action is checked against the table of its device family in both directions. Nothing is guessed: a value that
has one possible reading is converted (a number written as a string, say), anything else is a `ParseError`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from gui_owl_jax.agent.devices import (
    ACTION_TABLE,
    BUTTONS,
    DIRECTIONS,
    STATUSES,
    WINDOW,
    ActionSpec,
    DeviceFamily,
    tool_name,
)
from gui_owl_jax.agent.errors import DataError, ParseError, ParseReason

__all__ = [
    "ACTION_TABLE",
    "SCALE",
    "TOOL_KIND",
    "Action",
    "ActionSpec",
    "ToolCall",
    "action_from_call",
    "call_from_action",
    "from_pixels",
    "to_pixels",
]

SCALE = 1000  # coordinates run from 0 to SCALE on both axes (GUI-Owl-1.5, value/1000 * size)
TOOL_KIND = "tool"  # kind of the action that stands for the call of an extra (MCP) tool; its text is the tool's name


@dataclasses.dataclass(frozen=True)
class Action:
    """One action of a device family; arguments that the action does not have are None.

    Attributes:
      kind: a key of `ACTION_TABLE[family]`, or `TOOL_KIND`.
      coordinate: the point (x, y) on the 0-1000 screen; where a drag ends, where a swipe starts.
      coordinate2: where a swipe ends, as (x, y).
      text: text to type, app to open, answer, key event.
      button: one of `devices.BUTTONS`.
      keys: names of keys pressed together.
      time: seconds.
      status: "success" or "failure".
      pixels: distance to scroll, positive is up.
      label: number of a Set-of-Marks chip, or "WINDOW".
      direction: "up" or "down".
      option: option of a drop-down list.
    """

    kind: str
    coordinate: tuple[float, float] | None = None
    coordinate2: tuple[float, float] | None = None
    text: str | None = None
    button: str | None = None
    keys: tuple[str, ...] | None = None
    time: float | None = None
    status: str | None = None
    pixels: int | None = None
    label: int | str | None = None
    direction: str | None = None
    option: str | None = None


ARGUMENT_NAMES = tuple(field.name for field in dataclasses.fields(Action) if field.name != "kind")


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A call as it stands in a response: the tool's name and its JSON arguments."""

    name: str
    arguments: Mapping[str, object]


def action_from_call(family: DeviceFamily, call: ToolCall) -> Action:
    """Reads the action of a call to the family's tool.

    Arguments that are null count as absent. Numbers may be written as strings; an integer may be written as a float.

    Raises:
      ParseError: the call is not exactly one action of the family (see `ParseReason`).
    """
    if call.name != tool_name(family):
        raise ParseError(ParseReason.WRONG_TOOL, f"{call.name!r:.80} was called, {family} has {tool_name(family)!r}")
    arguments = {name: value for name, value in call.arguments.items() if value is not None}
    if "action" not in arguments:
        raise ParseError(ParseReason.MISSING_ARGUMENT, "'action' is missing")
    kind = arguments.pop("action")
    spec = _spec(family, kind)
    missing = [name for name in spec.required if name not in arguments]
    if missing:
        raise ParseError(ParseReason.MISSING_ARGUMENT, f"{kind} needs {missing}")
    # A null argument of another action is harmless, a null argument that no action has is not.
    unknown = [name for name in call.arguments if name != "action" and name not in ARGUMENT_NAMES]
    unknown += [name for name in arguments if name in ARGUMENT_NAMES and name not in spec.arguments]
    if unknown:
        raise ParseError(ParseReason.UNKNOWN_ARGUMENT, f"{kind} does not take {unknown!s:.200}")
    values: dict[str, Any] = {name: _READERS[name](f"{kind}.{name}", value) for name, value in arguments.items()}
    if values.get("label") == WINDOW and kind != "scroll":
        raise ParseError(ParseReason.BAD_ARGUMENT, f"{kind}.label: {WINDOW} can only be scrolled")
    return Action(kind=str(kind), **values)


def call_from_action(family: DeviceFamily, action: Action) -> ToolCall:
    """Writes an action as a call: "action" first, then the arguments in the order of the table.

    Whole numbers become ints. `action_from_call` reads the same action back.

    Raises:
      ParseError: the action is none of the family, lacks an argument, or has one that does not fit.
    """
    extra = [name for name in ARGUMENT_NAMES if getattr(action, name) is not None]
    raw = ToolCall(tool_name(family), {"action": action.kind, **{name: getattr(action, name) for name in extra}})
    action = action_from_call(family, raw)
    arguments: dict[str, object] = {"action": action.kind}
    for name in _spec(family, action.kind).arguments:
        value = getattr(action, name)
        if value is not None:
            arguments[name] = _json_value(value)
    return ToolCall(raw.name, arguments)


def to_pixels(coordinate: tuple[float, float], width: int, height: int, scale: float = SCALE) -> tuple[int, int]:
    """The pixel (x, y) of a screen [height, width] that a relative coordinate falls on.

    value / scale * size, rounded down; the far edge (value == scale) belongs to the last pixel.

    Raises:
      ParseError: the coordinate lies outside 0..scale.
      DataError: the screen has no pixels.
    """
    _check_size(width, height)
    x, y = coordinate
    if not (0 <= x <= scale and 0 <= y <= scale):  # also false for NaN
        raise ParseError(ParseReason.OUT_OF_RANGE, f"coordinate ({x}, {y}) lies outside 0..{scale}")
    return min(int(x * width / scale), width - 1), min(int(y * height / scale), height - 1)


def from_pixels(x: float, y: float, width: int, height: int) -> tuple[int, int]:
    """The point of the 0-1000 grid nearest to the middle of the pixel that (x, y) lies in.

    `to_pixels` gives the same pixel back for sizes up to 1000; beyond, pixels are finer than the grid and it gives one
    at most size/2000 pixels (rounded up) away.

    Raises:
      DataError: the pixel lies outside the screen.
    """
    _check_size(width, height)
    if not (0 <= x < width and 0 <= y < height):
        raise DataError(f"pixel ({x}, {y}) lies outside the screen of {width}x{height}")
    return _grid(int(x), width), _grid(int(y), height)  # not negative: int rounds down


def _grid(pixel: int, size: int) -> int:
    # (pixel + 1/2) * 1000 / size rounded half down, in integers: half up would leave the pixel where size is 1000.
    return -((size - (2 * pixel + 1) * SCALE) // (2 * size))


def _check_size(width: int, height: int) -> None:
    if width < 1 or height < 1:
        raise DataError(f"a screen of {width}x{height} has no pixels")


def _spec(family: DeviceFamily, kind: object) -> ActionSpec:
    table = ACTION_TABLE[family]
    if not isinstance(kind, str) or kind not in table:
        raise ParseError(ParseReason.UNKNOWN_ACTION, f"{kind!r:.80} is none of {', '.join(table)}")
    return table[kind]


def _json_value(value: object) -> object:
    if isinstance(value, tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


def _bad(where: str, value: object, wanted: str) -> ParseError:
    return ParseError(ParseReason.BAD_ARGUMENT, f"{where} is {value!r:.80}, must be {wanted}")


def _number(where: str, value: object) -> float:
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad(where, value, "a number")
    if isinstance(value, int) and abs(value) > 2**53 or not math.isfinite(value):
        raise ParseError(ParseReason.OUT_OF_RANGE, f"{where} is {value!r:.80}, must be finite")
    return float(value)


def _whole(where: str, value: object) -> int:
    number = _number(where, value)
    if not number.is_integer():
        raise _bad(where, value, "a whole number")
    return int(number)


def _point(where: str, value: object) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise _bad(where, value, "a list of two numbers [x, y]")
    x, y = (_number(where, item) for item in value)
    if not (0 <= x <= SCALE and 0 <= y <= SCALE):
        raise ParseError(ParseReason.OUT_OF_RANGE, f"{where} ({x:g}, {y:g}) lies outside 0..{SCALE}")
    return x, y


def _text(where: str, value: object) -> str:
    if not isinstance(value, str):
        raise _bad(where, value, "a string")
    return value


def _keys(where: str, value: object) -> tuple[str, ...]:
    # One string is refused: "ctrl+c" may be a chord or a name, and "+" itself is a key.
    if not isinstance(value, list | tuple) or not value or not all(isinstance(key, str) and key for key in value):
        raise _bad(where, value, "a list of key names")
    return tuple(value)


def _seconds(where: str, value: object) -> float:
    seconds = _number(where, value)
    if seconds < 0:
        raise ParseError(ParseReason.OUT_OF_RANGE, f"{where} is {seconds:g}, must not be negative")
    return seconds


def _label(where: str, value: object) -> int | str:
    if value == WINDOW:
        return WINDOW
    label = _whole(where, value)
    if label < 0:
        raise ParseError(ParseReason.OUT_OF_RANGE, f"{where} is {label}, must not be negative")
    return label


def _one_of(choices: tuple[str, ...]) -> Callable[[str, object], str]:
    def read(where: str, value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise _bad(where, value, f"one of {', '.join(choices)}")
        return value

    return read


_READERS: Mapping[str, Callable[[str, object], object]] = {
    "coordinate": _point,
    "coordinate2": _point,
    "text": _text,
    "button": _one_of(BUTTONS),
    "keys": _keys,
    "time": _seconds,
    "status": _one_of(STATUSES),
    "pixels": _whole,
    "label": _label,
    "direction": _one_of(DIRECTIONS),
    "option": _text,
}
