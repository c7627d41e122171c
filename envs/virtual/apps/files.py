"""Files, a desktop app: a menu bar over files and folders that open, move and vanish."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from envs.virtual.app import App, Event, EventKind
from envs.virtual.lexicon import EDIT_MENU, FILE_MENU, SHORT
from envs.virtual.widgets import Kind, Widget, page, place
from gui_owl_jax.agent.devices import DeviceFamily

ITEMS = 10  # two rows of five
FOLDERS = 3
DELETE_KEYS = ("delete", "del")


@dataclasses.dataclass(frozen=True)
class Item:
    """A file or a folder.

    Attributes:
      name: its name, unique.
      folder: whether it is a folder.
      parent: name of the folder it lies in, "" for the top.
    """

    name: str
    folder: bool = False
    parent: str = ""


@dataclasses.dataclass(frozen=True)
class State:
    """State of the app.

    Attributes:
      items: all items, in the order in which they are shown.
      menus: (name, entries) of the menus, in the order of the bar.
      commands: entries chosen so far.
      selected: names of the selected items; a click adds to them or takes away.
      opened: the open file or folder, "" for the top.
      menu: the open menu, "" for none.
    """

    items: tuple[Item, ...]
    menus: tuple[tuple[str, tuple[str, ...]], ...]
    commands: tuple[str, ...] = ()
    selected: tuple[str, ...] = ()
    opened: str = ""
    menu: str = ""


def start(rng: random.Random, files: Sequence[str] = (), folders: Sequence[str] = ()) -> State:
    """A random state with the given files and folders in it."""
    fixed = {*files, *folders}
    names = rng.sample([word for word in SHORT if word not in fixed], ITEMS - len(fixed))
    more = FOLDERS - len(folders)
    items = [Item(name, folder=True) for name in [*folders, *names[:more]]]
    items += [Item(name) for name in [*files, *names[more:]]]
    rng.shuffle(items)
    menus = [(name, tuple(rng.sample(words, len(words)))) for name, words in (("File", FILE_MENU), ("Edit", EDIT_MENU))]
    rng.shuffle(menus)
    return State(tuple(items), tuple(menus))


def moved(items: Sequence[Item], names: Sequence[str], folder: str) -> tuple[Item, ...]:
    """The items with those called `names` put into `folder`."""
    return tuple(dataclasses.replace(item, parent=folder) if item.name in names else item for item in items)


def without(items: Sequence[Item], names: Sequence[str]) -> tuple[Item, ...]:
    """The items without those called `names`, and without what lies in them."""
    return tuple(item for item in items if item.name not in names and item.parent not in names)


def view(state: State) -> Widget:
    """The screen."""
    bar = [
        place(Kind.MENU, name, 2 * i, 0, 2, key=f"menu:{name}", on=name == state.menu)
        for i, (name, _) in enumerate(state.menus)
    ]
    up = place(Kind.BUTTON, "Up", 4, 0, key="up:")
    if state.menu:
        entries = dict(state.menus)[state.menu]
        body = [
            place(Kind.ENTRY, word, 2 * (i % 2), 1 + i // 2, 2, key=f"entry:{word}") for i, word in enumerate(entries)
        ]
    elif state.opened and not _item(state, state.opened).folder:
        body = [place(Kind.LABEL, "File " + state.opened, 1, 1, 3)]
    else:
        shown = [item for item in state.items if item.parent == state.opened]
        body = [
            place(
                Kind.FOLDER if item.folder else Kind.FILE,
                item.name,
                i % 5,
                1 + i // 5,
                key=f"item:{item.name}",
                on=item.name in state.selected,
            )
            for i, item in enumerate(shown)
        ]
    return page(DeviceFamily.DESKTOP, *bar, up, *body)


def _item(state: State, name: str) -> Item:
    return next(item for item in state.items if item.name == name)


def _drop(state: State, name: str, onto: str) -> State:
    if name == onto or not _item(state, onto).folder or _item(state, name).folder:
        return state
    return dataclasses.replace(state, items=moved(state.items, [name], onto), selected=())


def update(state: State, event: Event) -> State:
    """The state after an event. An open menu takes the next click: on an entry, or elsewhere to close."""
    if event.kind in (EventKind.TAP, EventKind.DOUBLE) and state.menu:
        closed = dataclasses.replace(state, menu="")
        if event.role == "entry":
            return dataclasses.replace(closed, commands=(*state.commands, event.name))
        return closed
    if event.kind == EventKind.TAP and event.role == "menu":
        return dataclasses.replace(state, menu=event.name)
    if event.kind == EventKind.TAP and event.role == "up" and state.opened:
        return dataclasses.replace(state, opened=_item(state, state.opened).parent, selected=())
    if event.kind == EventKind.TAP and event.role == "item":
        kept = tuple(name for name in state.selected if name != event.name)
        return dataclasses.replace(state, selected=kept if event.name in state.selected else (*kept, event.name))
    if event.kind == EventKind.DOUBLE and event.role == "item":
        return dataclasses.replace(state, opened=event.name, selected=())
    if event.kind == EventKind.DRAG and event.role == "item" and event.onto.startswith("item:"):
        return _drop(state, event.name, event.onto.partition(":")[2])
    if event.kind == EventKind.KEY and event.text in DELETE_KEYS and not state.menu:
        return dataclasses.replace(state, items=without(state.items, state.selected), selected=())
    return state


APP = App("files", DeviceFamily.DESKTOP, view, update, navigation=("selected", "opened", "menu"))
