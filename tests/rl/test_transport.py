"""Mismatch statistics and truncated importance weights on packed rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from gui_owl_jax.rl import transport

SEGMENTS = jnp.array([[1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 3, 3]])
MASK = jnp.array([[0, 1, 1, 0, 1, 0], [1, 0, 1, 1, 0, 0]], bool)
TRAIN = jnp.array([[9.0, -1.0, -2.0, 9.0, -1.0, jnp.nan], [-3.0, 9.0, -1.0, -1.5, jnp.inf, -jnp.inf]])
SAMPLER = jnp.array([[0.0, -1.1, -2.2, 0.0, -0.7, jnp.inf], [-1.0, 0.0, -1.5, -1.25, jnp.inf, 0.0]])
DELTA = np.array([[0, 0.1, 0.2, 0, -0.3, 0], [-2.0, 0, 0.5, -0.25, 0, 0]])


def test_segment_totals_and_count():
    values = jnp.array([[1.0, 2, 3, 4, 5]])
    ids = jnp.array([[1, 1, 2, 2, 0]])
    assert transport.segment_totals(values, ids).tolist() == [[3, 3, 7, 7, 5]]
    assert float(transport.segment_count(MASK, SEGMENTS)) == 4


def test_weights_per_token_are_truncated_above():
    found = jax.jit(lambda *a: transport.importance_weights(*a, cap=1.2))(TRAIN, SAMPLER, MASK)
    np.testing.assert_allclose(found, np.where(MASK, np.minimum(np.exp(DELTA), 1.2), 0), rtol=1e-5)


def test_weights_per_sequence_come_from_its_sum():
    found = transport.importance_weights(TRAIN, SAMPLER, MASK, cap=1.3, segment_ids=SEGMENTS)
    totals = np.array([[0, 0.3, 0.3, 0, -0.3, 0], [-2.0, 0, 0.25, 0.25, 0, 0]])
    np.testing.assert_allclose(found, np.where(MASK, np.minimum(np.exp(totals), 1.3), 0), rtol=1e-5)


def test_mismatch_statistics():
    found = transport.mismatch_statistics(TRAIN, SAMPLER, MASK, SEGMENTS)
    assert {name: round(float(value), 5) for name, value in found.items()} == {
        "mismatch": round((0.1 + 0.2 + 0.3 + 2.0 + 0.5 + 0.25) / 6, 5),
        "max_mismatch": 2.0,
        "sequence_mismatch": round((0.3 + 0.3 + 0.3 + 2.0 + 0.25 + 0.25) / 6, 5),
        "max_sequence_mismatch": 2.0,
    }
    empty = transport.mismatch_statistics(TRAIN, SAMPLER, jnp.zeros_like(MASK), SEGMENTS)
    assert all(float(value) == 0 for value in empty.values())


def test_no_gradient_flows_through_importance_weights():
    gradient = jax.grad(lambda x: transport.importance_weights(x, SAMPLER, MASK, cap=2.0).sum())(TRAIN)
    assert not np.asarray(gradient).any()


def test_ratios_never_overflow():
    assert np.isfinite(np.asarray(transport.ratio(jnp.array([1e4, -1e4, jnp.inf])))).all()
