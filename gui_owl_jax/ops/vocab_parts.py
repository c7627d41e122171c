"""Log-probabilities of tokens where the head's kernel is split over many chips: a part of the vocabulary at a time.

`ops.cross_entropy` walks along the tokens, which would gather the whole kernel, and sum its whole gradient over the
chips, once per chunk of tokens. Walking along the vocabulary, each column is gathered once forward and once backward,
its gradient is complete when its part is done, and no chip ever holds the whole kernel or gradient.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from gui_owl_jax.ops import partition

Statistics = tuple[jax.Array, jax.Array, jax.Array]
Sums = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def token_statistics(hidden: jax.Array, kernel: jax.Array, targets: jax.Array, parts: int) -> Statistics:
    """Scores targets under softmax(hidden @ kernel).

    The matmuls run in the dtype of `hidden`, everything behind them and the gradients' sums in float32.

    Args:
      hidden: [T, D].
      kernel: [D, V].
      targets: int [T].
      parts: into how many parts the vocabulary is cut; must divide V. Only [T, V / parts] logits exist at a time.

    Returns:
      f32 [T] each: log-probability of the target, entropy, and 1 where the target is the most likely token.
    """
    return _forward(hidden, kernel, targets, parts)[0]


def parts_for(vocabulary: int, at_least: int) -> int:
    """Returns the smallest number of equal parts of a vocabulary that is not below `at_least`."""
    return next(n for n in range(min(at_least, vocabulary), vocabulary + 1) if vocabulary % n == 0)


def _split(kernel: jax.Array, parts: int, dtype: Any) -> jax.Array:
    """[D, V] -> [parts, D, V / parts]: part i has the columns i, i + parts, ..., so that a split of V stays one."""
    return jnp.moveaxis(kernel.astype(dtype).reshape(kernel.shape[0], -1, parts), 2, 0)


def _join(parts: jax.Array) -> jax.Array:
    return jnp.moveaxis(parts, 0, 2).reshape(parts.shape[1], -1)


def _logits(hidden: jax.Array, part: jax.Array) -> jax.Array:
    whole = partition.constrain(part, None, "tensor")  # gathered here, for this part only
    return jnp.matmul(hidden, whole, preferred_element_type=jnp.float32)


def _is_target(targets: jax.Array, index: jax.Array, parts: int, columns: int) -> jax.Array:
    """bool [T, columns], true at each token's target, if it lies in this part."""
    column = jnp.where(targets % parts == index, targets // parts, -1)
    return column[:, None] == jnp.arange(columns)


def _forward(hidden: jax.Array, kernel: jax.Array, targets: jax.Array, parts: int) -> tuple[Statistics, Any]:
    hidden = partition.constrain(hidden, partition.ROWS)  # gathered along tensor here, not once per part

    def step(carry: Sums, xs: tuple[jax.Array, jax.Array]) -> tuple[Sums, None]:
        most, mass, moment, chosen = carry
        part, index = xs
        logits = _logits(hidden, part)
        new_most = jnp.maximum(most, logits.max(axis=-1))
        weights, shrink = jnp.exp(logits - new_most[:, None]), jnp.exp(most - new_most)
        mass = mass * shrink + weights.sum(axis=-1)
        moment = moment * shrink + (weights * logits).sum(axis=-1)
        here = _is_target(targets, index, parts, part.shape[1])
        return (new_most, mass, moment, chosen + jnp.where(here, logits, 0).sum(axis=-1)), None

    zeros = jnp.zeros(targets.shape, jnp.float32)
    # Not -inf: inf - inf would not be a number.
    start = (zeros + jnp.finfo(jnp.float32).min, zeros, zeros, zeros)
    xs = (_split(kernel, parts, hidden.dtype), jnp.arange(parts))
    (most, mass, moment, chosen), _ = jax.lax.scan(step, start, xs)
    log_total, expected = most + jnp.log(mass), moment / mass
    correct = (chosen >= most).astype(jnp.float32)
    return (chosen - log_total, log_total - expected, correct), (hidden, kernel, targets, log_total, expected)


def _backward(parts: int, saved: Any, cotangents: Statistics) -> tuple[jax.Array, jax.Array, None]:
    hidden, kernel, targets, log_total, expected = saved
    hidden = partition.constrain(hidden, partition.ROWS)
    of_logp, of_entropy, _ = (cotangent[:, None] for cotangent in cotangents)

    def step(total: jax.Array, xs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        part, index = xs
        logits = _logits(hidden, part)
        p = jnp.exp(logits - log_total[:, None])
        # d logp = [target] - p and d entropy = -p (logit - mean logit).
        slope = of_logp * (_is_target(targets, index, parts, part.shape[1]) - p)
        slope = (slope - of_entropy * p * (logits - expected[:, None])).astype(hidden.dtype)
        whole = partition.constrain(part, None, "tensor")
        total = total + jnp.matmul(slope, whole.T, preferred_element_type=jnp.float32)
        of_part = jnp.matmul(hidden.T, slope, preferred_element_type=jnp.float32)
        return total, partition.constrain(of_part, "fsdp", "tensor")

    zeros = jnp.zeros(hidden.shape, jnp.float32)
    xs = (_split(kernel, parts, hidden.dtype), jnp.arange(parts))
    total, of_parts = jax.lax.scan(step, zeros, xs)
    return total.astype(hidden.dtype), _join(of_parts).astype(kernel.dtype), None


token_statistics.defvjp(_forward, _backward)
