from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from gui_owl_jax.agent.errors import CheckpointError
from gui_owl_jax.hf import safetensors_io

TENSORS = {"b": (3, 5), "a": (7,), "long.name.of.a.tensor": (2, 3, 4)}


@pytest.fixture
def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in TENSORS.items()}


@pytest.mark.parametrize("dtype", safetensors_io.DTYPES.values())
def test_what_is_written_is_a_safetensors_file(tensors, tmp_path, dtype):
    path = tmp_path / "x.safetensors"
    tensors = {name: tensor.astype(dtype) for name, tensor in tensors.items()}
    safetensors_io.begin(path, TENSORS, np.dtype(dtype))
    for tensor in tensors.values():
        safetensors_io.append(path, tensor)
    found = load_file(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == dtype
        assert found[name].tobytes() == tensor.tobytes()
    with safe_open(path, framework="np") as file:
        assert file.metadata() == {"format": "pt"}
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0


def test_what_others_write_is_read_in_parts(tensors, tmp_path):
    path = tmp_path / "x.safetensors"
    mixed = tensors | {"a": tensors["a"].astype(ml_dtypes.bfloat16)}
    save_file(mixed, path, metadata={"own": "note"})
    found = safetensors_io.scan(path)
    assert {name: (stored.shape, stored.dtype) for name, stored in found.items()} == {
        name: (tensor.shape, tensor.dtype) for name, tensor in mixed.items()
    }
    for name, tensor in mixed.items():
        np.testing.assert_array_equal(found[name].open(), tensor)
        np.testing.assert_array_equal(found[name].open()[1:2], tensor[1:2])
    assert str(found["b"]) == f"{path}: b"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing"),
        (b"", "is cut short or no safetensors file"),
        (b"\xff" * 100, "is cut short or no safetensors file"),
        (b"PK\x03\x04abc", "is a pickle"),
        (b"\x80\x05abc", "is a pickle"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "x.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"x.safetensors {message}"):
        safetensors_io.scan(path)


def test_a_header_that_begins_as_a_pickle_does(tmp_path):
    """The first bytes of a file are the length of its header, which may be any multiple of 8."""
    path = tmp_path / "x.safetensors"
    save_file({"a": np.ones(3)}, path, metadata={"filler": "x" * 1000})
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].rstrip() + b" "
    padded = header.ljust(0x0580)
    path.write_bytes(len(padded).to_bytes(8, "little") + padded + content[8 + length :])
    assert path.read_bytes().startswith(b"\x80\x05")
    with pytest.raises(CheckpointError, match="dtype F64"):
        safetensors_io.scan(path)


def test_offsets_that_lie(tensors, tmp_path):
    path = tmp_path / "x.safetensors"
    save_file(tensors, path)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["a"]["shape"] = [8]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    with pytest.raises(CheckpointError, match="cut short or no safetensors file"):
        safetensors_io.scan(path)


@pytest.mark.parametrize("shape", [(5,), (3, 300), (300, 3), (2, 150, 260), (2, 130, 2, 140)])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_copy(shape, dtype):
    source = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for view in (source, source.T, source.swapaxes(0, -1)):
        target = np.zeros(view.shape, dtype)
        safetensors_io.copy(view, target)
        np.testing.assert_array_equal(target, view.astype(dtype))
