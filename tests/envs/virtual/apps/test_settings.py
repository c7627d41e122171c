import random

from envs.virtual.app import Event, EventKind
from envs.virtual.apps.settings import APP, start, with_alert, with_level
from envs.virtual.widgets import find

TAP = EventKind.TAP


def run(state, *events):
    for event in events:
        state = APP.update(state, event)
    return state


def test_start_puts_the_target_above_or_below_the_fold():
    for seed in range(50):
        for below in (False, True):
            rng = random.Random(seed)
            state = start(rng, setting="Wifi", not_level="Low", who="Mia", timer="47", below=below)
            assert (find(APP.view(state), "setting:Wifi") is None) == below
            assert (find(APP.view(run(state, Event(TAP, "tab:Who"))), "who:Mia") is None) == below
            assert find(APP.view(run(state, Event(TAP, "tab:Min"))), "timer:47") is not None
            assert dict(state.levels)["Wifi"] != "Low" and not dict(state.alerts)["Mia"]


def test_scrolling_stops_at_both_ends():
    state = start(random.Random(0))  # 8 settings, 4 in sight
    assert run(state, Event(EventKind.SCROLL, rows=-3)) == state
    assert run(state, Event(EventKind.SCROLL, rows=9)).scroll == 4
    people = run(state, Event(TAP, "tab:Who"))  # 20 people in 7 rows
    assert run(people, Event(EventKind.SCROLL, rows=9)).scroll == 3
    timers = run(state, Event(TAP, "tab:Min"))
    assert run(timers, Event(EventKind.SCROLL, rows=9)).scroll == 0


def test_choosing_a_level_closes_the_page():
    state = start(random.Random(0), setting="Wifi", not_level="Low")
    chosen = run(state, Event(TAP, "setting:Wifi"), Event(TAP, "pick:Low"))
    assert chosen.levels == with_level(state, "Wifi", "Low") != state.levels
    assert not chosen.opened


def test_a_switch_changes_one_person():
    state = start(random.Random(0), "Who", who="Mia")
    toggled = run(state, Event(TAP, "who:Mia"))
    assert dict(toggled.alerts)["Mia"] and toggled.alerts == with_alert(state, "Mia")
    assert run(toggled, Event(TAP, "who:Mia")) == state


def test_a_timer_opens_by_a_long_press_only():
    state = start(random.Random(0), "Min", timer="47")
    assert run(state, Event(TAP, "timer:47")) == state
    opened = run(state, Event(EventKind.HOLD, "timer:47"))
    assert run(opened, Event(EventKind.BACK)) == state
    gone = run(opened, Event(TAP, "pick:Delete"))
    assert set(state.timers) - set(gone.timers) == {"47"}
    muted = run(opened, Event(TAP, "pick:Mute"))
    assert muted.used == (("Mute", "47"),) and muted.timers == state.timers


def test_back_leads_to_the_first_tab():
    state = run(start(random.Random(0), "Who"), Event(EventKind.SCROLL, rows=2), Event(EventKind.BACK))
    assert (state.tab, state.scroll) == ("Set", 0)
