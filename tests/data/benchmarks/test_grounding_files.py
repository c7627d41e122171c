"""The published annotation files are read whole; their counts are those of the papers."""

from __future__ import annotations

import collections
import json
import math

import pytest

from data import benchmarks
from data.benchmarks.lint import lint
from gui_owl_jax.evals.benchmark import Polygon


@pytest.fixture(scope="session")
def grounding(conformance):
    return conformance / "grounding"


def facet_counts(benchmark, facet):
    return collections.Counter(item.facets[facet] for item in benchmark.items)


def test_screenspot_pro(grounding):
    benchmark = benchmarks.read("screenspot_pro", grounding / "screenspot_pro")
    assert len(benchmark.items) == 1581
    assert facet_counts(benchmark, "ui_type") == {"text": 977, "icon": 604}
    assert facet_counts(benchmark, "group") == {
        "Creative": 341,
        "Dev": 299,
        "CAD": 261,
        "Scientific": 254,
        "Office": 230,
        "OS": 196,
    }
    assert len(facet_counts(benchmark, "application")) == 26
    assert [problem.kind for problem in benchmark.problems] == ["box_outside_image"]


def test_screenspot_v2(grounding):
    benchmark = benchmarks.read("screenspot_v2_mai_ui", grounding / "screenspot_v2")
    assert facet_counts(benchmark, "platform") == {"mobile": 501, "desktop": 334, "web": 437}
    kinds = collections.Counter(problem.kind for problem in benchmark.problems)
    assert kinds == {"covers_image": 2, "box_outside_image": 1}


def test_osworld_g(grounding):
    benchmark = benchmarks.read("osworld_g_mai_ui", grounding / "osworld_g")
    assert facet_counts(benchmark, "target") == {"rectangle": 470, "polygon": 40, "refusal": 54}
    kinds = collections.Counter(problem.kind for problem in benchmark.problems)
    assert kinds == {"duplicate_vertex": 2, "covers_image": 1}


def test_every_second_vertex_is_back_beside_the_others(grounding):
    benchmark = benchmarks.read("osworld_g_mai_ui", grounding / "osworld_g")
    rows = {row["id"]: row["bbox"] for row in json.loads(benchmark_file(grounding).read_text())}
    repaired = 0
    for item in benchmark.items:
        if isinstance(item.target, Polygon):
            row, (first, second, *others) = rows[item.item_id], item.target.vertices
            assert [*first] == row[:2] and [value for vertex in others for value in vertex] == row[4:]
            spread = max(math.dist(one, other) for one in (first, *others) for other in (first, *others))
            assert min(math.dist(second, other) for other in (first, *others)) <= spread
            assert min(math.dist(row[2:4], other) for other in (first, *others)) > spread / 4
            assert not any(
                problem.where == item.item_id and "outside" in problem.kind for problem in benchmark.problems
            )
            repaired += 1
    assert repaired == 40


def benchmark_file(grounding):
    return grounding / "osworld_g" / "OSWorld-G_sspro_format.json"


def test_the_five_images_have_the_declared_size(grounding):
    benchmark = benchmarks.read("osworld_g_mai_ui", grounding / "osworld_g")
    findings = [problem for problem in lint(benchmark.items, grounding / "images") if "image" in problem.detail]
    missing = {problem.where for problem in findings if problem.kind == "missing_image"}
    assert len(benchmark.items) - len(missing) == 18
    assert not any(problem.kind in ("size_differs", "unreadable_image") for problem in findings)
