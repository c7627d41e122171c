"""Desk, a web app: a list of tickets, a page per ticket that shows its code, and a form."""

from __future__ import annotations

import dataclasses
import random

from envs.virtual.app import App, Event, EventKind, clean_text
from envs.virtual.lexicon import NAMES, NUMBERS, THINGS, TICKET_ACTIONS
from envs.virtual.widgets import Kind, Widget, page, place
from gui_owl_jax.agent.devices import DeviceFamily

FIELDS = 7
LIST = "List"  # stands among the slots of the form for the link back to the list


@dataclasses.dataclass(frozen=True)
class State:
    """State of the app.

    Attributes:
      tickets: (name, code) in the order of the list.
      slots: fields of the form, and `LIST`, in their order on the page.
      actions: order of the buttons on a ticket.
      form: (field, text) submitted so far.
      done: (ticket, action) in the order of the clicks.
      trail: pages visited, the last one is open: "list", "form" or "ticket:<name>".
    """

    tickets: tuple[tuple[str, str], ...]
    slots: tuple[str, ...]
    actions: tuple[str, ...] = TICKET_ACTIONS
    form: tuple[tuple[str, str], ...] = ()
    done: tuple[tuple[str, str], ...] = ()
    trail: tuple[str, ...] = ("list",)

    @property
    def opened(self) -> str:
        """The ticket whose page is open, "" for none."""
        return self.trail[-1].partition(":")[2]

    def code(self, ticket: str) -> str:
        """The code of a ticket."""
        return dict(self.tickets)[ticket]


def start(rng: random.Random, field: str = "", trail: tuple[str, ...] = ("list",), other_than: str = "") -> State:
    """A random state.

    Args:
      rng: where all choices come from.
      field: a field that the form must have.
      trail: pages visited before.
      other_than: if given, start on the page of another ticket than this one.
    """
    fields = rng.sample([word for word in THINGS if word != field], FIELDS)
    if field:
        fields[rng.randrange(FIELDS)] = field
    slots = [*fields, LIST]
    rng.shuffle(slots)
    tickets = tuple(zip(rng.sample(NAMES, len(NAMES)), rng.sample(NUMBERS, len(NAMES))))
    if other_than:
        trail = (*trail, "ticket:" + rng.choice([name for name in NAMES if name != other_than]))
    return State(tickets, tuple(slots), tuple(rng.sample(TICKET_ACTIONS, len(TICKET_ACTIONS))), trail=trail)


def view(state: State) -> Widget:
    """The screen."""
    if state.trail[-1] == "form":
        return page(DeviceFamily.WEB, *_form(state))
    head = place(Kind.LINK, "Form", 2, 0, 2, key="form:")
    if state.opened:
        buttons = [
            place(Kind.BUTTON, word, 2 * (i % 2), 2 + i // 2, 2, key=f"do:{word}")
            for i, word in enumerate(state.actions)
        ]
        name = place(Kind.BAR, state.opened, 0, 0, 2)
        code = place(Kind.LABEL, "Code", 0, 1, 4, value=state.code(state.opened))
        return page(DeviceFamily.WEB, name, head, code, *buttons)
    links = [
        place(Kind.LINK, name, i % 4, 1 + i // 4, key=f"ticket:{name}") for i, (name, _) in enumerate(state.tickets)
    ]
    return page(DeviceFamily.WEB, place(Kind.BAR, "Tickets", 0, 0, 2), head, *links)


def _form(state: State) -> list[Widget]:
    values = dict(state.form)
    widgets = []
    for i, word in enumerate(state.slots):
        column, row = 2 * (i % 2), i // 2
        if word == LIST:
            widgets.append(place(Kind.LINK, LIST, column, row, 2, key="list:"))
        else:
            widgets.append(place(Kind.FIELD, word, column, row, 2, key=f"field:{word}", value=values.get(word, "")))
    return widgets


def update(state: State, event: Event) -> State:
    """The state after an event."""
    if event.kind == EventKind.BACK and len(state.trail) > 1:
        return dataclasses.replace(state, trail=state.trail[:-1])
    if event.kind == EventKind.TYPE and event.role == "field":
        return dataclasses.replace(state, form=(*state.form, (event.name, clean_text(event.text))))
    if event.kind == EventKind.TAP:
        if event.role in ("form", "list"):
            return dataclasses.replace(state, trail=(*state.trail, event.role))
        if event.role == "ticket":
            return dataclasses.replace(state, trail=(*state.trail, event.target))
        if event.role == "do":
            return dataclasses.replace(state, done=(*state.done, (state.opened, event.name)))
    return state


APP = App("desk", DeviceFamily.WEB, view, update, navigation=("trail",))
