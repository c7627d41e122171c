"""The reader of values and calls in the style of Python."""

from __future__ import annotations

import random

import pytest

from gui_owl_jax.agent.actions import ToolCall
from gui_owl_jax.agent.dialects.literals import read_call, read_value, write_call, write_value
from gui_owl_jax.agent.errors import ParseError, ParseReason

VALUES = {
    "'a'": "a",
    '"a"': "a",
    "''": "",
    "'it\\'s \"so\"'": 'it\'s "so"',
    '"it\'s"': "it's",
    "'one\ntwo'": "one\ntwo",
    r"'\n\t\\n\"'": '\n\t\\n"',
    r"'C:\dir'": "C:\\dir",
    r"'\x41\u4e2d\U0001F600\ud83d\ude00'": "A中😀😀",
    "12": 12,
    "-1.5": -1.5,
    "+2.": 2.0,
    ".5": 0.5,
    "1e3": 1000.0,
    "[1, [2], (3, 'x'),]": [1, [2], (3, "x")],
    "()": (),
    "(1,)": (1,),
    "{'a': None, \"b\": [true, False, null]}": {"a": None, "b": [True, False, None]},
    "\n [1 ,\n2 ] ": [1, 2],
}
NOT_VALUES = [
    *("", " ", "a", "'a", '"a', "'a\\", "'\\'", "[1", "[1 2]", "[1,,2]", "[,]", "(1", "{'a'}", "{'a': }", "{a: 1}"),
    *("{'a': 1, 'a': 2}", "{1: 2}", "-", "+", "1" * 50, "__import__('os')", "enum['a']", "nan", "inf", "b'a'", "f'a'"),
    *(r"'\x4'", r"'\u12'", r"'\UFFFFFFFF'", r"'\ud83d'", "[" * 20 + "]" * 20, "lambda: 1", "１"),
]


@pytest.mark.parametrize("text", VALUES)
def test_value(text):
    value, end = read_value(text)
    assert (value, type(value)) == (VALUES[text], type(VALUES[text]))
    assert text[end:].strip() == ""


@pytest.mark.parametrize("text", NOT_VALUES)
def test_not_a_value(text):
    with pytest.raises(ParseError) as caught:
        read_value(text)
    assert caught.value.reason == ParseReason.BAD_JSON


def test_call():
    text = "  f_1(a='x)', b=(1, 2), c=[g] ) rest".replace("[g]", "[]")
    call, end = read_call(text)
    assert call == ToolCall("f_1", {"a": "x)", "b": (1, 2), "c": []})
    assert text[end:] == " rest"
    assert read_call("x = f()", 4) == (ToolCall("f", {}), 7)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f",
        "f (a=1)",
        "1f()",
        "f(",
        "f(a)",
        "f(1)",
        "f(a=)",
        "f(a=1",
        "f(a=1 b=2)",
        "f(a=1, a=2)",
        "f(a=g())",
        "f(,)",
    ],
)
def test_not_a_call(text):
    with pytest.raises(ParseError) as caught:
        read_call(text)
    assert caught.value.reason == ParseReason.BAD_JSON


def test_what_is_written_is_read():
    draw = random.Random(0)
    letters = "ab'\"\\\n\r\t()[]{},=:#é中😀\x00\u2028 nxu"

    def value(depth=0):
        kind = draw.randrange(4 if depth > 3 else 7)
        if kind == 0:
            return "".join(draw.choices(letters, k=draw.randrange(9)))
        if kind == 1:
            return draw.choice([None, True, False])
        if kind < 4:
            return draw.choice([draw.randrange(-99, 9999), round(draw.uniform(-9, 9), 3) + 0.0005])
        items = [value(depth + 1) for _ in range(draw.randrange(2, 4))]
        return items if kind == 4 else tuple(items) if kind == 5 else {f"k'{i}": item for i, item in enumerate(items)}

    for _ in range(500):
        item = value()
        assert read_value(write_value(item)) == (item, len(write_value(item)))
        call = ToolCall("f", {"a": item, "b_2": value()})
        assert read_call(write_call(call))[0] == call
