"""Templates of the phone apps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from envs.virtual.apps import messages, settings
from envs.virtual.hand import Hand
from envs.virtual.lexicon import LEVELS, LONG, NUMBERS, SHORT, WORDS
from envs.virtual.template import Moment, Move, Params, Template, content_is


def _chat_open(p: Params, first: messages.State, now: Moment) -> bool:
    return now.state.opened == p["chat"]


def _chat_opened(p: Params, first: messages.State, now: Moment) -> bool:
    return _chat_open(p, first, now) and content_is(messages.APP, first, now.state)


def _drafted(text: Any) -> Any:
    return lambda p, first, now: now.state.opened == p["chat"] and now.state.draft == text(p, first)


def _sent(text: Any) -> Any:
    def check(p: Params, first: messages.State, now: Moment) -> bool:
        return content_is(messages.APP, first, now.state, chats=messages.send(first, p["chat"], text(p, first)).chats)

    return check


def _word(p: Params, first: messages.State) -> str:
    return p["word"]


def _number(p: Params, first: messages.State) -> str:
    return first.chat(p["source"]).messages[0]


def _open_chat(p: Params, hand: Hand) -> Iterator[Move]:
    yield hand.click(f"chat:{p['chat']}")


def _quick_reply(p: Params, hand: Hand) -> Iterator[Move]:
    yield hand.click(f"chat:{p['chat']}")
    yield hand.click(f"chip:{p['word']}")


def _write_word(p: Params, hand: Hand) -> Iterator[Move]:
    yield hand.click(f"chat:{p['chat']}")
    yield hand.type(p["word"])
    yield hand.click("send:")


def _forward_number(p: Params, hand: Hand) -> Iterator[Move]:
    number = hand.state.chat(p["source"]).messages[0]
    yield hand.back(f"Read {number}.")
    yield hand.click(f"chat:{p['chat']}")
    yield hand.type(number)
    yield hand.click("send:")


def _alerted(p: Params, first: settings.State, now: Moment) -> bool:
    return content_is(settings.APP, first, now.state, alerts=settings.with_alert(first, p["who"]))


def _levelled(p: Params, first: settings.State, now: Moment) -> bool:
    levels = settings.with_level(first, p["setting"], p["level"])
    return content_is(settings.APP, first, now.state, levels=levels)


def _timer_gone(p: Params, first: settings.State, now: Moment) -> bool:
    timers = tuple(timer for timer in first.timers if timer != p["timer"])
    return content_is(settings.APP, first, now.state, timers=timers)


def _opened(name: str) -> Any:
    return lambda p, first, now: now.state.opened == p[name]


def _scrolled(p: Params, first: settings.State, now: Moment) -> bool:
    return now.state.scroll > 0


def _toggle(p: Params, hand: Hand) -> Iterator[Move]:
    yield hand.click(f"who:{p['who']}")


def _choose_level(p: Params, hand: Hand) -> Iterator[Move]:
    yield hand.click(f"setting:{p['setting']}")
    yield hand.click(f"pick:{p['level']}")


def _delete_timer(p: Params, hand: Hand) -> Iterator[Move]:
    yield hand.hold(f"timer:{p['timer']}")
    yield hand.click("pick:Delete")


def _below(script: Any) -> Any:
    def scripted(p: Params, hand: Hand) -> Iterator[Move]:
        yield hand.scroll_down()
        yield from script(p, hand)

    return scripted


_TOGGLE = Template(
    name="settings.toggle",
    app=settings.APP,
    instruction="Turn on alerts for {who}.",
    choices={"who": SHORT},
    start=lambda p, rng: settings.start(rng, "Who", who=p["who"]),
    goal=_alerted,
    script=_toggle,
    length=1,
)

_CHOOSE = Template(
    name="settings.choose_level",
    app=settings.APP,
    instruction="Set {setting} to {level}.",
    choices={"setting": LONG, "level": LEVELS},
    start=lambda p, rng: settings.start(rng, setting=p["setting"], not_level=p["level"]),
    milestones=(_opened("setting"),),
    goal=_levelled,
    script=_choose_level,
    length=2,
)

TEMPLATES = (
    Template(
        name="messages.open_chat",
        app=messages.APP,
        instruction="Open the chat with {chat}.",
        choices={"chat": SHORT},
        start=lambda p, rng: messages.start(rng, [p["chat"]]),
        goal=_chat_opened,
        script=_open_chat,
        length=1,
    ),
    Template(
        name="messages.quick_reply",
        app=messages.APP,
        instruction="Reply {word} to {chat}.",
        choices={"chat": SHORT, "word": SHORT},
        allowed=lambda p: p["word"] != p["chat"],
        start=lambda p, rng: messages.start(rng, [p["chat"]], chip=p["word"]),
        milestones=(_chat_open,),
        goal=_sent(_word),
        script=_quick_reply,
        length=2,
    ),
    Template(
        name="messages.write_word",
        app=messages.APP,
        instruction="Write {word} to {chat}.",
        choices={"chat": SHORT, "word": WORDS},
        start=lambda p, rng: messages.start(rng, [p["chat"]], no_chip=p["word"]),
        milestones=(_chat_open, _drafted(_word)),
        goal=_sent(_word),
        script=_write_word,
        length=3,
    ),
    Template(
        name="messages.forward_number",
        app=messages.APP,
        instruction="Send the number from {source} to {chat}.",
        choices={"source": SHORT, "chat": SHORT},
        allowed=lambda p: p["source"] != p["chat"],
        start=lambda p, rng: messages.start(rng, [p["source"], p["chat"]], number_in=p["source"], opened=p["source"]),
        milestones=(_chat_open, _drafted(_number)),
        goal=_sent(_number),
        script=_forward_number,
        length=4,
    ),
    _TOGGLE,
    dataclasses.replace(
        _TOGGLE,
        name="settings.toggle_below",
        start=lambda p, rng: settings.start(rng, "Who", who=p["who"], below=True),
        milestones=(_scrolled,),
        script=_below(_toggle),
        length=2,
    ),
    _CHOOSE,
    dataclasses.replace(
        _CHOOSE,
        name="settings.choose_below",
        start=lambda p, rng: settings.start(rng, setting=p["setting"], not_level=p["level"], below=True),
        milestones=(_scrolled, *_CHOOSE.milestones),
        script=_below(_choose_level),
        length=3,
    ),
    Template(
        name="settings.delete_timer",
        app=settings.APP,
        instruction="Delete timer {timer}.",
        choices={"timer": NUMBERS},
        start=lambda p, rng: settings.start(rng, "Min", timer=p["timer"]),
        milestones=(_opened("timer"),),
        goal=_timer_gone,
        script=_delete_timer,
        length=2,
    ),
)
