"""Meshes, the rules table, and that a sharded model computes what one device computes."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from gui_owl_jax import sharding
from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.models import layout, qwen_vl
from gui_owl_jax.models.config import get_preset
from gui_owl_jax.training import steps
from gui_owl_jax.training.losses import ComputeConfig, supervised_loss
from gui_owl_jax.training.optimizer import OptimizerConfig

pytestmark = pytest.mark.usefixtures("nothing_stored")

NANO = get_preset("nano")


@pytest.fixture(scope="module")
def mesh():
    return sharding.make_mesh(sharding.MeshConfig(data=2, fsdp=2, tensor=2), jax.devices()[:8])


def test_mesh_sizes():
    devices = jax.devices()[:8]
    assert sharding.make_mesh(sharding.MeshConfig(fsdp=-1, tensor=2), devices).shape == {
        "data": 1,
        "fsdp": 4,
        "tensor": 2,
        "expert": 1,
    }
    for wrong in (sharding.MeshConfig(data=3), sharding.MeshConfig(), sharding.MeshConfig(data=-1, fsdp=-1)):
        with pytest.raises(ConfigError, match="8 devices"):
            sharding.make_mesh(wrong, devices)


def test_partition_specs(mesh):
    assert sharding.partition_spec(("layers", "embed", "heads"), (3, 8, 4), mesh) == P(None, "fsdp", "tensor")
    assert sharding.partition_spec(("embed", "mlp"), (8, 5), mesh) == P("fsdp", None)  # 5 does not halve
    assert sharding.partition_spec(("rows", None), (8, 3), mesh) == P(("data", "fsdp", "expert"), None)


def test_every_logical_axis_has_a_place_or_is_known_to_have_none():
    names = set()
    for size in ("nano", "8b", "nano-moe", "nano-qwen2.5"):
        axes = jax.tree.leaves(qwen_vl.logical_axes(get_preset(size)), is_leaf=lambda x: isinstance(x, tuple))
        names |= {name for leaf in axes for name in leaf if name}
    assert names - sharding.RULES.keys() == {"layers", "norm", "patch"}


def test_large_model_is_split_evenly(mesh):
    """All but the norms, biases and small tables of the 8B model are split over fsdp and tensor."""
    config = get_preset("8b")
    shapes = jax.tree.leaves(qwen_vl.abstract_params(config))
    shardings = jax.tree.leaves(sharding.param_shardings(config, mesh))
    whole = sum(a.size for a in shapes)
    held = sum(np.prod(s.shard_shape(a.shape)) for a, s in zip(shapes, shardings))
    assert held / whole < 0.2505


def test_large_experts_are_split_evenly():
    """Splitting by experts as well as by fsdp leaves each of 8 devices about an eighth of 30B-A3B."""
    config = get_preset("30b-a3b")
    mesh = sharding.make_mesh(sharding.MeshConfig(fsdp=4, expert=2), jax.devices()[:8])
    shapes = jax.tree.leaves(qwen_vl.abstract_params(config))
    shardings = jax.tree.leaves(sharding.param_shardings(config, mesh))
    held = sum(np.prod(s.shard_shape(a.shape)) for a, s in zip(shapes, shardings))
    assert held / sum(a.size for a in shapes) < 0.135


def random_batch(config, rows=8):
    """Rows of two examples with an image each."""
    rng = np.random.default_rng(0)
    columns = config.vision.patch_columns

    def example():
        grid = ((2, 4), (4, 4), (4, 6))[rng.integers(3)]
        patches = rng.integers(0, 256, (grid[0] * grid[1], columns), dtype=np.uint8)
        pads = [config.image_token_id] * (len(patches) // 4)
        text = rng.integers(0, 999, 6).tolist()
        tokens = [*text[:2], config.vision_start_token_id, *pads, config.vision_end_token_id, *text[2:]]
        mask = np.array([0, 1, *(0 for _ in tokens[:-6]), 1, 1, 1, 1], np.float32)
        return layout.Example(np.array(tokens, np.int32), mask, (layout.ImagePatches(patches, grid),))

    return layout.lay_out_rows([[example(), example()] for _ in range(rows)], config, 32, 48)


MESHES = {
    "data": {"data": 8},
    "fsdp": {"fsdp": 8},
    "tensor": {"tensor": 8},
    "expert": {"expert": 8},
    "data-fsdp-tensor": {"data": 2, "fsdp": 2, "tensor": 2},
    "data-tensor-expert": {"data": 2, "tensor": 2, "expert": 2},
    "fsdp-tensor-expert": {"fsdp": 2, "tensor": 2, "expert": 2},
}


@functools.cache
def gradient_on(preset, mesh_name):
    """((loss, metrics), gradients) of a small model, as numpy arrays; mesh "" is one device."""
    config = get_preset(preset)
    config = dataclasses.replace(config, text=dataclasses.replace(config.text, layers=2))
    devices = jax.devices()[: 8 if mesh_name else 1]
    mesh = sharding.make_mesh(sharding.MeshConfig(**MESHES.get(mesh_name, {})), devices)
    compute, optimizer = ComputeConfig(remat="full", chunk=8), OptimizerConfig()
    step = steps.gradient_step(supervised_loss(config, compute), config, optimizer, mesh, compute)
    params = jax.device_put(qwen_vl.init_params(config, jax.random.key(0)), sharding.param_shardings(config, mesh))
    return jax.device_get(step(params, sharding.put_batch(random_batch(config), mesh)))


@pytest.mark.parametrize(
    ("preset", "mesh_name"),
    [("nano", "tensor"), ("nano", "data-fsdp-tensor"), *(("nano-moe", name) for name in MESHES)],
)
def test_sharded_gradient_equals_one_device(preset, mesh_name):
    """Loss, metrics and every gradient, on each mesh axis alone and on several together."""
    (expected, metrics), gradients = gradient_on(preset, "")
    assert expected > 1 and metrics["tokens"] == 8 * 2 * 5
    (found, own_metrics), own_gradients = gradient_on(preset, mesh_name)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert own_metrics.keys() == metrics.keys()
    for name, value in metrics.items():
        np.testing.assert_allclose(own_metrics[name], value, rtol=1e-5, err_msg=name)
    flat = jax.tree_util.tree_leaves_with_path(gradients)
    for (path, reference), own in zip(flat, jax.tree.leaves(own_gradients), strict=True):
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(own, reference, rtol=0, atol=1e-5 * np.abs(reference).max(), err_msg=name)


def test_sharded_forward_equals_one_device(mesh):
    config = dataclasses.replace(
        NANO, tie_word_embeddings=False, text=dataclasses.replace(NANO.text, layers=2, mlp_width=256)
    )
    batch = random_batch(config)
    params = qwen_vl.init_params(config, jax.random.key(0))
    run = lambda p, b: qwen_vl.hidden_states(config, p, b)  # noqa: E731
    expected = jax.jit(run)(params, batch)

    shardings = sharding.param_shardings(config, mesh)
    placed, rows = jax.device_put(params, shardings), sharding.put_batch(batch, mesh)
    kernel = placed["text"]["layers"]["gate"]["kernel"]
    assert kernel.sharding.spec == P(None, "fsdp", "tensor")
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(2, 64, 128)}
    assert {shard.data.shape for shard in rows["tokens"].addressable_shards} == {(2, 32)}
    total = sum(a.nbytes for a in jax.tree.leaves(params))
    on_first = sum(a.addressable_shards[0].data.nbytes for a in jax.tree.leaves(placed))
    assert on_first < 0.3 * total

    out = NamedSharding(mesh, P(("data", "fsdp")))
    found = jax.jit(run, in_shardings=(shardings, sharding.batch_sharding(mesh)), out_shardings=out)(placed, rows)
    assert {shard.data.shape for shard in found.addressable_shards} == {(2, 32, 128)}
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
