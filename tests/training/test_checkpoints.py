"""Checkpoints: bit-equal on any mesh, with data iterator and key; damage and kills leave the last good one."""

from __future__ import annotations

import gc
import os
import pathlib
import signal
import subprocess
import sys
import time

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gui_owl_jax import sharding
from gui_owl_jax.agent.errors import CheckpointError
from gui_owl_jax.models import qwen_vl
from gui_owl_jax.training.checkpoints import Checkpoints
from gui_owl_jax.training.state import TrainState, abstract_state, create_state

pytestmark = pytest.mark.usefixtures("nothing_stored")


def _records(seed: int = 3):
    return iter(grain.MapDataset.range(1000).shuffle(seed=seed).map(lambda i: i * i).repeat().to_iter_dataset())


def _assert_same_bits(left, right) -> None:
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    assert all(np.asarray(a).tobytes() == np.asarray(b).tobytes() and a.dtype == b.dtype for a, b in pairs)


@pytest.fixture
def trained(model, optimizer, mesh, params, step, make_batch) -> TrainState:
    """A state whose moments are not zero."""
    state = create_state(model, optimizer, mesh, params)
    return step(state, sharding.put_batch(make_batch(0), mesh))[0]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_resumed_run_equals_an_undisturbed_one(
    tmp_path, model, optimizer, mesh, step, make_batch, trained, asynchronous
):
    state, records, key = trained, _records(), jax.random.key(7)

    def advance(state, records, key):
        key, sub = jax.random.split(key)
        seed = int(next(records)) + int(jax.random.randint(sub, (), 0, 1000))
        return step(state, sharding.put_batch(make_batch(seed % 97), mesh))[0], key

    extra = {"stage": "sft", "successes": np.arange(5), "weights": jnp.ones((2, 3)) / 3, "order": ["web", "mobile"]}
    with Checkpoints(tmp_path, asynchronous=asynchronous) as checkpoints:
        for number in range(2, 6):
            state, key = advance(state, records, key)
            if number == 3:
                checkpoints.save(number, state, records, extra, key)  # the next step donates what is being saved
    final, final_key = state, key

    with Checkpoints(tmp_path) as checkpoints:
        records = _records()
        restored = checkpoints.restore(None, abstract_state(model, optimizer, mesh), records)
    assert restored.step == 3 and int(restored.state.step) == 3
    assert restored.extra["stage"] == "sft" and restored.extra["order"] == ["web", "mobile"]
    for name in ("successes", "weights"):
        np.testing.assert_array_equal(restored.extra[name], extra[name])
    state, key = restored.state, restored.key
    for _ in range(4, 6):
        state, key = advance(state, records, key)
    _assert_same_bits(state, final)
    _assert_same_bits(jax.random.key_data(key), jax.random.key_data(final_key))


def test_another_mesh_restores_the_same_bits(tmp_path, model, optimizer, mesh, trained):
    eight = sharding.make_mesh(sharding.MeshConfig(data=2, fsdp=2, tensor=2))
    four = sharding.make_mesh(sharding.MeshConfig(fsdp=4), jax.devices()[:4])
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, trained)
        sharded = checkpoints.restore(1, abstract_state(model, optimizer, eight)).state
        _assert_same_bits(sharded, trained)
        kernel = sharded.params["text"]["layers"]["q"]["kernel"]
        assert kernel.sharding.mesh.size == 8 and kernel.addressable_shards[0].data.size == kernel.size // 4
        checkpoints.save(2, sharded)
        for other in (four, mesh):
            _assert_same_bits(checkpoints.restore(2, abstract_state(model, optimizer, other)).state, trained)
        params = checkpoints.restore_params(abstract_state(model, optimizer, four).params)
        _assert_same_bits(params, trained.params)
        placeless = checkpoints.restore_params(qwen_vl.abstract_params(model), step=2)
        _assert_same_bits(placeless, trained.params)
        assert {leaf.sharding.device_set == {jax.devices()[0]} for leaf in jax.tree.leaves(placeless)} == {True}


def test_only_the_newest_are_kept(tmp_path, trained):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for number in (1, 2, 5, 9):
            checkpoints.save(number, trained)
        assert checkpoints.steps == (5, 9) and checkpoints.latest_step == 9
        with pytest.raises(CheckpointError, match="step 7 is not after the latest checkpoint, step 9"):
            checkpoints.save(7, trained)
        checkpoints.truncate_after(5)
        checkpoints.save(7, trained)
        assert checkpoints.steps == (5, 7)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["5", "7"]


def test_keys_of_all_kinds_come_back(tmp_path, model, optimizer, mesh, trained):
    target = abstract_state(model, optimizer, mesh)
    keys = [jax.random.key(1, impl="rbg"), jax.random.split(jax.random.key(2), 3), jax.random.PRNGKey(3)]
    with Checkpoints(tmp_path, keep=9) as checkpoints:
        checkpoints.save(0, trained)
        assert checkpoints.restore(0, target).key is None
        for number, key in enumerate(keys, start=1):
            checkpoints.save(number, trained, key=key)
            restored = checkpoints.restore(number, target).key
            assert restored.dtype == key.dtype
            _assert_same_bits(jax.random.key_data(restored), jax.random.key_data(key))


