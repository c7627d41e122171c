"""Uncertainty of success rates: Wilson intervals, paired differences, macro-averages over device families.

Host code in numpy. Outcomes are 0 or 1 per task; paired methods also take any other score per task.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from gui_owl_jax.agent.errors import DataError


@dataclasses.dataclass(frozen=True)
class Interval:
    """A confidence interval.

    Attributes:
      low: lower end.
      high: upper end.
    """

    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Rate:
    """A success rate with its interval.

    Attributes:
      mean: the rate; NaN without trials.
      interval: its confidence interval.
      successes: how many trials succeeded (of a macro-average: in all strata together).
      trials: how many there were.
    """

    mean: float
    interval: Interval
    successes: int
    trials: int


@dataclasses.dataclass(frozen=True)
class PairedDifference:
    """The mean difference b - a of paired scores, with three intervals for it.

    Attributes:
      mean: of b - a; with strata, the unweighted mean of the strata's means.
      bootstrap: percentile interval over resampled pairs.
      t: Student's t interval (with strata: Satterthwaite's degrees of freedom, rounded down).
      normal: normal interval.
      pairs: how many pairs there were.
      better: pairs with b > a.
      worse: pairs with b < a.
    """

    mean: float
    bootstrap: Interval
    t: Interval
    normal: Interval
    pairs: int
    better: int
    worse: int


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for a binomial rate (Wilson 1927); sensible at 0 and 1, unlike p +- 1.96 sd.

    Args:
      successes: 0..trials.
      trials: 0 gives the interval (0, 1).
      confidence: in (0, 1).

    Returns:
      (low, high), within [0, 1].

    Raises:
      DataError: the counts are impossible.
    """
    if not 0 <= successes <= trials:
        raise DataError(f"successes = {successes} must lie between 0 and trials = {trials}")
    if trials == 0:
        return 0.0, 1.0
    z = _normal_quantile(confidence)
    rate, spread = successes / trials, z * z / trials
    center = (rate + spread / 2) / (1 + spread)
    half = z * math.sqrt(rate * (1 - rate) / trials + spread / (4 * trials)) / (1 + spread)
    # At the ends the formula is exactly 0 or 1 up to rounding.
    low = 0.0 if successes == 0 else center - half
    high = 1.0 if successes == trials else center + half
    return low, high


def success_rate(outcomes: ArrayLike, confidence: float = 0.95) -> Rate:
    """A success rate with its Wilson interval.

    Args:
      outcomes: 0 or 1, [n].
      confidence: of the interval.

    Returns:
      The `Rate`.

    Raises:
      DataError: an outcome is neither 0 nor 1.
    """
    values = np.asarray(outcomes)
    if values.ndim != 1 or not np.isin(values, (0, 1)).all():
        raise DataError("outcomes must be a list of zeros and ones")
    successes, trials = int(values.sum()), values.size
    mean = successes / trials if trials else math.nan
    return Rate(mean, Interval(*wilson_interval(successes, trials, confidence)), successes, trials)


def macro_average(strata: Mapping[str, ArrayLike], confidence: float = 0.95) -> Rate:
    """The unweighted mean of the success rates of device families.

    The interval combines the families' Wilson intervals (MOVER: Zou and Donner 2008): with rates p_h in [l_h, u_h] of
    H families, low = mean - sqrt(sum (p_h - l_h)^2)/H and high = mean + sqrt(sum (u_h - p_h)^2)/H. It stays sensible
    where every family is at 0 or 1.

    Args:
      strata: family -> outcomes 0 or 1, [n_h] with n_h >= 1.
      confidence: of the interval.

    Returns:
      The `Rate` of the average.

    Raises:
      DataError: no stratum, or an empty one.
    """
    rates = {name: success_rate(outcomes, confidence) for name, outcomes in strata.items()}
    empty = [name for name, rate in rates.items() if rate.trials == 0]
    if empty or not rates:
        raise DataError(f"a macro-average needs at least one outcome in every stratum; none in {empty or 'any'}")
    return weighted_average(list(rates.values()))


def weighted_average(rates: Sequence[Rate], weights: Sequence[float] | None = None) -> Rate:
    """A weighted mean of rates; its interval combines theirs as in `macro_average`.

    Args:
      rates: each over at least one trial.
      weights: of the rates, not negative, not all zero; all equal by default.

    Returns:
      The `Rate` of the average, with the successes and trials of all rates together.

    Raises:
      DataError: no rate, one without trials, or impossible weights.
    """
    weights = [1.0] * len(rates) if weights is None else list(weights)
    total = sum(weights)
    if not rates or len(weights) != len(rates) or min(weights) < 0 or total <= 0:
        raise DataError(f"no average of {len(rates)} rates with weights {weights}")
    if any(each.trials == 0 for each in rates):
        raise DataError("an average needs at least one outcome in every rate")
    mean = sum(weight * each.mean for weight, each in zip(weights, rates)) / total
    below = math.hypot(*(weight * (each.mean - each.interval.low) for weight, each in zip(weights, rates))) / total
    above = math.hypot(*(weight * (each.interval.high - each.mean) for weight, each in zip(weights, rates))) / total
    interval = Interval(max(0.0, mean - below), min(1.0, mean + above))
    return Rate(mean, interval, sum(each.successes for each in rates), sum(each.trials for each in rates))


