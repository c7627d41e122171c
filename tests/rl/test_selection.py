"""swap1 and its inclusion weights against enumeration, on 10^5 draws, and on a real pool of rollouts."""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.rl import selection
from gui_owl_jax.rl.outcomes import SuccessRule
from gui_owl_jax.rl.selection import Case
from tests.rl.brute_force import EVERY_POOL, enumerate_groups, inclusion, osworld_rewards, pool_outcomes

probabilities = jax.jit(selection.inclusion_probabilities, static_argnums=2)
informative = jax.jit(selection.informative_probability, static_argnums=2)


def _pools(n):
    """All (successes, pool size) from which n can be drawn."""
    return [(s, m) for s, m, size in EVERY_POOL if size == n]


def _padded(outcomes):
    """A pool as the finished trajectories of one of 8."""
    return np.pad(outcomes, (0, 8 - len(outcomes)), constant_values=1)


@pytest.mark.parametrize("n", range(2, 9))
def test_every_draw_of_every_pool_gives_the_enumerated_groups(n):
    """Runs the real swap1 on all draws, leaving members and partners: frequencies are exact, not sampled."""
    rows, pools, shares = [], [], []
    for s, m in _pools(n):
        outcomes = pool_outcomes(s, m)
        subsets = itertools.combinations(range(m), n)
        orders = [subset[i:] + subset[:i] for subset in subsets for i in range(n)]
        draws = list(itertools.product(orders, range(s, m) or [0], range(s) or [0]))
        rows += [(*draw, _padded(outcomes), np.arange(8) < m) for draw in draws]
        pools += [(s, m)] * len(draws)
        shares += [Fraction(1, len(draws))] * len(draws)
    columns = [np.array(column) for column in zip(*rows)]
    result = jax.tree.map(np.asarray, jax.jit(jax.vmap(selection.form_group))(*columns))

    found = {pool: defaultdict(Fraction) for pool in _pools(n)}
    exact = np.zeros((len(rows), n))
    for row, (pool, share) in enumerate(zip(pools, shares)):
        s, m = pool
        group, case = result.indices[row].tolist(), int(result.case[row])
        found[pool][case, tuple(sorted(group))] += share
        if case != Case.EMPTY:
            assert 0 < sum(i < s for i in group) < n, "a used group is collapsed"
            pi = inclusion(pool_outcomes(s, m), n)
            exact[row] = [float(Fraction(n, m) / pi[i]) for i in group]
    for s, m in _pools(n):
        assert found[s, m] == enumerate_groups(pool_outcomes(s, m), n)
    np.testing.assert_allclose(result.weights, exact, rtol=2e-6)


@pytest.mark.parametrize("n", range(2, 9))
def test_select_draws_uniformly(n):
    """`select` itself, on every pool at once (smaller ones as unfinished trajectories of a pool of 8).

    Sampled case frequencies and inclusions lie within 5 standard deviations, impossible ones never occur.
    """
    draws = 1000
    pools = _pools(n)
    outcomes = np.stack([_padded(pool_outcomes(s, m)) for s, m in pools])
    valid = np.stack([np.arange(8) < m for _, m in pools])
    keys = jax.random.split(jax.random.key(n), (len(pools), draws))
    pick = jax.vmap(jax.vmap(lambda k, z, v: selection.select(k, z, v, n), (0, None, None)))
    result = jax.tree.map(np.asarray, jax.jit(pick)(keys, outcomes, valid))
    for row, (s, m) in enumerate(pools):
        groups = enumerate_groups(pool_outcomes(s, m), n)
        cases = [float(sum(p for (c, _), p in groups.items() if c == case)) for case in range(3)]
        _assert_frequencies(np.bincount(result.case[row], minlength=3) / draws, cases, draws)
        included = np.zeros(8)
        np.add.at(included, result.indices[row], result.weights[row] > 0)
        expected = [float(p) for p in inclusion(pool_outcomes(s, m), n)] + [0.0] * (8 - m)
        _assert_frequencies(included / draws, expected, draws)


def _assert_frequencies(found, expected, draws):
    expected = np.array(expected)
    deviation = np.sqrt(expected * (1 - expected) / draws)
    assert (np.abs(found - expected) <= 5 * deviation + 1e-9).all(), (found, expected)


@pytest.mark.parametrize("n", range(2, 9))
def test_inclusion_probabilities_equal_the_enumeration(n):
    pools = _pools(n)
    s, m = np.array(pools).T
    pi_success, pi_failure = probabilities(s, m - s, n)
    for i, (successes, size) in enumerate(pools):
        exact = inclusion(pool_outcomes(successes, size), n)
        if successes > 0:
            assert float(pi_success[i]) == pytest.approx(float(exact[0]), rel=2e-6)
        if successes < size:
            assert float(pi_failure[i]) == pytest.approx(float(exact[-1]), rel=2e-6)


