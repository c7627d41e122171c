"""Filling and emptying parameters one tensor at a time, on the host or sharded over the devices of many processes.

Neither direction holds more on the host than the tensor at hand: a parameter that stacks all layers is filled, and
read, layer by layer where it lies.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, Sharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from gui_owl_jax.agent.errors import CheckpointError, ConfigError
from gui_owl_jax.hf.safetensors_io import copy

_MESSAGE_BYTES = 2000


def empty(shape: tuple[int, ...], dtype: np.dtype, sharding: Sharding | None) -> np.ndarray | jax.ShapeDtypeStruct:
    """What `fill` begins with: a host array, or the plan of one on devices, which is allocated when first filled."""
    if sharding is None:
        return np.empty(shape, dtype)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def fill(
    target: np.ndarray | jax.Array | jax.ShapeDtypeStruct,
    layer: int | None,
    source: np.ndarray,
    check: Callable[[np.ndarray], None],
) -> np.ndarray | jax.Array:
    """Puts values into a parameter.

    Args:
      target: of `empty` or of the call before, which must not be used any more.
      layer: index on the leading axis; None: the whole parameter.
      source: the values in any dtype, best as a view of a file: each process takes what its own devices need.
      check: sees each part that was taken, in the dtype of the target, and raises when it is bad.

    Returns:
      The parameter with these values.

    Raises:
      ConfigError: the sharding splits the layer axis, or is of a kind that has no layers.
    """
    if isinstance(target, np.ndarray):
        part = target[... if layer is None else layer]
        copy(source, part)
        check(part)
        return target

    parts: dict[tuple[tuple[int | None, int | None], ...], np.ndarray] = {}

    def take(index: tuple[slice, ...] | None) -> np.ndarray:
        key = tuple((axis.start, axis.stop) for axis in index or ())
        if key not in parts:  # devices that hold the same part share it
            view = source[index or ...]
            parts[key] = np.empty(view.shape, target.dtype)
            copy(view, parts[key])
            check(parts[key])
        return parts[key]

    if layer is None:
        return jax.make_array_from_callback(target.shape, target.sharding, take)
    values = jax.make_array_from_callback(target.shape[1:], _layer_sharding(target.sharding), take)
    if isinstance(target, jax.ShapeDtypeStruct):
        target = jnp.zeros(target.shape, target.dtype, device=target.sharding)
    # Waiting keeps the host from reading ahead of the devices, layer upon layer.
    return jax.block_until_ready(_layer_writer(target.sharding)(target, values, np.int32(layer)))


def fetch(array: Any, layer: int | None) -> np.ndarray:
    """Brings a parameter, or one layer of it, to the host.

    All processes take part where it is sharded over several; each gets the whole.
    """
    if not isinstance(array, jax.Array):
        return np.asarray(array if layer is None else array[layer])
    if array.is_fully_addressable:
        return np.asarray(_reader(None)(array, layer))
    mesh = getattr(array.sharding, "mesh", None)
    if mesh is None:
        raise ConfigError(f"an array with the sharding {array.sharding} cannot be gathered; use a NamedSharding")
    return np.asarray(_reader(NamedSharding(mesh, P()))(array, layer).addressable_data(0))


def spans_processes(leaves: list[Any]) -> bool:
    """Whether arrays (or shardings) lie partly on devices of other processes."""
    return any(not leaf.is_fully_addressable for leaf in leaves if isinstance(leaf, jax.Array | Sharding))


@contextlib.contextmanager
def failing_together(several: bool) -> Iterator[None]:
    """What fails on one process fails on all; else the others would wait for it forever.

    Args:
      several: whether other processes run the same block; without them nothing is exchanged.

    Raises:
      CheckpointError: another process failed; the message is that process's own.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as e:
        failure = e
    if several:
        own = np.zeros(_MESSAGE_BYTES, np.uint8)
        if failure is not None:
            text = (str(failure) or repr(failure)).encode()[:_MESSAGE_BYTES]
            own[: len(text)] = np.frombuffer(text, np.uint8)
        for process, row in enumerate(multihost_utils.process_allgather(own)):
            if failure is None and row.any():
                said = row[row > 0].tobytes().decode(errors="replace")
                failure = CheckpointError(f"process {process}: {said}")
    if failure is not None:
        raise failure


def _layer_sharding(sharding: Sharding) -> Sharding:
    """The sharding of one layer of a stacked parameter."""
    if isinstance(sharding, SingleDeviceSharding):
        return sharding
    if not isinstance(sharding, NamedSharding):
        raise ConfigError(f"parameters can be imported under a NamedSharding, not under {sharding}")
    if sharding.spec and sharding.spec[0] is not None:
        raise ConfigError(f"the layer axis of a parameter cannot be split on import, found {sharding.spec}")
    return NamedSharding(sharding.mesh, P(*sharding.spec[1:]), memory_kind=sharding.memory_kind)


@functools.cache
def _layer_writer(sharding: Sharding) -> Callable[..., jax.Array]:
    """A function (stacked, values, layer) -> stacked that works in place."""
    return jax.jit(
        lambda stacked, values, layer: jax.lax.dynamic_update_index_in_dim(stacked, values, layer, 0),
        donate_argnums=0,
        out_shardings=sharding,
    )


@functools.cache
def _reader(sharding: Sharding | None) -> Callable[..., jax.Array]:
    """A function (array, layer) -> a copy of it, or of that layer, under a sharding; None: as XLA has it."""

    @functools.partial(jax.jit, out_shardings=sharding)
    def read(array: jax.Array, layer: Any) -> jax.Array:
        return array if layer is None else jax.lax.dynamic_index_in_dim(array, layer, 0, keepdims=False)

    return lambda array, layer: read(array, None if layer is None else np.int32(layer))
