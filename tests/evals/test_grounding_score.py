"""Published answers of a real model score as published, item by item; refusals, averages and tables by hand."""

from __future__ import annotations

import collections
import dataclasses
import json

import pytest

from data import benchmarks
from gui_owl_jax.agent import dialects
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import ConfigError, DataError
from gui_owl_jax.evals.benchmark import Answer, Benchmark, Box, Choice, Item, Look, Polygon, Refusal
from gui_owl_jax.evals.grounding_rules import RULES, GroundingRule
from gui_owl_jax.evals.grounding_score import NO_POINT, judge, score
from gui_owl_jax.evals.score import FAILED, HIT, MISS, REFUSED, UNPARSABLE, count_reasons
from tests.evals.plain import Plain

EXACT = RULES["exact"]
PLAIN = Plain()


def item(target, item_id="a", size=(1000, 500), **facets):
    return Item(item_id, "press it", target, DeviceFamily.DESKTOP, size=size, facets=facets)


def said(text, item_id="a", size=(1000, 500), windows=None):
    windows = windows or [(0, 0, *size)]
    return Answer(item_id, tuple(Look(text, window, (64, 64)) for window in windows), size)


BOX = Box(100, 100, 200, 200)


@pytest.mark.parametrize(
    ("target", "text", "right", "reason"),
    [
        (BOX, "150 300", True, HIT),
        (BOX, "150 150", False, MISS),
        (BOX, "none", False, REFUSED),
        (BOX, "er", False, UNPARSABLE),
        (BOX, "wait", False, NO_POINT),
        (Polygon(((0, 0), (100, 0), (0, 100))), "10 10", True, HIT),
        (Polygon(((0, 0), (100, 0), (0, 100))), "90 190", False, MISS),
        (Refusal(), "none", True, REFUSED),
        (Refusal(), "0 0", False, MISS),
        (Refusal(), "er", False, UNPARSABLE),
        (Refusal(), "wait", False, NO_POINT),
    ],
)
def test_verdicts(target, text, right, reason):
    verdict = judge(item(target), said(text), EXACT, PLAIN)
    assert (verdict.right, verdict.reason) == (right, reason)


@pytest.mark.parametrize("rule", [GroundingRule(refusals="origin"), RULES["mai_ui"]])
def test_the_origin_is_a_refusal_only_where_it_is_asked_for(rule):
    right = {text: judge(item(Refusal()), said(text), rule, PLAIN).right for text in ("0 0", "0 1", "none", "er")}
    assert right == {"0 0": True, "0 1": False, "none": False, "er": False}


def test_the_last_look_is_mapped_through_its_window():
    windows = [(0, 0, 1000, 500), (100, 50, 300, 150)]
    verdict = judge(item(BOX), said("250 750", windows=windows), EXACT, PLAIN)
    assert (verdict.point, verdict.right) == ((150, 125), True)


def test_the_point_is_taken_in_the_declared_pixels():
    verdict = judge(item(BOX), said("150 300", size=(2000, 1000)), EXACT, PLAIN)
    assert (verdict.point, verdict.right) == ((150, 150), True)
    undeclared = judge(item(BOX, size=None), said("75 150", size=(2000, 1000)), EXACT, PLAIN)
    assert undeclared.point == (150, 150)


def test_the_grid_is_that_of_the_whole_image():
    narrow = item(Box(100.4, 100, 100.4, 200))
    windows = [(0, 0, 1000, 500), (100, 50, 300, 150)]
    grid = RULES["gui_owl"]
    assert judge(narrow, said("5 750", windows=windows), grid, PLAIN).right  # x = 101
    assert not judge(narrow, said("6 750", windows=windows), grid, PLAIN).right  # x = 101.2


def test_an_item_that_was_not_asked_is_wrong_and_counted_on_its_own():
    benchmark = Benchmark("b", (item(BOX, "a"), item(BOX, "b"), item(BOX, "c")))
    result = score(benchmark, [said("150 300"), Answer("b", failure="image missing")], EXACT, PLAIN)
    assert count_reasons(result.verdicts) == {FAILED: 2, HIT: 1}
    assert (result.averages["micro"].successes, result.averages["micro"].trials) == (1, 3)


