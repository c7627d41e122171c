"""Sampling on a mesh of many chips: weights split along the tensor axis, rows along all others.

What `rollout.engine` needs beyond one device, and its two halves as steps of their own, which
`launch.compile_for_tpu` compiles. Where processes share a mesh each has requests of its own; they are put together as
one batch, which all processes run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gui_owl_jax import sharding
from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.models import qwen_vl
from gui_owl_jax.models.config import QwenVLConfig
from gui_owl_jax.models.text import KVCache
from gui_owl_jax.ops import partition

# Requests come and go split over the tensor axis too: a process then holds its own rows and no other's, even where the
# chips that share a matrix belong to several processes.
REQUESTS = (*partition.ROWS, "tensor")


def processes(mesh: Mesh | None) -> int:
    """Returns how many processes have devices of the mesh; 1 without a mesh."""
    return 1 if mesh is None else len({device.process_index for device in mesh.devices.flat})


def most(mesh: Mesh | None, *values: int) -> tuple[int, ...]:
    """Returns the largest of every value over the processes of the mesh, all of which must ask at the same time."""
    if processes(mesh) == 1:
        return values
    return tuple(multihost_utils.process_allgather(np.array(values)).max(axis=0).tolist())


def check_rows(rows: int, mesh: Mesh) -> None:
    """Raises ConfigError when a batch of so many rows cannot be split over the mesh, each process holding its own."""
    parts = sharding.row_parts(mesh)
    if rows % parts:
        raise ConfigError(f"sampler.row_buckets: {rows} rows cannot be split into the {parts} parts of the mesh")
    places = _request_sharding(mesh, rows).addressable_devices_indices_map((rows,)).values()
    own = {row for place in places if place for row in range(*place[0].indices(rows))}
    if len(own) * processes(mesh) != rows:
        raise ConfigError(
            f"sampler.row_buckets: of {rows} rows some would lie on several of the {processes(mesh)} processes; "
            f"a multiple of the {mesh.size} devices never does"
        )


def put_rows(tree: Any, mesh: Mesh, rows: int) -> Any:
    """Puts this process's rows, numpy arrays [B, ...], on the mesh as part of a batch of `rows`."""
    where = _request_sharding(mesh, rows)
    put = jax.make_array_from_process_local_data
    return jax.tree.map(lambda array: put(where, array, (rows, *array.shape[1:])), tree)


def own_rows(array: jax.Array) -> np.ndarray:
    """Returns the rows of a result that belong to this process: the opposite of `put_rows`."""
    shards = {shard.index[0].start or 0: shard.data for shard in array.addressable_shards}
    return np.concatenate([np.asarray(shards[start]) for start in sorted(shards)])


def split_cache(cache: KVCache) -> KVCache:
    """Says within a program on a mesh that its cache lies as `cache_sharding` has it."""
    return jax.tree.map(lambda x: partition.constrain(x, None, partition.ROWS, None, "tensor"), cache)


def _request_sharding(mesh: Mesh, rows: int) -> NamedSharding:
    return NamedSharding(mesh, partition.spec(mesh, (rows,), REQUESTS))


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
