from __future__ import annotations

import json
import math

import pytest

from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.benchmark import Answer, Benchmark, Box, Item
from gui_owl_jax.evals.score import (
    HIT,
    MISS,
    UNPARSABLE,
    Verdict,
    by_facet,
    count_reasons,
    make_score,
    paired,
    rate,
    score_to_json,
)
from gui_owl_jax.evals.statistics import macro_average, weighted_average, wilson_interval


def item(name: str, **facets: str) -> Item:
    return Item(name, f"Press {name}", Box(0, 0, 1, 1), DeviceFamily.DESKTOP, facets=facets)


ITEMS = (item("a", os="mac", kind="text"), item("b", os="mac", kind="icon"), item("c", os="linux"))
BENCHMARK = Benchmark("small", ITEMS)
VERDICTS = (Verdict("a", True, HIT, (1.0, 2.0)), Verdict("b", False, UNPARSABLE), Verdict("c", True, HIT))


def test_rates_have_wilson_intervals():
    found = rate(VERDICTS)
    assert (found.successes, found.trials) == (2, 3) and math.isclose(found.mean, 2 / 3)
    assert (found.interval.low, found.interval.high) == wilson_interval(2, 3)


def test_tables_follow_the_facets_in_their_order():
    score = make_score(BENCHMARK, "a rule", VERDICTS)
    assert list(score.tables) == ["os", "kind"] and list(score.averages) == ["micro"]
    assert {value: (r.successes, r.trials) for value, r in score.tables["os"].items()} == {
        "linux": (1, 1),
        "mac": (1, 2),
    }
    assert list(score.tables["kind"]) == ["", "icon", "text"]  # c has no kind


def test_items_that_are_left_out_must_be_stated():
    with pytest.raises(DataError, match="2 verdicts and 0 items left out, but the benchmark has 3"):
        make_score(BENCHMARK, "a rule", VERDICTS[:2])
    assert make_score(BENCHMARK, "a rule", VERDICTS[:2], left_out=1).left_out == 1


def test_verdicts_of_unknown_items_are_errors():
    with pytest.raises(DataError, match="'z'"):
        by_facet(ITEMS, [Verdict("z", True, HIT)], "os")


def test_answers_are_paired_in_the_order_of_the_items():
    pairs = paired(BENCHMARK, [Answer("c"), Answer("a", failure="lost")])
    assert [(i.item_id, a.item_id, a.failure) for i, a in pairs] == [
        ("a", "a", "lost"),
        ("b", "b", "no answer is stored"),
        ("c", "c", ""),
    ]


@pytest.mark.parametrize(("answers", "named"), [([Answer("z")], "'z'"), ([Answer("a"), Answer("a")], "'a' has two")])
def test_answers_that_do_not_belong_are_errors(answers, named):
    with pytest.raises(DataError, match=named):
        paired(BENCHMARK, answers)


def test_equal_weights_give_the_macro_average():
    strata = {"x": [1, 0, 0], "y": [1, 1]}
    rates = [rate([Verdict("a", bool(v), HIT) for v in values]) for values in strata.values()]
    found, expected = weighted_average(rates), macro_average(strata)
    for name in ("mean", "successes", "trials"):
        assert math.isclose(getattr(found, name), getattr(expected, name))
    assert math.isclose(found.interval.low, expected.interval.low)
    assert math.isclose(found.interval.high, expected.interval.high)


def test_weights_are_shares():
    right, wrong = rate([Verdict("a", True, HIT)]), rate([Verdict("a", False, MISS)])
    assert weighted_average([right, wrong], [3, 1]).mean == 0.75
    for weights in ([1.0], [0.0, 0.0], [2.0, -1.0]):
        with pytest.raises(DataError):
            weighted_average([right, wrong], weights)
    with pytest.raises(DataError):
        weighted_average([right, rate([])])


def test_frequent_reasons_come_first():
    assert list(count_reasons(VERDICTS).items()) == [(HIT, 2), (UNPARSABLE, 1)]


def test_json_has_all_and_no_nan():
    score = make_score(Benchmark("none", ()), "a rule", ())
    assert '"mean": null' in json.dumps(score_to_json(score), allow_nan=False)
    full = score_to_json(make_score(BENCHMARK, "a rule", VERDICTS))
    assert full["verdicts"][0] == {"item_id": "a", "right": True, "reason": HIT, "point": (1.0, 2.0), "detail": ""}
    assert full["averages"]["micro"]["successes"] == 2 and full["tables"]["os"]["mac"]["trials"] == 2
