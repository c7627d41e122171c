"""Values and calls in the style of Python, read by hand: nothing is evaluated.

Several dialects write `click(point='<point>3 4</point>')` or `[{'action': 'click', 'coordinate': [3, 4]}]`. Read are
strings in either kind of quotes (they may hold raw line breaks), numbers, lists, tuples, dicts and the constants of
Python and JSON. Escapes are those of Python's strings, as far as models write them; an unknown one stays as it is.
Whatever else a text holds is a `ParseError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from gui_owl_jax.agent.actions import ToolCall
from gui_owl_jax.agent.errors import ParseError, ParseReason

_T = TypeVar("_T")
_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_PLAIN = re.compile(r"[^'\"\\]+")
_CONSTANTS: Mapping[str, object] = {
    "None": None,
    "True": True,
    "False": False,
    "null": None,
    "true": True,
    "false": False,
}
_ESCAPES = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_HEX = {"x": 2, "u": 4, "U": 8}
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_MAX_DEPTH = 8
_MAX_DIGITS = 40


def read_value(text: str, start: int = 0) -> tuple[object, int]:
    """The value at `start` (behind white space) and where it ends. Lists stay lists, tuples tuples.

    Raises:
      ParseError: BAD_JSON, no value is there, or it is cut off.
    """
    return _value(text, _skip(text, start), 0)


def read_call(text: str, start: int = 0) -> tuple[ToolCall, int]:
    """The call `name(argument=value, ...)` at `start` (behind white space) and where it ends.

    Raises:
      ParseError: BAD_JSON, no call is there, an argument has no name or comes twice, or the call is cut off.
    """
    name = _NAME.match(text, _skip(text, start))
    if not name or text[name.end() : name.end() + 1] != "(":
        raise _bad("a call", text, start)
    pairs, end = _members(text, name.end(), 0, _named)
    return ToolCall(name[0], _unique(pairs)), end


def write_value(value: object) -> str:
    """The value as `read_value` reads it: strings in single quotes, whole floats as integers."""
    match value:
        case str():
            return f"'{_escaped(value)}'"
        case bool() | None:
            return str(value)
        case int() | float():
            return str(int(value)) if float(value).is_integer() else repr(value)
        case list():
            return f"[{', '.join(map(write_value, value))}]"
        case tuple():
            return f"({', '.join(map(write_value, value))})"
        case Mapping():
            return "{" + ", ".join(f"{write_value(key)}: {write_value(item)}" for key, item in value.items()) + "}"
    raise TypeError(f"no way to write {type(value).__name__}")


def write_call(call: ToolCall) -> str:
    """The call as `read_call` reads it."""
    return f"{call.name}({', '.join(f'{name}={write_value(value)}' for name, value in call.arguments.items())})"


def _value(text: str, start: int, depth: int) -> tuple[object, int]:
    first = text[start : start + 1]
    if depth > _MAX_DEPTH:
        raise ParseError(ParseReason.BAD_JSON, f"brackets are nested more than {_MAX_DEPTH} deep")
    if first and first in "'\"":
        return _string(text, start)
    if first and first in "[(":
        items, end = _members(text, start, depth, _value)
        return (items if first == "[" else tuple(items)), end
    if first == "{":
        pairs, end = _members(text, start, depth, _pair)
        return _unique(pairs), end
    if number := _NUMBER.match(text, start):
        if len(number[0]) > _MAX_DIGITS:
            raise ParseError(ParseReason.BAD_JSON, f"a number of {len(number[0])} characters")
        return (int if number[0].lstrip("+-").isdecimal() else float)(number[0]), number.end()
    word = _NAME.match(text, start)
    if word and word[0] in _CONSTANTS:
        return _CONSTANTS[word[0]], word.end()
    raise _bad("a value", text, start)


def _members(
    text: str, start: int, depth: int, read: Callable[[str, int, int], tuple[_T, int]]
) -> tuple[list[_T], int]:
    """What stands between the bracket at `start` and its partner; a comma may follow the last member."""
    closing = _CLOSING[text[start]]
    items: list[_T] = []
    at = _skip(text, start + 1)
    while text[at : at + 1] != closing:
        item, at = read(text, at, depth + 1)
        items.append(item)
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != closing:
            raise _bad(f"',' or {closing!r}", text, at)
    return items, at + 1


def _pair(text: str, start: int, depth: int) -> tuple[tuple[str, object], int]:
    if text[start : start + 1] not in ("'", '"'):
        raise _bad("a key in quotes", text, start)
    key, at = _string(text, start)
    return _right_side(key, ":", text, at, depth)


def _named(text: str, start: int, depth: int) -> tuple[tuple[str, object], int]:
    name = _NAME.match(text, start)
    if not name:
        raise _bad("the name of an argument", text, start)
    return _right_side(name[0], "=", text, name.end(), depth)


def _right_side(left: str, sign: str, text: str, at: int, depth: int) -> tuple[tuple[str, object], int]:
    at = _skip(text, at)
    if text[at : at + 1] != sign:
        raise _bad(f"{sign!r} behind {left!r:.80}", text, at)
    value, end = _value(text, _skip(text, at + 1), depth)
    return (left, value), end


def _string(text: str, start: int) -> tuple[str, int]:
    quote, at = text[start], start + 1
    parts: list[str] = []
    while at < len(text) and text[at] != quote:
        if text[at] == "\\":
            part, at = _escape(text, at)
        elif plain := _PLAIN.match(text, at):
            part, at = plain[0], plain.end()
        else:  # the other kind of quote
            part, at = text[at], at + 1
        parts.append(part)
    if at >= len(text):
        raise ParseError(ParseReason.BAD_JSON, f"a string is never closed: {text[start:][:80]!r}")
    try:  # two halves of a surrogate pair are one character, one alone cannot be typed or stored
        return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16"), at + 1
    except UnicodeDecodeError as error:
        raise ParseError(ParseReason.BAD_JSON, f"half a character in {text[start:at][:80]!r}") from error


def _escape(text: str, start: int) -> tuple[str, int]:
    letter = text[start + 1 : start + 2]
    if letter in _HEX:
        digits = text[start + 2 : start + 2 + _HEX[letter]]
        code = int(digits, 16) if re.fullmatch(f"[0-9a-fA-F]{{{_HEX[letter]}}}", digits) else -1
        if not 0 <= code <= 0x10FFFF:
            raise ParseError(ParseReason.BAD_JSON, f"{text[start : start + 10]!r} is no escape")
        return chr(code), start + 2 + _HEX[letter]
    return _ESCAPES.get(letter, "\\" + letter), start + 1 + len(letter)


def _escaped(text: str) -> str:
    for plain, escape in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        text = text.replace(plain, escape)
    return text


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):  # the last one would win silently
        raise ParseError(ParseReason.BAD_JSON, f"a name comes twice in {[name for name, _ in pairs]!s:.200}")
    return members


def _skip(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]


def _bad(wanted: str, text: str, at: int) -> ParseError:
    return ParseError(ParseReason.BAD_JSON, f"{wanted} should stand before {text[at : at + 80]!r}")