def test_an_item_of_another_kind_is_refused():
    with pytest.raises(DataError, match="Choice"):
        judge(item(Choice("A", ("A", "B"))), said("A"), EXACT, PLAIN)


def test_the_scale_is_in_the_name_of_the_rule():
    benchmark = Benchmark("b", (item(Box(0, 0, 500, 500)),))
    names = set()
    for scale, hits in ((1000.0, 1), (999.0, 0)):
        result = score(benchmark, [said("500 0")], EXACT, Plain(scale=scale))
        assert result.averages["micro"].successes == hits
        names.add(result.rule)
        assert result.rule.startswith(EXACT.name)
    assert len(names) == 2


def levels():
    """(benchmark, answers): basic 3 of 4 right (android 2 of 2, web 1 of 2), advanced 1 of 2."""
    rows = [("basic", "android", True)] * 2 + [("basic", "web", True), ("basic", "web", False)]
    rows += [("advanced", "web", True), ("advanced", "android", False)]
    items, answers = [], []
    for number, (level, platform, right) in enumerate(rows):
        items.append(item(BOX, f"{number}", level=level, platform=platform))
        answers.append(said("150 300" if right else "0 0", f"{number}"))
    return Benchmark("mmbench_gui_l2", tuple(items)), answers


def headline(average):
    benchmark, answers = levels()
    averages = score(benchmark, answers, GroundingRule(average=average), PLAIN).averages
    assert list(averages)[0] == average
    assert averages["micro"].mean == pytest.approx(4 / 6)
    return averages[average].mean


def test_averages():
    assert headline("micro") == pytest.approx(4 / 6)
    # As published: each level is the mean of its platforms weighted by their items, then the mean of the levels.
    basic = (2 / 2) * (2 / 4) + (1 / 2) * (2 / 4)
    advanced = (1 / 1) * (1 / 2) + (0 / 1) * (1 / 2)
    assert headline("official") == pytest.approx((basic + advanced) / 2)
    assert headline("macro:platform") == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert headline("macro:level") == headline("official") != headline("micro")


def test_averages_that_a_benchmark_does_not_have_are_refused():
    benchmark, answers = levels()
    with pytest.raises(ConfigError, match="'application'"):
        score(benchmark, answers, GroundingRule(average="macro:application"), PLAIN)
    other = dataclasses.replace(benchmark, name="screenspot")
    with pytest.raises(ConfigError, match="screenspot"):
        score(other, answers, GroundingRule(average="official"), PLAIN)


def counts(table):
    return {row: (rate.successes, rate.trials) for row, rate in table.items()}


def test_tables_by_facet_and_by_two():
    benchmark, answers = levels()
    tables = score(benchmark, answers, EXACT, PLAIN).tables
    assert counts(tables["platform"]) == {"android": (2, 3), "web": (2, 3)}
    assert counts(tables["platform x level"]) == {
        "android x advanced": (0, 1),
        "android x basic": (2, 2),
        "web x advanced": (1, 1),
        "web x basic": (1, 2),
    }
    assert set(tables) == {"level", "platform", "platform x level"}


def test_an_item_counts_in_the_row_of_each_of_its_elements():
    items = (item(BOX, "a", elements="Button, Icon"), item(BOX, "b", elements="Icon"))
    tables = score(Benchmark("b", items), [said("150 300", "a"), said("0 0", "b")], EXACT, PLAIN).tables
    assert counts(tables["elements"]) == {"Button": (1, 1), "Icon": (1, 2)}


# The published answers of MAI-UI-8B.

PUBLISHED = {
    "screenspot_pro": ("screenspot_pro", "SSPro"),
    "screenspot_v2_mai_ui": ("screenspot_v2", "SSV2"),
    "osworld_g_mai_ui": ("osworld_g", "OS_G"),
}


