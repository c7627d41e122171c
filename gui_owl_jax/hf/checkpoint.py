"""Reading and writing model checkpoints in the Hugging Face format.

A checkpoint is a folder: config.json, one or more safetensors files (with an index where there are several), tokenizer
and processor files. What this module writes is loaded by `transformers.AutoModelForImageTextToText` unchanged; what it
reads and writes again comes back bit for bit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from absl import logging
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from tqdm import tqdm

from gui_owl_jax.agent.errors import CheckpointError, ConfigError
from gui_owl_jax.hf import files, names
from gui_owl_jax.hf.config_io import config_from_json, config_to_json, generation_config
from gui_owl_jax.hf.images import ImageConfig
from gui_owl_jax.hf.processor import Processor
from gui_owl_jax.models.config import QwenVLConfig
from gui_owl_jax.models.qwen_vl import Params, abstract_params

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
# What torch.save writes starts so: a zip archive, or a bare pickle.
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04")


def load_config(folder: str | os.PathLike) -> QwenVLConfig:
    """Reads config.json, and the image statistics of preprocessor_config.json where there is one.

    Raises:
      CheckpointError: a file is missing or malformed, or the model type is unknown.
    """
    folder = Path(folder)
    config = config_from_json(files.read_json(folder / "config.json"), str(folder / "config.json"))
    if not (folder / "preprocessor_config.json").exists():
        return config
    images = ImageConfig.load(folder)
    return dataclasses.replace(config, image_mean=images.mean, image_std=images.std)


def import_hf(folder: str | os.PathLike, dtype: Any = np.float32) -> tuple[QwenVLConfig, Params]:
    """Reads a checkpoint folder.

    Holds the parameters and one tensor in memory, never a whole shard beside them.

    Args:
      folder: with config.json and safetensors files.
      dtype: float32 or bfloat16 for all parameters, or None for the one that is stored.

    Returns:
      The config and the parameter tree of `gui_owl_jax.models`, as numpy arrays.

    Raises:
      CheckpointError: a file is missing, cut short, or no safetensors file; the model type is unknown; a tensor is
        missing, unexpected, of the wrong shape or dtype, or not finite. The message names the file or the tensor.
    """
    folder = Path(folder)
    target = None if dtype is None else _dtype(dtype)
    config = load_config(folder)
    slots = names.slots(config)
    located = _locate(folder)
    # Some writers store the head of a tied model too; it must then be the embedding.
    allowed = {names.HEAD} if config.tie_word_embeddings else set()
    _check_names(folder, set(slots), set(located), allowed)

    params: Params = {}
    head: np.ndarray | None = None
    shards: dict[Path, list[tuple[str, str]]] = {}
    for name, (path, stored) in located.items():
        shards.setdefault(path, []).append((name, stored))
    for path in tqdm(shards, desc="reading weights", disable=len(shards) < 2):
        with _open(path) as shard:
            for name, stored in shards[path]:
                tensor = _read(shard, path, stored)
                if not params:
                    target = target or tensor.dtype
                    params = _empty(config, target)
                if dtype is None and tensor.dtype != target:
                    raise CheckpointError(
                        f"{path}: {stored} is {tensor.dtype}, others {target}; name a dtype to import"
                    )
                value = tensor.astype(target)
                _check_finite(value, f"{path}: {stored}")
                if name not in slots:
                    head = value
                    continue
                slot = slots[name]
                if value.shape != slot.shape:
                    raise CheckpointError(f"{path}: {stored} has shape {value.shape}, the config asks for {slot.shape}")
                names.leaf(params, slot.path)[... if slot.layer is None else slot.layer] = slot.to_param(value)
    if head is not None and not np.array_equal(head, params["text"]["embed"]["embedding"]):
        raise CheckpointError(f"{folder}: {names.HEAD} differs from the embedding, although config.json ties the two")
    return config, params


def export_hf(
    config: QwenVLConfig,
    params: Params,
    folder: str | os.PathLike,
    processor: Processor | None = None,
    *,
    dtype: Any = None,
    max_shard_bytes: int = 2_000_000_000,
    overwrite: bool = False,
) -> Path:
    """Writes a checkpoint folder that `transformers` loads; the folder appears complete or not at all.

    Holds one shard in memory at a time (a tensor larger than `max_shard_bytes` makes a shard of its own).

    Args:
      config: the model.
      params: parameter tree of jax or numpy arrays; jax arrays must be addressable from this process.
      folder: to be made.
      processor: adds tokenizer, processor and generation files.
      dtype: float32 or bfloat16 of the stored tensors; None keeps that of the parameters.
      max_shard_bytes: upper bound on the tensors of one safetensors file.
      overwrite: whether to replace a folder that exists.

    Returns:
      The folder.

    Raises:
      CheckpointError: the folder exists, the parameters do not fit the config, or one is not finite.
      ConfigError: the processor does not belong to the model, or the dtype is unknown.
    """
    folder = Path(folder)
    if folder.exists() and not overwrite and any(folder.iterdir()):
        raise CheckpointError(f"{folder} exists already; choose another folder or allow overwriting")
    slots = names.slots(config)
    _check_params(config, params)
    stored = _dtype(dtype if dtype is not None else params["text"]["embed"]["embedding"].dtype)
    if processor is not None:
        _check_processor(config, processor)

    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.tmp-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        _write_weights(params, slots, partial, stored, max_shard_bytes)
        files.write_json(partial / "config.json", config_to_json(config, stored.name))
        if processor is not None:
            processor.save(partial)
            ends = generation_config(processor.tokenizer.im_end, processor.tokenizer.endoftext)
            files.write_json(partial / "generation_config.json", ends)
        _replace_folder(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    logging.info("wrote %s", folder)
    return folder


def _write_weights(
    params: Params, slots: dict[str, names.Slot], folder: Path, dtype: np.dtype, max_shard_bytes: int
) -> None:
    """Writes all tensors into as few safetensors files as the bound allows, one after the other."""
    sizes = {name: math.prod(slot.shape) * dtype.itemsize for name, slot in slots.items()}
    shards = _plan(sizes, max_shard_bytes)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(tqdm(shards, desc="writing weights", disable=len(shards) < 2), start=1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = {}
        for name in shard:
            slot = slots[name]
            array = names.leaf(params, slot.path)
            # One layer at a time comes to the host; indexing first keeps the copy that small.
            value = np.asarray(array if slot.layer is None else array[slot.layer]).astype(dtype)
            _check_finite(value, f"parameter {'/'.join(slot.path)} ({name})")
            tensors[name] = np.ascontiguousarray(slot.to_stored(value))
            weight_map[name] = file
        save_file(tensors, folder / file, metadata={"format": "pt"})
        (folder / file).chmod(0o644)  # it comes readable by its owner alone, unlike the other files
    if len(shards) > 1:
        metadata = {
            "total_parameters": sum(math.prod(s.shape) for s in slots.values()),
            "total_size": sum(sizes.values()),
        }
        files.write_json(folder / INDEX, {"metadata": metadata, "weight_map": weight_map})


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


def _replace_folder(new: Path, folder: Path) -> None:
    """Renames `new` to `folder`; an old folder of that name is moved away first and removed afterwards."""
    old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(new, folder)
    shutil.rmtree(old, ignore_errors=True)


def _locate(folder: Path) -> dict[str, tuple[Path, str]]:
    """Finds every stored tensor: canonical name -> (file, name in the file)."""
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
    located: dict[str, tuple[Path, str]] = {}
    for path in shards:
        with _open(path) as shard:
            found = set(shard.keys())
        if listed is not None and found != (expected := {n for n, p in listed.items() if p == path}):
            raise CheckpointError(f"{path} and {INDEX} disagree about {_some(found ^ expected)}")
        for name in sorted(found):
            if names.canonical(name) in located:
                raise CheckpointError(f"{path}: {name} is stored twice")
            located[names.canonical(name)] = (path, name)
    return located


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Any]:
    """Opens a safetensors file, with errors that say what is wrong with it."""
    if not path.exists():
        raise CheckpointError(f"{path} is missing")
    with open(path, "rb") as file:
        if file.read(4).startswith(_PICKLE_STARTS):
            raise CheckpointError(f"{path} is a pickle (torch.save), not a safetensors file; it is never read")
    try:
        shard = safe_open(path, framework="np")
    except (SafetensorError, OSError) as e:
        raise CheckpointError(f"{path} is cut short or no safetensors file: {e}") from e
    with shard as opened:
        yield opened


def _read(shard: Any, path: Path, name: str) -> np.ndarray:
    stored = shard.get_slice(name).get_dtype()
    if stored not in ("F32", "BF16", "F16"):
        raise CheckpointError(f"{path}: {name} has dtype {stored}; F32, BF16 and F16 are read")
    return shard.get_tensor(name)


def _check_names(folder: Path, wanted: set[str], found: set[str], allowed: set[str]) -> None:
    if missing := wanted - found:
        raise CheckpointError(f"{folder}: {len(missing)} tensors are missing: {_some(missing)}")
    if unexpected := found - wanted - allowed:
        raise CheckpointError(f"{folder}: {len(unexpected)} tensors are unexpected: {_some(unexpected)}")


def _check_finite(value: np.ndarray, where: str) -> None:
    if not np.isfinite(value).all():
        raise CheckpointError(f"{where} holds {int(np.sum(~np.isfinite(value)))} values that are not finite")


def _check_params(config: QwenVLConfig, params: Params) -> None:
    """The parameter tree must be exactly that of the config."""
    expected, found = _shapes(abstract_params(config)), _shapes(params)
    for path in sorted(expected.keys() | found.keys()):
        if expected.get(path) != found.get(path):
            raise CheckpointError(
                f"parameter {path} has shape {found.get(path, 'none (it is missing)')}, "
                f"the config asks for {expected.get(path, 'no such parameter')}"
            )


def _check_processor(config: QwenVLConfig, processor: Processor) -> None:
    tokenizer, images, vision = processor.tokenizer, processor.image_config, config.vision
    pairs: Sequence[tuple[str, object, object]] = (
        ("image_token_id", config.image_token_id, tokenizer.image_pad),
        ("video_token_id", config.video_token_id, tokenizer.video_pad),
        ("vision_start_token_id", config.vision_start_token_id, tokenizer.vision_start),
        ("vision_end_token_id", config.vision_end_token_id, tokenizer.vision_end),
        ("vision.patch_size", vision.patch_size, images.patch_size),
        ("vision.merge_size", vision.merge_size, images.merge_size),
        ("vision.temporal_patch_size", vision.temporal_patch_size, images.temporal_patch_size),
        ("image_mean", tuple(config.image_mean), images.mean),
        ("image_std", tuple(config.image_std), images.std),
    )
    for name, model, other in pairs:
        if model != other:
            raise ConfigError(f"{name} is {model} in the model and {other} in the processor")
    if tokenizer.vocab_size > config.text.vocab_size:
        raise ConfigError(f"the tokenizer has {tokenizer.vocab_size} ids, text.vocab_size is {config.text.vocab_size}")


def _shapes(tree: Params, path: str = "") -> dict[str, tuple[int, ...]]:
    if not isinstance(tree, dict):
        return {path: tuple(tree.shape)}
    return {p: s for key, node in tree.items() for p, s in _shapes(node, f"{path}/{key}" if path else key).items()}


def _empty(config: QwenVLConfig, dtype: np.dtype) -> Params:
    """The parameter tree with uninitialised numpy arrays."""

    def make(node: Any) -> Any:
        return {k: make(v) for k, v in node.items()} if isinstance(node, dict) else np.empty(node.shape, dtype)

    return make(abstract_params(config))


def _dtype(dtype: Any) -> np.dtype:
    try:
        found = np.dtype(dtype)
    except TypeError as e:
        raise ConfigError(f"dtype {dtype!r} is unknown; choose float32 or bfloat16") from e
    if found not in DTYPES.values():
        raise ConfigError(f"dtype {found} is not supported; choose float32 or bfloat16")
    return found


def _some(items: set[str]) -> str:
    """The first names of a set, for messages."""
    return ", ".join(sorted(items)[:4]) + (", ..." if len(items) > 4 else "")
