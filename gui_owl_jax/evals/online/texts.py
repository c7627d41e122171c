"""OSWorld's evaluators of printed texts, lists and other values; scores 0 to 1.

Names and rules are those of the release (`desktop_env/evaluators/metrics`): the first argument is what was found, the
second what the task's file expects.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Any

from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.online.task import Unsupported

_ORDERS = {name: getattr(operator, name) for name in ("eq", "ne", "le", "lt", "ge", "gt")}


def field(rules: object, name: str, *kinds: type, default: Any = None) -> Any:
    """A field of the rules of a check; without a default it must be there.

    Raises:
      DataError: it is missing or of none of `kinds`.
    """
    if not isinstance(rules, Mapping) or (name not in rules and default is None):
        raise DataError(f"the check's rules are {str(rules)[:200]}, must be an object with field {name!r}")
    value = rules.get(name, default)
    if kinds and not isinstance(value, kinds):
        raise DataError(f"the check's rules: field {name!r} is {type(value).__name__}, must be {kinds[0].__name__}")
    return value


def exact_match(result: object, rules: object) -> float:
    """The value is the one expected, line ends of a command's output included."""
    return float(result == field(rules, "expected"))


def match_in_list(result: object, rules: object) -> float:
    """The value is one of those expected."""
    return float(result in field(rules, "expected", list))


def is_in_list(result: Any, rules: object) -> float:
    """The list (or text) that was found contains what is expected."""
    return float(field(rules, "expected") in result)


def literal_match(result: object, expected: object, *, type: str = "str", ignore_case: bool = False) -> float:
    """Two values are written alike: as texts, or entry by entry as lists."""

    def written(value: object) -> str:
        return str(value).lower() if ignore_case else str(value)

    if type == "str":
        return float(written(result) == written(expected))
    if type != "list":
        raise DataError(f"literal_match: option 'type' is {type!r}, must be 'str' or 'list'")
    if not isinstance(result, list | tuple) or not isinstance(expected, list | tuple):
        return 0.0
    return float([written(value) for value in result] == [written(value) for value in expected])


def check_include_exclude(result: str, rules: object) -> float:
    """The text contains all of "include" and none of "exclude"."""
    include, exclude = (field(rules, name, list, default=[]) for name in ("include", "exclude"))
    return float(all(word in result for word in include) and not any(word in result for word in exclude))


def fuzzy_match(result: str, rules: object) -> float:
    """How alike two texts are, 0 to 1: see `similarity`."""
    return similarity(result, field(rules, "expected", str))


def similarity(first: str, second: str) -> float:
    """2 LCS / (n + m): shared letters in order (longest common subsequence) over all letters; 1 for two empty texts.

    It is the normalised insertion-deletion similarity that `rapidfuzz.fuzz.ratio` gives in percent.
    """
    if not first and not second:
        return 1.0
    row = [0] * (len(second) + 1)
    for a in first:
        diagonal = 0
        for j, b in enumerate(second, 1):
            diagonal, row[j] = row[j], diagonal + 1 if a == b else max(row[j], row[j - 1])
    return 2 * row[-1] / (len(first) + len(second))


def is_utc_0(result: str) -> float:
    """The fourth line that `timedatectl` prints ends with offset +0000."""
    lines = result.split("\n")
    return float(len(lines) > 3 and lines[3].endswith("+0000)"))


def check_gnome_favorite_apps(result: str, rules: object) -> float:
    """The list that `gsettings` prints, "['a.desktop', 'b.desktop']", has the expected names in any order.

    The release runs the text as Python; here it is read as a list of quoted names, and anything else scores 0.
    """
    text = result.strip()
    names = re.findall(r"'([^'\\]*)'", text)
    if not re.fullmatch(r"(@as )?\[\s*('[^'\\]*'(\s*,\s*'[^'\\]*')*)?\s*\]", text):
        return 0.0
    return _same_names(names, rules)


def check_moved_jpgs(result: object, rules: object) -> float:
    """The listing of a directory, {"children": [{"name": ...}]}, has the expected names in any order."""
    if not isinstance(result, Mapping) or not isinstance(result.get("children"), list):
        raise DataError('check_moved_jpgs: a directory is {"children": [{"name": ...}]}')
    return _same_names([child["name"] for child in result["children"]], rules)


def _same_names(names: list[str], rules: object) -> float:
    expected = field(rules, "expected", list)
    return float(len(names) == len(expected) and set(names) == set(expected))


def matches_rule(value: Any, rule: object) -> bool:
    """Whether a value fulfils {"method": ..., "ref": ...}, the small rule language of OSWorld's files.

    Methods: re (with flags: "re.S"), eq ne le lt ge gt, approx:THRESHOLD, range.XY with X and Y in "et" (e: equal is
    allowed, t: it is not), str_list_eq and str_set_eq (comma-separated values). A value of the wrong type matches none.

    Raises:
      Unsupported: another method.
      DataError: the rule is malformed.
    """
    method, ref = field(rule, "method", str), field(rule, "ref", object)
    name, _, rest = method.partition(".")
    try:
        if name == "re":
            flags = re.RegexFlag(0)
            for flag in filter(None, rest.split(".")):
                flags |= re.RegexFlag[flag]
            return isinstance(value, str) and re.search(ref, value, flags) is not None
        if method in _ORDERS:
            return bool(_ORDERS[method](value, ref))
        if method.startswith("approx:"):
            return abs(float(value) - ref) <= float(method.removeprefix("approx:"))
        if name == "range" and re.fullmatch("[et]{2}", rest):
            return bool(_ORDERS["l" + rest[0]](ref[0], value) and _ORDERS["l" + rest[1]](value, ref[1]))
    except KeyError as error:
        raise DataError(f"the check's rules: method {method!r} has an unknown flag {error}") from error
    except (TypeError, ValueError):
        return False
    if method in ("str_list_eq", "str_set_eq"):
        kind = list if "list" in method else set
        return isinstance(value, str) and kind(value.strip("\"'").split(",")) == kind(ref)
    raise Unsupported(f"osworld method {method}", "not one of the methods that are implemented")
