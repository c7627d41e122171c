import random

import pytest

from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.online import texts
from gui_owl_jax.evals.online.task import Unsupported


def test_exact_values():
    assert (
        texts.exact_match("false\n", {"expected": "false\n"}) == 1
        and texts.exact_match("false", {"expected": "false\n"}) == 0
    )
    assert (
        texts.match_in_list("b", {"expected": ["a", "b"]}) == 1 and texts.match_in_list("c", {"expected": ["a"]}) == 0
    )
    assert texts.is_in_list(["a", "b"], {"expected": "b"}) == 1 and texts.is_in_list(["ab"], {"expected": "b"}) == 0
    with pytest.raises(DataError, match="'expected'"):
        texts.exact_match("a", {"expect": "a"})


def test_literal_match():
    assert texts.literal_match(3, "3") == 1 and texts.literal_match("A", "a") == 0
    assert texts.literal_match("A", "a", ignore_case=True) == 1
    assert texts.literal_match([1, "B"], ["1", "b"], type="list", ignore_case=True) == 1
    assert texts.literal_match([1], [1, 2], type="list") == 0 == texts.literal_match("ab", ["a", "b"], type="list")
    with pytest.raises(DataError, match="'type'"):
        texts.literal_match(1, 1, type="set")


def test_include_and_exclude():
    rules = {"include": ["a", "b"], "exclude": ["c"]}
    assert [texts.check_include_exclude(text, rules) for text in ("a b", "a", "abc", "")] == [1, 0, 0, 0]
    assert texts.check_include_exclude("anything", {}) == 1


def longest_common(a, b):
    if not a or not b:
        return 0
    if a[0] == b[0]:
        return 1 + longest_common(a[1:], b[1:])
    return max(longest_common(a[1:], b), longest_common(a, b[1:]))


def test_similarity_is_that_of_common_subsequences():
    draw = random.Random(0)
    for _ in range(60):
        a, b = ("".join(draw.choices("abc", k=draw.randrange(7))) for _ in range(2))
        expected = 2 * longest_common(a, b) / (len(a) + len(b)) if a or b else 1
        assert texts.similarity(a, b) == texts.similarity(b, a) == pytest.approx(expected)
    assert texts.similarity("this is a test", "this is a test!") == pytest.approx(0.9655172413793104)  # rapidfuzz's


TIMEDATECTL = "Local time: x\nUniversal time: y\nRTC time: z\nTime zone: {} \n"


def test_utc_0():
    zone = "\n".join(["Local", "Universal", "RTC", "                Time zone: Etc/UTC (UTC, +0000)", "NTP"])
    assert texts.is_utc_0(zone) == 1 and texts.is_utc_0(zone.replace("+0000", "+0100")) == 0 == texts.is_utc_0("")


def test_lists_of_names():
    rules = {"expected": ["a.desktop", "b.desktop"]}
    for text, score in (
        ("['b.desktop', 'a.desktop']\n", 1),
        ("['a.desktop']", 0),
        ("['a.desktop', 'b.desktop', 'c.desktop']", 0),
        ("@as []", 0),
        ("['a.desktop', 'a.desktop']", 0),
        ("__import__('os') or ['a.desktop', 'b.desktop']", 0),
    ):
        assert texts.check_gnome_favorite_apps(text, rules) == score, text
    assert texts.check_gnome_favorite_apps("@as []", {"expected": []}) == 1
    listing = {"children": [{"name": "b.desktop"}, {"name": "a.desktop"}]}
    assert texts.check_moved_jpgs(listing, rules) == 1
    assert texts.check_moved_jpgs({"children": listing["children"][:1]}, rules) == 0
    with pytest.raises(DataError, match="children"):
        texts.check_moved_jpgs([], rules)


RULES = [
    ("re", r"\bsmart\b", "a smart b", True),
    ("re", "A", "a", False),
    ("re.I", "A", "a", True),
    ("re.I.S", "A.B", "a\nb", True),
    ("re.S", "a", 5, False),
    ("eq", False, False, True),
    ("ne", 1, 2, True),
    ("lt", 260, 100, True),
    ("ge", 2, 1, False),
    ("lt", 2, "a", False),
    ("approx:0.001", 191.6667, "191.66667", True),
    ("approx:0.001", 191.6667, 191.67, False),
    ("approx:0.1", 1, None, False),
    ("range.te", [0, 2], 2, True),
    ("range.te", [0, 2], 0, False),
    ("range.et", [0, 2], 0, True),
    ("str_list_eq", ["a", "b"], '"a,b"', True),
    ("str_list_eq", ["b", "a"], "a,b", False),
    ("str_set_eq", ["b", "a"], "a,b", True),
]


@pytest.mark.parametrize(("method", "ref", "value", "matches"), RULES)
def test_the_rule_language(method, ref, value, matches):
    assert texts.matches_rule(value, {"method": method, "ref": ref}) is matches


def test_rules_that_are_none():
    with pytest.raises(Unsupported, match="spreadsheet_range"):
        texts.matches_rule(1, {"method": "spreadsheet_range", "ref": []})
    with pytest.raises(DataError, match="flag"):
        texts.matches_rule("a", {"method": "re.Q", "ref": "a"})
    for rule in ({"ref": 1}, {"method": "eq"}, {"method": 1, "ref": 1}, "eq"):
        with pytest.raises(DataError):
            texts.matches_rule(1, rule)
