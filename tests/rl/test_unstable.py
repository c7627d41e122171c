"""Unstable tasks and visiting probabilities."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.rl.unstable import WEIGHTINGS, task_weights, unstable

SUCCESSES, TRIALS = np.array([0, 1, 2, 3, 4, 0]), np.array([4, 4, 4, 4, 4, 0])


def test_unstable_is_strictly_between():
    assert unstable(SUCCESSES, TRIALS).tolist() == [False, True, True, True, False, False]


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_weights_are_a_distribution_with_a_floor(weighting):
    found = jax.jit(lambda s, t: task_weights(s, t, weighting, floor=0.3))(SUCCESSES, TRIALS)
    assert float(found.sum()) == pytest.approx(1, rel=1e-6)
    assert float(found.min()) >= 0.3 / 6 - 1e-7


def test_posterior_weights_are_the_posterior_mean_of_the_variance():
    found = np.asarray(task_weights(SUCCESSES, TRIALS, "posterior", floor=0.0))
    # Midpoint rule over the posterior density p^s (1-p)^f.
    p = (np.arange(20000) + 0.5) / 20000
    density = p ** SUCCESSES[:, None] * (1 - p) ** (TRIALS - SUCCESSES)[:, None]
    expected = (density * p * (1 - p)).sum(1) / density.sum(1)
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-5)


def test_unstable_weights_fall_back_to_all_tasks():
    found = task_weights(SUCCESSES, TRIALS, "unstable", floor=0.0)
    np.testing.assert_allclose(found, [0, 1 / 3, 1 / 3, 1 / 3, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(task_weights(np.array([0, 4]), np.array([4, 4]), "unstable"), [0.5, 0.5])


@pytest.mark.parametrize("fields", [{"weighting": "hard"}, {"floor": 1.5}])
def test_bad_arguments_are_rejected(fields):
    with pytest.raises(ConfigError, match=next(iter(fields))):
        task_weights(SUCCESSES, TRIALS, **fields)
