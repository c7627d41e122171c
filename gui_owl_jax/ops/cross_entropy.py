"""Log-probabilities of tokens over a large vocabulary without ever holding all logits."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class TokenStatistics(NamedTuple):
    """What the head says about given tokens; each float32 [B, L].

    Attributes:
      logps: log-probability of the target.
      entropy: entropy of the distribution, in nats.
      correct: 1 where the target is the most likely token (a logit tied with the best counts).
    """

    logps: jax.Array
    entropy: jax.Array
    correct: jax.Array


def token_logps(
    hidden: jax.Array, kernel: jax.Array, targets: jax.Array, *, chunk: int = 128
) -> tuple[jax.Array, jax.Array]:
    """Returns log-probability of the targets and entropy, float32 [B, L]; see `token_statistics`."""
    return token_statistics(hidden, kernel, targets, chunk=chunk)[:2]


def token_statistics(hidden: jax.Array, kernel: jax.Array, targets: jax.Array, *, chunk: int = 128) -> TokenStatistics:
    """Scores targets under softmax(hidden @ kernel), chunk by chunk along the tokens.

    At most [B, chunk, V] logits exist at a time, forward and backward: the backward pass computes them again. Rows stay
    whole, so a batch sharded along its rows needs no resharding. The matmul runs in the dtype of `hidden`, everything
    behind it, and the gradient of the kernel, in float32. hidden[b, i] is scored against targets[b, i]: shifting is up
    to the caller.

    Args:
      hidden: [B, L, D].
      kernel: [D, V].
      targets: int [B, L].
      chunk: tokens per row and chunk; a row is always cut in two at least.
    """
    length = hidden.shape[1]
    chunk = max(1, min(chunk, -(-length // 2)))
    padding = -length % chunk

    def chunks(x: jax.Array) -> jax.Array:
        x = jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(x.shape[0], -1, chunk, *x.shape[2:]), 1, 0)

    @jax.checkpoint
    def step(carry: None, xs: tuple[jax.Array, jax.Array]) -> tuple[None, TokenStatistics]:
        return carry, _statistics(xs[0], kernel, xs[1])

    _, stacked = jax.lax.scan(step, None, (chunks(hidden), chunks(targets)))
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1)[:, :length], stacked)


def _statistics(hidden: jax.Array, kernel: jax.Array, targets: jax.Array) -> TokenStatistics:
    flat = hidden.reshape(-1, hidden.shape[-1])
    logits = jnp.matmul(flat, kernel.astype(hidden.dtype), preferred_element_type=jnp.float32)
    logits = logits.reshape(*targets.shape, -1)
    log_total = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    expected = jnp.sum(jnp.exp(logits - log_total[..., None]) * logits, axis=-1)
    correct = jax.lax.stop_gradient((chosen >= logits.max(axis=-1)).astype(jnp.float32))
    return TokenStatistics(chosen - log_total, log_total - expected, correct)
