"""The weights of a checkpoint folder: finding the tensors, pairing them with parameters, reading and writing them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from gui_owl_jax.agent.errors import CheckpointError, ConfigError
from gui_owl_jax.hf import arrays, files, names, safetensors_io
from gui_owl_jax.hf.safetensors_io import Stored
from gui_owl_jax.models.config import QwenVLConfig
from gui_owl_jax.models.qwen_vl import Params, abstract_params

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_DOUBT = "fits both layouts of expert tensors; name the one that is meant (expert_layout 'hub' or 'transformers')"


def locate(folder: Path) -> dict[str, Stored]:
    """Finds every stored tensor by its canonical name (`names.canonical`), in the order of the files.

    Raises:
      CheckpointError: a file is missing or no safetensors file, files and index disagree, or a tensor is stored twice.
    """
    if (folder / INDEX).exists():
        weight_map = files.read_json(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not all(Path(str(file)).name == file for file in weight_map.values()):
            raise CheckpointError(f"{folder / INDEX} has no weight_map from tensor names to file names")
        shards = [folder / file for file in sorted(set(weight_map.values()))]
        listed: dict[str, Path] | None = {name: folder / file for name, file in weight_map.items()}
    else:
        shards, listed = [folder / SINGLE], None
        pickles = sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt"))
        if not shards[0].exists() and pickles:
            raise CheckpointError(
                f"{folder} holds {pickles[0].name} (pickle), which is never read; convert to safetensors"
            )
    located: dict[str, Stored] = {}
    for path in shards:
        found = safetensors_io.scan(path)
        if listed is not None and set(found) != (expected := {n for n, p in listed.items() if p == path}):
            raise CheckpointError(f"{path} and {INDEX} disagree about {_some(set(found) ^ expected)}")
        for name, stored in sorted(found.items(), key=lambda item: item[1].offset):
            if names.canonical(name) in located:
                raise CheckpointError(f"{stored} is stored twice")
            located[names.canonical(name)] = stored
    return located


def match(
    folder: Path, config: QwenVLConfig, found: dict[str, Stored], expert_layout: str | None
) -> list[tuple[names.Slot, Stored]]:
    """Pairs the stored tensors with their slots, in the order of the files.

    Args:
      folder: of the checkpoint, for errors.
      config: the model.
      found: of `locate`.
      expert_layout: one of `names.EXPERT_LAYOUTS`; None: told from the shapes.

    Raises:
      CheckpointError: a tensor is missing, unexpected, or of the wrong shape, or expert tensors fit both layouts.
      ConfigError: there is no such layout.
    """
    layouts = names.EXPERT_LAYOUTS if expert_layout is None else (expert_layout,)
    slots: dict[str, list[names.Slot]] = {}
    for layout in layouts:
        for name, slot in names.slots(config, layout).items():
            known = slots.setdefault(names.canonical(name), [])
            known.extend([slot] if slot not in known else [])
    if missing := slots.keys() - found.keys():
        raise CheckpointError(f"{folder}: {len(missing)} tensors are missing: {_some(missing)}")
    # Some writers store the head of a tied model too; it must then be the embedding.
    allowed = {names.HEAD} if config.tie_word_embeddings else set()
    if unexpected := found.keys() - slots.keys() - allowed:
        spelled = {found[name].name for name in unexpected}
        raise CheckpointError(f"{folder}: {len(unexpected)} tensors are unexpected: {_some(spelled)}")
    matched = []
    for name, stored in found.items():
        if name not in slots:
            continue
        fitting = [slot for slot in slots[name] if slot.shape == stored.shape]
        if not fitting:
            shapes = " or ".join(str(slot.shape) for slot in slots[name])
            raise CheckpointError(f"{stored} has shape {stored.shape}, the config asks for {shapes}")
        if len(fitting) > 1:
            raise CheckpointError(f"{stored} has shape {stored.shape}, which {_DOUBT}")
        matched.append((fitting[0], stored))
    return matched


def common_dtype(tensors: list[Stored]) -> np.dtype:
    """The dtype of all these tensors; raises CheckpointError where they differ."""
    for stored in tensors:
        if stored.dtype != tensors[0].dtype:
            raise CheckpointError(f"{stored} is {stored.dtype}, others {tensors[0].dtype}; name a dtype to import")
    return tensors[0].dtype


def check_tied(head: Stored, embedding: Stored, rows: int = 4096) -> None:
    """Raises CheckpointError where the stored head of a tied model, which is not kept, is not its embedding."""
    ours, theirs = head.open(), embedding.open()
    starts = range(0, head.shape[0], rows)
    same = ours.shape == theirs.shape and all(np.array_equal(ours[i : i + rows], theirs[i : i + rows]) for i in starts)
    if not same:
        raise CheckpointError(f"{head} differs from the embedding, although config.json ties the two")


def read(config: QwenVLConfig, matched: list[tuple[names.Slot, Stored]], dtype: np.dtype, shardings: Any) -> Params:
    """Reads the tensors of `match` into a parameter tree; `shardings` as in `checkpoint.import_hf`.

    Raises:
      CheckpointError: values are not finite.
      ConfigError: the shardings are not such that parameters can be filled layer by layer.
    """
    tree = abstract_params(config)
    leaves: dict[tuple[str, ...], Any] = {}
    for slot, stored in tqdm(matched, desc="reading weights", disable=len({s.path for _, s in matched}) < 2):
        if slot.path not in leaves:
            place = _place(shardings, slot.path)
            leaves[slot.path] = arrays.empty(names.leaf(tree, slot.path).shape, dtype, place)

        def check(part: np.ndarray, stored: Stored = stored) -> None:
            check_finite(part, str(stored))

        source = slot.to_param(stored.open())
        leaves[slot.path] = arrays.fill(leaves[slot.path], slot.layer, source, check)
    params: Params = {}
    for path, array in leaves.items():
        node = params
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = array
    return params


def write(
    params: Params,
    slots: Mapping[str, names.Slot],
    folder: Path | None,
    dtype: np.dtype,
    max_shard_bytes: int,
    several: bool,
) -> None:
    """Writes all tensors into as few safetensors files as the bound allows, and their index.

    Args:
      params: the parameters.
      slots: of the tensors to write, in this order.
      folder: where to; None: only take part in gathering what is sharded over several processes.
      dtype: of the stored tensors.
      max_shard_bytes: upper bound on the tensors of one file.
      several: whether the parameters are sharded over several processes, which all call this.

    Raises:
      CheckpointError: values are not finite, or another process failed.
    """
    sizes = {name: math.prod(slot.shape) * dtype.itemsize for name, slot in slots.items()}
    shards = _plan(sizes, max_shard_bytes)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(tqdm(shards, desc="writing weights", disable=len(shards) < 2), start=1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        weight_map |= dict.fromkeys(shard, file)
        with arrays.failing_together(several):
            if folder is not None:
                safetensors_io.begin(folder / file, {name: slots[name].shape for name in shard}, dtype)
        for name in shard:
            slot = slots[name]
            value = arrays.fetch(names.leaf(params, slot.path), slot.layer)
            with arrays.failing_together(several):
                if folder is not None:
                    tensor = np.empty(slot.shape, dtype)
                    safetensors_io.copy(slot.to_stored(value), tensor)
                    check_finite(tensor, f"parameter {'/'.join(slot.path)} ({name})")
                    safetensors_io.append(folder / file, tensor)
    if len(shards) > 1 and folder is not None:
        count = sum(math.prod(slot.shape) for slot in slots.values())
        metadata = {"total_parameters": count, "total_size": sum(sizes.values())}
        files.write_json(folder / INDEX, {"metadata": metadata, "weight_map": weight_map})


def check_layout_is_clear(slots: Mapping[str, names.Slot], others: Mapping[str, names.Slot]) -> None:
    """Raises ConfigError where a tensor looks the same in two layouts of experts, so that a reader may mistake it."""
    for name, slot in slots.items():
        if slot != others[name] and slot.shape == others[name].shape:
            raise ConfigError(f"{name} of shape {slot.shape} {_DOUBT}")


def check_finite(value: np.ndarray, where: str) -> None:
    """Raises CheckpointError, which begins with `where`, unless all values are finite."""
    if not np.isfinite(value).all():
        raise CheckpointError(f"{where} holds {int(np.sum(~np.isfinite(value)))} values that are not finite")


def _plan(sizes: dict[str, int], limit: int) -> list[list[str]]:
    """Cuts the tensors, in order, into shards of at most `limit` bytes. {a: 3, b: 4, c: 9}, 8 -> [[a, b], [c]]."""
    shards: list[list[str]] = []
    filled = 0
    for name, size in sizes.items():
        if not shards or filled + size > limit:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _place(shardings: Any, path: tuple[str, ...]) -> jax.sharding.Sharding | None:
    """The sharding of one parameter."""
    if shardings is None or isinstance(shardings, jax.sharding.Sharding):
        return shardings
    found = names.leaf(shardings, path)
    if not isinstance(found, jax.sharding.Sharding):
        raise ConfigError(f"shardings have no sharding for the parameter {'/'.join(path)}")
    return found


def _some(items: set[str]) -> str:
    """The first names of a set, for messages."""
    return ", ".join(sorted(items)[:4]) + (", ..." if len(items) > 4 else "")
