import random

from envs.virtual.app import Event, EventKind
from envs.virtual.apps.shop import APP, SHOWN, results, start
from envs.virtual.lexicon import LONG, THINGS
from envs.virtual.widgets import find

TAP, BACK = EventKind.TAP, EventKind.BACK


def run(state, *events):
    for event in events:
        state = APP.update(state, event)
    return state


def test_a_hidden_product_is_found_by_a_search_only():
    for seed in range(50):
        state = start(random.Random(seed), "Cup", hidden=True)
        assert find(APP.view(state), "item:Cup") is None
        found = run(state, Event(EventKind.TYPE, "search:", text="cup"))
        assert find(APP.view(found), "item:Cup") is not None
        assert len(results(found, "Cup")) == SHOWN
        assert find(APP.view(start(random.Random(seed), "Cup")), "item:Cup") is not None


def test_a_search_for_nothing_lists_nothing():
    state = start(random.Random(0))
    nothing = run(state, Event(EventKind.TYPE, "search:", text="Xyz"))
    assert not [leaf for leaf in APP.view(nothing).children if leaf.key.startswith("item:")]
    assert run(nothing, Event(BACK)) == state
    home = run(nothing, Event(EventKind.TYPE, "search:", text=" "))
    assert results(home, " ") == ()


def test_large_products_stand_below():
    state = start(random.Random(0))
    below = run(state, Event(EventKind.SCROLL, rows=4))
    assert {leaf.text for leaf in APP.view(below).children if leaf.key} == set(LONG)
    assert run(below, Event(EventKind.SCROLL, rows=-4)) == state
    opened = run(below, Event(TAP, "item:Radio"))
    assert opened.opened == "Radio" and run(opened, Event(EventKind.SCROLL, rows=4)) == opened


def test_wraps_and_actions_are_recorded_for_the_open_product():
    state = run(start(random.Random(0), "Cup"), Event(TAP, "item:Cup"))
    wrapped = run(state, Event(EventKind.CHOOSE, "wrap:Lid", text="Red"))
    assert wrapped.wraps == (("Cup", "Lid", "Red"),) and find(APP.view(wrapped), "wrap:Lid").value == "Red"
    assert run(wrapped, Event(EventKind.CHOOSE, "wrap:Lid", text="Tan")).colour("Cup", "Lid") == "Tan"
    assert run(state, Event(EventKind.CHOOSE, "wrap:Lid", text="Pink")) == state
    assert run(state, Event(EventKind.CHOOSE, "do:Add", text="Red")) == state
    assert run(state, Event(TAP, "do:Add")).done == (("Cup", "Add"),)


def test_back_goes_through_the_trail():
    state = start(random.Random(0), "Cup")
    opened = run(state, Event(TAP, "item:Cup"), Event(TAP, "home:"))
    assert run(opened, Event(BACK)).opened == "Cup"
    assert run(opened, Event(BACK), Event(BACK)) == state == run(state, Event(BACK))


def test_the_home_page_shows_eight_small_products():
    state = start(random.Random(0))
    shown = [leaf.text for leaf in APP.view(state).children if leaf.key.startswith("item:")]
    assert len(shown) == SHOWN and set(shown) < set(THINGS)
