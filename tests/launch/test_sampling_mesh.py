"""Sampling on a mesh from the mains: the hand-over of weights, and two processes that share the mesh."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from configs import base, pod
from gui_owl_jax import sharding
from gui_owl_jax.models import qwen_vl
from gui_owl_jax.rollout.engine import Engine
from launch import common
from tests.launch import sample_together
from tests.launch.conftest import REPOSITORY, TINY, Main


def test_two_processes_sample_what_one_device_does(tmp_path):
    """Each gets the answers to its own requests, with unlike numbers of them, whichever chips share a matrix."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    environment["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # as the fixture nothing_stored
    command = [sys.executable, "-m", "tests.launch.sample_together"]
    started = [
        subprocess.Popen([*command, str(i), str(port), str(tmp_path)], cwd=REPOSITORY, env=environment, stderr=-1)
        for i in range(2)
    ]
    try:
        for process in started:
            _, said = process.communicate(timeout=600)
            assert process.returncode == 0, said.decode()[-4000:]
    finally:  # one that fails leaves the other waiting
        for process in started:
            process.kill()
    params, engine = sample_together.weights(), Engine(sample_together.MODEL, sample_together.SAMPLER, (7,))
    for index in range(2):
        alone = sample_together.sample(engine, params, index)
        assert len(alone) == (7, 1)[index]
        for name in ("inside", "across"):
            found = np.load(tmp_path / f"{name}{index}.npz")
            np.testing.assert_array_equal(found["ids"], np.concatenate([sample.token_ids for sample in alone]))
            logps = np.concatenate([sample.logps for sample in alone])
            np.testing.assert_allclose(found["logps"], logps, rtol=0, atol=1e-5)


def test_weights_go_from_mesh_to_mesh():
    """In the type of the matmuls, in the layout of sampling; without that mesh they are one device's."""
    model = sample_together.MODEL
    training = sharding.make_mesh(sharding.MeshConfig(fsdp=8), jax.devices()[:8])
    sampling = sharding.make_mesh(sharding.MeshConfig(data=4, tensor=2), jax.devices()[:8])
    params = qwen_vl.init_params(model, jax.random.key(0))
    held = jax.device_put(params, sharding.param_shardings(model, training))
    moved = common.sampling_params(held, model, training, sampling, "bfloat16")
    jax.tree.map(
        lambda leaf, at: leaf.sharding.is_equivalent_to(at, leaf.ndim) or pytest.fail(str(at)),
        moved,
        sharding.param_shardings(model, sampling),
    )
    kernel = moved["text"]["layers"]["q"]["kernel"]
    assert kernel.dtype == "bfloat16" and kernel.addressable_shards[0].data.size == kernel.size // 2
    np.testing.assert_array_equal(kernel, params["text"]["layers"]["q"]["kernel"].astype("bfloat16"))
    here = common.sampling_params(held, model, training, None, "bfloat16")
    assert {leaf.sharding.device_set.pop() for leaf in jax.tree.leaves(here)} == {jax.devices()[0]}
    assert {leaf.dtype for leaf in jax.tree.leaves(here)} == {np.dtype("float32")}


def test_the_mesh_of_a_config():
    assert common.sampling_mesh(base.get_config()) is None
    config = pod.get_config("8b-mrpo-v5e-16")
    config.sampling_mesh.update({"data": 4, "tensor": 2})
    mesh = common.sampling_mesh(config)
    assert mesh is not None and mesh.shape == {"data": 4, "fsdp": 1, "tensor": 2, "expert": 1}


def test_mrpo_samples_on_its_mesh(coin_folder):
    """An update whose rollouts were sampled on a mesh, with weights from another one, is that of one device."""
    flags = (f"--config={TINY}:mrpo,{coin_folder}", "--config.steps=2", "--config.checkpoint_every=2")
    meshes = ("--config.mesh.fsdp=8", "--config.sampling_mesh.data=4", "--config.sampling_mesh.tensor=2")
    Main("train", *flags, f"--workdir={coin_folder / 'alone'}").succeed()
    Main("train", *flags, *meshes, f"--workdir={coin_folder / 'spread'}", devices=8).succeed()
    first, second = (
        [json.loads(line) for line in (coin_folder / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("alone", "spread")
    )
    assert len(first) == len(second) == 2 and first[0]["tokens_per_step"] > 1
    for name in ("success", "tokens_per_step", "steps_per_episode", "parse_error_share"):
        assert [line[name] for line in first] == [line[name] for line in second]
    np.testing.assert_allclose(second[0]["loss"], first[0]["loss"], rtol=1e-3, atol=1e-5)