@pytest.fixture(scope="session")
def published(conformance):
    """name -> (benchmark from the annotation files, answers, recorded verdict by item)."""
    folder = conformance / "grounding"
    found = {}
    for name, (place, file) in PUBLISHED.items():
        benchmark = benchmarks.read(name, folder / place)
        rows = {}
        for line in (folder / "answers" / f"{file}.jsonl").read_text().splitlines():
            row = json.loads(line)
            assert row["id"] not in rows
            rows[row["id"]] = row
        assert rows.keys() == {entry.item_id for entry in benchmark.items}
        answers = [said(rows[entry.item_id]["raw_response"], entry.item_id, entry.size) for entry in benchmark.items]
        found[name] = benchmark, answers, {key: row["correctness"] == "correct" for key, row in rows.items()}
    return found


def dialect(scale):
    return dialects.with_scale(dialects.get("mai_ui_grounding"), scale)


@pytest.mark.parametrize(
    ("name", "rule", "scale", "successes", "trials"),
    [
        ("screenspot_pro", "exact", 1000.0, 1060, 1581),
        ("screenspot_pro", "exact", 999.0, 1043, 1581),
        ("screenspot_pro", "gui_owl", 1000.0, 1084, 1581),
        ("screenspot_pro", "truncated", 1000.0, 1073, 1581),
        ("screenspot_v2_mai_ui", "exact", 1000.0, 1207, 1272),
        ("screenspot_v2_mai_ui", "exact", 999.0, 1207, 1272),
        ("screenspot_v2_mai_ui", "gui_owl", 1000.0, 1208, 1272),
        ("screenspot_v2_mai_ui", "truncated", 1000.0, 1207, 1272),
        ("osworld_g_mai_ui", "exact", 1000.0, 359, 564),
        ("osworld_g_mai_ui", "exact,refusals=excluded", 1000.0, 359, 510),
        ("osworld_g_mai_ui", "mai_ui", 1000.0, 348, 564),
    ],
)
def test_published_answers(published, name, rule, scale, successes, trials):
    benchmark, answers, _ = published[name]
    result = score(benchmark, answers, GroundingRule.parse(rule), dialect(scale))
    assert (result.averages["micro"].successes, result.averages["micro"].trials) == (successes, trials)
    assert result.left_out == len(benchmark.items) - trials
    assert count_reasons(result.verdicts).get(UNPARSABLE, 0) == 0


@pytest.mark.parametrize(
    ("rule", "scale", "rectangles", "polygons"),
    [
        ("exact", 1000.0, 323, 36),
        ("exact", 999.0, 324, 37),
        ("gui_owl", 1000.0, 329, 36),
        ("truncated", 1000.0, 323, 36),
        ("mai_ui", 1000.0, 323, 25),
    ],
)
def test_published_answers_by_kind_of_target(published, rule, scale, rectangles, polygons):
    benchmark, answers, _ = published["osworld_g_mai_ui"]
    table = score(benchmark, answers, GroundingRule.parse(rule), dialect(scale)).tables["target"]
    assert counts(table) == {"rectangle": (rectangles, 470), "polygon": (polygons, 40), "refusal": (0, 54)}


@pytest.mark.parametrize("name", PUBLISHED)
def test_recorded_verdicts_item_by_item(published, name):
    benchmark, answers, recorded = published[name]
    result = score(benchmark, answers, RULES["mai_ui"], dialect(1000.0))
    assert {verdict.item_id: verdict.right for verdict in result.verdicts} == recorded
    if name != "osworld_g_mai_ui":  # without polygons and refusals, theirs is the exact rule
        exact = score(benchmark, answers, RULES["exact"], dialect(1000.0))
        assert [verdict.right for verdict in exact.verdicts] == [verdict.right for verdict in result.verdicts]


def test_recorded_verdicts_differ_where_polygons_were_read_as_boxes(published):
    benchmark, answers, recorded = published["osworld_g_mai_ui"]
    result = score(benchmark, answers, RULES["exact"], dialect(1000.0))
    targets = {entry.item_id: entry.facets["target"] for entry in benchmark.items}
    differing = [verdict for verdict in result.verdicts if verdict.right != recorded[verdict.item_id]]
    assert collections.Counter(targets[verdict.item_id] for verdict in differing) == {"polygon": 13}
