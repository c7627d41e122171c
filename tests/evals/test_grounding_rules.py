"""What hits a target under each rule, at the edges where the rules part; names of rules; polygons against winding."""

from __future__ import annotations

import math
import random

import pytest

from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.evals import targets
from gui_owl_jax.evals.benchmark import Box, Polygon
from gui_owl_jax.evals.grounding_rules import POINTS, POLYGONS, REFUSALS, RULES, GroundingRule, hits, mai_ui_box

SIZE = (1920, 1080)
BOX = Box(100, 200, 140, 220)


@pytest.mark.parametrize(
    ("point", "exact", "grid", "truncated"),
    [
        ((100, 200), True, True, True),
        ((140, 220), True, True, True),
        ((120, 210), True, True, True),
        ((99.9, 210), False, True, False),  # 100 px is 52.08 on the grid, rounded out to 52: 99.84 px
        ((99.8, 210), False, False, False),
        ((140.1, 210), False, True, True),  # 140 px is 72.92, rounded out to 73: 140.16 px
        ((140.2, 210), False, False, True),
        ((140.99, 210), False, False, True),
        ((141, 210), False, False, False),
        ((120, 199.9), False, True, False),  # 200 px is 185.19, rounded out to 185: 199.8 px
        ((120, 220.3), False, True, True),  # 220 px is 203.70, rounded out to 204: 220.32 px
        ((120, 220.4), False, False, True),
    ],
)
def test_the_rules_part_at_the_edges(point, exact, grid, truncated):
    expected = {"exact": exact, "gui_owl": grid, "truncated": truncated}
    assert {name: hits(RULES[name], point, BOX, SIZE) for name in expected} == expected


def test_an_edge_on_a_grid_line_is_not_rounded_outwards():
    size = (300, 700)
    for line in range(1000):
        x = line * size[0] / 1000
        box = Box(x, 0, x, 700)
        assert hits(RULES["gui_owl"], (x, 5), box, size)
        for beside in (line - 1, line + 1):
            assert not hits(RULES["gui_owl"], (beside * size[0] / 1000, 5), box, size)


@pytest.mark.parametrize("rule", ["exact", "gui_owl", "truncated", "mai_ui"])
def test_edges_are_exact_in_floating_point(rule):
    # 0.983 * 1920 and 983 / 1000 * 1920 differ in the last bit from what an annotation in decimals means.
    for line in range(1001):
        edge = round(line * 1.92, 2)
        for x in (line / 1000 * 1920, line * 1920 / 1000):
            if rule != "truncated" or edge.is_integer():
                assert hits(RULES[rule], (x, 5), Box(edge, 0, edge, 9), SIZE)


def winding(point, vertices):
    """How often a polygon turns around a point: by angles, not by rays."""
    total = 0.0
    for start, end in zip(vertices, (*vertices[1:], vertices[0])):
        one = math.atan2(start[1] - point[1], start[0] - point[0])
        other = math.atan2(end[1] - point[1], end[0] - point[0])
        total += (other - one + math.pi) % (2 * math.pi) - math.pi
    return round(total / (2 * math.pi))


@pytest.mark.parametrize("seed", range(5))
def test_polygons_agree_with_winding(seed):
    draw = random.Random(seed)
    # Star-shaped around (50, 50): concave, but without crossing itself.
    angles = sorted(draw.uniform(0, 2 * math.pi) for _ in range(9))
    radii = [draw.uniform(5, 45) for _ in angles]
    vertices = tuple((50 + r * math.cos(angle), 50 + r * math.sin(angle)) for r, angle in zip(radii, angles))
    inside = 0
    for _ in range(400):
        point = draw.uniform(0, 100), draw.uniform(0, 100)
        expected = winding(point, vertices) != 0
        assert targets.in_polygon(point, Polygon(vertices)) is expected
        inside += expected
    assert 0 < inside < 400


L_SHAPE = Polygon(((0, 0), (30, 0), (30, 10), (10, 10), (10, 30), (0, 30)))


