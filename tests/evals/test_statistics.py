"""Intervals against scipy, published values and coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals import statistics


@pytest.mark.parametrize("trials", [1, 7, 60, 1000])
def test_wilson_interval_equals_scipy(trials):
    for successes in {0, 1, trials // 3, trials - 1, trials}:
        expected = scipy.stats.binomtest(successes, trials).proportion_ci(0.95, method="wilson")
        found = statistics.wilson_interval(successes, trials)
        assert found == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_interval_without_trials_says_nothing():
    assert statistics.wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("successes", "trials"), [(-1, 3), (4, 3), (1, 0)])
def test_impossible_counts_are_rejected(successes, trials):
    with pytest.raises(DataError, match="successes"):
        statistics.wilson_interval(successes, trials)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 10, 59, 180, 999])
def test_t_quantile_equals_scipy(freedom):
    for probability in (0.005, 0.3, 0.5, 0.9, 0.975, 0.9995):
        expected = scipy.stats.t.ppf(probability, freedom)
        assert statistics.t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_success_rate_counts():
    rate = statistics.success_rate([1, 0, 1, 1])
    assert (rate.mean, rate.successes, rate.trials) == (0.75, 3, 4)
    assert rate.interval.low < 0.75 < rate.interval.high
    assert math.isnan(statistics.success_rate([]).mean)
    with pytest.raises(DataError, match="zeros and ones"):
        statistics.success_rate([0.5])


def test_macro_average_weighs_families_alike():
    strata = {"mobile": [1] * 90 + [0] * 10, "desktop": [1] * 5 + [0] * 5, "web": [0] * 20}
    rate = statistics.macro_average(strata)
    assert rate.mean == pytest.approx((0.9 + 0.5 + 0.0) / 3)
    assert (rate.successes, rate.trials) == (95, 130)
    below = [m - statistics.wilson_interval(s, n)[0] for m, s, n in ((0.9, 90, 100), (0.5, 5, 10), (0.0, 0, 20))]
    assert rate.interval.low == pytest.approx(rate.mean - np.linalg.norm(below) / 3)


def test_macro_average_interval_covers():
    rng = np.random.default_rng(0)
    p = np.array([0.9, 0.4, 0.05])
    covered = 0
    for _ in range(1000):
        strata = {str(i): rng.random(60) < p[i] for i in range(3)}
        interval = statistics.macro_average(strata).interval
        covered += interval.low <= p.mean() <= interval.high
    assert 0.925 <= covered / 1000 <= 0.98


def test_macro_average_needs_every_stratum():
    with pytest.raises(DataError, match="web"):
        statistics.macro_average({"mobile": [1], "web": []})
    with pytest.raises(DataError, match="any"):
        statistics.macro_average({})


def test_paired_difference_equals_scipy():
    rng = np.random.default_rng(1)
    a, b = rng.random(50), rng.random(50) + 0.2
    found = statistics.paired_difference(a, b)
    expected = scipy.stats.ttest_rel(b, a).confidence_interval(0.95)
    assert (found.t.low, found.t.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert found.mean == pytest.approx((b - a).mean())
    bootstrap = scipy.stats.bootstrap(
        ((b - a),), np.mean, method="percentile", n_resamples=10_000, rng=np.random.default_rng(5)
    ).confidence_interval
    assert (found.bootstrap.low, found.bootstrap.high) == pytest.approx((bootstrap.low, bootstrap.high), abs=0.01)
    assert found.normal.low > found.t.low and found.normal.high < found.t.high


def test_paired_difference_of_outcomes_counts_the_changes():
    found = statistics.paired_difference([0, 0, 1, 0], [1, 0, 1, 1])
    assert (found.mean, found.better, found.worse, found.pairs) == (0.5, 2, 0, 4)
    assert found == statistics.paired_difference([0, 0, 1, 0], [1, 0, 1, 1])
    assert found.bootstrap != statistics.paired_difference([0, 0, 1, 0], [1, 0, 1, 1], confidence=0.5).bootstrap


def test_stratified_difference_weighs_families_alike_and_covers():
    rng = np.random.default_rng(2)
    sizes = {"mobile": 60, "desktop": 30, "web": 90}
    strata = [name for name, size in sizes.items() for _ in range(size)]
    before = np.repeat([0.2, 0.5, 0.7], list(sizes.values()))
    after = np.repeat([0.6, 0.5, 0.8], list(sizes.values()))
    truth, covered = (0.4 + 0.0 + 0.1) / 3, np.zeros(3)
    for _ in range(300):
        a, b = rng.random(180) < before, rng.random(180) < after
        found = statistics.paired_difference(a, b, strata=strata, resamples=500)
        difference = b.astype(float) - a
        by_family = [difference[:60].mean(), difference[60:90].mean(), difference[90:].mean()]
        assert found.mean == pytest.approx(np.mean(by_family))
        covered += [i.low <= truth <= i.high for i in (found.bootstrap, found.t, found.normal)]
    assert (covered / 300 >= 0.91).all() and (covered / 300 <= 0.985).all()


def test_equal_scores_have_an_interval_of_width_zero():
    found = statistics.paired_difference([1, 0, 1], [1, 0, 1])
    assert (found.t.low, found.t.high, found.bootstrap.low) == (0, 0, 0)


@pytest.mark.parametrize(
    ("a", "b", "strata", "message"),
    [
        ([1, 0], [1], None, "one length"),
        ([1, np.nan], [1, 0], None, "finite"),
        ([1], [0], None, "two pairs"),
        ([], [], None, "two pairs"),
        ([1, 0, 1], [1, 0, 0], ["web", "web", "mobile"], "every stratum"),
        ([1, 0, 1], [1, 0, 0], ["web", "web"], "2 tasks"),
    ],
)
def test_bad_pairs_are_rejected(a, b, strata, message):
    with pytest.raises(DataError, match=message):
        statistics.paired_difference(a, b, strata=strata)
