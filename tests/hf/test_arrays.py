"""Parameters go straight to their devices and back, a tensor at a time, on one process or several."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import socket
import subprocess
import sys
import tracemalloc

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from gui_owl_jax import sharding
from gui_owl_jax.agent.errors import CheckpointError, ConfigError
from gui_owl_jax.hf import arrays, files, names, safetensors_io, weights
from gui_owl_jax.hf.checkpoint import export_hf, import_hf
from gui_owl_jax.hf.config_io import config_to_json
from gui_owl_jax.hf.weights import SINGLE
from gui_owl_jax.models.config import get_preset
from tests.hf.conftest import random_params
from tests.hf.test_checkpoint import assert_same_bits, assert_same_tree, tensors_of

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
MESHES = {"one device": {}, "fsdp": {"fsdp": 8}, "all axes": {"data": 1, "fsdp": 2, "tensor": 2, "expert": 2}}


def accept(part: np.ndarray) -> None:
    del part


@pytest.mark.parametrize("mesh", MESHES)
def test_sharded_import_and_export(model, tmp_path, mesh):
    config, params = model
    source = export_hf(config, params, tmp_path / "source")
    if mesh == "one device":
        places: object = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    else:
        places = sharding.param_shardings(config, sharding.make_mesh(sharding.MeshConfig(**MESHES[mesh])))
    again_config, found = import_hf(source, np.float32, places)
    assert again_config == config
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(found))
    if isinstance(places, dict):
        jax.tree.map(
            lambda leaf, place: leaf.sharding.is_equivalent_to(place, leaf.ndim) or pytest.fail(), found, places
        )
        assert any(len(leaf.addressable_shards[0].data.ravel()) < leaf.size for leaf in jax.tree.leaves(found))
    else:
        assert {leaf.sharding for leaf in jax.tree.leaves(found)} == {places}
    assert_same_tree(jax.tree.map(np.asarray, found), params)
    export_hf(config, found, tmp_path / "out")
    assert_same_bits(tensors_of(tmp_path / "out"), tensors_of(source))


def test_only_what_the_devices_need_is_read():
    """Every value is read once, also where several devices hold it."""
    mesh = sharding.make_mesh(sharding.MeshConfig(fsdp=2, tensor=2, data=2))
    source = np.arange(6 * 4, dtype=np.float32).reshape(6, 4)
    target = arrays.empty((3, 6, 4), np.dtype(np.float32), NamedSharding(mesh, P(None, "fsdp", "tensor")))
    seen: list[np.ndarray] = []
    found = arrays.fill(target, 1, source, seen.append)
    assert sorted(np.concatenate([part.ravel() for part in seen]).tolist()) == source.ravel().tolist()
    np.testing.assert_array_equal(found[1], source)
    assert arrays.fetch(found, 1).tolist() == source.tolist()
    flat = arrays.fill(arrays.empty((6, 4), np.dtype(np.float32), NamedSharding(mesh, P())), None, source, seen.append)
    assert len(seen[-1].ravel()) == 24 and len(seen) == 5
    np.testing.assert_array_equal(arrays.fetch(flat, None), source)


def test_layers_are_written_in_place():
    mesh = sharding.make_mesh(sharding.MeshConfig(fsdp=8))
    target = arrays.empty((3, 16, 16), np.dtype(np.float32), NamedSharding(mesh, P(None, "fsdp")))
    places = []
    for layer in range(3):
        target = arrays.fill(target, layer, np.full((16, 16), layer, np.float32), accept)
        places.append([shard.data.unsafe_buffer_pointer() for shard in target.addressable_shards])
    assert places[0] == places[1] == places[2]
    assert np.asarray(target)[:, 3, 3].tolist() == [0, 1, 2]


def test_memory_of_a_sharded_import_and_export(model, tmp_path):
    """On the host lies a tensor at a time.

    What the devices hold is not counted, but for parameters without layers: a CPU device may keep the host's copy.
    """
    config, params = model
    slots = names.slots(config).values()
    largest = max(int(np.prod(slot.shape)) * 4 for slot in slots)
    kept = sum(int(np.prod(slot.shape)) * 4 for slot in slots if slot.layer is None)
    slack = 600_000
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(params)) > kept + largest + slack + 500_000
    folder = export_hf(config, params, tmp_path / "model")
    places = sharding.param_shardings(config, sharding.make_mesh(sharding.MeshConfig(fsdp=2, tensor=2, expert=2)))
    export_hf(config, import_hf(folder, np.float32, places)[1], tmp_path / "warm")  # compiles
    tracemalloc.start()
    try:
        found = import_hf(folder, np.float32, places)[1]
        assert tracemalloc.get_traced_memory()[1] < kept + largest + slack
        tracemalloc.reset_peak()
        export_hf(config, found, tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < kept + 2 * largest + slack
    finally:
        tracemalloc.stop()


def test_unusable_shardings():
    mesh = sharding.make_mesh(sharding.MeshConfig(fsdp=8))
    target = arrays.empty((8, 4, 4), np.dtype(np.float32), NamedSharding(mesh, P("fsdp")))
    with pytest.raises(ConfigError, match="layer axis"):
        arrays.fill(target, 0, np.zeros((4, 4), np.float32), accept)


def test_a_bad_part_stops_the_filling():
    def refuse(part: np.ndarray) -> None:
        raise CheckpointError("bad part")

    places = NamedSharding(sharding.make_mesh(sharding.MeshConfig(fsdp=8)), P(None, "fsdp"))
    for place in (None, places):
        with pytest.raises(CheckpointError, match="bad part"):
            arrays.fill(arrays.empty((2, 8, 4), np.dtype(np.float32), place), 0, np.ones((8, 4)), refuse)


# ------------------------------------------------------------------------------------------ two processes

# Run by each of two processes with two devices each; rows 0..63 of a kernel lie on process 0, 64..127 on process 1.
TOGETHER = """
import json, pathlib, sys
import jax, numpy as np
folder, port, process = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
jax.distributed.initialize(f"127.0.0.1:{port}", 2, process)
from gui_owl_jax import sharding
from gui_owl_jax.agent.errors import GuiOwlError
from gui_owl_jax.hf.checkpoint import export_hf, import_hf, load_config

