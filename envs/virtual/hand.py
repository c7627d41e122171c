"""How scripts act: phrases and actions for the elements of a screen."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

from envs.virtual.gestures import Screen
from envs.virtual.template import Move
from envs.virtual.widgets import CELL, GRIDS, elements, find, screen_size
from gui_owl_jax.agent.actions import Action, from_pixels
from gui_owl_jax.agent.devices import WINDOW, DeviceFamily
from gui_owl_jax.agent.elements import ScreenElement
from gui_owl_jax.agent.errors import EnvError

_CLICK_KIND = {DeviceFamily.MOBILE: "click", DeviceFamily.DESKTOP: "left_click", DeviceFamily.WEB: "click"}
_CLICK_VERB = {DeviceFamily.MOBILE: "Tap", DeviceFamily.DESKTOP: "Click", DeviceFamily.WEB: "Click"}


def element_name(element: ScreenElement) -> str:
    """What an element is called: the first word drawn on it, or its kind where nothing is drawn."""
    return element.text.split(" ")[0] or element.kind


def element_phrase(family: DeviceFamily, element: ScreenElement) -> str:
    """The sentence that stands for a click on an element: "Tap Mia." on a phone, "Click Mia." elsewhere."""
    return f"{_CLICK_VERB[family]} {element_name(element)}."


def click_action(
    family: DeviceFamily, element: ScreenElement, size: tuple[int, int] | None = None, kind: str = ""
) -> Action:
    """The action that clicks an element.

    Args:
      family: device family; web actions name the mark, the others the centre of the element.
      element: what to click.
      size: width and height of the screenshot, by default those at scale 1.
      kind: another action that takes the same argument ("double_click", say) in place of the plain click.

    Raises:
      EnvError: a web element without a mark.
    """
    kind = kind or _CLICK_KIND[family]
    if family == DeviceFamily.WEB:
        if element.label is None:
            raise EnvError(f"element {element.text!r} has no mark to click on")
        return Action(kind, label=element.label)
    return Action(kind, coordinate=from_pixels(*element.centre, *(size or screen_size(family))))


class Sight(Protocol):
    """What a hand sees: a world."""

    @property
    def screen(self) -> Screen:
        """The screen as it is now."""
        ...

    @property
    def state(self) -> Any:
        """State of the app."""
        ...


class Hand:
    """Makes moves (conclusion, action) for the screen of a world as it is when they are asked for."""

    def __init__(self, world: Sight):
        self._world = world

    @property
    def state(self) -> Any:
        """State of the app, to look up what a reader of the screen would read."""
        return self._world.state

    def element(self, key: str) -> ScreenElement:
        """The visible element whose widget has `key`.

        Raises:
          EnvError: there is none on the screen.
        """
        screen = self._world.screen
        return _element(screen, key)

    def _aim(self, key: str, kind: str = "") -> Action:
        screen = self._world.screen
        width, height = screen_size(screen.family)
        return click_action(screen.family, _element(screen, key), (width * screen.scale, height * screen.scale), kind)

    def click(self, key: str, note: str = "") -> Move:
        """A tap or click; `note` is a sentence put in front, such as what was read."""
        phrase = element_phrase(self._world.screen.family, self.element(key))
        return f"{note} {phrase}".strip(), self._aim(key)

    def hold(self, key: str) -> Move:
        """A long press of a second."""
        action = dataclasses.replace(self._aim(key, "long_press"), time=1.0)
        return f"Hold {element_name(self.element(key))}.", action

    def double_click(self, key: str) -> Move:
        """A double click."""
        return f"Double-click {element_name(self.element(key))}.", self._aim(key, "double_click")

    def right_click(self, key: str) -> Move:
        """A right click."""
        return f"Right-click {element_name(self.element(key))}.", self._aim(key, "right_click")

    def point(self, key: str) -> Move:
        """Moves the mouse."""
        return f"Point at {element_name(self.element(key))}.", self._aim(key, "mouse_move")

    def drag(self, name: str, onto: str) -> Move:
        """Drags what is under the cursor, called `name`, onto a widget."""
        return f"Drag {name} to {element_name(self.element(onto))}.", self._aim(onto, "left_click_drag")

    def scroll_down(self, note: str = "") -> Move:
        """Scrolls down by a page: a swipe up on a phone."""
        screen = self._world.screen
        width, height = (screen.scale * side for side in screen_size(screen.family))
        if screen.family == DeviceFamily.MOBILE:
            middle, cell = width // 2, CELL * screen.scale
            low, high = (from_pixels(middle, y, width, height) for y in (height - cell // 2, cell // 2))
            return f"{note} Swipe up.".strip(), Action("swipe", coordinate=low, coordinate2=high)
        if screen.family == DeviceFamily.DESKTOP:
            pixels = -GRIDS[screen.family][1] * CELL * screen.scale
            return f"{note} Scroll down.".strip(), Action("scroll", pixels=pixels)
        return f"{note} Scroll down.".strip(), Action("scroll", label=WINDOW, direction="down")

    def type(self, text: str, into: str = "") -> Move:
        """Types a text; on the web into the widget with key `into`."""
        if not into:
            return f"Type {text}.", Action("type", text=text)
        element = self.element(into)
        return f"Type {text} in {element_name(element)}.", Action("type", label=element.label, text=text)

    def select(self, key: str, option: str) -> Move:
        """Picks an option of a drop-down list."""
        element = self.element(key)
        return f"Select {option} in {element_name(element)}.", Action("select", label=element.label, option=option)

    def press(self, key: str) -> Move:
        """Presses a key of the keyboard."""
        return f"Press {key.capitalize()}.", Action("key", keys=(key,))

    def back(self, note: str = "") -> Move:
        """Goes back, by the button of a phone or that of a browser."""
        if self._world.screen.family == DeviceFamily.MOBILE:
            return f"{note} Press Back.".strip(), Action("system_button", button="Back")
        return f"{note} Go back.".strip(), Action("go_back")

    def answer(self, text: str) -> Move:
        """Answers, which ends the episode."""
        return f"Answer {text}.", Action("answer", text=text)


def _element(screen: Screen, key: str) -> ScreenElement:
    widget = find(screen.tree, key)
    if widget is None:
        raise EnvError(f"no widget {key!r} on the screen")
    return elements(widget, screen.labels, screen.scale)[0]
