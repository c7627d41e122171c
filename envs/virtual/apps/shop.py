"""Shop, a web app: a catalogue with a search field, and product pages with wraps to choose."""

from __future__ import annotations

import dataclasses
import random

from envs.virtual.app import App, Event, EventKind, clean_text
from envs.virtual.lexicon import COLOURS, LONG, PRODUCT_ACTIONS, THINGS, WRAPS
from envs.virtual.widgets import Kind, Widget, page, place, scrollbar
from gui_owl_jax.agent.devices import DeviceFamily

SHOWN = 8  # small products on the home page; the others must be searched for


@dataclasses.dataclass(frozen=True)
class State:
    """State of the app.

    Attributes:
      small: small products; the first `SHOWN` are on the home page.
      large: large products, on the second page of the home page.
      ranks: order in which search results are listed.
      slots: order of the drop-down lists and buttons on a product page.
      search_row: row of the search field, 0 or 3.
      wraps: (product, wrap, colour) chosen so far.
      done: (product, action) in the order of the clicks.
      trail: pages visited, the last one is open: "home", "find:<query>" or "item:<product>".
      scrolled: whether the home page is scrolled down.
    """

    small: tuple[str, ...]
    large: tuple[str, ...]
    ranks: tuple[str, ...]
    slots: tuple[str, ...]
    search_row: int = 0
    wraps: tuple[tuple[str, str, str], ...] = ()
    done: tuple[tuple[str, str], ...] = ()
    trail: tuple[str, ...] = ("home",)
    scrolled: bool = False

    @property
    def opened(self) -> str:
        """The product whose page is open, "" for none."""
        role, _, name = self.trail[-1].partition(":")
        return name if role == "item" else ""

    def colour(self, product: str, wrap: str) -> str:
        """The colour chosen last for a wrap of a product, "" for none."""
        chosen = [colour for item, part, colour in self.wraps if (item, part) == (product, wrap)]
        return chosen[-1] if chosen else ""


def start(rng: random.Random, product: str = "", hidden: bool = False) -> State:
    """A random state; `product` is on the home page unless `hidden`, when it must be searched for."""
    small = [word for word in rng.sample(THINGS, len(THINGS)) if word != product]
    if product in THINGS:
        small.insert(rng.randrange(SHOWN, len(THINGS)) if hidden else rng.randrange(SHOWN), product)
    return State(
        tuple(small),
        tuple(rng.sample(LONG, len(LONG))),
        tuple(rng.sample(THINGS, len(THINGS))),
        tuple(rng.sample(WRAPS + PRODUCT_ACTIONS, len(WRAPS + PRODUCT_ACTIONS))),
        rng.choice((0, 3)),
    )


def results(state: State, query: str) -> tuple[str, ...]:
    """What a search lists: the product and seven others, in the order of the ranks; () where nothing matches."""
    matches = [word for word in THINGS if word.lower() == query.strip().lower()]
    if not matches:
        return ()
    others = [word for word in state.small if word != matches[0]]
    listed = {matches[0], *others[-(SHOWN - 1) :]}
    return tuple(word for word in state.ranks if word in listed)


def _product_page(state: State) -> Widget:
    product = state.opened
    body = []
    for i, word in enumerate(state.slots):
        column, row = 2 * (i % 2), 1 + i // 2
        if word in WRAPS:
            body.append(place(Kind.SELECT, word, column, row, 2, key=f"wrap:{word}", value=state.colour(product, word)))
        else:
            on = (product, word) in state.done
            body.append(place(Kind.BUTTON, word, column, row, 2, key=f"do:{word}", on=on))
    head = [place(Kind.LINK, "Shop", 0, 0, 2, key="home:"), place(Kind.LABEL, product, 2, 0, 2)]
    return page(DeviceFamily.WEB, *head, *body)


def view(state: State) -> Widget:
    """The screen."""
    if state.opened:
        return _product_page(state)
    if state.trail[-1] == "home" and state.scrolled:
        large = [
            place(Kind.LINK, word, 2 * (i % 2), i // 2, 2, key=f"item:{word}") for i, word in enumerate(state.large)
        ]
        return page(DeviceFamily.WEB, *large, *scrollbar(DeviceFamily.WEB, 0, 4, 8))
    query = state.trail[-1].partition(":")[2]
    listed = results(state, query) if query else state.small[:SHOWN]
    links = [place(Kind.LINK, word, i % 4, 1 + i // 4, key=f"item:{word}") for i, word in enumerate(listed)]
    search = place(Kind.FIELD, "Search", 0, state.search_row, 4, key="search:")
    title = place(Kind.BAR, "Results" if query else "Shop", 0, 3 - state.search_row, 4)
    bar = () if query else scrollbar(DeviceFamily.WEB, 0, 0, 8)
    return page(DeviceFamily.WEB, search, title, *links, *bar)


def _go(state: State, place_name: str) -> State:
    return dataclasses.replace(state, trail=(*state.trail, place_name), scrolled=False)


def update(state: State, event: Event) -> State:
    """The state after an event."""
    if event.kind == EventKind.BACK and len(state.trail) > 1:
        return dataclasses.replace(state, trail=state.trail[:-1], scrolled=False)
    if event.kind == EventKind.SCROLL and state.trail[-1] == "home" and event.rows:
        return dataclasses.replace(state, scrolled=event.rows > 0)
    if event.kind == EventKind.TYPE and event.role == "search":
        query = clean_text(event.text)
        return _go(state, f"find:{query}" if query else "home")
    if event.kind == EventKind.CHOOSE and event.role == "wrap" and event.text in COLOURS:
        return dataclasses.replace(state, wraps=(*state.wraps, (state.opened, event.name, event.text)))
    if event.kind == EventKind.TAP:
        if event.role == "item":
            return _go(state, event.target)
        if event.role == "home":
            return _go(state, "home")
        if event.role == "do":
            return dataclasses.replace(state, done=(*state.done, (state.opened, event.name)))
    return state


APP = App("shop", DeviceFamily.WEB, view, update, navigation=("trail", "scrolled"))