config = load_config(folder / "source")
mesh = sharding.make_mesh(sharding.MeshConfig(fsdp=2, expert=2))
places = sharding.param_shardings(config, mesh)
whole = import_hf(folder / "source")[1]
params = import_hf(folder / "source", np.float32, places)[1]
result = {"spans": any(not leaf.is_fully_addressable for leaf in jax.tree.leaves(params))}
for leaf, full in zip(jax.tree.leaves(params), jax.tree.leaves(whole)):
    for shard in leaf.addressable_shards:
        np.testing.assert_array_equal(shard.data, full[shard.index])
export_hf(config, params, folder / "out", max_shard_bytes=1_000_000)

def say(run):
    try:
        run()
        return "no error"
    except GuiOwlError as error:
        return str(error)

result["bad import"] = say(lambda: import_hf(folder / "bad", np.float32, places))
result["bad export"] = say(lambda: export_hf(config, params, folder / "source"))
(folder / f"result{process}.json").write_text(json.dumps(result))
"""


def test_two_processes_read_and_write_one_checkpoint(tmp_path):
    config = get_preset("nano-moe")
    params = random_params(config)
    source = export_hf(config, params, tmp_path / "source")
    bad = jax.tree.map(np.copy, params)
    bad["text"]["layers"]["gate_up"]["kernel"][1, 7, 100, 1, 3] = np.nan
    slots = names.slots(config)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text((source / "config.json").read_text())
    safetensors_io.begin(tmp_path / "bad" / SINGLE, {n: s.shape for n, s in slots.items()}, np.dtype(np.float32))
    for slot in slots.values():
        stored = slot.to_stored(arrays.fetch(names.leaf(bad, slot.path), slot.layer))
        safetensors_io.append(tmp_path / "bad" / SINGLE, np.ascontiguousarray(stored))

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-c", TOGETHER, str(tmp_path), str(port)]
    processes = [
        subprocess.Popen([*command, str(i)], cwd=REPOSITORY, env=environment, stderr=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    try:
        for process in processes:
            _, said = process.communicate(timeout=300)
            assert process.returncode == 0, said[-4000:]
    finally:  # one that fails leaves the other waiting
        for process in processes:
            process.kill()

    assert_same_bits(tensors_of(tmp_path / "out"), tensors_of(source))
    assert import_hf(tmp_path / "out")[0] == config
    first, second = (json.loads((tmp_path / f"result{i}.json").read_text()) for i in range(2))
    assert first["spans"]
    # Process 0 has not read row 100, and knows of its damage from process 1.
    damage = "layers.1.mlp.experts.gate_up_proj holds 1 values that are not finite"
    assert first["bad import"].startswith("process 1: ") and first["bad import"].endswith(damage)
    assert not second["bad import"].startswith("process") and second["bad import"].endswith(damage)
    # Only process 0 looks at the folder.
    assert "exists already" in first["bad export"] and second["bad export"] == f"process 0: {first['bad export']}"
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {"source", "bad", "out", "result0.json", "result1.json"}


# ------------------------------------------------------------------------------------------ a large one

# Prints, in GB: bytes of the arrays, and the peak of the resident memory of the process.
IMPORT_LARGE = """
import sys
import jax, numpy as np
from gui_owl_jax import sharding
from gui_owl_jax.hf.checkpoint import export_hf, import_hf, load_config

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))

