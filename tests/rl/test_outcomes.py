"""Success rules, and rewards that are equal up to rounding."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.rl.outcomes import SuccessRule, tied


def test_threshold_counts_float32_rounding_as_equal():
    tenth = np.float32(0.1)
    almost = np.float32(1.0) - np.finfo(np.float32).eps
    rewards = [0.0, 0.999, almost, sum([tenth] * 10, np.float32(0)), 1.0, 3.0]
    assert SuccessRule()(rewards).tolist() == [0, 0, 1, 1, 1, 1]


def test_strict_rule_counts_partial_rewards():
    rule = SuccessRule(0.0, strict=True)
    assert rule([[0.0, 1e-8], [0.01, 1.0]]).tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_missing_verdicts_are_rejected(bad):
    with pytest.raises(DataError, match=r"index \[1\]"):
        SuccessRule()([1.0, bad])


@pytest.mark.parametrize(
    ("rewards", "members", "expected"),
    [
        ([0.3, 0.1 + 0.2, 0.3], [1, 1, 1], True),
        ([1e4, 1e4 + 1e-3, 1e4], [1, 1, 1], True),
        ([0.0, 1e-3, 0.0], [1, 1, 1], False),
        ([0.0, 1.0, 0.0], [1, 0, 1], True),
        ([0.0, 1.0, 0.0], [0, 1, 0], True),
        ([0.0, 1.0, 0.0], [0, 0, 0], True),
        ([-1.0, 1.0, 0.0], [1, 1, 0], False),
    ],
)
def test_ties(rewards, members, expected):
    assert bool(tied(jnp.array(rewards), jnp.array(members, bool))) is expected
