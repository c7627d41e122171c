"""`parse` reads back what `render` writes: every kind of action that a dialect has words for, and nothing else."""

from __future__ import annotations

import random

import pytest

from gui_owl_jax.agent import dialects
from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.devices import ACTION_TABLE, BUTTONS, DIRECTIONS, STATUSES, DeviceFamily
from gui_owl_jax.agent.dialects.grid import OPPOSITE, swiped
from gui_owl_jax.agent.errors import DataError, ParseError, ParseReason
from gui_owl_jax.agent.parsing import parse_response, render_response

MOBILE, DESKTOP, WEB = DeviceFamily
SHOWN = (1288, 728)
ALL = {family: set(ACTION_TABLE[family]) for family in DeviceFamily}
POINTING = {"mouse_move", "left_click", "right_click", "middle_click", "double_click"}
UI_TARS_DESKTOP = {
    *("left_click", "double_click", "right_click", "key", "type", "wait", "answer", "interact", "terminate"),
    *("scroll", "hscroll"),
}
TOUCH = {"click", "swipe", "type", "wait", "answer", "interact", "terminate"}
# What each dialect has words for.
SAYS = {
    "gui_owl_1_5": ALL,
    "gui_owl_v3": {
        MOBILE: ALL[MOBILE] - {"interact"},
        DESKTOP: {*POINTING, "key", "type", "scroll", "wait", "terminate"},
    },
    "qwen3_vl": {MOBILE: ALL[MOBILE] - {"answer", "interact"}, DESKTOP: ALL[DESKTOP] - {"interact"}},
    "qwen2_5_vl": {MOBILE: ALL[MOBILE] - {"answer", "interact"}, DESKTOP: ALL[DESKTOP] - {"interact"}},
    "ui_tars_1": {MOBILE: {*TOUCH, "long_press", "open", "system_button"}, DESKTOP: UI_TARS_DESKTOP},
    "ui_tars_1_5": {MOBILE: {*TOUCH, "long_press", "open", "system_button"}, DESKTOP: UI_TARS_DESKTOP},
    "ui_tars_2": {MOBILE: TOUCH, DESKTOP: {*UI_TARS_DESKTOP, "mouse_move"}},
    "ui_r1": {
        MOBILE: {"click", "swipe", "open", "type", "system_button", "terminate"},
        DESKTOP: {"left_click", "scroll", "hscroll", "type", "terminate"},
    },
    "gui_r1": {
        MOBILE: {"click", "long_press", "swipe", "open", "type", "system_button", "wait", "terminate"},
        DESKTOP: {"left_click", "scroll", "hscroll", "type", "key", "wait", "terminate"},
    },
    "mai_ui": {MOBILE: ALL[MOBILE] - {"key"}},
    "mai_ui_grounding": {MOBILE: {"click", "terminate"}, DESKTOP: {"left_click", "terminate"}},
    "ui_venus_1_5": {
        MOBILE: ALL[MOBILE] - {"key", "interact"},
        DESKTOP: {
            *("left_click", "double_click", "mouse_move", "key", "scroll", "hscroll"),
            *("type", "wait", "answer", "terminate"),
        },
    },
    "gui_owl_eval": {MOBILE: {"click", "terminate"}, DESKTOP: {"left_click", "terminate"}},
}
PAIRS = [(name, family) for name, families in SAYS.items() for family in families]

# Texts that break published parsers, and the tags of all dialects.
TEXTS = (
    "tea",
    "",
    " two  spaces ",
    "f(x)\n\ng(x)",
    'it\'s "so"',
    "C:\\new\\table\\x41 \\u00e9 \\",
    "point=3, start_box='(1,2)'",
    "Action: click(point='<point>1 2</point>')",
    "one\ntwo\r\n\tthree\n",
    "午餐 😀 é",
    "</tool_call><tool_call>{}",
    "</action></answer></think><think>",
    "<conclusion>x</conclusion>",
    "</function></seed:tool_call>",
    "[{'action': 'click'}]",
    "(3, 4) [5, 6]",
    "<|im_end|>",
    "no input text",
)
THOUGHTS = ("", "The field is empty.", 'The button says "Send".\nI press it.', "Schritt für Schritt: 午餐")
WORDS = ("", "Tap Send.", 'Type "tea" in the field.')


