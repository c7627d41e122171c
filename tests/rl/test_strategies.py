"""The ablation strategies against enumeration of their draws."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.rl.selection import Case, informative_probability
from gui_owl_jax.rl.strategies import STRATEGIES, SelectionConfig, make_selector, selection_statistics
from tests.rl.brute_force import pool_outcomes

DRAWS = 2000
POOL = 10


@functools.cache
def selector(config):
    return jax.jit(jax.vmap(make_selector(config), in_axes=(0, None, None, None)))


def run(outcomes, stored=False, **config):
    """DRAWS selections from one pool, filled up with unfinished trajectories to M = POOL."""
    missing = POOL - len(outcomes)
    valid = jnp.arange(POOL) < len(outcomes)
    outcomes = jnp.array([*outcomes, *([1, 0] * POOL)[:missing]])
    keys = jax.random.split(jax.random.key(0), DRAWS)
    return jax.tree.map(np.asarray, selector(SelectionConfig(**config))(keys, outcomes, valid, stored))


def sigma(p):
    return 5 * (p * (1 - p) / DRAWS) ** 0.5 + 1e-9


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("s", [0, 1, 4, 7, 8])
def test_members_are_valid_distinct_and_mixed(strategy, s):
    outcomes = np.array([*pool_outcomes(s, 8), 1, 0])
    result = run(outcomes[:8], strategy=strategy, group_size=4)
    indices, members = np.asarray(result.indices), np.asarray(result.weights) > 0
    informative = np.asarray(result.case) != Case.EMPTY
    assert (members.any(axis=1) == informative).all()
    assert (indices[members] < 8).all()
    assert not np.asarray(result.off_policy).any()
    if s in (0, 8):
        assert not informative.any()
    ordered = np.sort(indices, axis=1)
    assert (ordered[:, 1:] > ordered[:, :-1]).all()
    chosen = outcomes[indices]
    assert ((chosen * members).sum(1) > 0)[informative].all()
    assert (((1 - chosen) * members).sum(1) > 0)[informative].all()
    statistics = {name: float(value) for name, value in selection_statistics(result).items()}
    assert statistics["informative_share"] == pytest.approx(informative.mean())
    assert statistics["informative_share"] + statistics["empty_share"] == pytest.approx(1)
    assert statistics["swap_share"] == pytest.approx((np.asarray(result.case) == Case.SWAP1).mean())
    assert statistics["rollouts_per_informative_group"] == pytest.approx(
        np.asarray(result.rollouts).sum() / max(informative.sum(), 1)
    )


def test_discard_drops_what_swap1_repairs():
    result = run(pool_outcomes(2, 8), strategy="discard", group_size=4)
    p = float(informative_probability(2, 6, 4))
    assert float(jnp.mean(result.case == Case.UNIFORM)) == pytest.approx(p, abs=sigma(p))
    assert (result.rollouts == 4).all()
    repaired = selection_statistics(run(pool_outcomes(2, 8), strategy="swap1", group_size=4))
    assert float(repaired["informative_share"]) == 1
    assert float(repaired["swap_share"]) == pytest.approx(1 - p, abs=sigma(p))
    assert float(repaired["rollouts_per_informative_group"]) == 8


def test_oversample_filter_uses_the_whole_pool():
    result = run(pool_outcomes(1, 8), strategy="oversample_filter", group_size=4)
    assert (result.indices == np.arange(POOL)).all() and (result.weights == [1] * 8 + [0] * 2).all()
    assert (result.rollouts == 8).all()


def test_resample_spends_what_a_sequence_of_draws_would():
    """Cost and success of bounded redrawing, from all orders of the pool."""
    outcomes, n, bound = np.array(pool_outcomes(1, 6)), 2, 2
    costs, successes = [], []
    for order in itertools.permutations(range(6)):
        blocks = [outcomes[list(order[i * n : i * n + n])].sum() for i in range(bound)]
        mixed = [0 < total < n for total in blocks]
        costs.append(n * (mixed.index(True) + 1) if any(mixed) else n * bound)
        successes.append(any(mixed))
    result = run(outcomes, strategy="resample", group_size=n, max_draws=bound)
    found = np.asarray(result.rollouts)
    assert set(found.tolist()) == {2, 4}
    assert found.mean() == pytest.approx(np.mean(costs), abs=5 * np.std(costs) / DRAWS**0.5)
    p = np.mean(successes)
    assert float(jnp.mean(result.case != Case.EMPTY)) == pytest.approx(p, abs=sigma(p))


@pytest.mark.parametrize(("s", "kept"), [(0, False), (1, False), (2, True), (6, True), (7, False), (8, False)])
def test_window_keeps_pool_success_rates_inside_it(s, kept):
    result = run(pool_outcomes(s, 8), strategy="window", group_size=7, low=0.25, high=0.75)
    assert (np.asarray(result.case != Case.EMPTY) == kept).all()


def test_success_replay_repairs_all_failure_groups_only():
    failures = run(pool_outcomes(0, 8), stored=True, strategy="success_replay", group_size=4)
    inserted = np.asarray(failures.indices) == POOL
    assert (inserted.sum(1) == 1).all() and (np.asarray(failures.off_policy) == inserted).all()
    assert (failures.case == Case.SWAP1).all() and (failures.weights == 1).all() and (failures.rollouts == 4).all()
    kept = np.bincount(np.asarray(failures.indices)[~inserted], minlength=8) / DRAWS
    np.testing.assert_allclose(kept, 3 / 8, atol=sigma(3 / 8))
    for outcomes, stored in ((pool_outcomes(8, 8), True), (pool_outcomes(0, 8), False)):
        result = run(outcomes, stored=stored, strategy="success_replay", group_size=4)
        assert (result.case == Case.EMPTY).all() and not np.asarray(result.off_policy).any()


def test_success_replay_needs_a_failure_beside_the_success():
    result = run([0], stored=True, strategy="success_replay", group_size=4)
    assert (result.case == Case.EMPTY).all() and (result.weights == 0).all()


def test_statistics_without_an_informative_group_count_all_rollouts():
    statistics = selection_statistics(run(pool_outcomes(0, 8), strategy="swap1", group_size=4))
    assert float(statistics["rollouts_per_informative_group"]) == 8 * DRAWS


@pytest.mark.parametrize(
    "fields", [{"strategy": "swap2"}, {"max_draws": 0}, {"low": 0.8, "high": 0.2}, {"weighting": "maybe"}]
)
def test_bad_configs_are_rejected(fields):
    with pytest.raises(ConfigError, match=next(iter(fields))):
        SelectionConfig(**fields)
