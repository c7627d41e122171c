import random

from envs.virtual.app import Event, EventKind
from envs.virtual.apps.files import APP, start
from envs.virtual.widgets import find

TAP, DOUBLE, DRAG = EventKind.TAP, EventKind.DOUBLE, EventKind.DRAG
DELETE = Event(EventKind.KEY, text="delete")


def run(state, *events):
    for event in events:
        state = APP.update(state, event)
    return state


def desk():
    return start(random.Random(0), files=["Pen", "Cup"], folders=["Map"])


def item(state, name):
    return next(item for item in state.items if item.name == name)


def test_clicks_add_to_the_selection_and_take_away():
    both = run(desk(), Event(TAP, "item:Pen"), Event(TAP, "item:Cup"))
    assert both.selected == ("Pen", "Cup")
    assert run(both, Event(TAP, "item:Pen")).selected == ("Cup",)
    assert {item.name for item in desk().items} - {item.name for item in run(both, DELETE).items} == {"Pen", "Cup"}


def test_delete_without_a_selection_does_nothing():
    assert run(desk(), DELETE) == desk()


def test_a_file_dropped_on_a_folder_lies_in_it():
    state = run(desk(), Event(DRAG, "item:Pen", onto="item:Map"))
    assert item(state, "Pen").parent == "Map"
    assert find(APP.view(state), "item:Pen") is None
    inside = run(state, Event(DOUBLE, "item:Map"))
    assert find(APP.view(inside), "item:Pen") is not None
    assert run(inside, Event(TAP, "up:")) == state


def test_other_drops_do_nothing():
    for source, onto in (("Pen", "Cup"), ("Map", "Map"), ("Map", "Pen")):
        assert run(desk(), Event(DRAG, f"item:{source}", onto=f"item:{onto}")) == desk()
    assert run(desk(), Event(DRAG, "item:Pen", onto="")) == desk()
    assert run(desk(), Event(DRAG, "", onto="item:Map")) == desk()


def test_deleting_a_folder_deletes_what_lies_in_it():
    state = run(desk(), Event(DRAG, "item:Pen", onto="item:Map"), Event(TAP, "item:Map"), DELETE)
    assert not {"Pen", "Map"} & {item.name for item in state.items}


def test_an_open_menu_takes_the_next_click():
    opened = run(desk(), Event(TAP, "menu:File"))
    assert find(APP.view(opened), "entry:Save") is not None and find(APP.view(opened), "entry:Undo") is None
    assert run(opened, Event(TAP, "entry:Save")).commands == ("Save",)
    assert run(opened, Event(TAP, "")) == run(opened, Event(TAP, "menu:Edit")) == desk()
    assert run(opened, DELETE) == opened