# What formats without escapes would read as something else.
UNSAYABLE = {"gui_r1": {"no input text"}}


def point(draw, edges):
    x, y = (draw.randint(0, edge) for edge in edges)
    return x * 1000 / edges[0], y * 1000 / edges[1]


def fields(draw, name, edges):
    return {
        "coordinate": lambda: point(draw, edges),
        "coordinate2": lambda: point(draw, edges),
        "text": lambda: draw.choice(TEXTS),
        "button": lambda: draw.choice(BUTTONS),
        "keys": lambda: draw.choice([("ctrl", "c"), ("enter",), ("+",), ("ctrl", "shift", "Tab")]),
        "time": lambda: float(draw.choice([0, 0.5, 0.8, 2, 5])),
        "status": lambda: draw.choice(STATUSES),
        "pixels": lambda: draw.choice([500, -500, 300, -120, 7]),
        "label": lambda: draw.choice([0, 17]),
        "direction": lambda: draw.choice(DIRECTIONS),
        "option": lambda: draw.choice(TEXTS),
    }[name]()


def actions(draw, family, kind, edges):
    spec = ACTION_TABLE[family][kind]
    if kind == "swipe" and draw.random() < 0.5:
        start, end = swiped(None, draw.choice(list(OPPOSITE)))
        return Action(kind, coordinate=start, coordinate2=end)
    names = spec.required + (spec.optional if draw.random() < 0.5 else ())
    return Action(kind, **{name: fields(draw, name, edges) for name in names})


def grid(dialect):
    return SHOWN if dialect.scale == dialects.RESIZED else (int(dialect.scale), int(dialect.scale))


@pytest.mark.parametrize("name, family", PAIRS)
def test_what_is_written_is_read(name, family):
    dialect, draw = dialects.get(name), random.Random(0)
    said = set()
    for kind in ACTION_TABLE[family]:
        for _ in range(60):
            action = actions(draw, family, kind, grid(dialect))
            thought, conclusion = draw.choice(THOUGHTS), draw.choice(WORDS)
            try:
                text = dialect.render(action, family, thought=thought, conclusion=conclusion, shown=SHOWN)
            except ParseError as error:
                assert error.reason == ParseReason.UNKNOWN_ACTION
                continue
            except DataError:
                assert action.text in UNSAYABLE.get(name, ()), action
                continue
            said.add(kind)
            back = dialect.parse(text, family, shown=SHOWN)
            assert back.action.kind == action.kind
            for place in ("coordinate", "coordinate2"):
                wanted, got = getattr(action, place), getattr(back.action, place)
                # The ends of a swipe by direction need not lie on a grid of pixels.
                assert got is wanted or got == pytest.approx(wanted, abs=0.7 if kind == "swipe" else 1e-9)
            plain = {"coordinate": None, "coordinate2": None}
            assert {**vars(back.action), **plain} == {**vars(action), **plain}
            if name != "gui_owl_eval":
                joined = "\n".join(filter(None, [thought, conclusion]))
                assert (back.thought, back.conclusion) == ((thought, conclusion) if dialect.concludes else (joined, ""))
    assert said == SAYS[name][family]


@pytest.mark.parametrize("name, family", PAIRS)
def test_a_refusal_is_the_same_in_all(name, family):
    if family == WEB:
        return  # browser_use cannot give up
    dialect = dialects.get(name)
    refused = Action("terminate", status="failure")
    assert dialect.parse(dialect.render(refused, family), family).action == refused