def paired_difference(
    a: ArrayLike,
    b: ArrayLike,
    *,
    strata: Sequence[str] | None = None,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> PairedDifference:
    """How much better b is than a on the same tasks.

        a  0 0 1 0      b  1 0 1 1      b - a  1 0 0 1: mean 0.5

    Args:
      a: scores of the first agent, [n].
      b: scores of the second agent on the same tasks, [n].
      strata: the device family of each task, [n]; given, the difference is averaged over families with equal weight,
        and pairs are resampled within families.
      confidence: of the intervals.
      resamples: bootstrap samples.
      seed: of the bootstrap.

    Returns:
      The `PairedDifference`.

    Raises:
      DataError: lengths differ, a score is not finite, or a stratum has fewer than two pairs.
    """
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if first.ndim != 1 or first.shape != second.shape:
        raise DataError(f"paired scores must be two lists of one length; got shapes {first.shape} and {second.shape}")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise DataError("paired scores must be finite")
    labels = np.zeros(len(first), int) if strata is None else np.asarray(strata)
    if len(labels) != len(first):
        raise DataError(f"strata names {len(labels)} tasks, the scores {len(first)}")
    difference = second - first
    groups = [difference[labels == label] for label in np.unique(labels)]
    if not groups or min(len(group) for group in groups) < 2:
        raise DataError("a paired difference needs at least two pairs in every stratum")

    mean = float(np.mean([group.mean() for group in groups]))
    # Variances of the strata's means, as they enter the variance of the average.
    variances = np.array([group.var(ddof=1) / len(group) for group in groups]) / len(groups) ** 2
    error = math.sqrt(variances.sum())
    freedom = min(len(group) for group in groups) - 1
    if error > 0:
        freedom = int(variances.sum() ** 2 / sum(v**2 / (len(g) - 1) for v, g in zip(variances, groups)) + 1e-9)
    return PairedDifference(
        mean=mean,
        bootstrap=_bootstrap(groups, confidence, resamples, seed),
        t=_around(mean, error * t_quantile(0.5 + confidence / 2, max(freedom, 1))),
        normal=_around(mean, error * _normal_quantile(confidence)),
        pairs=len(difference),
        better=int((difference > 0).sum()),
        worse=int((difference < 0).sum()),
    )


def t_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t distribution with a whole number of degrees of freedom.

    The distribution function has a finite series for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and
    26.7.4); it is inverted by bisection in the angle atan(t / sqrt(freedom)).

    Args:
      probability: in (0, 1).
      freedom: at least 1.

    Returns:
      t with P(T <= t) = probability.

    Raises:
      DataError: an argument is out of range.
    """
    if not 0 < probability < 1 or freedom < 1:
        raise DataError(f"no t quantile for probability = {probability}, freedom = {freedom}")
    low, high = -math.pi / 2, math.pi / 2
    for _ in range(80):
        middle = (low + high) / 2
        if 0.5 + _t_central(middle, freedom) / 2 < probability:
            low = middle
        else:
            high = middle
    return math.tan((low + high) / 2) * math.sqrt(freedom)


def _t_central(angle: float, freedom: int) -> float:
    """P(|T| <= sqrt(freedom) tan(angle)) with the sign of the angle."""
    cosine, sine = math.cos(angle), math.sin(angle)
    if freedom % 2 == 0:
        term = total = 1.0
        for k in range(1, freedom // 2):
            term *= cosine * cosine * (2 * k - 1) / (2 * k)
            total += term
        return sine * total
    total, term = 0.0, cosine
    for k in range(1, freedom // 2 + 1):
        total += term
        term *= cosine * cosine * (2 * k) / (2 * k + 1)
    return 2 / math.pi * (angle + sine * total)


def _bootstrap(groups: Sequence[np.ndarray], confidence: float, resamples: int, seed: int) -> Interval:
    rng = np.random.default_rng(seed)
    means = np.zeros(resamples)
    for group in groups:
        # In slices, so that memory stays small for many pairs.
        for start in range(0, resamples, 1000):
            count = min(1000, resamples - start)
            picks = rng.integers(0, len(group), (count, len(group)))
            means[start : start + count] += group[picks].mean(axis=1) / len(groups)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(low), float(high))


def _around(mean: float, half: float) -> Interval:
    return Interval(mean - half, mean + half)


def _normal_quantile(confidence: float) -> float:
    """z of a two-sided interval."""
    if not 0 < confidence < 1:
        raise DataError(f"confidence = {confidence} must be in (0, 1)")
    return NormalDist().inv_cdf(0.5 + confidence / 2)
