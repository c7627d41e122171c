"""Sampling on a mesh: the samples of one device, whoever holds the rows, and nobody all the weights."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np
import pytest

from gui_owl_jax import sharding
from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.hf.processor import EncodedPrompt
from gui_owl_jax.models import layout, qwen_vl
from gui_owl_jax.models.config import QwenVLConfig, get_preset
from gui_owl_jax.rollout import engine as engines
from gui_owl_jax.rollout import serving
from gui_owl_jax.rollout.engine import Engine, Sample, SamplerConfig, request_seed

pytestmark = pytest.mark.usefixtures("nothing_stored")
SAMPLER = SamplerConfig(max_new_tokens=6, row_buckets=(8,), length_buckets=(32,), patch_buckets=(32,), temperature=0.7)
MESHES = {
    "data-tensor": {"data": 4, "tensor": 2},
    "fsdp-tensor": {"fsdp": 2, "tensor": 4},
    "data-tensor-expert": {"data": 2, "tensor": 2, "expert": 2},
}


@functools.cache
def model_and_params(preset: str) -> tuple[QwenVLConfig, dict]:
    model = get_preset(preset)
    model = dataclasses.replace(model, text=dataclasses.replace(model.text, layers=2))
    params = qwen_vl.init_params(model, jax.random.key(1))
    params["text"]["norm"]["scale"] *= 5  # some tokens shall be much likelier than others
    return model, params


def prompts(model: QwenVLConfig) -> list[EncodedPrompt]:
    """Five, of several lengths, three of them with an image."""
    rng, made = np.random.default_rng(0), []
    for text, grid in ((5, (4, 6)), (11, None), (9, (2, 4)), (20, (4, 4)), (3, None)):
        ids = rng.integers(1, 900, text).tolist()
        images: tuple[layout.ImagePatches, ...] = ()
        if grid:
            patches = rng.integers(0, 255, (grid[0] * grid[1], model.vision.patch_columns), dtype=np.uint8)
            images = (layout.ImagePatches(patches, grid),)
            pads = [model.image_token_id] * (len(patches) // 4)
            ids[2:2] = [model.vision_start_token_id, *pads, model.vision_end_token_id]
        made.append(EncodedPrompt(np.array(ids, np.int32), images))
    return made


@functools.cache
def samples_on(preset: str, mesh_name: str, temperature: float) -> list[Sample]:
    """What the five requests get; mesh "" is one device without a mesh."""
    model, params = model_and_params(preset)
    mesh = sharding.make_mesh(sharding.MeshConfig(**MESHES[mesh_name]), jax.devices()[:8]) if mesh_name else None
    if mesh is not None:
        params = jax.device_put(params, sharding.param_shardings(model, mesh))
        held = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(params))
        split = mesh.shape["tensor"] * mesh.shape["fsdp"]
        assert held < 1.4 / split * sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    engine = Engine(model, dataclasses.replace(SAMPLER, temperature=temperature), stop_ids=(7,), mesh=mesh)
    asked = prompts(model)
    return engine.generate(params, asked, np.stack([request_seed(i) for i in range(len(asked))]))


@pytest.mark.parametrize(
    ("preset", "mesh", "temperature"),
    [
        ("nano", "data-tensor", 0.0),
        ("nano", "data-tensor", 0.7),
        ("nano-moe", "data-tensor-expert", 0.7),
        ("nano-qwen2.5", "fsdp-tensor", 0.7),
    ],
)
def test_a_mesh_gives_the_samples_of_one_device(preset, mesh, temperature):
    alone, spread = samples_on(preset, "", temperature), samples_on(preset, mesh, temperature)
    for one, other in zip(alone, spread, strict=True):
        np.testing.assert_array_equal(one.token_ids, other.token_ids)
        np.testing.assert_allclose(one.logps, other.logps, rtol=0, atol=1e-5)
        np.testing.assert_allclose(one.sampler_logps, other.sampler_logps, rtol=0, atol=2e-5)
        assert one.truncated == other.truncated
    assert len({sample.token_ids.tobytes() for sample in alone}) > 1


def test_cache_and_rows_are_split(monkeypatch):
    """What the program on a mesh says of its cache, and where its results lie."""
    model, params = model_and_params("nano")
    mesh = sharding.make_mesh(sharding.MeshConfig(data=4, tensor=2), jax.devices()[:8])
    params = jax.device_put(params, sharding.param_shardings(model, mesh))
    caches, results = [], []
    monkeypatch.setattr(serving, "own_rows", lambda x, own=serving.own_rows: results.append(x) or own(x))
    split = serving.split_cache

    def seen(cache):
        cache = split(cache)
        jax.debug.inspect_array_sharding(cache.k, callback=caches.append)
        return cache

    monkeypatch.setattr(engines.serving, "split_cache", seen)
    sampler = dataclasses.replace(SAMPLER, max_new_tokens=3)  # of its own, so that nothing is compiled yet
    Engine(model, sampler, (), mesh=mesh).generate(params, prompts(model), np.zeros((5, 2), np.uint32))
    shape = (2, 8, 35, model.text.kv_heads, model.text.head_width)
    assert caches[0].shard_shape(shape) == (2, 2, 35, model.text.kv_heads // 2, model.text.head_width)
    assert caches[0].is_equivalent_to(serving.cache_sharding(model, mesh, 8), 5)
    assert all(leaf.sharding.shard_shape(leaf.shape)[0] == 1 for leaf in results) and len(results) == 4


def test_rows_must_fit_the_mesh():
    model, _ = model_and_params("nano")
    mesh = sharding.make_mesh(sharding.MeshConfig(data=4, tensor=2), jax.devices()[:8])
    with pytest.raises(ConfigError, match="sampler.row_buckets: 6 rows cannot be split into the 4 parts"):
        Engine(model, dataclasses.replace(SAMPLER, row_buckets=(6, 8)), (), mesh=mesh)
    Engine(model, dataclasses.replace(SAMPLER, row_buckets=(4,)), (), mesh=mesh)  # one process has all rows anyhow


def test_rows_go_and_come_back():
    mesh = sharding.make_mesh(sharding.MeshConfig(data=2, tensor=4), jax.devices()[:8])
    rows = {"a": np.arange(24).reshape(8, 3), "b": np.arange(8) > 3}
    put = serving.put_rows(rows, mesh, 8)
    assert {shard.data.shape for shard in put["a"].addressable_shards} == {(1, 3)}
    for name, array in rows.items():
        np.testing.assert_array_equal(serving.own_rows(put[name]), array)


def test_a_process_alone_waits_for_nobody():
    mesh = sharding.make_mesh(sharding.MeshConfig(data=8), jax.devices()[:8])
    assert serving.processes(mesh) == serving.processes(None) == 1
    assert serving.most(mesh, 3, 5) == (3, 5)
    model, params = model_and_params("nano")
    Engine(model, SAMPLER, (), mesh=mesh).join(params)
