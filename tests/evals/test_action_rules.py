from __future__ import annotations

import math

import pytest

from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.evals.action_rules import (
    CLICKS,
    RULES,
    ActionRule,
    click_hits,
    finger_direction,
    scroll_matches,
    text_matches,
    word_f1,
)
from gui_owl_jax.evals.benchmark import Box

SIZE = (1080, 2400)
OTHER = (1440, 3120)
POINT = (500.0, 1100.0)
DIRECTIONS = [(math.cos(turn * math.pi / 8), math.sin(turn * math.pi / 8)) for turn in range(16)]


def reach(click, size):
    """How far (across, down) in pixels each rule lets a click go without elements."""
    return {
        "ui_r1": (151.2, 151.2),
        "gui_r1": (140, 140),
        "clawgui": (math.sqrt(151.2**2 + 336**2),) * 2,
        "ui_s1": (0.04 * size[0], 0.04 * size[1]),
        "aitw": (0.14 * size[0], 0.14 * size[1]),
        "aitw_x1.4": (0.14 * size[0], 0.14 * size[1]),
    }[click]


@pytest.mark.parametrize("size", [SIZE, OTHER])
@pytest.mark.parametrize("click", CLICKS)
def test_a_click_falls_off_just_beyond_the_radius_in_every_direction(click, size):
    across, down = reach(click, size)
    for x, y in DIRECTIONS:
        for share, hit in ((0.0, True), (0.9999, True), (1.0001, False), (1.5, False)):
            point = (POINT[0] + share * across * x, POINT[1] + share * down * y)
            assert click_hits(click, point, POINT, (), size) is hit, (x, y, share)


def test_the_edge_itself_belongs_to_the_inclusive_rules_alone():
    assert not click_hits("gui_r1", (640.0, 1100.0), POINT, (), SIZE)
    assert click_hits("ui_s1", (40.0, 0.0), (0.0, 0.0), (), (1000, 1000))
    assert click_hits("aitw", (140.0, 0.0), (0.0, 0.0), (), (1000, 1000))


def corners(left, top, right, bottom, by):
    """Points `by` pixels inside (or, negative, outside) of each edge and corner of a box."""
    xs, ys = (left + by, right - by), (top + by, bottom - by)
    middle = ((left + right) / 2, (top + bottom) / 2)
    return [(x, y) for x in xs for y in ys] + [(x, middle[1]) for x in xs] + [(middle[0], y) for y in ys]


# Elements around the recorded point on a large screen, whose enlarged edges are farther from it than any radius.
BIG = (6000, 6000)
BOX = Box(1000, 2000, 2000, 4000)
MIDDLE = (1500.0, 3000.0)


@pytest.mark.parametrize(
    ("click", "box", "edges"),
    [
        ("ui_s1", BOX, (900, 1800, 2100, 4200)),
        ("aitw", BOX, (300, 600, 2700, 5400)),
        ("aitw_x1.4", Box(500, 1500, 2500, 4500), (100, 900, 2900, 5100)),
        ("clawgui", BOX, (1000, 2000, 2000, 4000)),
    ],
)
def test_an_element_lets_a_click_go_as_far_as_its_enlarged_edges(click, box, edges):
    for point in corners(*edges, 0.01):
        assert click_hits(click, point, MIDDLE, (box,), BIG), point
    for point in corners(*edges, -0.01):
        assert not click_hits(click, point, MIDDLE, (box,), BIG), point


@pytest.mark.parametrize("click", ["ui_r1", "gui_r1"])
def test_elements_do_not_matter_to_rules_of_distance(click):
    assert not click_hits(click, (1500, 3200), MIDDLE, (BOX,), BIG)


def test_an_element_without_the_recorded_point_helps_under_clawgui_alone():
    far = Box(4000, 4000, 4100, 4100)
    hits = {click for click in CLICKS if click_hits(click, (4050, 4050), MIDDLE, (far,), BIG)}
    assert hits == {"clawgui", "ui_s1"}  # of ui_s1 the caller gives those that may be clicked instead


