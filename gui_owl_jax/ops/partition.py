"""The mesh that the program being traced will run on, so that deep inside an op can say how its arrays lie.

Steps enter `on_mesh` inside the function they compile. Outside of it, or on one device, `constrain` does nothing and
`current_mesh` is None: the same code then is ordinary single-device code.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Iterator

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

# Rows of a batch are split over every axis along which devices would otherwise compute the same thing.
ROWS = ("data", "fsdp", "expert")

Axes = str | tuple[str, ...] | None

_MESH: contextvars.ContextVar[Mesh | None] = contextvars.ContextVar("mesh", default=None)


@contextlib.contextmanager
def on_mesh(mesh: Mesh | None) -> Iterator[None]:
    """Says that what is traced inside will run on this mesh (axes of `gui_owl_jax.sharding.MESH_AXES`)."""
    token = _MESH.set(mesh)
    try:
        yield
    finally:
        _MESH.reset(token)


def current_mesh() -> Mesh | None:
    """Returns the mesh of the program being traced; None when it has one device or none was named."""
    mesh = _MESH.get()
    return mesh if mesh is not None and mesh.size > 1 else None


def platform() -> str:
    """Returns what the program being traced will run on: "tpu", "gpu" or "cpu".

    A program can be compiled on a host without a TPU for a mesh of TPUs.
    """
    mesh = _MESH.get()
    return jax.default_backend() if mesh is None else mesh.devices.flat[0].platform


def dividing(mesh: Mesh, axes: Axes, size: int) -> Axes:
    """Returns as many of the leading axes as divide a dimension of this size evenly; None when not even the first."""
    names = (axes,) if isinstance(axes, str) else (axes or ())
    for count in range(len(names), 0, -1):
        if size % math.prod(mesh.shape[name] for name in names[:count]) == 0:
            return names[0] if isinstance(axes, str) else names[:count]
    return None


def spec(mesh: Mesh, shape: tuple[int, ...], *axes: Axes) -> P:
    """Returns the spec that splits the leading dimensions of a shape over mesh axes, where they divide evenly."""
    return P(*(dividing(mesh, names, size) for names, size in zip(axes, shape)))


@jax.custom_vjp
def whole_rows_backward(x: jax.Array) -> jax.Array:
    """Returns x [rows, ...]; its gradient is split over rows only.

    Where tokens are split along the tensor axis too, XLA would else bring all rows of the batch to every chip in order
    to multiply that gradient with activations whose width is split along the same axis.
    """
    return x


whole_rows_backward.defvjp(lambda x: (x, None), lambda _, gradient: (constrain(gradient, ROWS),))


def constrain(x: jax.Array, *axes: Axes) -> jax.Array:
    """Splits the leading dimensions of x over mesh axes and keeps the others whole; gradients lie alike."""
    mesh = current_mesh()
    if mesh is None:
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec(mesh, x.shape, *axes)))
