"""Prefill and decode step on a mesh of many chips: weights split along the tensor axis, rows along all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gui_owl_jax import sharding
from gui_owl_jax.models import qwen_vl
from gui_owl_jax.models.config import QwenVLConfig
from gui_owl_jax.models.text import KVCache
from gui_owl_jax.ops import partition


def abstract_params(model: QwenVLConfig, mesh: Mesh, dtype: str = "bfloat16") -> Any:
    """Returns the parameters as ShapeDtypeStructs, in the type they are sampled with and where they lie."""
    return jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
        qwen_vl.abstract_params(model, jnp.dtype(dtype)),
        sharding.param_shardings(model, mesh),
    )


def abstract_cache(model: QwenVLConfig, mesh: Mesh, rows: int, length: int, dtype: str = "bfloat16") -> KVCache:
    """Returns the cache of `qwen_vl.init_cache` as ShapeDtypeStructs with shardings."""
    shapes = jax.eval_shape(lambda: qwen_vl.init_cache(model, rows, length, jnp.dtype(dtype)))
    where = cache_sharding(model, mesh, rows)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), shapes)


def cache_sharding(model: QwenVLConfig, mesh: Mesh, rows: int) -> NamedSharding:
    """Returns the sharding of keys and values [layers, B, S, K, H]: by rows, and by key heads along the tensor axis."""
    shape = (model.text.layers, rows, 1, model.text.kv_heads)
    return NamedSharding(mesh, partition.spec(mesh, shape, None, partition.ROWS, None, "tensor"))


def prefill_step(
    model: QwenVLConfig, mesh: Mesh, rows: int, cache_length: int, *, dtype: str = "bfloat16", attention: str = "xla"
) -> Callable[[Any, Any], tuple[jax.Array, KVCache]]:
    """Builds (params, batch of `layout.lay_out_prompts`) -> (f32 logits [B, V] of the first new token, cache)."""

    def prefill(params: Any, batch: Any) -> tuple[jax.Array, KVCache]:
        with partition.on_mesh(mesh):
            hidden, cache = qwen_vl.prefill(
                model, params, batch, cache_length, dtype=jnp.dtype(dtype), implementation=attention
            )
            return qwen_vl.logits(model, params, hidden), cache

    return jax.jit(
        prefill,
        in_shardings=(sharding.param_shardings(model, mesh), sharding.batch_sharding(mesh)),
        out_shardings=(_logits_sharding(mesh), cache_sharding(model, mesh, rows)),
    )


def decode_step(model: QwenVLConfig, mesh: Mesh, rows: int) -> Callable[..., tuple[jax.Array, KVCache]]:
    """Builds (params, cache, tokens, positions, write_index) -> (f32 logits [B, V], cache); it donates the cache.

    See `qwen_vl.decode_step`; the dtype is that of the cache.
    """

    def decode(params: Any, cache: KVCache, tokens: jax.Array, positions: jax.Array, write_index: jax.Array) -> Any:
        with partition.on_mesh(mesh):
            hidden, cache = qwen_vl.decode_step(model, params, cache, tokens, positions, write_index)
            return qwen_vl.logits(model, params, hidden), cache

    per_row, cache = sharding.batch_sharding(mesh), cache_sharding(model, mesh, rows)
    return jax.jit(
        decode,
        in_shardings=(sharding.param_shardings(model, mesh), cache, per_row, per_row, per_row),
        out_shardings=(_logits_sharding(mesh), cache),
        donate_argnums=1,
    )


def _logits_sharding(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, P(partition.ROWS))
