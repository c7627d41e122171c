"""The product of a chip's rows with a kernel that is split over chips."""

from __future__ import annotations

import math

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from gui_owl_jax.ops import partition


def applies(mesh: Mesh, rows: int, kernel: jax.Array, split: int) -> bool:
    """Whether `matmul` can multiply so many rows by a kernel [I, O] that lies along fsdp in dimension `split`.

    With a tensor axis, or with rows that cannot be split over all chips, the partitioner of XLA does it.
    """
    fsdp, parts = mesh.shape["fsdp"], math.prod(mesh.shape[axis] for axis in partition.ROWS)
    return fsdp > 1 and mesh.shape["tensor"] == 1 and rows % parts == 0 and kernel.shape[split] % fsdp == 0


def matmul(mesh: Mesh, x: jax.Array, kernel: jax.Array, split: int) -> jax.Array:
    """Multiplies x [T, I] by a kernel [I, O]; a chip gathers the kernel along fsdp and multiplies its own rows.

    Said in so many words, what travels is sure: the kernel in the dtype of x, and backwards, of the sum of the kernel's
    gradients in that dtype, to each chip its own part. XLA's partitioner would send all of the sum to every chip.
    """

    def local(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return x @ jax.lax.all_gather(kernel.astype(x.dtype), "fsdp", axis=split, tiled=True)

    rows = P(partition.ROWS)
    at_kernel = P(*("fsdp" if dimension == split else None for dimension in range(2)))
    return jax.shard_map(local, mesh=mesh, in_specs=(rows, at_kernel), out_specs=rows, check_vma=False)(x, kernel)