@pytest.mark.parametrize("family", DeviceFamily)
def test_our_own_dialect_is_that_of_parsing(family):
    dialect, draw = dialects.get("gui_owl_1_5"), random.Random(1)
    for kind in ACTION_TABLE[family]:
        for _ in range(20):
            action = actions(draw, family, kind, (7919, 7919))  # any float
            text = dialect.render(action, family, thought="Hm.", conclusion="Do it.")
            assert text == render_response("Do it.", action, family, "Hm.")
            assert dialect.parse(text, family) == parse_response(text, family)


WRITTEN = {
    "gui_owl_v3": (
        "<thinking>\nHm.\n</thinking>\n<tool_call>\n"
        '{"name": "computer_use", "arguments": {"action": "click", "coordinate": [644, 182]}}\n</tool_call>\n'
        "<conclusion>\nClick it.\n</conclusion>"
    ),
    "qwen3_vl": (
        "Thought: Hm.\nAction: Click it.\n<tool_call>\n"
        '{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [500, 250]}}\n</tool_call>'
    ),
    "ui_tars_1": "Thought: Hm.\nClick it.\nAction: click(start_box='<|box_start|>(500,250)<|box_end|>')",
    "ui_tars_1_5": "Thought: Hm.\nClick it.\nAction: click(point='<point>644 182</point>')",
    "ui_tars_2": (
        "<gui_think>Hm.\nClick it.</gui_think>\n<seed:tool_call><function=click><parameter=point><point>500 250</point>"
        "</parameter></function></seed:tool_call>"
    ),
    "ui_r1": "<think>Hm.\nClick it.</think>\n<answer>[{'action': 'click', 'coordinate': [644, 182]}]</answer>",
    "gui_r1": (
        "<think>Hm.\nClick it.</think>\n"
        "<answer>[{'action': 'click', 'point': [644, 182], 'input_text': 'no input text'}]</answer>"
    ),
    "mai_ui_grounding": (
        '<grounding_think>Hm.\nClick it.</grounding_think>\n<answer>\n{"coordinate":[500,250]}\n</answer>'
    ),
    "ui_venus_1_5": ("<think>Hm.</think>\n<action>Click(box=(500, 250))</action>\n<conclusion>Click it.</conclusion>"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_written_form(name):
    text = dialects.get(name).render(
        Action("left_click", coordinate=(500, 250)), DESKTOP, thought="Hm.", conclusion="Click it.", shown=SHOWN
    )
    assert text == WRITTEN[name]


@pytest.mark.parametrize("name, family", PAIRS)
@pytest.mark.parametrize("spelt", TEXTS)
def test_no_thought_changes_the_action(name, family, spelt):
    dialect = dialects.get(name)
    action = Action("answer", text="4") if family == WEB else Action("terminate", status="failure")
    thought = f"It says {spelt} there.\n{spelt}"
    for parts in ({"thought": thought}, {"conclusion": thought}):
        try:
            text = dialect.render(action, family, **parts, shown=SHOWN)
        except DataError:
            continue  # said so, instead of writing what reads as something else
        back = dialect.parse(text, family, shown=SHOWN)
        assert back.action == action
        if name != "gui_owl_eval":  # it has no words
            assert thought.strip() in (back.thought, back.conclusion)


def test_an_action_without_words_is_no_guess():
    drag = Action("left_click_drag", coordinate=(1, 2))
    for name in ("gui_owl_v3", "ui_tars_1_5", "ui_venus_1_5"):
        with pytest.raises(ParseError) as caught:
            dialects.get(name).render(drag, DESKTOP, shown=SHOWN)
        assert caught.value.reason == ParseReason.UNKNOWN_ACTION
    with pytest.raises(ParseError):  # UI-R1 scrolls by direction: a short swipe is none of the four
        dialects.get("ui_r1").render(Action("swipe", (500, 600), (500, 500)), MOBILE, shown=SHOWN)
    with pytest.raises(ParseError):  # nor is one that is too long by four units
        dialects.get("ui_r1").render(Action("swipe", (500, 750), (500, 246)), MOBILE, shown=SHOWN)
    with pytest.raises(ParseError):  # incomplete
        dialects.get("qwen3_vl").render(Action("click"), MOBILE)
