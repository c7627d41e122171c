import random

from envs.virtual.app import Event, EventKind
from envs.virtual.apps.sheet import APP, edited, start
from envs.virtual.lexicon import CELL_MENU
from envs.virtual.widgets import find

TAP, TYPE = EventKind.TAP, EventKind.TYPE


def run(state, *events):
    for event in events:
        state = APP.update(state, event)
    return state


def fresh():
    return start(random.Random(0), above={0: ["Mia"]}, below={0: ["Tom"]}, unused="47")


def test_start_puts_cells_above_and_below_the_fold_and_no_value_twice():
    for seed in range(50):
        state = start(random.Random(seed), above={0: ["Mia", "Cup"], 1: ["Ann"]}, below={0: ["Tom"]}, unused="47")
        tree = APP.view(state)
        assert find(tree, "cell:Mia") and find(tree, "cell:Cup") and not find(tree, "cell:Tom")
        assert find(APP.view(run(state, Event(TAP, "sheet:B"))), "cell:Ann")
        values = [cell.value for sheet in state.sheets for cell in sheet]
        assert len(set(values)) == len(values) == 36 and "47" not in values
        assert all(len({cell.label for cell in sheet}) == 12 for sheet in state.sheets)


def test_a_click_empties_the_cell_for_the_new_value():
    state = run(fresh(), Event(TAP, "cell:Mia"))
    assert state.cell(0, "Mia").value == ""
    state = run(state, Event(TYPE, text="4"), Event(TYPE, text="7"))
    assert state.sheets == edited(fresh(), 0, "Mia", value="47")
    assert run(state, Event(TAP, "cell:Mia")) == state  # it is being edited already


def test_typing_without_a_focus_does_nothing():
    assert run(fresh(), Event(TYPE, text="47")) == fresh()
    left = run(fresh(), Event(TAP, "cell:Mia"), Event(TAP, "sheet:B"), Event(TYPE, text="47"))
    assert left.cell(0, "Mia").value == "" and left.sheets[1] == fresh().sheets[1]


def test_scrolling_brings_the_cells_below_the_fold():
    state = run(fresh(), Event(EventKind.SCROLL, rows=3))
    assert find(APP.view(state), "cell:Tom")
    assert run(state, Event(EventKind.SCROLL, rows=3)) == state
    assert run(state, Event(EventKind.SCROLL, rows=-99)) == fresh()


def test_the_context_menu_styles_its_cell():
    opened = run(fresh(), Event(EventKind.CONTEXT, "cell:Mia"))
    assert all(find(APP.view(opened), f"entry:{entry}") for entry in CELL_MENU)
    styled = run(opened, Event(TAP, "entry:Bold"))
    assert styled.sheets == edited(fresh(), 0, "Mia", styles=("Bold",)) and not styled.context
    assert run(opened, Event(TAP, "")) == fresh()
