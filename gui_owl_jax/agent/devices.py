"""Device families, their action tables, and the tool schemas that the prompt shows.

The tables are those of GUI-Owl-1.5 (Mobile-Agent-v3.5: `mobile_use`, `computer_use`, `browser_use`). They are the
one place where an action and its arguments are named: the schemas, the parser and the renderer all read them.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import types
from collections.abc import Mapping


class DeviceFamily(enum.StrEnum):
    """The kind of device that an agent operates."""

    MOBILE = "mobile"
    DESKTOP = "desktop"
    WEB = "web"


DEVICE_FAMILIES = (DeviceFamily.MOBILE, DeviceFamily.DESKTOP, DeviceFamily.WEB)

BUTTONS = ("Back", "Home", "Menu", "Enter")
STATUSES = ("success", "failure")
DIRECTIONS = ("up", "down")
WINDOW = "WINDOW"  # the label that scrolls the page as a whole instead of one element


@dataclasses.dataclass(frozen=True)
class ActionSpec:
    """The arguments of one action.

    Attributes:
      required: names of the arguments that a call must have, in the order in which they are printed.
      optional: names of the arguments that it may have, printed after the required ones.
      description: what the action does, for the prompt.
    """

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    description: str = ""

    @property
    def arguments(self) -> tuple[str, ...]:
        """All argument names in the order in which they are printed."""
        return self.required + self.optional


def _spec(description: str, *required: str, optional: tuple[str, ...] = ()) -> ActionSpec:
    return ActionSpec(required, optional, description)


_MOBILE = {
    "key": _spec("Send a key event by its adb name, for example `volume_up`, `power` or `clear`.", "text"),
    "click": _spec("Tap the point (x, y).", "coordinate"),
    "long_press": _spec("Press the point (x, y) and hold it for the given seconds.", "coordinate", "time"),
    "swipe": _spec("Swipe with a finger from (x, y) to (x2, y2).", "coordinate", "coordinate2"),
    "type": _spec("Enter text into the field that has the focus.", "text"),
    "system_button": _spec("Press a button of the system.", "button"),
    "open": _spec("Open an app by its name.", "text"),
    "wait": _spec("Wait the given seconds.", "time"),
    "answer": _spec("Give the answer to the user's question and end the task.", "text"),
    "interact": _spec("Ask the user to help with something that blocks the task.", "text"),
    "terminate": _spec("End the task and report whether it succeeded.", "status"),
}

_DESKTOP = {
    "key": _spec("Press the keys down in the given order, then release them in reverse order.", "keys"),
    "type": _spec("Type text on the keyboard.", "text"),
    "mouse_move": _spec("Move the cursor to (x, y).", "coordinate"),
    "left_click": _spec("Click the left mouse button at (x, y).", "coordinate"),
    "left_click_drag": _spec("Drag with the left button from the cursor's position to (x, y).", "coordinate"),
    "right_click": _spec("Click the right mouse button at (x, y).", "coordinate"),
    "middle_click": _spec("Click the middle mouse button at (x, y).", "coordinate"),
    "double_click": _spec("Double-click the left mouse button at (x, y).", "coordinate"),
    "triple_click": _spec("Triple-click the left mouse button at (x, y).", "coordinate"),
    "scroll": _spec("Turn the mouse wheel.", "pixels"),
    "hscroll": _spec("Scroll sideways.", "pixels"),
    "wait": _spec("Wait the given seconds.", "time"),
    "terminate": _spec("End the task and report whether it succeeded.", "status"),
    "answer": _spec("Answer the user's question.", "text"),
    "interact": _spec("Ask the user to help with something that blocks the task.", "text"),
}

_WEB = {
    "click": _spec("Click the element with this label.", "label"),
    "type": _spec("Clear the field with this label, type text into it and press ENTER.", "label", "text"),
    "scroll": _spec("Scroll the element with this label, or the page with the label `WINDOW`.", "label", "direction"),
    "select": _spec("Choose an option of the drop-down list with this label.", "label", "option"),
    "wait": _spec("Wait the given seconds, 5 if none are given.", optional=("time",)),
    "go_back": _spec("Return to the previous page."),
    "wikipedia": _spec("Go to the start page of Wikipedia."),
    "answer": _spec("Give the answer to the user's question and end the task.", "text"),
}

ACTION_TABLE: Mapping[DeviceFamily, Mapping[str, ActionSpec]] = types.MappingProxyType(
    {
        DeviceFamily.MOBILE: types.MappingProxyType(_MOBILE),
        DeviceFamily.DESKTOP: types.MappingProxyType(_DESKTOP),
        DeviceFamily.WEB: types.MappingProxyType(_WEB),
    }
)

_TOOL_NAMES = {
    DeviceFamily.MOBILE: "mobile_use",
    DeviceFamily.DESKTOP: "computer_use",
    DeviceFamily.WEB: "browser_use",
}

_RELATIVE = "The screen is 1000x1000: x runs from 0 (left) to 1000, y from 0 (top) to 1000, whatever its real size."
_AIM = "Aim at the middle of an element, not at its edge, unless told otherwise."
_PATIENCE = "Apps may need time to react: wait, then look at the next screenshot."
_DESCRIPTIONS = {
    DeviceFamily.MOBILE: ("Operate a mobile device through its touchscreen.", _PATIENCE, _RELATIVE, _AIM),
    DeviceFamily.DESKTOP: ("Operate a computer with mouse and keyboard.", _PATIENCE, _RELATIVE, _AIM),
    DeviceFamily.WEB: (
        "Operate a web browser.",
        "Elements that can be acted on carry a number in the screenshot: that number is the element's label.",
        _PATIENCE,
    ),
}

_POINT = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
_ARGUMENTS: dict[str, dict[str, object]] = {
    "coordinate": {"description": "The point (x, y) on the 1000x1000 screen.", **_POINT},
    "coordinate2": {"description": "The end point (x2, y2) on the 1000x1000 screen.", **_POINT},
    "label": {
        "description": f"The number of the element, or {WINDOW} to scroll the page.",
        "type": ["integer", "string"],
    },
    "text": {"description": "The text.", "type": "string"},
    "option": {"description": "The option to choose, as it is written in the list.", "type": "string"},
    "keys": {"description": "The names of the keys.", "type": "array", "items": {"type": "string"}, "minItems": 1},
    "button": {
        "description": "Back: the previous screen. Home: the home screen. Menu: the recent apps. Enter: the enter key.",
        "type": "string",
        "enum": list(BUTTONS),
    },
    "pixels": {"description": "How far to scroll: positive is up (or left), negative down.", "type": "integer"},
    "direction": {"description": "The direction to scroll in.", "type": "string", "enum": list(DIRECTIONS)},
    "time": {"description": "Seconds.", "type": "number"},
    "status": {"description": "Whether the task succeeded.", "type": "string", "enum": list(STATUSES)},
}


def tool_name(family: DeviceFamily) -> str:
    """The name of the family's tool: "mobile_use", "computer_use" or "browser_use"."""
    return _TOOL_NAMES[family]


def tool_schema(family: DeviceFamily) -> dict[str, object]:
    """The JSON function schema of the family's tool, a new dict that `json.dumps` prints for the prompt."""
    table = ACTION_TABLE[family]
    actions = "\n".join(f"* `{kind}`: {spec.description}" for kind, spec in table.items())
    properties: dict[str, object] = {
        "action": {
            "description": f"The action to perform. The available actions are:\n{actions}",
            "type": "string",
            "enum": list(table),
        }
    }
    for name, schema in _ARGUMENTS.items():
        users = [f"`action={kind}`" for kind, spec in table.items() if name in spec.arguments]
        if users:
            properties[name] = {
                **copy.deepcopy(schema),
                "description": f"{schema['description']} Used only by {', '.join(users)}.",
            }
    first, *notes = _DESCRIPTIONS[family]
    return {
        "type": "function",
        "function": {
            "name": tool_name(family),
            "description": "\n".join([first, *(f"* {note}" for note in notes)]),
            "parameters": {"type": "object", "properties": properties, "required": ["action"]},
        },
    }
