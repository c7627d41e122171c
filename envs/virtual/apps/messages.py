"""Messages, a phone app: a page of chats; a chat with its last message, quick replies and an input."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from envs.virtual.app import App, Event, EventKind, clean_text
from envs.virtual.lexicon import LONG, NUMBERS, SHORT
from envs.virtual.widgets import Kind, Widget, page, place
from gui_owl_jax.agent.devices import DeviceFamily

CHATS = 12
CHIPS = 3


@dataclasses.dataclass(frozen=True)
class Chat:
    """A conversation; only its last message is shown.

    Attributes:
      name: whom it is with.
      messages: texts, oldest first.
      sent: how many of them the user sent.
    """

    name: str
    messages: tuple[str, ...]
    sent: int = 0


@dataclasses.dataclass(frozen=True)
class State:
    """State of the app.

    Attributes:
      chats: in the order of the home page, three per row.
      chips: the quick replies.
      opened: name of the open chat, "" on the home page.
      draft: text in the input.
    """

    chats: tuple[Chat, ...]
    chips: tuple[str, ...]
    opened: str = ""
    draft: str = ""

    def chat(self, name: str) -> Chat:
        """The chat with `name`."""
        return next(chat for chat in self.chats if chat.name == name)


def start(
    rng: random.Random,
    chats: Sequence[str] = (),
    chip: str = "",
    number_in: str = "",
    opened: str = "",
    no_chip: str = "",
) -> State:
    """A random state with the given chats and quick reply in it; no word stands for two things in those chats.

    Args:
      rng: where all choices come from.
      chats: names of chats that must be there.
      chip: a quick reply that must be offered, "" for none.
      number_in: name of the chat whose last message is a number, "" for none.
      opened: the chat to start in.
      no_chip: a word that must not be offered as a quick reply.
    """
    names = [*chats, *rng.sample([word for word in SHORT if word not in chats], CHATS - len(chats))]
    rng.shuffle(names)
    chips = rng.sample([word for word in SHORT if word not in (chip, no_chip, *chats)], CHIPS)
    if chip:
        chips[rng.randrange(CHIPS)] = chip
    made = [Chat(name, (rng.choice(NUMBERS if name == number_in else LONG),)) for name in names]
    return State(tuple(made), tuple(chips), opened)


def send(state: State, name: str, text: str) -> State:
    """The state after `text` was sent to `name` and the input was emptied; nothing is sent for ""."""
    if not text:
        return state
    chats = tuple(
        dataclasses.replace(chat, messages=(*chat.messages, text), sent=chat.sent + 1) if chat.name == name else chat
        for chat in state.chats
    )
    return dataclasses.replace(state, chats=chats, draft="")


def view(state: State) -> Widget:
    """The screen."""
    if not state.opened:
        tiles = [
            place(Kind.TILE, chat.name, index % 3, 1 + index // 3, key=f"chat:{chat.name}")
            for index, chat in enumerate(state.chats)
        ]
        return page(DeviceFamily.MOBILE, place(Kind.BAR, "Chats", 0, 0, 3), *tiles)
    chat = state.chat(state.opened)
    chips = [place(Kind.CHIP, word, index, 2, key=f"chip:{word}") for index, word in enumerate(state.chips)]
    return page(
        DeviceFamily.MOBILE,
        place(Kind.BAR, chat.name, 0, 0, 3),
        place(Kind.BUBBLE, chat.messages[-1], 0, 1, 3, on=chat.sent > 0),
        *chips,
        place(Kind.FIELD, state.draft, 0, 3, 3, key="input:", focused=True),
        place(Kind.BUTTON, "Send", 0, 4, 2, key="send:"),
        place(Kind.BUTTON, "Del", 2, 4, key="clear:"),
    )


def update(state: State, event: Event) -> State:
    """The state after an event. Opening a chat focuses its input; leaving it drops the draft."""
    if event.kind in (EventKind.BACK, EventKind.HOME):
        return dataclasses.replace(state, opened="", draft="")
    if event.kind == EventKind.TYPE and state.opened:
        return dataclasses.replace(state, draft=clean_text(state.draft + event.text))
    if event.kind == EventKind.TAP:
        if event.role == "chat":
            return dataclasses.replace(state, opened=event.name)
        if event.role == "chip":
            return dataclasses.replace(send(state, state.opened, event.name), draft="")
        if event.role == "send":
            return send(state, state.opened, state.draft)
        if event.role == "clear":
            return dataclasses.replace(state, draft="")
    return state


APP = App("messages", DeviceFamily.MOBILE, view, update, navigation=("opened", "draft"))