def test_missing_checkpoints_are_named(tmp_path, model, optimizer, mesh, trained):
    target = abstract_state(model, optimizer, mesh)
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(CheckpointError, match=f"{tmp_path} has no checkpoint"):
            checkpoints.restore(None, target)
        checkpoints.save(4, trained)
        with pytest.raises(CheckpointError, match=rf"{tmp_path}/6 is missing. Checkpoints there: \[4\]"):
            checkpoints.restore(6, target)
        with pytest.raises(CheckpointError, match="4 was saved without a data iterator"):
            checkpoints.restore(4, target, _records())
        with pytest.raises(CheckpointError, match="extra holds what JSON cannot"):
            checkpoints.save(5, trained, extra={"policy": object()})
        assert checkpoints.steps == (4,)


def test_a_checkpoint_of_another_model_is_refused(tmp_path, model, optimizer, mesh, trained):
    target = abstract_state(model, optimizer, mesh)
    lacking = TrainState(target.step, {"text": target.params["text"]}, target.opt_state)
    wider = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*leaf.shape, 2), leaf.dtype), target.params)
    halves = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), target.params)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, trained)
        with pytest.raises(CheckpointError, match=r"/1 holds other params: .*vision\.merger"):
            checkpoints.restore(1, lacking)
        for params, message in ((wider, r"wanted float32\("), (halves, r"as float32\(.*wanted bfloat16")):
            with pytest.raises(CheckpointError, match=message):
                checkpoints.restore_params(params, step=1)


def _spoil(path: pathlib.Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data[: len(data) // 2] if how == "cut" else data)
    if how == "remove":
        path.unlink()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax leaves coroutines behind
@pytest.mark.parametrize("how", ["flip", "cut", "remove"])
def test_damage_is_found_in_every_file_and_the_last_good_step_named(tmp_path, how):
    draw = np.random.default_rng(0).standard_normal
    params = {name: jnp.asarray(draw((64, 64)), jnp.float32) for name in ("kernel", "bias")}
    state = TrainState(jnp.int32(2), params, {"mu": jax.tree.map(jnp.square, params), "count": jnp.int32(1)})
    target = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)
    counts = draw(5000)
    with Checkpoints(tmp_path) as checkpoints:
        for number in (1, 2):
            checkpoints.save(number, state, _records(), {"counts": counts}, jax.random.key(0))

    found = set()
    for path in [path for path in sorted((tmp_path / "2").rglob("*")) if path.is_file() and path.stat().st_size]:
        whole = path.read_bytes()
        _spoil(path, how)
        records = _records()
        with Checkpoints(tmp_path) as checkpoints:
            try:
                restored = checkpoints.restore(2, target, records)
            except CheckpointError as error:
                assert f"{tmp_path}/2 is damaged" in str(error)
                assert "The last good checkpoint is step 1" in str(error)
                found.add(path.relative_to(tmp_path / "2").parts[0])
                assert next(records) == next(_records())  # untouched
            else:  # a file that nothing is read from
                _assert_same_bits(restored.state, state)
                assert restored.extra["counts"].tobytes() == counts.tobytes()
                assert path.name != "process_0-of-1.json" and path.parts[-2:] != ("meta", "metadata")
        path.write_bytes(whole)
    assert found >= {"params", "optimizer", "arrays", "data", "meta"}
    gc.collect()  # now, while the warnings about those coroutines are filtered


_WRITER = """
import sys, time
import jax, numpy as np
from gui_owl_jax.training.checkpoints import Checkpoints
from gui_owl_jax.training.state import TrainState

class Records:
    def get_state(self):
        if self.halt:
            print("halfway", flush=True)
            time.sleep(600)
        return {"position": 5}

def state(step):
    rng = np.random.default_rng(step)
    params = {f"layer{i}": {"kernel": jax.numpy.asarray(rng.random((256, 1024), np.float32))} for i in range(64)}
    return TrainState(jax.numpy.int32(step), params, {"count": jax.numpy.int32(step)})

records = Records()
records.halt = False
with Checkpoints(sys.argv[1], keep=1) as checkpoints:
    checkpoints.save(1, state(1), records)
    records.halt = sys.argv[2] == "iterator"
    second = state(2)
    print("saving", flush=True)
    checkpoints.save(2, second, records)
    print("saved", flush=True)
"""


@pytest.mark.parametrize("moment", ["iterator", "arrays"])
def test_a_kill_in_the_middle_of_a_save_leaves_the_previous_checkpoint(tmp_path, moment):
    folder = tmp_path / "run"
    environment = os.environ | {"XLA_FLAGS": "", "PYTHONPATH": os.getcwd()}
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(folder), moment], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert writer.stdout.readline() == "saving\n"
        if moment == "iterator":
            assert writer.stdout.readline() == "halfway\n"
        else:  # the first bytes of arrays have reached the disk
            begun = time.monotonic()
            while not any(path.stat().st_size for path in folder.glob("2*/params*/**/d/*")):
                assert writer.poll() is None and time.monotonic() - begun < 60
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.communicate()[0]
    assert "saved" not in rest and len(list(folder.glob("2*"))) == 1  # it was in the middle

    scope = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    kernel = jax.ShapeDtypeStruct((256, 1024), jnp.float32, sharding=scope)
    count = jax.ShapeDtypeStruct((), jnp.int32, sharding=scope)
    target = TrainState(count, {f"layer{i}": {"kernel": kernel} for i in range(64)}, {"count": count})
    with Checkpoints(folder, keep=1) as checkpoints:
        assert checkpoints.steps == (1,)
        state = checkpoints.restore(None, target).state
        rng = np.random.default_rng(1)
        for i in range(64):
            np.testing.assert_array_equal(state.params[f"layer{i}"]["kernel"], rng.random((256, 1024), np.float32))
        checkpoints.save(2, state)  # what the killed writer left is no hindrance
        assert checkpoints.steps == (2,)
    assert [path.name for path in folder.iterdir()] == ["2"]
