"""Reading and writing model checkpoints in the Hugging Face format.

A checkpoint is a folder: config.json, one or more safetensors files (with an index where there are several), tokenizer
and processor files. What this module writes is loaded by `transformers.AutoModelForImageTextToText` unchanged; what it
reads and writes again comes back bit for bit. Neither needs room for the checkpoint on the host: parameters are filled
and read one tensor at a time, wherever they lie (`gui_owl_jax.hf.arrays`).
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from absl import logging

from gui_owl_jax.agent.errors import CheckpointError, ConfigError
from gui_owl_jax.hf import arrays, files, names, weights
from gui_owl_jax.hf.config_io import config_from_json, config_to_json, generation_config
from gui_owl_jax.hf.images import ImageConfig
from gui_owl_jax.hf.processor import Processor
from gui_owl_jax.models.config import QwenVLConfig
from gui_owl_jax.models.qwen_vl import Params, abstract_params

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
GENERATION = "generation_config.json"


def load_config(folder: str | os.PathLike) -> QwenVLConfig:
    """Reads config.json, and the image statistics of the processor's files where there are any (`ImageConfig.load`).

    Raises:
      CheckpointError: a file is missing or malformed, or the model type is unknown.
    """
    folder = Path(folder)
    config = config_from_json(files.read_json(folder / "config.json"), str(folder / "config.json"))
    if not any((folder / name).exists() for name in ("preprocessor_config.json", "processor_config.json")):
        return config
    images = ImageConfig.load(folder)
    return dataclasses.replace(config, image_mean=images.mean, image_std=images.std)


def load_generation(folder: str | os.PathLike) -> dict[str, Any] | None:
    """The content of generation_config.json, for `export_hf`; None where the folder has no such file.

    Raises:
      CheckpointError: the file is malformed.
    """
    path = Path(folder) / GENERATION
    return files.read_json(path) if path.exists() else None


def import_hf(
    folder: str | os.PathLike, dtype: Any = np.float32, shardings: Any = None, *, expert_layout: str | None = None
) -> tuple[QwenVLConfig, Params]:
    """Reads a checkpoint folder.

    Beside the parameters no more than one tensor is in memory at a time. With shardings the parameters never are on
    the host as a whole: each process reads what its own devices need, and all processes fail where one does.

    Args:
      folder: with config.json and safetensors files.
      dtype: float32 or bfloat16 for all parameters, or None for the one that is stored.
      shardings: where the parameters shall lie: a tree like theirs (`sharding.param_shardings`) that does not split the
        layer axis, or one sharding for all; None: numpy arrays.
      expert_layout: "hub" or "transformers" (`names.EXPERT_LAYOUTS`), how the tensors of experts are stored; None: told
        from their shapes.

    Returns:
      The config and the parameter tree of `gui_owl_jax.models`.

    Raises:
      CheckpointError: a file is missing, cut short, or no safetensors file; the model type is unknown; a tensor is
        missing, unexpected, of the wrong shape or dtype, or not finite; expert tensors fit both layouts. The message
        names the file or the tensor.
      ConfigError: dtype, layout or shardings are none that can be had.
    """
    folder = Path(folder)
    places = jax.tree.leaves(shardings, is_leaf=lambda node: isinstance(node, jax.sharding.Sharding))
    with arrays.failing_together(arrays.spans_processes(places)):
        target = None if dtype is None else _dtype(dtype)
        config = load_config(folder)
        found = weights.locate(folder)
        matched = weights.match(folder, config, found, expert_layout)
        target = target or weights.common_dtype([stored for _, stored in matched])
        params = weights.read(config, matched, target, shardings)
        if config.tie_word_embeddings and names.HEAD in found:
            weights.check_tied(found[names.HEAD], found[names.EMBEDDING])
        return config, params


def export_hf(
    config: QwenVLConfig,
    params: Params,
    folder: str | os.PathLike,
    processor: Processor | None = None,
    *,
    dtype: Any = None,
    generation: Mapping[str, Any] | None = None,
    expert_layout: str | None = None,
    max_shard_bytes: int = 2_000_000_000,
    overwrite: bool = False,
) -> Path:
    """Writes a checkpoint folder that `transformers` loads; the folder appears complete or not at all.

    Holds one tensor in memory at a time. Parameters may be sharded over several processes: then all of them call this,
    process 0 writes, and all fail where one does.

    Args:
      config: the model.
      params: parameter tree of jax or numpy arrays.
      folder: to be made.
      processor: adds tokenizer, processor and generation files.
      dtype: float32 or bfloat16 of the stored tensors; None keeps that of the parameters.
      generation: content of generation_config.json (`load_generation` of the checkpoint that was trained further, or
        `config_io.generation_config`); None: greedy decoding, where there is a processor to name the ends.
      expert_layout: "hub" or "transformers" (`names.EXPERT_LAYOUTS`); None: the hub's, which transformers 4.57 and 5
        both load.
      max_shard_bytes: upper bound on the tensors of one safetensors file; a tensor larger than that has its own.
      overwrite: whether to replace a folder that exists.

    Returns:
      The folder.

    Raises:
      CheckpointError: the folder exists, the parameters do not fit the config, or one is not finite.
      ConfigError: the processor does not belong to the model, the dtype is unknown, or the sizes of the experts leave
        readers in doubt about the layout and none was named.
    """
    folder = Path(folder)
    several = arrays.spans_processes(jax.tree.leaves(params))
    writes = not several or jax.process_index() == 0
    partial = folder.with_name(f".{folder.name}.tmp-{os.getpid()}")
    try:
        with arrays.failing_together(several):
            if writes and folder.exists() and not overwrite and any(folder.iterdir()):
                raise CheckpointError(f"{folder} exists already; choose another folder or allow overwriting")
            slots = names.slots(config, expert_layout or "hub")
            if expert_layout is None:
                weights.check_layout_is_clear(slots, names.slots(config, "transformers"))
            _check_params(config, params)
            stored = _dtype(dtype if dtype is not None else params["text"]["embed"]["embedding"].dtype)
            if processor is not None:
                _check_processor(config, processor)
            if writes:
                folder.parent.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
        weights.write(params, slots, partial if writes else None, stored, max_shard_bytes, several)
        with arrays.failing_together(several):
            if writes:
                files.write_json(partial / "config.json", config_to_json(config, stored.name))
                if processor is not None:
                    processor.save(partial)
                    tokenizer = processor.tokenizer
                    generation = generation or generation_config(tokenizer.im_end, tokenizer.endoftext)
                if generation is not None:
                    files.write_json(partial / GENERATION, generation)
                _replace_folder(partial, folder)
    finally:
        if writes:
            shutil.rmtree(partial, ignore_errors=True)
    logging.info("wrote %s", folder)
    return folder


def _replace_folder(new: Path, folder: Path) -> None:
    """Renames `new` to `folder`; an old folder of that name is moved away first and removed afterwards."""
    old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(new, folder)
    shutil.rmtree(old, ignore_errors=True)


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
        ("vision.kind", vision.kind, images.family),
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


def _dtype(dtype: Any) -> np.dtype:
    try:
        found = np.dtype(dtype)
    except TypeError as e:
        raise ConfigError(f"dtype {dtype!r} is unknown; choose float32 or bfloat16") from e
    if found not in DTYPES.values():
        raise ConfigError(f"dtype {found} is not supported; choose float32 or bfloat16")
    return found
