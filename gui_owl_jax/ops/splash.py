"""Splash attention, the Pallas kernel for TPUs: no [L, L] array exists, neither forward nor backward."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from gui_owl_jax.ops import partition

LANES = 128  # the kernel's blocks of tokens are multiples of this


def splash_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array | None, causal: bool
) -> jax.Array:
    """Self-attention inside segments; see `ops.attention.attention`, with which it agrees.

    Under a mesh (`ops.partition`) every device runs the kernel on its own rows, and with a tensor axis on its own
    heads, if that axis divides the key heads. Rows are padded to a multiple of 128 tokens by a segment of their own.
    Off TPUs the kernel is interpreted, which is for tests.

    Args:
      q: [B, L, N, H].
      k: [B, L, K, H].
      v: [B, L, K, H].
      segment_ids: int [B, L] or None.
      causal: mask the future.

    Returns:
      [B, L, N, H] in the dtype of q.
    """
    batch, length = q.shape[:2]
    padding = -length % LANES
    if segment_ids is None:
        segment_ids = jnp.ones((batch, length), jnp.int32)
    if padding:
        q, k, v = (jnp.pad(x, ((0, 0), (0, padding), (0, 0), (0, 0))) for x in (q, k, v))
        segment_ids = jnp.pad(segment_ids, ((0, 0), (0, padding)), constant_values=-1)
    run = functools.partial(_rows, causal=causal, interpret=partition.platform() != "tpu")
    mesh = partition.current_mesh()
    if mesh is not None:
        rows = partition.dividing(mesh, partition.ROWS, batch)
        heads = partition.dividing(mesh, "tensor", k.shape[2])
        arrays = P(rows, None, heads)
        run = jax.shard_map(run, mesh=mesh, in_specs=(arrays,) * 3 + (P(rows),), out_specs=arrays, check_vma=False)
    return run(q * q.shape[-1] ** -0.5, k, v, segment_ids)[:, :length].astype(q.dtype)


def _rows(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, *, causal: bool, interpret: bool
) -> jax.Array:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    length, heads = q.shape[1], q.shape[2]
    mask = (masks.CausalMask if causal else masks.FullMask)((length, length))
    block = next(size for size in (512, 256, LANES) if length % size == 0)
    sizes = kernel.BlockSizes(
        block_q=block, block_kv=block, block_kv_compute=block,
        block_q_dkv=block, block_kv_dkv=block, block_kv_dkv_compute=block,
        block_q_dq=block, block_kv_dq=block,
    )  # fmt: skip
    attend = kernel.make_splash_mha_single_device(
        mask=masks.MultiHeadMask([mask] * heads), block_sizes=sizes, interpret=interpret
    )
    heads_first = (x.swapaxes(1, 2) for x in (q, k, v))
    return jax.vmap(attend)(*heads_first, kernel.SegmentIds(segment_ids, segment_ids)).swapaxes(1, 2)
