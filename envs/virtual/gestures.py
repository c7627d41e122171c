"""From actions of a device family to events of an app."""

from __future__ import annotations

from typing import NamedTuple

from envs.virtual.app import Event, EventKind
from envs.virtual.widgets import CELL, GRIDS, Widget, hit
from gui_owl_jax.agent.actions import Action, to_pixels
from gui_owl_jax.agent.devices import WINDOW, DeviceFamily

_CLICKS = {
    "click": EventKind.TAP,
    "long_press": EventKind.HOLD,
    "left_click": EventKind.TAP,
    "double_click": EventKind.DOUBLE,
    "right_click": EventKind.CONTEXT,
}
_BUTTONS = {"Back": EventKind.BACK, "Home": EventKind.HOME}


class Screen(NamedTuple):
    """What actions are aimed at.

    Attributes:
      family: the device.
      tree: what it shows.
      labels: Set-of-Marks numbers by key.
      cursor: pixel (x, y) of the mouse cursor at scale 1.
      scale: pixels of the screenshot per pixel at scale 1.
    """

    family: DeviceFamily
    tree: Widget
    labels: dict[str, int]
    cursor: tuple[int, int]
    scale: int = 1


def event_of(action: Action, screen: Screen) -> tuple[Event | None, tuple[int, int]]:
    """What an action does on a screen.

    Args:
      action: an action of the screen's family.
      screen: what it is aimed at.

    Returns:
      The event, None for an action that these apps do not know (wait, hscroll, open, ...), and where the cursor is
      afterwards. A point or mark with no widget gives an event with an empty target.
    """
    if screen.family == DeviceFamily.WEB:
        return _web_event(action, screen), screen.cursor
    if screen.family == DeviceFamily.MOBILE:
        return _mobile_event(action, screen), screen.cursor
    cursor = _point(action.coordinate, screen) if action.coordinate else screen.cursor
    return _desktop_event(action, screen, cursor), cursor


def _point(coordinate: tuple[float, float], screen: Screen) -> tuple[int, int]:
    _, _, width, height = screen.tree.box
    x, y = to_pixels(coordinate, width * screen.scale, height * screen.scale)
    return x // screen.scale, y // screen.scale


def _key_at(point: tuple[int, int], screen: Screen) -> str:
    widget = hit(screen.tree, *point)
    return widget.key if widget else ""


def _mobile_event(action: Action, screen: Screen) -> Event | None:
    if action.kind in ("click", "long_press") and action.coordinate:
        return Event(_CLICKS[action.kind], _key_at(_point(action.coordinate, screen), screen))
    if action.kind == "swipe" and action.coordinate and action.coordinate2:
        # The page follows the finger: up moves down the page.
        (_, start), (_, end) = _point(action.coordinate, screen), _point(action.coordinate2, screen)
        return Event(EventKind.SCROLL, rows=round((start - end) / CELL))
    if action.kind == "type":
        return Event(EventKind.TYPE, text=action.text or "")
    if action.kind == "system_button" and action.button in _BUTTONS:
        return Event(_BUTTONS[action.button])
    return None


def _desktop_event(action: Action, screen: Screen, cursor: tuple[int, int]) -> Event | None:
    if action.kind in ("left_click", "double_click", "right_click"):
        return Event(_CLICKS[action.kind], _key_at(cursor, screen))
    if action.kind == "left_click_drag":
        return Event(EventKind.DRAG, _key_at(screen.cursor, screen), onto=_key_at(cursor, screen))
    if action.kind == "scroll":
        return Event(EventKind.SCROLL, rows=round(-(action.pixels or 0) / (CELL * screen.scale)))
    if action.kind == "type":
        return Event(EventKind.TYPE, text=action.text or "")
    if action.kind == "key":
        return Event(EventKind.KEY, text="+".join(action.keys or ()).lower())
    return None


def _web_event(action: Action, screen: Screen) -> Event | None:
    target = next((key for key, label in screen.labels.items() if label == action.label), "")
    if action.kind == "click":
        return Event(EventKind.TAP, target)
    if action.kind == "type":
        return Event(EventKind.TYPE, target, text=action.text or "")
    if action.kind == "select":
        return Event(EventKind.CHOOSE, target, text=action.option or "")
    if action.kind == "scroll" and action.label == WINDOW:
        _, rows = GRIDS[screen.family]
        return Event(EventKind.SCROLL, rows=rows if action.direction == "down" else -rows)
    if action.kind == "go_back":
        return Event(EventKind.BACK)
    return None
