"""Mismatch between sampler and trainer, and its correction.

Rollouts carry the ids that were sampled and their log-probabilities under the distribution they were drawn from;
training scores the same ids. The two log-probabilities of a token differ (precision, kernels, stale weights). The
difference is measured at each update and corrected by truncated importance weights min(exp(train - sampler), cap).

Arrays are packed rows [B, L]: segment_ids number the examples of a row from 1, 0 is padding.

    segment_ids   1    1    1    2    2    0
    mask          0    1    1    0    1    0       sampled tokens
    delta         .   0.1  0.2   .  -0.3   .       train - sampler
    token weight  0   e^.1 e^.2  0  e^-.3  0
    sequence      0   e^.3 e^.3  0  e^-.3  0
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

# Ratios are exp of a difference of log-probabilities clipped to this: e^20 = 5e8 is far beyond every clip and cap, and
# an overflow to inf would turn a product with 0 into NaN.
MAX_LOG_RATIO = 20.0


def masked_difference(minuend: jax.Array, subtrahend: jax.Array, mask: jax.Array) -> jax.Array:
    """minuend - subtrahend where masked in, exactly 0 (and no gradient) elsewhere.

    Both operands are replaced before the subtraction, so that an inf or NaN on padding reaches neither value nor
    gradient.

    Args:
      minuend: float [B, L].
      subtrahend: float [B, L].
      mask: bool [B, L].

    Returns:
      float32 [B, L].
    """
    left, right = (jnp.where(mask, x, 0.0).astype(jnp.float32) for x in (minuend, subtrahend))
    return left - right


def ratio(log_ratio: jax.Array) -> jax.Array:
    """exp(log_ratio), safe from overflow.

    Args:
      log_ratio: float, any shape.

    Returns:
      The same shape.
    """
    return jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def segment_totals(values: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Sums over the segments of packed rows, written back to every token of the segment.

        values       1 2 3 4 5
        segment_ids  1 1 2 2 0
        result       3 3 7 7 5

    Args:
      values: float [B, L], 0 where a token shall not count.
      segment_ids: int [B, L], in 0..L.

    Returns:
      float [B, L].
    """
    size = segment_ids.shape[-1] + 1
    return jax.vmap(lambda v, i: jax.ops.segment_sum(v, i, num_segments=size)[i])(values, segment_ids)


def segment_count(mask: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """The number of segments with at least one masked-in token.

    Args:
      mask: bool [B, L].
      segment_ids: int [B, L], in 0..L.

    Returns:
      float32 [].
    """
    size = segment_ids.shape[-1] + 1
    tokens = jax.vmap(lambda v, i: jax.ops.segment_sum(v, i, num_segments=size))(mask.astype(jnp.float32), segment_ids)
    return jnp.sum(tokens > 0).astype(jnp.float32)


def importance_weights(
    train_logps: jax.Array,
    sampler_logps: jax.Array,
    mask: jax.Array,
    *,
    cap: float,
    segment_ids: jax.Array | None = None,
) -> jax.Array:
    """Truncated importance weights min(exp(train - sampler), cap); no gradient flows through them.

    Args:
      train_logps: float [B, L], by the trainer, of the weights at the start of the update.
      sampler_logps: float [B, L], of the distribution the ids were drawn from.
      mask: bool [B, L], sampled tokens.
      cap: c > 0.
      segment_ids: int [B, L]; given: one weight per sequence, from the sum over its tokens. None: one per token.

    Returns:
      float32 [B, L], 0 outside the mask.
    """
    delta = masked_difference(train_logps, sampler_logps, mask)
    if segment_ids is not None:
        delta = segment_totals(delta, segment_ids)
    return jax.lax.stop_gradient(jnp.where(mask, jnp.minimum(ratio(delta), cap), 0.0))


def mismatch_statistics(
    train_logps: jax.Array,
    sampler_logps: jax.Array,
    mask: jax.Array,
    segment_ids: jax.Array,
    shares: jax.Array | None = None,
) -> dict[str, jax.Array]:
    """How far sampler and trainer are apart.

    Args:
      train_logps: float [B, L].
      sampler_logps: float [B, L].
      mask: bool [B, L], sampled tokens.
      segment_ids: int [B, L].
      shares: float [B, L], the weight of each token in the means; None: equal weights.

    Returns:
      Scalars, in nats: mismatch and max_mismatch of |train - sampler|, sequence_mismatch and max_sequence_mismatch of
      its sum over the token's sequence, in absolute value. All 0 without tokens.
    """
    if shares is None:
        shares = mask / jnp.maximum(mask.sum(), 1)
    delta = masked_difference(train_logps, sampler_logps, mask)
    totals = jnp.where(mask, jnp.abs(segment_totals(delta, segment_ids)), 0.0)
    statistics = {
        "mismatch": jnp.sum(shares * jnp.abs(delta)),
        "max_mismatch": jnp.max(jnp.abs(delta)),
        "sequence_mismatch": jnp.sum(shares * totals),
        "max_sequence_mismatch": jnp.max(totals),
    }
    return jax.lax.stop_gradient(statistics)
