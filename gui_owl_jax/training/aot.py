"""Compiling for TPUs that are not there: abstract meshes, batches and steps of a topology, and what the compiler says.

Needs the libtpu package, whose compiler runs on any host; nothing is executed.
"""

from __future__ import annotations

import dataclasses
import os
import re
import time
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils, topologies
from jax.sharding import AxisType, Mesh

from gui_owl_jax import sharding
from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.models import layout
from gui_owl_jax.models.config import QwenVLConfig

# Keeps libtpu from looking for a machine's metadata, from taking its lock file and from writing logs.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LOG_DIR": "disabled",
}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What the compiler says about a program, per chip.

    Attributes:
      fits: whether it fits the chip's memory.
      peak_bytes: the most memory in use at a time; where it does not fit, what would be needed (None: not said).
      argument_bytes: of what goes in.
      temporary_bytes: of what lives inside only.
      seconds: compile time.
      hlo: the compiled program as text; empty where it does not fit.
      message: what the compiler said where it does not fit.
    """

    fits: bool
    peak_bytes: int | None
    argument_bytes: int
    temporary_bytes: int
    seconds: float
    hlo: str = ""
    message: str = ""


def topology_mesh(topology: str, config: sharding.MeshConfig, slices: int = 1) -> Mesh:
    """Makes the mesh of a TPU topology, such as "v5e:16x16", "v5p:4x4x4" or "v6e:8x8".

    Args:
      topology: generation and chips along each axis of one slice.
      config: sizes of the mesh axes.
      slices: several of these slices joined by the data-centre network; the data axis is split over them.

    Raises:
      ConfigError: libtpu is missing, does not know the topology, or the mesh does not have its number of chips.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    more = {"num_slices": slices} if slices > 1 else {}
    try:
        devices = topologies.get_topology_desc(platform="tpu", topology_name=topology, **more).devices
    except Exception as error:  # what it raises depends on what is missing
        raise ConfigError(f"topology {topology!r}: {str(error).splitlines()[0]}") from error
    sizes = sharding.mesh_sizes(config, len(devices))
    if slices > 1:
        inside = (sizes[0] // slices, *sizes[1:])
        across = (slices, *(1 for _ in sizes[1:]))
        array = mesh_utils.create_hybrid_device_mesh(inside, across, devices, allow_split_physical_axes=True)
    else:
        array = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    return Mesh(array, sharding.MESH_AXES, axis_types=(AxisType.Auto,) * len(sharding.MESH_AXES))


def abstract_batch(
    model: QwenVLConfig,
    mesh: Mesh,
    rows: int,
    token_budget: int,
    patch_budget: int,
    extras: tuple[str, ...] = (),
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the arrays of `layout.lay_out_rows` as ShapeDtypeStructs with shardings.

    Args:
      model: the model.
      mesh: where the batch lies.
      rows: B; row_parts(mesh) must divide it.
      token_budget: L.
      patch_budget: P.
      extras: names of further arrays, f32 [B, L].
    """
    one = dict(layout.lay_out_rows([[]], model, token_budget, patch_budget))
    one |= {name: np.zeros((1, token_budget), np.float32) for name in extras}
    return {name: _struct((rows, *array.shape[1:]), array.dtype, mesh) for name, array in one.items()}


def abstract_prompts(
    model: QwenVLConfig, mesh: Mesh, rows: int, token_budget: int, patch_budget: int
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the arrays of `layout.lay_out_prompts`, as `abstract_batch` does those of a training batch."""
    batch = abstract_batch(model, mesh, rows, token_budget, patch_budget)
    return batch | {name: _struct((rows,), np.int32, mesh) for name in ("lengths", "next_position")}


def _struct(shape: tuple[int, ...], dtype: Any, mesh: Mesh) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding.batch_sharding(mesh))


def compile_step(step: Any, *arguments: Any) -> Compiled:
    """Compiles a jitted function for the abstract arguments and says what it needs; "does not fit" is an answer.

    Raises:
      Exception: whatever the compiler has to say against the program other than that memory runs out.
    """
    lowered = step.lower(*arguments)
    held = sum(_bytes_per_device(leaf) for leaf in jax.tree.leaves(arguments))
    started = time.monotonic()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        message = str(error)
        if "RESOURCE_EXHAUSTED" not in message:
            raise
        return Compiled(False, _needed(message), held, 0, time.monotonic() - started, message=message)
    memory = compiled.memory_analysis()
    return Compiled(
        fits=True,
        peak_bytes=memory.peak_memory_in_bytes,
        argument_bytes=memory.argument_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        seconds=time.monotonic() - started,
        hlo=compiled.as_text(),
    )


def _bytes_per_device(leaf: jax.ShapeDtypeStruct) -> int:
    shape = leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape)
    return int(np.prod(shape)) * leaf.dtype.itemsize


def _needed(message: str) -> int | None:
    """Reads "Used 17.40G of 15.75G hbm" (the compiler's words) as bytes."""
    found = re.search(r"[Uu]sed ([\d.]+)([KMGT]) of", message)
    return int(float(found[1]) * 1024 ** ("KMGT".index(found[2]) + 1)) if found else None
