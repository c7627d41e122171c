"""Reading and writing model checkpoints in the Hugging Face format.

A checkpoint is a folder: config.json, one or more safetensors files (with an index where there are several), tokenizer
and processor files. What this module writes is loaded by `transformers.AutoModelForImageTextToText` unchanged; what it
reads and writes again comes back bit for bit.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Iterator
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
# First bytes of what torch.save writes: a zip archive, or a bare pickle.
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04")


def import_hf(folder: str | os.PathLike, dtype: Any = np.float32) -> tuple[QwenVLConfig, Params]:
    """Reads a checkpoint folder.

    Holds the parameters and one tensor in memory, never a whole shard beside them.

    Args:
      folder: with config.json and safetensors files.
      dtype: float32 or bfloat16 for all parameters, or None to keep what is stored (which must then be one of the two).

    Returns:
      The config and the parameter tree of `gui_owl_jax.models`, as numpy arrays.

    Raises:
      CheckpointError: a file is missing, cut short, or no safetensors file; the model type is unknown; a tensor is
        missing, unexpected, of the wrong shape, or not finite. The message names the file or tensor.
    """
    folder = Path(folder)
    config = load_config(folder)
    wanted = names.slots(config)
    where = _locate(folder)
    _check_names(folder, set(wanted), set(where), config.tie_word_embeddings)

    shards: dict[Path, list[str]] = {}
    for name, (path, _) in where.items():
        shards.setdefault(path, []).append(name)
    target = None if dtype is None else _dtype(dtype)
    params: Params | None = None
    head: np.ndarray | None = None
    for path in tqdm(sorted(shards), desc="reading weights", disable=len(shards) < 2):
        with _open(path) as shard:
            for name in shards[path]:
                tensor = _read(shard, path, where[name][1])
                if name not in wanted:  # only the redundant head of a tied model comes this far
                    head = tensor
                    continue
                slot = wanted[name]
                if tensor.shape != slot.shape:
                    raise CheckpointError(f"{path}: {name} has shape {tensor.shape}, expected {slot.shape}")
                if params is None:
                    target = target or tensor.dtype
                    params = _empty(config, target)
                value = tensor.astype(target)
                if not np.isfinite(value.astype(np.float32, copy=False)).all():
                    raise CheckpointError(f"{path}: {name} holds values that are not finite")
                leaf = names.get(params, slot.path)
                leaf[... if slot.layer is None else slot.layer] = slot.to_param(value)
    assert params is not None  # _check_names found every tensor
    if head is not None and not np.array_equal(head.astype(target), params["text"]["embed"]["embedding"]):
        raise CheckpointError(f"{folder}: {names.HEAD} differs from the embedding, yet the config ties them")
    return config, params


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
    return images.check(config, mean_and_std=False) if False else _with_statistics(config, images)
