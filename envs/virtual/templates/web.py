"""Templates of the web apps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from envs.virtual.apps import desk, shop
from envs.virtual.hand import Hand
from envs.virtual.lexicon import COLOURS, LONG, NAMES, NUMBERS, PRODUCT_ACTIONS, THINGS, TICKET_ACTIONS, WRAPS
from envs.virtual.template import Moment, Move, Params, Template, content_is


def _product_open(p: Params, first: shop.State, now: Moment) -> bool:
    return now.state.opened == p["product"]


def _product_opened(p: Params, first: shop.State, now: Moment) -> bool:
    return _product_open(p, first, now) and content_is(shop.APP, first, now.state)


def _done(p: Params, first: shop.State, now: Moment) -> bool:
    return content_is(shop.APP, first, now.state, done=((p["product"], p["action"]),))


def _wrapped(p: Params, first: shop.State, now: Moment) -> bool:
    return content_is(shop.APP, first, now.state, wraps=((p["product"], p["wrap"], p["colour"]),))


def _found(p: Params, first: shop.State, now: Moment) -> bool:
    return now.state.trail[-1].lower() == f"find:{p['product']}".lower()


def _scrolled(p: Params, first: shop.State, now: Moment) -> bool:
    return now.state.scrolled


def _open_product(p: Params, hand: Hand) -> Iterator[Move]:
    yield hand.click(f"item:{p['product']}")


def _act_on_product(p: Params, hand: Hand) -> Iterator[Move]:
    yield from _open_product(p, hand)
    yield hand.click(f"do:{p['action']}")


def _wrap_product(p: Params, hand: Hand) -> Iterator[Move]:
    yield from _open_product(p, hand)
    yield hand.select(f"wrap:{p['wrap']}", p["colour"])


def _search_product(p: Params, hand: Hand) -> Iterator[Move]:
    yield hand.type(p["product"], into="search:")
    yield from _open_product(p, hand)


def _scroll_open(p: Params, hand: Hand) -> Iterator[Move]:
    yield hand.scroll_down()
    yield from _open_product(p, hand)


def _ticket_open(p: Params, first: desk.State, now: Moment) -> bool:
    return now.state.opened == p["ticket"]


def _form_open(p: Params, first: desk.State, now: Moment) -> bool:
    return now.state.trail[-1] == "form"


def _code_entered(p: Params, first: desk.State, now: Moment) -> bool:
    return content_is(desk.APP, first, now.state, form=((p["field"], first.code(p["ticket"])),))


def _written(p: Params, first: desk.State, now: Moment) -> bool:
    return content_is(desk.APP, first, now.state, form=((p["field"], p["text"]),))


def _acted(p: Params, first: desk.State, now: Moment) -> bool:
    return content_is(desk.APP, first, now.state, done=((p["ticket"], p["action"]),))


def _code_answered(p: Params, first: desk.State, now: Moment) -> bool:
    return now.answer == first.code(p["ticket"]) and content_is(desk.APP, first, now.state)


def _enter_code(p: Params, hand: Hand) -> Iterator[Move]:
    yield hand.click(f"ticket:{p['ticket']}")
    code = hand.state.code(p["ticket"])
    yield hand.click("form:", note=f"Read {code}.")
    yield hand.type(code, into=f"field:{p['field']}")


def _fill_field(p: Params, hand: Hand) -> Iterator[Move]:
    yield hand.type(p["text"], into=f"field:{p['field']}")


def _act(p: Params, hand: Hand) -> Iterator[Move]:
    yield hand.click(f"ticket:{p['ticket']}")
    yield hand.click(f"do:{p['action']}")


def _act_after_back(p: Params, hand: Hand) -> Iterator[Move]:
    yield hand.back()
    yield from _act(p, hand)


def _answer_code(p: Params, hand: Hand) -> Iterator[Move]:
    yield hand.click(f"ticket:{p['ticket']}")
    yield hand.answer(hand.state.code(p["ticket"]))


_ACT = Template(
    name="desk.act",
    app=desk.APP,
    instruction="Choose {action} for ticket {ticket}.",
    choices={"ticket": NAMES, "action": TICKET_ACTIONS},
    start=lambda p, rng: desk.start(rng),
    milestones=(_ticket_open,),
    goal=_acted,
    script=_act,
    length=2,
)

TEMPLATES = (
    Template(
        name="shop.open_product",
        app=shop.APP,
        instruction="Open {product}.",
        choices={"product": THINGS},
        start=lambda p, rng: shop.start(rng, p["product"]),
        goal=_product_opened,
        script=_open_product,
        length=1,
    ),
    Template(
        name="shop.act",
        app=shop.APP,
        instruction="Choose {action} for {product}.",
        choices={"product": THINGS, "action": PRODUCT_ACTIONS},
        start=lambda p, rng: shop.start(rng, p["product"]),
        milestones=(_product_open,),
        goal=_done,
        script=_act_on_product,
        length=2,
    ),
    Template(
        name="shop.wrap_product",
        app=shop.APP,
        instruction="Open {product} and set {wrap} to {colour}.",
        choices={"product": THINGS, "wrap": WRAPS, "colour": COLOURS},
        start=lambda p, rng: shop.start(rng, p["product"]),
        milestones=(_product_open,),
        goal=_wrapped,
        script=_wrap_product,
        length=2,
    ),
    Template(
        name="shop.search_product",
        app=shop.APP,
        instruction="Search {product} and open it.",
        choices={"product": THINGS},
        start=lambda p, rng: shop.start(rng, p["product"], hidden=True),
        milestones=(_found,),
        goal=_product_opened,
        script=_search_product,
        length=2,
    ),
    Template(
        name="shop.scroll_open",
        app=shop.APP,
        instruction="Open {product}.",
        choices={"product": LONG},
        start=lambda p, rng: shop.start(rng),
        milestones=(_scrolled,),
        goal=_product_opened,
        script=_scroll_open,
        length=2,
    ),
    Template(
        name="desk.enter_code",
        app=desk.APP,
        instruction="Write the code of {ticket} in {field}.",
        choices={"ticket": NAMES, "field": THINGS},
        start=lambda p, rng: desk.start(rng, p["field"]),
        milestones=(_ticket_open, _form_open),
        goal=_code_entered,
        script=_enter_code,
        length=3,
    ),
    Template(
        name="desk.fill_field",
        app=desk.APP,
        instruction="Write {text} in {field}.",
        choices={"text": NAMES + NUMBERS, "field": THINGS},
        start=lambda p, rng: desk.start(rng, p["field"], ("list", "form")),
        goal=_written,
        script=_fill_field,
        length=1,
    ),
    _ACT,
    dataclasses.replace(
        _ACT,
        name="desk.act_elsewhere",
        start=lambda p, rng: desk.start(rng, other_than=p["ticket"]),
        script=_act_after_back,
        length=3,
    ),
    Template(
        name="desk.answer_code",
        app=desk.APP,
        instruction="What is the code of {ticket}?",
        choices={"ticket": NAMES},
        start=lambda p, rng: desk.start(rng),
        milestones=(_ticket_open,),
        goal=_code_answered,
        script=_answer_code,
        length=2,
    ),
)
