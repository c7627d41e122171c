"""Settings, a phone app with three tabs: settings with levels, who may alert, and timers."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from envs.virtual.app import App, Event, EventKind
from envs.virtual.lexicon import LEVELS, LONG, NUMBERS, SHORT, TIMER_ACTIONS
from envs.virtual.widgets import Kind, Widget, page, place, scrollbar
from gui_owl_jax.agent.devices import DeviceFamily

TABS = ("Set", "Who", "Min")
ROWS = 4  # rows that a page shows below the tabs
TIMERS = 12


@dataclasses.dataclass(frozen=True)
class State:
    """State of the app.

    Attributes:
      levels: (setting, level) in the order of the first tab.
      alerts: (who, whether on) in the order of the second tab, three per row.
      timers: minutes, in the order of the third tab, three per row.
      options: order in which the levels are offered.
      actions: order in which the actions on a timer are offered.
      used: (action, timer) of the actions other than Delete that were chosen.
      tab: the open tab.
      scroll: rows that the page is scrolled down.
      opened: setting or timer whose page is open, "" for none.
    """

    levels: tuple[tuple[str, str], ...]
    alerts: tuple[tuple[str, bool], ...]
    timers: tuple[str, ...]
    options: tuple[str, ...] = LEVELS
    actions: tuple[str, ...] = TIMER_ACTIONS
    used: tuple[tuple[str, str], ...] = ()
    tab: str = "Set"
    scroll: int = 0
    opened: str = ""


def _ordered(rng: random.Random, words: Sequence[str], target: str, fold: int, below: bool) -> list[str]:
    """The words shuffled, `target` among the first `fold` or, if `below`, among the others."""
    order = rng.sample(words, len(words))
    if target:
        order.remove(target)
        order.insert(rng.randrange(fold, len(words)) if below else rng.randrange(fold), target)
    return order


def start(
    rng: random.Random,
    tab: str = "Set",
    setting: str = "",
    not_level: str = "",
    who: str = "",
    timer: str = "",
    below: bool = False,
) -> State:
    """A random state.

    Args:
      rng: where all choices come from.
      tab: the tab to start on.
      setting: a setting that must be visible (or below the fold).
      not_level: a level that `setting` does not have yet.
      who: someone who must be visible (or below the fold) and has no alerts yet.
      timer: a timer that must exist.
      below: whether setting and who are out of sight until the page is scrolled down.
    """
    settings = _ordered(rng, LONG, setting, ROWS, below)
    levels = [
        (name, rng.choice([level for level in LEVELS if name != setting or level != not_level])) for name in settings
    ]
    people = _ordered(rng, SHORT, who, 3 * ROWS, below)
    alerts = [(name, name != who and rng.random() < 0.5) for name in people]
    timers = rng.sample([number for number in NUMBERS if number != timer], TIMERS)
    if timer:
        timers[rng.randrange(TIMERS)] = timer
    return State(
        tuple(levels),
        tuple(alerts),
        tuple(timers),
        tuple(rng.sample(LEVELS, len(LEVELS))),
        tuple(rng.sample(TIMER_ACTIONS, len(TIMER_ACTIONS))),
        tab=tab,
    )


def with_level(state: State, setting: str, level: str) -> tuple[tuple[str, str], ...]:
    """The levels with that of `setting` set."""
    return tuple((name, level if name == setting else old) for name, old in state.levels)


def with_alert(state: State, who: str) -> tuple[tuple[str, bool], ...]:
    """The alerts with those of `who` toggled."""
    return tuple((name, on != (name == who)) for name, on in state.alerts)


def _tabs(state: State) -> list[Widget]:
    return [place(Kind.TAB, tab, i, 0, key=f"tab:{tab}", on=tab == state.tab) for i, tab in enumerate(TABS)]


def view(state: State) -> Widget:
    """The screen."""
    if state.opened:
        words = state.options if state.tab == "Set" else state.actions
        level = dict(state.levels).get(state.opened, "")
        rows = [
            place(Kind.OPTION, word, 0, 1 + i, 3, key=f"pick:{word}", on=word == level) for i, word in enumerate(words)
        ]
        return page(DeviceFamily.MOBILE, place(Kind.BAR, state.opened, 0, 0, 3), *rows)
    if state.tab == "Set":
        shown = state.levels[state.scroll : state.scroll + ROWS]
        items = [
            place(Kind.ROW, name, 0, 1 + i, 3, key=f"setting:{name}", value=level)
            for i, (name, level) in enumerate(shown)
        ]
    elif state.tab == "Who":
        people = state.alerts[3 * state.scroll : 3 * (state.scroll + ROWS)]
        items = [
            place(Kind.SWITCH, name, i % 3, 1 + i // 3, key=f"who:{name}", on=on) for i, (name, on) in enumerate(people)
        ]
    else:
        items = [
            place(Kind.TIMER, minutes, i % 3, 1 + i // 3, key=f"timer:{minutes}")
            for i, minutes in enumerate(state.timers)
        ]
    return page(
        DeviceFamily.MOBILE, *_tabs(state), *items, *scrollbar(DeviceFamily.MOBILE, 1, state.scroll, _rows(state))
    )


def _rows(state: State) -> int:
    return {"Set": len(state.levels), "Who": -(-len(state.alerts) // 3)}.get(state.tab, ROWS)


def _pick(state: State, word: str) -> State:
    """A choice on an open page closes it."""
    closed = dataclasses.replace(state, opened="")
    if state.tab == "Set":
        return dataclasses.replace(closed, levels=with_level(state, state.opened, word))
    if word == "Delete":
        return dataclasses.replace(closed, timers=tuple(timer for timer in state.timers if timer != state.opened))
    return dataclasses.replace(closed, used=(*state.used, (word, state.opened)))


def update(state: State, event: Event) -> State:
    """The state after an event. A setting opens by a tap, a timer by a long press."""
    if event.kind == EventKind.BACK and state.opened:
        return dataclasses.replace(state, opened="")
    if event.kind in (EventKind.BACK, EventKind.HOME):
        return dataclasses.replace(state, tab="Set", scroll=0, opened="")
    if event.kind == EventKind.SCROLL and not state.opened:
        return dataclasses.replace(state, scroll=min(max(state.scroll + event.rows, 0), _rows(state) - ROWS))
    if event.kind == EventKind.HOLD and event.role == "timer":
        return dataclasses.replace(state, opened=event.name)
    if event.kind == EventKind.TAP:
        if event.role == "tab":
            return dataclasses.replace(state, tab=event.name, scroll=0)
        if event.role == "setting":
            return dataclasses.replace(state, opened=event.name)
        if event.role == "who":
            return dataclasses.replace(state, alerts=with_alert(state, event.name))
        if event.role == "pick":
            return _pick(state, event.name)
    return state


APP = App("settings", DeviceFamily.MOBILE, view, update, navigation=("tab", "scroll", "opened"))
