"""Mesh axes, and the one table that says which logical axis of an array lies along which of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.models import qwen_vl
from gui_owl_jax.models.config import QwenVLConfig
from gui_owl_jax.ops import partition

MESH_AXES = ("data", "fsdp", "tensor", "expert")

# Logical axis of a parameter or activation -> mesh axis. What is not listed is replicated.
RULES: dict[str, str | tuple[str, ...]] = {
    "rows": partition.ROWS,
    "vocab": "tensor",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "expert": "expert",
    "expert_mlp": "tensor",
    "vision_embed": "fsdp",
    "vision_heads": "tensor",
    "vision_mlp": "tensor",
}


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each mesh axis; -1 (on one axis at most) takes what the others leave.

    Attributes:
      data: replicas of the weights; rows are split.
      fsdp: weights are split and gathered when used; rows are split.
      tensor: matmuls are split.
      expert: experts are split; rows are split.
    """

    data: int = 1
    fsdp: int = 1
    tensor: int = 1
    expert: int = 1


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Arranges devices (all of them when None) as a mesh with the axes of `MESH_AXES`.

    Raises:
      ConfigError: the sizes do not multiply to the number of devices.
    """
    chosen = list(jax.devices() if devices is None else devices)
    return jax.make_mesh(
        mesh_sizes(config, len(chosen)),
        MESH_AXES,
        devices=chosen,
        axis_types=(jax.sharding.AxisType.Auto,) * len(MESH_AXES),
    )


def mesh_sizes(config: MeshConfig, devices: int) -> tuple[int, ...]:
    """Returns the devices along each of `MESH_AXES`, with -1 worked out.

    Raises:
      ConfigError: the sizes do not multiply to the number of devices.
    """
    sizes = [getattr(config, axis) for axis in MESH_AXES]
    known = math.prod(size for size in sizes if size != -1)
    if sizes.count(-1) == 1 and devices % known == 0:
        sizes[sizes.index(-1)] = devices // known
    if min(sizes) < 1 or math.prod(sizes) != devices:
        raise ConfigError(f"mesh {config} does not fit {devices} devices")
    return tuple(sizes)


def partition_spec(axes: Sequence[str | None], shape: Sequence[int], mesh: Mesh) -> P:
    """Returns the spec of an array with these logical axes; a dimension that does not divide evenly is replicated."""

    def place(name: str | None, size: int) -> str | tuple[str, ...] | None:
        target = RULES.get(name) if name else None
        if target is None:
            return None
        names = (target,) if isinstance(target, str) else target
        return target if size % math.prod(mesh.shape[n] for n in names) == 0 else None

    return P(*(place(name, size) for name, size in zip(axes, shape)))


def tree_shardings(axes: Any, shapes: Any, mesh: Mesh) -> Any:
    """Returns the tree of NamedShardings for a tree of logical axes and the arrays (or ShapeDtypeStructs) they name."""
    return jax.tree.map(lambda leaf, names: NamedSharding(mesh, partition_spec(names, leaf.shape, mesh)), shapes, axes)


def param_shardings(config: QwenVLConfig, mesh: Mesh) -> Any:
    """Returns the tree of NamedShardings of a model's parameters."""
    return tree_shardings(qwen_vl.logical_axes(config), qwen_vl.abstract_params(config), mesh)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of every array of a batch: rows along data, fsdp and expert."""
    return NamedSharding(mesh, P(RULES["rows"]))


def row_parts(mesh: Mesh) -> int:
    """Returns into how many parts the rows of a batch are split; it must divide their number."""
    return math.prod(mesh.shape[axis] for axis in partition.ROWS)


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding that puts the whole array on every device."""
    return NamedSharding(mesh, P())


def put_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Moves this process's rows to the devices as part of the global batch."""
    sharding = batch_sharding(mesh)
    return {name: jax.make_array_from_process_local_data(sharding, array) for name, array in batch.items()}
