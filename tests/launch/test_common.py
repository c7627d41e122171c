"""Opening policies: every kind of source, and what does not fit together."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from configs import nano
from gui_owl_jax import sharding
from gui_owl_jax.agent.errors import CheckpointError, ConfigError
from gui_owl_jax.hf.checkpoint import export_hf
from gui_owl_jax.rollout.engine import SamplerConfig
from gui_owl_jax.training import state as train_state
from gui_owl_jax.training.checkpoints import Checkpoints
from gui_owl_jax.training.optimizer import OptimizerConfig
from launch import common


@pytest.fixture(scope="module")
def config():
    return nano.get_config()


@pytest.fixture(scope="module")
def policy(config) -> common.Policy:
    return common.load_policy(config, "random")


@pytest.fixture(scope="module")
def sources(config, policy, tmp_path_factory):
    """The same policy as a run folder and as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("sources")
    common.start_run(str(folder / "run"), config, policy)
    mesh = sharding.make_mesh(sharding.MeshConfig(), jax.devices()[:1])
    with Checkpoints(folder / "run" / "checkpoints") as checkpoints:
        optimizer = OptimizerConfig(name="adamw", schedule="constant")
        checkpoints.save(7, train_state.create_state(policy.model, optimizer, mesh, policy.params))
    export_hf(policy.model, policy.params, folder / "hf", policy.processor)
    return folder


def same(a, b) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(np.asarray(x), np.asarray(y)), a, b)


@pytest.mark.parametrize("kind", ["run", "hf"])
def test_sources_give_the_same_policy(config, policy, sources, kind):
    found = common.load_policy(config, str(sources / kind))
    assert found.model == policy.model and found.model.vision.window == config.model.vision_window == 64
    same(found.params, policy.params)
    assert found.processor.image_config == policy.processor.image_config
    assert found.processor.encode_response("Tap Mia.").tolist() == policy.processor.encode_response("Tap Mia.").tolist()
    assert {leaf.sharding.device_set.copy().pop() for leaf in jax.tree.leaves(found.params)} == {jax.devices()[0]}


@pytest.mark.parametrize("kind", ["random", "run", "hf"])
def test_a_policy_lies_on_the_mesh_that_is_asked_for(config, policy, sources, kind):
    mesh = sharding.make_mesh(sharding.MeshConfig(fsdp=2, tensor=2), jax.devices()[:4])
    found = common.load_policy(config, kind if kind == "random" else str(sources / kind), mesh=mesh)
    wanted = sharding.param_shardings(found.model, mesh)
    jax.tree.map(
        lambda leaf, at: leaf.sharding.is_equivalent_to(at, leaf.ndim) or pytest.fail(str(at)), found.params, wanted
    )
    kernel = found.params["text"]["layers"]["q"]["kernel"]
    assert kernel.addressable_shards[0].data.size < kernel.size
    local = common.local_params(found.params, mesh)
    assert all(leaf.sharding.device_set == {jax.devices()[0]} for leaf in jax.tree.leaves(local))
    if kind != "random":  # other programs draw the same weights up to rounding only
        same(local, policy.params)


def test_the_window_is_a_matter_of_the_config(sources):
    config = nano.get_config()
    config.model.vision_window = 0
    for source in ("random", str(sources / "run"), str(sources / "hf")):
        assert common.load_policy(config, source).model.vision.window == 0


def test_a_step_can_be_asked_for(config, sources):
    assert common.load_policy(config, str(sources / "run"), step=7)
    with pytest.raises(CheckpointError, match=r"8 is missing.*\[7\]"):
        common.load_policy(config, str(sources / "run"), step=8)
    with pytest.raises(ConfigError, match="no steps"):
        common.load_policy(config, str(sources / "hf"), step=7)
    with pytest.raises(CheckpointError, match="neither a run folder"):
        common.load_policy(config, str(sources))


def test_a_tokenizer_must_fit_the_model(config, policy, tmp_path):
    config = nano.get_config()
    config.tokenizer = "qwen"
    with pytest.raises(ConfigError, match="'qwen' does not have <|image_pad|> where the model has it"):
        common.make_tokenizer(config, policy.model)
    policy.processor.tokenizer.save(tmp_path)
    config.tokenizer = str(tmp_path)
    assert common.make_tokenizer(config, policy.model).image_pad == policy.model.image_token_id


def test_sections_are_checked_by_name(config):
    with pytest.raises(ConfigError, match="config.sampler has no field 'top'"):
        common.build(SamplerConfig, {**config.sampler, "top": 1}, "sampler")
    built = common.build(SamplerConfig, {"row_buckets": [1, 2]}, "sampler")
    assert built.row_buckets == (1, 2) and hash(built)


def test_rows_must_divide_over_the_mesh():
    mesh = sharding.make_mesh(sharding.MeshConfig(data=2, fsdp=2), jax.devices()[:4])
    common.check_rows(8, mesh, "data.rows")
    with pytest.raises(ConfigError, match="config.data.rows: 6 rows"):
        common.check_rows(6, mesh, "data.rows")
