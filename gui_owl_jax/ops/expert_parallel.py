"""Experts spread over the chips of a mesh: every token is shown to the chips that hold its experts, none is dropped."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from gui_owl_jax.ops import partition

# (x [T, D], experts int [T, k], weights [T, k], gate_up [E, D, 2, I], down [E, I, D]) -> [T, D], where an expert of
# number E is one that another chip holds: its visits give 0.
RunExperts = Callable[[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class _Split:
    """What is split along which axis: tokens and experts along expert, D along fsdp, I along tensor."""

    tokens: bool
    experts: bool
    inputs: bool
    width: bool


def run_on_mesh(
    run: RunExperts,
    mesh: Mesh,
    x: jax.Array,
    experts: jax.Array,
    weights: jax.Array,
    gate_up: jax.Array,
    down: jax.Array,
) -> jax.Array:
    """Runs a mixture of experts whose kernels lie as `gui_owl_jax.sharding.RULES` puts them.

    A chip gathers its experts' kernels along fsdp, in the dtype of x. The chips along the expert axis, which hold
    different tokens and different experts, show each other their tokens, run what visits their own experts, and send
    the sums home. Along the tensor axis each chip has a slice of every expert's width. Since no expert has a capacity,
    a chip must be ready for all tokens of its group to come to it; they come in as many portions as the group has
    chips, so that this takes no more memory than a chip's own tokens would at home.

    Args:
      run: the mixture for the experts of one chip.
      mesh: with the axes of `gui_owl_jax.sharding.MESH_AXES`.
      x: [T, D], tokens, split like rows.
      experts: int [T, k], in [0, E).
      weights: f32 [T, k].
      gate_up: [E, D, 2, I].
      down: [E, I, D].

    Returns:
      [T, D].
    """
    rows = partition.dividing(mesh, partition.ROWS, x.shape[0])
    at_up = partition.spec(mesh, gate_up.shape, "expert", "fsdp", None, "tensor")
    at_down = partition.spec(mesh, down.shape, "expert", "tensor", "fsdp")
    split = _Split(
        tokens=rows is not None and "expert" in rows and mesh.shape["expert"] > 1,
        experts=at_up[0] is not None and mesh.shape["expert"] > 1,
        inputs=at_up[1] is not None and mesh.shape["fsdp"] > 1,
        width=at_up[3] is not None and mesh.shape["tensor"] > 1,
    )
    local = functools.partial(_local, run, split, mesh.shape["expert"] if split.tokens and split.experts else 1)
    specs = (P(rows), P(rows), P(rows), at_up, at_down)
    mapped = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P(rows), check_vma=False)
    return mapped(x, experts, weights, gate_up, down)


def _local(
    run: RunExperts,
    split: _Split,
    portions: int,
    x: jax.Array,
    experts: jax.Array,
    weights: jax.Array,
    gate_up: jax.Array,
    down: jax.Array,
) -> jax.Array:
    gate_up, down = gate_up.astype(x.dtype), down.astype(x.dtype)
    if split.inputs:
        gate_up = jax.lax.all_gather(gate_up, "fsdp", axis=1, tiled=True)
        down = jax.lax.all_gather(down, "fsdp", axis=2, tiled=True)
    held = gate_up.shape[0]
    exchange = split.tokens and split.experts

    def portion(x: jax.Array, experts: jax.Array, weights: jax.Array) -> jax.Array:
        if exchange:
            gather = functools.partial(jax.lax.all_gather, axis_name="expert", axis=0, tiled=True)
            x, experts, weights = gather(x), gather(experts), gather(weights)
        if split.experts:
            own = experts - jax.lax.axis_index("expert") * held
            experts = jnp.where((own >= 0) & (own < held), own, held)
        y = run(x, experts, weights, gate_up, down)
        if split.width:
            y = jax.lax.psum(y, "tensor")
        if exchange:
            return jax.lax.psum_scatter(y, "expert", scatter_dimension=0, tiled=True)
        return jax.lax.psum(y, "expert") if split.experts else y

    count = math.gcd(portions, x.shape[0])
    if count == 1:
        return portion(x, experts, weights)
    arrays = [a.reshape(count, -1, *a.shape[1:]) for a in (x, experts, weights)]
    return jax.lax.map(jax.checkpoint(lambda a: portion(*a)), arrays).reshape(x.shape)
