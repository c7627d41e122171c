"""Advantages against plain numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.rl import advantages
from gui_owl_jax.rl.advantages import AdvantageConfig, group_advantages

REWARDS = np.array([[1, 0, 0, 0], [1, 1, 0, 9], [0.2, 0.4, 0.9, 0.1]], np.float32)
MEMBERS = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]], bool)


def by_hand(kind, rewards, members, base, base_members):
    result = np.zeros(rewards.shape)
    for row in range(len(rewards)):
        pool = base[row][base_members[row]].astype(np.float64)
        for i in np.flatnonzero(members[row]):
            r = float(rewards[row, i])
            if kind == "grpo":
                result[row, i] = (r - pool.mean()) / (pool.std() + 1e-6)
            elif kind == "dr_grpo":
                result[row, i] = r - pool.mean()
            else:
                result[row, i] = r - (pool.sum() - r) / (len(pool) - 1)
    return result


@pytest.mark.parametrize("kind", advantages.KINDS)
@pytest.mark.parametrize("baseline", ["group", "pool"])
def test_advantages_equal_numpy(kind, baseline):
    pool = np.concatenate([REWARDS, np.array([[0, 1], [5, 1], [0.3, 0.3]], np.float32)], axis=1)
    pool_valid = np.concatenate([MEMBERS, np.ones((3, 2), bool)], axis=1)
    config = AdvantageConfig(kind=kind, baseline=baseline)
    found = jax.jit(lambda *args: group_advantages(config, *args))(REWARDS, MEMBERS, pool, pool_valid)
    base = (pool, pool_valid) if baseline == "pool" else (REWARDS, MEMBERS)
    np.testing.assert_allclose(found, by_hand(kind, REWARDS, MEMBERS, *base), rtol=2e-5, atol=1e-6)
    assert found[1, 3] == 0
    by_name = getattr(advantages, kind)(jnp.array(REWARDS), jnp.array(MEMBERS))
    if baseline == "group":
        np.testing.assert_array_equal(by_name, found)


@pytest.mark.parametrize("kind", advantages.KINDS)
@pytest.mark.parametrize("baseline", ["group", "pool"])
def test_equal_rewards_and_empty_groups_have_advantage_exactly_zero(kind, baseline):
    rounded = np.nextafter(np.float32(0.3), np.float32(1))
    rewards = np.array([[0, 0, 0], [1, 1, 1], [0.3, rounded, 0.3], [1, 0, 0], [1, 0, 0]], np.float32)
    members = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 1], [0, 0, 0], [1, 0, 0]], bool)
    config = AdvantageConfig(kind=kind, baseline=baseline)
    found = group_advantages(config, rewards, members, rewards, members)
    assert rewards[2, 1] != rewards[2, 0] and not np.asarray(found).any()


def test_the_pool_baseline_needs_a_pool():
    with pytest.raises(ConfigError, match="pool_rewards"):
        group_advantages(AdvantageConfig(baseline="pool"), REWARDS, MEMBERS)


@pytest.mark.parametrize("fields", [{"kind": "gae"}, {"baseline": "batch"}, {"credit": "token"}])
def test_bad_configs_are_rejected(fields):
    with pytest.raises(ConfigError, match=next(iter(fields))):
        AdvantageConfig(**fields)


def test_returns_to_go():
    np.testing.assert_allclose(advantages.returns_to_go(2.0, 3, 0.5), [0.5, 1.0, 2.0])


def test_anchor_ids_keep_unknown_states_apart():
    assert advantages.anchor_ids(["a", "b", "a", "", ""]).tolist() == [0, 1, 0, 2, 3]


def test_step_advantages_equal_numpy():
    rng = np.random.default_rng(0)
    size = 40
    returns = rng.choice([0.0, 0.5, 1.0], size).astype(np.float32)
    anchors, trajectories = rng.integers(0, 12, size), rng.integers(0, 5, size)
    valid = rng.random(size) < 0.9
    expected = np.zeros(size)
    for anchor in range(12):
        group = np.flatnonzero((anchors == anchor) & valid)
        values = returns[group].astype(np.float64)
        if len(set(trajectories[group].tolist())) > 1 and np.ptp(values) > 0:
            expected[group] = (values - values.mean()) / (values.std() + 1e-6)
    found = jax.jit(advantages.step_advantages)(returns, anchors, trajectories, valid)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert 0 < (expected != 0).sum() < size


def test_a_state_that_one_trajectory_revisits_gives_no_credit():
    returns = jnp.array([0.9, 1.0, 0.0])
    found = advantages.step_advantages(returns, jnp.array([0, 0, 1]), jnp.array([0, 0, 1]), jnp.ones(3, bool))
    assert not np.asarray(found).any()
