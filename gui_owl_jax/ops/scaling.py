"""Multiplication by a weight per channel, with a gradient that XLA's CPU backend computes fast."""

from __future__ import annotations

import jax
import jax.numpy as jnp


@jax.custom_vjp
def scaled(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Returns x [..., D] times weight [D], in one dtype; the gradient of the weight is summed in float32.

    Derived automatically, that sum over all tokens is fused with the norm whose output x is, and such a fusion is 13
    times slower than the product and the sum alone.
    """
    return x * weight


def _forward(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return x * weight, (x, weight)


def _backward(kept: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, weight = kept
    products = jax.lax.optimization_barrier(gradient.astype(jnp.float32) * x.astype(jnp.float32))
    return gradient * weight, products.reshape(-1, x.shape[-1]).sum(axis=0).astype(weight.dtype)


scaled.defvjp(_forward, _backward)