def test_clawgui_looks_at_the_five_nearest_elements():
    near = [Box(1500 + 10 * n, 3000, 1510 + 10 * n, 3010) for n in range(5)]
    sixth = Box(4000, 4000, 4100, 4100)
    assert not click_hits("clawgui", (4050, 4050), MIDDLE, (sixth, *near), BIG)
    assert click_hits("clawgui", (4050, 4050), MIDDLE, (sixth, *near[:4]), BIG)


@pytest.mark.parametrize(
    ("answer", "recorded", "above", "least", "substring"),
    [
        ("Green tea", "green  TEA", True, True, False),
        ("tea", "green tea", True, True, True),
        ("green tea", "black tea", False, True, False),
        ("tea", "some tea with milk", False, False, True),
        (" Tea ", "tea", True, True, True),
        ("coffee", "tea", False, False, False),
        ("", "tea", False, False, True),
        ("", " ", True, True, True),
    ],
)
def test_texts(answer, recorded, above, least, substring):
    for one, other in ((answer, recorded), (recorded, answer)):
        assert text_matches("f1>0.5", one, other) is above
        assert text_matches("f1>=0.5", one, other) is least
        assert text_matches("substring", one, other) is substring
        assert text_matches("any", one, other)
        assert not text_matches("exact", one, other)
    assert text_matches("exact", answer, answer)


def test_word_f1_counts_words_not_their_number():
    assert word_f1("a b c", "b c d") == pytest.approx(2 / 3)
    assert word_f1("a a a b", "a b") == 1


UP, DOWN = Action("swipe", (500, 800), (500, 200)), Action("swipe", (500, 200), (480, 800))
LEFT, RIGHT = Action("swipe", (800, 500), (200, 510)), Action("swipe", (200, 500), (800, 500))


def test_the_direction_of_a_finger():
    assert [finger_direction(action) for action in (UP, DOWN, LEFT, RIGHT)] == ["up", "down", "left", "right"]
    assert finger_direction(Action("swipe", (0, 0), (100, 100))) == "down"
    assert finger_direction(Action("swipe", (5, 5), (5, 5))) is None
    assert finger_direction(Action("click", (5, 5))) is None


@pytest.mark.parametrize(
    ("scroll", "right"),
    [("same", [UP]), ("reversed", [DOWN]), ("axis", [UP, DOWN]), ("any", [UP, DOWN, LEFT, RIGHT])],
)
def test_scrolls(scroll, right):
    assert [action for action in (UP, DOWN, LEFT, RIGHT) if scroll_matches(scroll, action, UP)] == right
    still = Action("swipe", (5, 5), (5, 5))
    assert scroll_matches(scroll, still, UP) is (scroll == "any")


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_name_tells_the_whole_rule(rule):
    assert ActionRule.parse(rule.name) == rule


def test_rules_are_parsed():
    assert ActionRule().name == "click=ui_r1,text=f1>0.5,scroll=same,open=text,screen=image"
    assert ActionRule.parse("ui_s1, scroll=same").scroll == "same"
    assert ActionRule.parse("ui_s1,scroll=same").click == "ui_s1"
    assert ActionRule.parse("text=f1>=0.5").text == "f1>=0.5"


@pytest.mark.parametrize("name", ["", "best", "click=near", "ui_r1,radius=3", "text=any,text=any", "screen=", "ui_r1,"])
def test_what_is_no_rule_is_refused(name):
    with pytest.raises(ConfigError, match="rule"):
        ActionRule.parse(name)


def test_unknown_settings_are_refused():
    for call in (
        lambda: click_hits("near", POINT, POINT, (), SIZE),
        lambda: text_matches("near", "a", "b"),
        lambda: scroll_matches("near", UP, UP),
    ):
        with pytest.raises(ConfigError, match="near"):
            call()
