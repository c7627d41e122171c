"""A virtual app: two pure functions, from state to widgets and from state and event to state."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

from envs.virtual.widgets import Widget
from gui_owl_jax.agent.devices import DeviceFamily


class EventKind(enum.StrEnum):
    """What a user can do to an app, whatever the device."""

    TAP = "tap"  # tap, left click, click on a mark
    HOLD = "hold"  # long press
    DOUBLE = "double"  # double click
    CONTEXT = "context"  # right click
    DRAG = "drag"
    SCROLL = "scroll"
    TYPE = "type"
    KEY = "key"
    CHOOSE = "choose"  # pick an option of a drop-down list
    BACK = "back"
    HOME = "home"


@dataclasses.dataclass(frozen=True)
class Event:
    """One event.

    Attributes:
      kind: what happened.
      target: key of the widget it happened to, "" for none (and for events without a place).
      text: the text typed, the key pressed, the option chosen.
      rows: rows to scroll, positive moves down the page.
      onto: key of the widget that a drag ended on, "" for none.
    """

    kind: EventKind
    target: str = ""
    text: str = ""
    rows: int = 0
    onto: str = ""

    @property
    def role(self) -> str:
        """The part of the target before the colon: "chat" of "chat:Mia"."""
        return self.target.partition(":")[0]

    @property
    def name(self) -> str:
        """The part of the target after the colon: "Mia" of "chat:Mia"."""
        return self.target.partition(":")[2]


@dataclasses.dataclass(frozen=True)
class App:
    """An app; states are frozen dataclasses of its own type.

    Attributes:
      name: unique name.
      family: the device it runs on.
      view: state -> widget tree.
      update: (state, event) -> state. Total: any event is allowed, one that means nothing returns the same state.
      navigation: fields of the state that say what is on the screen; all others are content, which tasks are about.
    """

    name: str
    family: DeviceFamily
    view: Callable[[Any], Widget]
    update: Callable[[Any, Event], Any]
    navigation: tuple[str, ...] = ()


def clean_text(text: str, limit: int = 12) -> str:
    """What an input keeps of a typed text: printable characters, at most `limit`."""
    return "".join(character for character in text if character.isprintable())[:limit]