places = None
if sys.argv[2] == "sharded":
    mesh = sharding.make_mesh(sharding.MeshConfig(fsdp=2, tensor=2))
    places = sharding.param_shardings(load_config(sys.argv[1]), mesh)
config, params = import_hf(sys.argv[1], "bfloat16", places)
held = sum(s.data.nbytes for leaf in jax.tree.leaves(params) for s in getattr(leaf, "addressable_shards", [])) or sum(
    leaf.nbytes for leaf in jax.tree.leaves(params))
imported = peak()
export_hf(config, params, sys.argv[3])
print(held / 1e9, imported / 1e9, peak() / 1e9)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sharded", "on the host"])
def test_six_gigabytes_import_in_three_beyond_the_arrays(tmp_path, how):
    config = get_preset("2b")
    config = dataclasses.replace(config, text=dataclasses.replace(config.text, layers=46))
    slots, dtype = names.slots(config), np.dtype(safetensors_io.DTYPES["BF16"])
    folder = tmp_path / "model"
    folder.mkdir()
    files.write_json(folder / "config.json", config_to_json(config, "bfloat16"))
    shards = weights._plan({n: 2 * int(np.prod(s.shape)) for n, s in slots.items()}, 2_000_000_000)
    rng = np.random.default_rng(0)
    weight_map = {}
    for number, shard in enumerate(shards):
        file = f"model-{number}.safetensors"
        weight_map |= dict.fromkeys(shard, file)
        safetensors_io.begin(folder / file, {name: slots[name].shape for name in shard}, dtype)
        for name in shard:
            bits = rng.integers(0, 0x3F80, slots[name].shape, np.uint16)  # of numbers in [0, 1)
            safetensors_io.append(folder / file, bits.view(dtype))
    files.write_json(folder / weights.INDEX, {"weight_map": weight_map})
    stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert stored > 6e9 and len(shards) >= 3

    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    command = [sys.executable, "-c", IMPORT_LARGE, str(folder), how, str(tmp_path / "out")]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr[-3000:]
    held, imported, exported = map(float, done.stdout.split())
    print(
        f"{how}: stored {stored / 1e9:.2f} GB, arrays {held:.2f} GB, peak {imported:.2f} GB, export {exported:.2f} GB"
    )
    assert held > 6
    assert imported - held < 3 and exported - held < 3
    for path in folder.glob("*.safetensors"):
        theirs, ours = safetensors_io.scan(path), {}
        for written in (tmp_path / "out").glob("*.safetensors"):
            ours |= safetensors_io.scan(written)
        for name, tensor in theirs.items():
            np.testing.assert_array_equal(ours[name].open().view(np.uint16), tensor.open().view(np.uint16), name)