@pytest.mark.parametrize(
    ("point", "inside"),
    [
        ((5, 5), True),
        ((20, 5), True),
        ((20, 20), False),
        ((5, 25), True),
        ((10, 10), True),  # the inner corner
        ((30, 10), True),
        ((20, 10), True),  # on an edge
        ((20, 10.001), False),
        ((0, 15), True),
        ((-0.001, 15), False),
        ((40, 10), False),  # on the line of an edge, beyond its end
        ((-5, 0), False),
        ((-5, 10), False),  # a ray through vertices
    ],
)
def test_polygons_hold_their_edges(point, inside):
    assert targets.in_polygon(point, L_SHAPE) is inside
    assert hits(RULES["gui_owl"], point, L_SHAPE, (1000, 1000)) is inside


def test_a_vertex_that_occurs_twice_changes_nothing():
    twice = Polygon(tuple(vertex for vertex in L_SHAPE.vertices for _ in range(2)))
    for point in ((5, 5), (20, 20), (10, 10), (20, 10), (31, 10)):
        assert targets.in_polygon(point, twice) is targets.in_polygon(point, L_SHAPE)


def test_edges_shorter_than_a_pixel_hold_their_points():
    small = Polygon(((0, 0), (0.2, 0), (0.2, 0.2), (0, 0.2)))
    assert targets.in_polygon((0.2, 0.1), small) and not targets.in_polygon((0.21, 0.1), small)


def test_a_polygon_is_scaled_to_the_grid_by_both_axes():
    square = Polygon(((192, 108), (384, 108), (384, 216), (192, 216)))
    assert hits(RULES["gui_owl"], (192, 108), square, SIZE)
    assert not hits(RULES["gui_owl"], (191, 108), square, SIZE)
    assert not hits(RULES["gui_owl"], (200, 217), square, SIZE)


def test_mai_ui_reads_a_box_where_a_polygon_stands():
    polygon = Polygon(((100, 50), (20, 30), (40, 90)))
    assert mai_ui_box(polygon) == Box(100, 50, 120, 80)
    assert hits(RULES["mai_ui"], (110, 70), polygon, SIZE) and not hits(RULES["exact"], (110, 70), polygon, SIZE)
    assert not hits(RULES["mai_ui"], (50, 60), polygon, SIZE) and hits(RULES["exact"], (50, 60), polygon, SIZE)


def test_area_and_bounds():
    assert targets.area(L_SHAPE) == 500
    assert targets.area(BOX) == 800
    assert targets.area(Box(5, 5, 4, 9)) == 0
    assert targets.bounds(L_SHAPE) == Box(0, 0, 30, 30)


def test_names_are_read_back():
    for points in POINTS:
        for polygons in POLYGONS:
            for refusals in REFUSALS:
                for average in ("micro", "official", "macro:platform"):
                    rule = GroundingRule(points, polygons, refusals, average)
                    assert GroundingRule.parse(rule.name) == rule
    for name, rule in RULES.items():
        assert GroundingRule.parse(name) == rule
        assert GroundingRule.parse(rule.name) == rule


def test_settings_behind_a_name_change_it():
    assert GroundingRule.parse("gui_owl, refusals=excluded") == GroundingRule(points="grid", refusals="excluded")
    assert GroundingRule.parse("refusals=excluded") == GroundingRule(refusals="excluded")
    assert GroundingRule.parse("exact").name == "points=exact,polygons=outline,refusals=counted,average=micro"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "exakt",
        "exact,grid",
        "points=grid,exact",
        "points=grid,points=exact",
        "points=half",
        "polygons=boxes",
        "refusals=maybe",
        "average=median",
        "average=macro:",
        "average=macro:a b",
        "scale=999",
        "exact,",
    ],
)
def test_unknown_names_are_refused(name):
    with pytest.raises(ConfigError, match="rule"):
        GroundingRule.parse(name)


def test_what_points_and_what_refuses():
    assert targets.pointed_at(Action("mouse_move", coordinate=(3, 4))) == (3, 4)
    assert targets.pointed_at(Action("click", coordinate=(3, 4))) == (3, 4)
    assert targets.pointed_at(Action("left_click_drag", coordinate=(3, 4))) is None
    assert targets.pointed_at(Action("swipe", coordinate=(3, 4), coordinate2=(5, 6))) is None
    assert targets.is_refusal(Action("terminate", status="failure"))
    assert not targets.is_refusal(Action("terminate", status="success"))
    assert not targets.is_refusal(Action("answer", text="failure"))
