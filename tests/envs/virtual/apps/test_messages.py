import random

from envs.virtual.app import Event, EventKind
from envs.virtual.apps.messages import APP, CHATS, start

TAP, TYPE = EventKind.TAP, EventKind.TYPE


def run(state, *events):
    for event in events:
        state = APP.update(state, event)
    return state


def home():
    return start(random.Random(0), ["Mia", "Tom"], chip="Cup", number_in="Tom", no_chip="Pen")


def test_start_holds_what_was_asked_for():
    for seed in range(50):
        state = start(random.Random(seed), ["Mia", "Tom"], chip="Cup", number_in="Tom", no_chip="Pen")
        names = [chat.name for chat in state.chats]
        assert len(set(names)) == CHATS and {"Mia", "Tom"} <= set(names)
        assert "Cup" in state.chips and not {"Pen", "Mia", "Tom"} & set(state.chips) and len(set(state.chips)) == 3
        assert [chat.name for chat in state.chats if chat.messages[0].isdigit()] == ["Tom"]


def test_a_typed_text_is_sent_to_the_open_chat_only():
    state = run(home(), Event(TAP, "chat:Mia"), Event(TYPE, text="Lu"), Event(TYPE, text="nch"))
    assert state.draft == "Lunch" and state.chat("Mia").sent == 0
    state = run(state, Event(TAP, "send:"))
    assert state.draft == "" and state.chat("Mia").messages[-1] == "Lunch" and state.chat("Mia").sent == 1
    assert [chat for chat in state.chats if chat.name != "Mia"] == [c for c in home().chats if c.name != "Mia"]


def test_nothing_is_typed_on_the_home_page_and_nothing_empty_is_sent():
    assert run(home(), Event(TYPE, text="Lunch")) == home()
    opened = run(home(), Event(TAP, "chat:Mia"))
    assert run(opened, Event(TAP, "send:"), Event(TYPE, text="\n")) == opened


def test_a_quick_reply_is_sent_at_once():
    state = run(home(), Event(TAP, "chat:Mia"), Event(TYPE, text="x"), Event(TAP, "chip:Cup"))
    assert state.chat("Mia").messages[-1] == "Cup" and state.draft == ""


def test_del_and_back_drop_the_draft():
    typed = run(home(), Event(TAP, "chat:Mia"), Event(TYPE, text="Lunch"))
    assert run(typed, Event(TAP, "clear:")).draft == ""
    assert run(typed, Event(EventKind.BACK)) == home()
