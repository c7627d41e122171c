import random

from envs.virtual.app import Event, EventKind
from envs.virtual.apps.desk import APP, FIELDS, start
from envs.virtual.widgets import find

TAP, BACK, TYPE = EventKind.TAP, EventKind.BACK, EventKind.TYPE


def run(state, *events):
    for event in events:
        state = APP.update(state, event)
    return state


def test_the_code_stands_on_the_ticket_alone():
    state = start(random.Random(0))
    opened = run(state, Event(TAP, "ticket:Mia"))
    texts = [[leaf.value for leaf in APP.view(one).children if leaf.value] for one in (state, opened)]
    assert texts == [[], [state.code("Mia")]]


def test_form_fields_record_what_is_submitted():
    state = run(start(random.Random(0), "Cup"), Event(TAP, "form:"))
    fields = [leaf.text for leaf in APP.view(state).children if leaf.key.startswith("field:")]
    assert len(set(fields)) == FIELDS and "Cup" in fields
    filled = run(state, Event(TYPE, "field:Cup", text="47"))
    assert filled.form == (("Cup", "47"),) and find(APP.view(filled), "field:Cup").value == "47"
    assert run(filled, Event(TYPE, "field:Cup", text="48")).form == (("Cup", "47"), ("Cup", "48"))
    assert run(state, Event(TYPE, "list:", text="47")) == state


def test_actions_are_recorded_for_the_open_ticket():
    state = run(start(random.Random(0)), Event(TAP, "ticket:Mia"), Event(TAP, "do:Close"))
    assert state.done == (("Mia", "Close"),)


def test_pages_are_linked_and_back_goes_through_the_trail():
    state = start(random.Random(0))
    form = run(state, Event(TAP, "ticket:Mia"), Event(TAP, "form:"))
    assert run(form, Event(TAP, "list:")).trail[-1] == "list"
    assert run(form, Event(BACK)).opened == "Mia"
    assert run(form, Event(BACK), Event(BACK), Event(BACK)) == state


def test_start_on_another_ticket():
    for seed in range(30):
        state = start(random.Random(seed), other_than="Mia")
        assert state.opened not in ("", "Mia")
        assert run(state, Event(BACK)).trail == ("list",)