@pytest.mark.parametrize(("m", "n"), [(32, 8), (128, 16), (1024, 8), (1024, 64), (1024, 512), (1024, 1024)])
def test_inclusion_probabilities_of_large_pools(m, n):
    s = np.arange(1, m)
    pi_success, pi_failure = probabilities(jnp.array(s), jnp.array(m - s), n)
    exact = np.array([_exact_inclusion(int(a), m - int(a), n) for a in s])
    np.testing.assert_allclose(pi_success, exact[:, 0], rtol=1e-5)
    np.testing.assert_allclose(pi_failure, exact[:, 1], rtol=1e-5)
    np.testing.assert_allclose(s * pi_success + (m - s) * pi_failure, n, rtol=1e-5)


def _exact_inclusion(s: int, f: int, n: int) -> tuple[float, float]:
    total = math.comb(s + f, n)
    q_s, q_f = Fraction(math.comb(s, n), total), Fraction(math.comb(f, n), total)
    uniform = Fraction(n, s + f)
    return float(uniform - q_s / s + q_f / s), float(uniform - q_f / f + q_s / f)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_weights_stay_below_n_over_n_minus_one(n):
    s = np.arange(1, 64)
    weights = n / 64 / np.stack(probabilities(s, 64 - s, n))
    assert 0 < weights.min() and weights.max() <= n / (n - 1) + 1e-5


@pytest.mark.parametrize(("s", "biased"), [(1, True), (3, True), (15, True), (8, False)])
def test_weighted_estimator_is_unbiased_and_the_unweighted_one_is_not(s, biased):
    """10^5 draws; g separates the outcomes. With s = f swap1 treats both alike and even weight 1 is unbiased."""
    draws, m, n = 100_000, 16, 4
    outcomes = np.array(pool_outcomes(s, m))
    g = np.where(outcomes == 1, 2.0, -1.0) + 0.1 * np.arange(m)
    result = _draw_many(jax.random.split(jax.random.key(7), draws), outcomes, n)
    values = g[np.asarray(result.indices)]
    inside = {}
    for name, weights in (("inclusion", np.asarray(result.weights, np.float64)), ("none", np.ones((draws, n)))):
        estimates = (weights * values).mean(axis=1)
        half = 1.96 * estimates.std(ddof=1) / math.sqrt(draws)
        inside[name] = abs(estimates.mean() - g.mean()) <= half
    assert inside["inclusion"]
    assert inside["none"] == (not biased)


@functools.partial(jax.jit, static_argnums=2)
def _draw_many(keys, outcomes, n):
    valid = jnp.ones(outcomes.shape, bool)
    return jax.vmap(lambda k: selection.select(k, outcomes, valid, n))(keys)


def test_unfinished_trajectories_are_never_selected():
    outcomes = jnp.array([1, 0, 1, 0, 0, 1, 0, 1])
    valid = jnp.array([0, 1, 0, 1, 1, 1, 0, 0], bool)  # failures 1, 3, 4, success 5
    pick = jax.jit(jax.vmap(lambda k: selection.select(k, outcomes, valid, 3)))
    result = pick(jax.random.split(jax.random.key(0), 4000))
    indices, weights = np.asarray(result.indices), np.asarray(result.weights)
    assert set(indices.ravel().tolist()) == {1, 3, 4, 5}
    assert (np.sort(indices, axis=1)[:, 1:] > np.sort(indices, axis=1)[:, :-1]).all()
    assert (result.rollouts == 4).all()
    # The same pool without the unfinished ones, (s, f) = (1, 3).
    pi_success, pi_failure = probabilities(1, 3, 3)
    np.testing.assert_allclose(weights, 3 / 4 / np.where(indices == 5, pi_success, pi_failure), rtol=1e-6)
    assert np.mean((indices == 5).any(axis=1)) == pytest.approx(float(pi_success), abs=1e-6)


@pytest.mark.parametrize(
    ("valid", "case", "members"),
    [([1, 1, 0, 0, 0], Case.UNIFORM, {0, 1}), ([1, 0, 0, 0, 0], Case.EMPTY, set()), ([0] * 5, Case.EMPTY, set())],
)
def test_fewer_finished_trajectories_than_slots(valid, case, members):
    select = jax.jit(selection.select, static_argnums=3)
    result = select(jax.random.key(1), jnp.array([1, 0, 1, 0, 1]), jnp.array(valid, bool), 4)
    assert int(result.case) == case
    assert set(np.asarray(result.indices)[np.asarray(result.weights) > 0].tolist()) == members
    np.testing.assert_allclose(np.asarray(result.weights)[np.asarray(result.weights) > 0], 1.0)


