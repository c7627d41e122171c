"""Sheet, a desktop app: three sheets of labelled cells with a context menu."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence

from envs.virtual.app import App, Event, EventKind, clean_text
from envs.virtual.lexicon import CELL_MENU, NUMBERS, SHORT
from envs.virtual.widgets import Kind, Widget, page, place, scrollbar
from gui_owl_jax.agent.devices import DeviceFamily

SHEETS = ("A", "B", "C")
CELLS = 12  # per sheet, two per row
ROWS = 3  # rows in sight
FOLD = 2 * ROWS


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell.

    Attributes:
      label: name of the cell, unique on its sheet.
      value: what stands in it.
      styles: entries of the context menu applied to it, in order.
    """

    label: str
    value: str
    styles: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class State:
    """State of the app.

    Attributes:
      sheets: cells of every sheet, two per row, left to right.
      menu: order of the context menu.
      sheet: index of the sheet in front.
      scroll: rows scrolled down.
      focus: label of the cell being edited, "" for none.
      context: label of the cell whose context menu is open, "" for none.
    """

    sheets: tuple[tuple[Cell, ...], ...]
    menu: tuple[str, ...] = CELL_MENU
    sheet: int = 0
    scroll: int = 0
    focus: str = ""
    context: str = ""

    def cell(self, sheet: int, label: str) -> Cell:
        """The cell called `label`."""
        return next(cell for cell in self.sheets[sheet] if cell.label == label)


def start(
    rng: random.Random,
    above: Mapping[int, Sequence[str]] | None = None,
    below: Mapping[int, Sequence[str]] | None = None,
    unused: str = "",
) -> State:
    """A random state.

    Args:
      rng: where all choices come from.
      above: labels that must be in sight at once, by sheet.
      below: labels that must be out of sight until the sheet is scrolled down, by sheet.
      unused: a number that stands in no cell.
    """
    # All values differ, so that a copied value is never there before.
    values = iter(rng.sample([number for number in NUMBERS if number != unused], CELLS * len(SHEETS)))
    sheets = []
    for sheet in range(len(SHEETS)):
        first, last = list((above or {}).get(sheet, ())), list((below or {}).get(sheet, ()))
        others = [word for word in rng.sample(SHORT, len(SHORT)) if word not in first and word not in last]
        first += others[: FOLD - len(first)]
        last += others[-(CELLS - FOLD - len(last)) :]
        labels = rng.sample(first, FOLD) + rng.sample(last, CELLS - FOLD)
        sheets.append(tuple(Cell(label, next(values)) for label in labels))
    return State(tuple(sheets), tuple(rng.sample(CELL_MENU, len(CELL_MENU))))


def edited(state: State, sheet: int, label: str, **changes: object) -> tuple[tuple[Cell, ...], ...]:
    """The sheets with `changes` made to one cell."""
    return tuple(
        tuple(dataclasses.replace(cell, **changes) if cell.label == label else cell for cell in cells)  # type: ignore
        if index == sheet
        else cells
        for index, cells in enumerate(state.sheets)
    )


def view(state: State) -> Widget:
    """The screen."""
    tabs = [place(Kind.TAB, name, 4, i, key=f"sheet:{name}", on=i == state.sheet) for i, name in enumerate(SHEETS)]
    if state.context:
        body = [
            place(Kind.ENTRY, word, 2 * (i % 2), i // 2, 2, key=f"entry:{word}") for i, word in enumerate(state.menu)
        ]
    else:
        shown = state.sheets[state.sheet][2 * state.scroll : 2 * (state.scroll + ROWS)]
        body = [
            place(
                Kind.CELL,
                cell.label,
                2 * (i % 2),
                i // 2,
                2,
                key=f"cell:{cell.label}",
                value=cell.value,
                on=bool(cell.styles),
                focused=cell.label == state.focus,
            )
            for i, cell in enumerate(shown)
        ]
        tabs += scrollbar(DeviceFamily.DESKTOP, 0, state.scroll, CELLS // 2)
    return page(DeviceFamily.DESKTOP, *body, *tabs)


def _click(state: State, event: Event) -> State:
    if state.context:
        closed = dataclasses.replace(state, context="")
        if event.role != "entry":
            return closed
        styles = (*state.cell(state.sheet, state.context).styles, event.name)
        return dataclasses.replace(closed, sheets=edited(state, state.sheet, state.context, styles=styles))
    if event.role == "sheet":
        return dataclasses.replace(state, sheet=SHEETS.index(event.name), scroll=0, focus="")
    if event.role == "cell" and event.name != state.focus:
        return dataclasses.replace(state, focus=event.name, sheets=edited(state, state.sheet, event.name, value=""))
    return state


def update(state: State, event: Event) -> State:
    """The state after an event. Clicking a cell empties it for the new value; an open menu takes the next click."""
    if event.kind == EventKind.TAP:
        return _click(state, event)
    if event.kind == EventKind.CONTEXT and event.role == "cell":
        return dataclasses.replace(state, context=event.name, focus="")
    if event.kind == EventKind.TYPE and state.focus:
        value = clean_text(state.cell(state.sheet, state.focus).value + event.text)
        return dataclasses.replace(state, sheets=edited(state, state.sheet, state.focus, value=value))
    if event.kind == EventKind.SCROLL and not state.context:
        return dataclasses.replace(state, scroll=min(max(state.scroll + event.rows, 0), CELLS // 2 - ROWS))
    return state


APP = App("sheet", DeviceFamily.DESKTOP, view, update, navigation=("sheet", "scroll", "focus", "context"))
