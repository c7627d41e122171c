"""Log-probabilities of tokens over a large vocabulary without ever holding all logits."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gui_owl_jax.ops import partition, vocab_parts


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


def token_statistics(
    hidden: jax.Array, kernel: jax.Array, targets: jax.Array, *, chunk: int = 128, mask: jax.Array | None = None
) -> TokenStatistics:
    """Scores targets under softmax(hidden @ kernel), chunk by chunk along the tokens.

    At most [B, chunk, V] logits exist at a time. The gradient is written by hand: the forward pass keeps two numbers
    per token, the backward pass computes the logits again and nothing else. The matmuls run in the dtype of `hidden`,
    everything behind them, and the gradient of the kernel, in float32. hidden[b, i] is scored against targets[b, i]:
    shifting is up to the caller.

    Args:
      hidden: [B, L, D].
      kernel: [D, V].
      targets: int [B, L].
      chunk: tokens per row and chunk; a row is always cut in two at least. Under a mesh (`ops.partition`) the
        vocabulary is cut instead, into as many parts (`ops.vocab_parts`).
      mask: bool [B, L], the tokens that matter; None: all. The others cost nothing (a prompt and its images are most of
        a row and have no targets); their values mean nothing and have no gradient.
    """
    rows, length, width = hidden.shape
    flat = hidden.reshape(-1, width)
    if partition.current_mesh() is not None:
        parts = vocab_parts.parts_for(kernel.shape[1], -(-length // chunk))
        found = vocab_parts.token_statistics(flat, kernel, targets.ravel(), parts)
        return TokenStatistics(*(field.reshape(targets.shape) for field in found))
    size = rows * max(1, min(chunk, -(-length // 2)))
    padding = -len(flat) % size
    count, wanted, order = jnp.int32(rows * length), targets.ravel(), None
    if mask is not None:  # the tokens that matter come first, and only their chunks are visited
        count, order = mask.sum(dtype=jnp.int32), jnp.argsort(~mask.ravel(), stable=True)
        flat, wanted = flat[order], wanted[order]
    found = _chunked(jnp.pad(flat, ((0, padding), (0, 0))), kernel, jnp.pad(wanted, (0, padding)), count, size)
    place = slice(rows * length) if order is None else jnp.argsort(order)
    return TokenStatistics(*(field[place].reshape(targets.shape) for field in found))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _chunked(
    hidden: jax.Array, kernel: jax.Array, targets: jax.Array, count: jax.Array, size: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Statistics of the first `count` of T tokens, in chunks of `size`; hidden [T, D], T a multiple of the size."""
    return _forward(hidden, kernel, targets, count, size)[0]


def _forward(hidden: jax.Array, kernel: jax.Array, targets: jax.Array, count: jax.Array, size: int) -> tuple:
    head = kernel.astype(hidden.dtype)

    def visit(index: jax.Array, fields: list[jax.Array]) -> list[jax.Array]:
        logits, wanted = _logits(hidden, head, index, size), _chunk(targets, index, size)
        most = logits.max(axis=-1)
        weights = jnp.exp(logits - most[:, None])
        total = weights.sum(axis=-1)
        chosen = jnp.take_along_axis(logits, wanted[:, None], axis=-1)[:, 0]
        found = (most + jnp.log(total), (weights * logits).sum(axis=-1) / total, chosen, chosen >= most)
        return [_put(field, new.astype(jnp.float32), index, size) for field, new in zip(fields, found)]

    empty = [jnp.zeros(len(hidden), jnp.float32)] * 4
    log_total, expected, chosen, correct = jax.lax.fori_loop(0, _chunks(count, size), visit, empty)
    values = (chosen - log_total, log_total - expected, correct)
    return values, (hidden, kernel, targets, count, log_total, expected)


def _backward(size: int, kept: Any, cotangents: tuple[jax.Array, jax.Array, jax.Array]) -> tuple:
    """With p the softmax of the logits l: d logp = [target] - p, and d entropy = -p (l - sum p l)."""
    hidden, kernel, targets, count, log_total, expected = kept
    head = kernel.astype(hidden.dtype)

    def visit(index: jax.Array, gradients: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        d_hidden, d_kernel = gradients
        vectors = (*cotangents[:2], log_total, expected, jnp.where(jnp.arange(len(hidden)) < count, targets, -1))
        of_logp, of_entropy, log_sum, mean, wanted = (_chunk(x, index, size)[:, None] for x in vectors)
        logits = _logits(hidden, head, index, size)
        p = jnp.exp(logits - log_sum)
        is_target = wanted == jnp.arange(kernel.shape[1])
        slope = of_logp * (is_target - p) - of_entropy * p * (logits - mean)
        slope = jnp.where(wanted >= 0, slope, 0).astype(hidden.dtype)
        of_hidden = jnp.matmul(slope, head.T, preferred_element_type=jnp.float32)
        of_kernel = jnp.matmul(_chunk(hidden, index, size).T, slope, preferred_element_type=jnp.float32)
        return _put(d_hidden, of_hidden, index, size), d_kernel + of_kernel

    zeros = jnp.zeros(hidden.shape, jnp.float32), jnp.zeros(kernel.shape, jnp.float32)
    d_hidden, d_kernel = jax.lax.fori_loop(0, _chunks(count, size), visit, zeros)
    return d_hidden.astype(hidden.dtype), d_kernel.astype(kernel.dtype), None, None


_chunked.defvjp(_forward, _backward)


def _chunks(count: jax.Array, size: int) -> jax.Array:
    return (count + size - 1) // size


def _chunk(x: jax.Array, index: jax.Array, size: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(x, index * size, size)


def _put(x: jax.Array, chunk: jax.Array, index: jax.Array, size: int) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(x, chunk, index * size, axis=0)


def _logits(hidden: jax.Array, head: jax.Array, index: jax.Array, size: int) -> jax.Array:
    return jnp.matmul(_chunk(hidden, index, size), head, preferred_element_type=jnp.float32)