def test_no_weighting_gives_ones_and_empty_pools_zeros():
    pick = jax.jit(lambda z: selection.select(jax.random.key(0), z, jnp.ones(4, bool), 2, weighting="none"))
    assert pick(jnp.array([1, 0, 0, 0])).weights.tolist() == [1, 1]
    uniform = pick(jnp.zeros(4, int))
    assert uniform.weights.tolist() == [0, 0] and int(uniform.case) == Case.EMPTY


def test_a_key_decides_the_group_under_jit_and_without():
    outcomes, valid = jnp.array([1, 0] * 8), jnp.ones(16, bool)
    pick = jax.jit(selection.select, static_argnums=3)
    first, again, other = (pick(jax.random.key(seed), outcomes, valid, 4) for seed in (3, 3, 4))
    plain = selection.select(jax.random.key(3), outcomes, valid, 4)
    assert first.indices.tolist() == again.indices.tolist() == plain.indices.tolist() != other.indices.tolist()


@pytest.mark.parametrize("n", [1, 5])
def test_impossible_group_sizes_are_rejected(n):
    with pytest.raises(ConfigError, match="group size"):
        selection.select(jax.random.key(0), jnp.array([1, 0, 0, 0]), jnp.ones(4, bool), n)


def test_unknown_weighting_is_rejected():
    with pytest.raises(ConfigError, match="weighting"):
        selection.select(jax.random.key(0), jnp.array([1, 0]), jnp.ones(2, bool), 2, weighting="exact")


def test_informative_probability_of_a_success_rate():
    """The figures of the motivation: draws from a large pool with p = 0.9 approach 1 - p^n - (1-p)^n."""
    found = [float(informative(900_000, 100_000, n)) for n in (4, 16)]
    assert found == pytest.approx([0.344, 0.815], abs=5e-4)


@pytest.mark.parametrize(
    ("rule", "counts", "shares"),
    [
        (SuccessRule(1.0), (173, 32, 164), (24.3, 32.8, 39.3, 44.4)),
        (SuccessRule(0.0, strict=True), None, (26.1, 35.1, 41.8, 47.1)),
    ],
)
def test_real_pool_informative_shares(rule, counts, shares):
    """369 OSWorld tasks: what uniform groups get, and what selection gets."""
    outcomes = [rule(rewards) for rewards in osworld_rewards()]
    successes, trials = (np.array([f(z) for z in outcomes]) for f in (np.sum, np.size))
    mixed = (successes > 0) & (successes < trials)
    assert trials.sum() == 11943 and len(trials) == 369
    if counts:
        assert ((successes == 0).sum(), (successes == trials).sum(), mixed.sum()) == counts
    for n, share in zip((4, 8, 16, 32), shares):
        found = np.asarray(informative(successes, trials - successes, n))
        assert round(100 * found.mean(), 1) == share
        if counts:
            of_mixed = dict(zip((4, 8, 16, 32), (54.7, 73.9, 88.4, 99.9)))[n]
            assert round(100 * found[mixed].mean(), 1) == of_mixed


@pytest.mark.parametrize("n", [4, 8, 16, 32])
def test_real_pool_with_selection(n):
    rewards = osworld_rewards()
    width = max(map(len, rewards))
    valid = np.array([np.arange(width) < len(r) for r in rewards])
    outcomes = SuccessRule()(np.array([np.pad(r, (0, width - len(r))) for r in rewards]))
    pick = jax.jit(jax.vmap(lambda k, z, v: selection.select(k, z, v, n)))
    result = pick(jax.random.split(jax.random.key(n), len(rewards)), outcomes, valid)
    informative = np.asarray(result.case) != Case.EMPTY
    assert round(100 * informative.mean(), 1) == 44.4
    members = np.asarray(result.weights) > 0
    chosen = np.take_along_axis(outcomes, np.asarray(result.indices), axis=1)
    assert ((chosen * members).sum(1)[informative] > 0).all()
    assert (((1 - chosen) * members).sum(1)[informative] > 0).all()
    assert np.take_along_axis(valid, np.asarray(result.indices), axis=1)[members].all()
    assert (members.sum(1)[informative] == np.minimum(n, valid.sum(1))[informative]).all()
