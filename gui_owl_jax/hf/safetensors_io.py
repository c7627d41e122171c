"""Safetensors files: where each tensor lies, reading parts of one without the rest, and writing one after the other.

The format (https://github.com/huggingface/safetensors): the length of the header as 8 bytes, the header as JSON from
names to dtype, shape and offsets, then the tensors. The `safetensors` package checks a file here; reading and writing
are our own, so that no more than the wanted part of one tensor is ever in memory.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from gui_owl_jax.agent.errors import CheckpointError

DTYPES = {"F32": np.dtype(np.float32), "BF16": np.dtype(ml_dtypes.bfloat16), "F16": np.dtype(np.float16)}
# What torch.save writes starts so: a zip archive, or a bare pickle.
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_STRIP = 128


@dataclasses.dataclass(frozen=True)
class Stored:
    """One tensor of a file, not read yet.

    Attributes:
      path: of the file.
      name: of the tensor in the file.
      dtype: float32, bfloat16 or float16.
      shape: of the tensor.
      offset: of its first byte in the file.
    """

    path: Path
    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int

    def __str__(self) -> str:
        return f"{self.path}: {self.name}"

    def open(self) -> np.ndarray:
        """The tensor as an array mapped from the file: only what is taken from it is read."""
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape)


def scan(path: Path) -> dict[str, Stored]:
    """Finds the tensors of a file; reads the header alone.

    Raises:
      CheckpointError: the file is missing, cut short, a pickle, or no safetensors file, or a tensor has a dtype that
        is not read.
    """
    if not path.exists():
        raise CheckpointError(f"{path} is missing")
    try:
        with safe_open(path, framework="np"):  # compares header, offsets and length of the file
            pass
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
    except (SafetensorError, OSError) as e:
        with open(path, "rb") as file:
            start = file.read(4)
        if start.startswith(_PICKLE_STARTS):
            raise CheckpointError(f"{path} is a pickle (torch.save), not a safetensors file; it is never read") from e
        raise CheckpointError(f"{path} is cut short or no safetensors file: {e}") from e
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if entry["dtype"] not in DTYPES:
            raise CheckpointError(f"{path}: {name} has dtype {entry['dtype']}; {', '.join(DTYPES)} are read")
    return {
        name: Stored(path, name, DTYPES[entry["dtype"]], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
        for name, entry in header.items()
    }


def begin(path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype) -> None:
    """Begins a file whose tensors follow in the order of `shapes`, each by `append`."""
    kind = next(name for name, known in DTYPES.items() if known == dtype)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}  # transformers asks for it
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors start aligned
    path.write_bytes(len(text).to_bytes(8, "little") + text)


def append(path: Path, tensor: np.ndarray) -> None:
    """Writes the values of the next tensor, a C-ordered array."""
    with open(path, "ab") as file:
        file.write(tensor.reshape(-1).view(np.uint8).data)


def copy(source: np.ndarray, target: np.ndarray) -> None:
    """Copies, with a change of dtype where they differ; fast where `source` is a transposed view.

    In strips: reading a transposed matrix row by row would touch another page of memory for every value.
    """
    if source.ndim < 2:
        target[...] = source
    for start in range(0, source.shape[-1] if source.ndim > 1 else 0, _STRIP):
        target[..., start : start + _STRIP] = source[..., start : start + _STRIP]
