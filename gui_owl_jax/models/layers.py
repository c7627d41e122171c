"""Small Flax NNX modules that both towers share.

Every parameter names its logical axes (see `gui_owl_jax.sharding.RULES`) where it is made. Kernels are [in, out].
Stacks of equal layers are one module whose parameters have a leading layer axis: made by `stack`, run by `scan_layers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.ops import gathered, partition
from gui_owl_jax.ops.scaling import scaled

Axes = tuple[str | None, ...]
Layer = TypeVar("Layer", bound=nnx.Module)

# The logical axes along which kernels are gathered when they are used.
GATHERED = ("embed", "vision_embed")

# What a layer keeps for its backward pass, beside what goes into it: everything; nothing, so that all of it is computed
# twice; or what came out of its matrix products with weights.
REMAT_POLICIES = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def parameter(value: jax.Array, axes: Axes) -> nnx.Param:
    """Wraps an array as a parameter that knows its logical axes."""
    return nnx.Param(value, axes=axes)


def matmul(x: jax.Array, kernel: jax.Array, axes: Axes = (None, None)) -> jax.Array:
    """Multiplies x [..., inputs] by a kernel [inputs, outputs], with these logical axes, in the dtype of x.

    As one flat product over all tokens: for a batched one XLA's CPU backward pass copies every activation transposed.
    """
    if axes[0] in GATHERED:
        x = partition.constrain(x, partition.ROWS)  # tokens split along tensor come together, once for all who read x
    flat = x.reshape(-1, x.shape[-1])
    mesh = partition.current_mesh()
    split = next((i for i, name in enumerate(axes) if name in GATHERED), None)
    if mesh is not None and split is not None and gathered.applies(mesh, len(flat), kernel, split):
        y = gathered.matmul(mesh, flat, kernel, split)
    else:
        y = flat @ kernel.astype(x.dtype)
    y = y.reshape(*x.shape[:-1], kernel.shape[-1])
    return partition.whole_rows_backward(y) if axes[1] in GATHERED else y


class Linear(nnx.Module):
    """y = x @ kernel (+ bias), computed in the dtype of x."""

    def __init__(self, inputs: int, outputs: int, axes: Axes, *, rngs: nnx.Rngs, bias: bool = True, scale: float = 1.0):
        """Kernel entries start normal with deviation scale / sqrt(inputs), so that x keeps its size; the bias at 0."""
        initial = jax.random.normal(rngs.params(), (inputs, outputs)) * (scale * inputs**-0.5)
        self.kernel = parameter(initial, axes)
        if bias:
            self.bias = parameter(jnp.zeros(outputs), axes[1:])

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., inputs] to [..., outputs]."""
        y = matmul(x, self.kernel[...], self.kernel.get_metadata()["axes"])
        return y + self.bias[...].astype(x.dtype) if hasattr(self, "bias") else y


class Embedding(nnx.Module):
    """A table of rows."""

    def __init__(self, rows: int, width: int, axes: Axes, *, rngs: nnx.Rngs, scale: float = 0.02):
        self.embedding = parameter(jax.random.normal(rngs.params(), (rows, width)) * scale, axes)


class LayerNorm(nnx.Module):
    """Layer normalisation with bias, statistics in float32."""

    def __init__(self, width: int, eps: float):
        self.scale = parameter(jnp.ones(width), ("norm",))
        self.bias = parameter(jnp.zeros(width), ("norm",))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalises the last axis; keeps shape and dtype."""
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(axis=-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + self.eps)
        return (scaled(normed, self.scale[...].astype(jnp.float32)) + self.bias[...]).astype(x.dtype)


class RMSNorm(nnx.Module):
    """Root-mean-square normalisation; statistics in float32, the weight applied in the dtype of x."""

    def __init__(self, width: int, eps: float):
        self.scale = parameter(jnp.ones(width), ("norm",))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalises the last axis; keeps shape and dtype."""
        wide = x.astype(jnp.float32)
        normed = wide * jax.lax.rsqrt(jnp.square(wide).mean(axis=-1, keepdims=True) + self.eps)
        return scaled(normed.astype(x.dtype), self.scale[...].astype(x.dtype))


def stack(make: Callable[[nnx.Rngs], Layer], count: int, rngs: nnx.Rngs) -> Layer:
    """Makes `count` layers as one module whose parameters have a leading axis of that length."""
    return jax.vmap(lambda key: make(nnx.Rngs(key)))(jax.random.split(rngs.params(), count))


def between_layers(x: jax.Array) -> jax.Array:
    """Splits activations [B, L, D] over a mesh by rows, and by tokens along the axis that splits matrices.

    What a layer is given is what is kept of it for the backward pass, so no chip shall keep what another one has.
    """
    return partition.constrain(x, partition.ROWS, "tensor") if x.ndim == 3 else x


def remat_name(remat: str | bool) -> str:
    """Returns the key of `REMAT_POLICIES`; raises ConfigError when it is none."""
    name = ("full" if remat else "none") if isinstance(remat, bool) else remat
    if name not in REMAT_POLICIES:
        raise ConfigError(f"remat: {remat!r} is none of {', '.join(REMAT_POLICIES)}")
    return name


def scan_layers(
    call: Callable[[Any, Any, Any], tuple[Any, Any]],
    layers: nnx.Module,
    carry: Any,
    xs: Any = None,
    *,
    start: int = 0,
    stop: int | None = None,
    remat: str | bool = "none",
) -> tuple[Any, Any]:
    """Runs layers [start, stop) of a stack with `jax.lax.scan`.

    Args:
      call: (layer, carry, x) -> (carry, y) for one layer.
      layers: the whole stack.
      carry: what flows through the layers.
      xs: arrays with one leading entry for each layer run.
      start: first layer.
      stop: layer behind the last one; None: all.
      remat: a key of `REMAT_POLICIES`: what the backward pass computes again. True is "full", False "none".

    Returns:
      the last carry and the stacked ys.
    """

    def body(carry: Any, layer_x: tuple[Any, Any]) -> tuple[Any, Any]:
        return call(layer_x[0], jax.tree.map(between_layers, carry), layer_x[1])

    chosen = jax.tree.map(lambda a: a[start:stop], layers) if start or stop is not None else layers
    # A loop over one or two layers saves no compile time worth its bookkeeping.
    unroll = jax.tree.leaves(chosen)[0].shape[0] <= 2
    policy = REMAT_POLICIES[remat_name(remat)]
    if policy is not None:
        # A loop keeps XLA from merging both passes by itself.
        body = jax.checkpoint(body, prevent_cse=unroll, policy=policy)
    return jax.lax.scan(body, carry, (chosen, xs), unroll=unroll)
