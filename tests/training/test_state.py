"""The train state: made sharded, moments beside their parameters, wrong parameters refused."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from gui_owl_jax import sharding
from gui_owl_jax.agent.errors import CheckpointError, ConfigError
from gui_owl_jax.training.optimizer import OptimizerConfig, path_name
from gui_owl_jax.training.state import abstract_state, create_state, state_shardings

pytestmark = pytest.mark.usefixtures("nothing_stored")

EIGHT = sharding.MeshConfig(data=2, fsdp=2, tensor=2)


def test_fresh_states_are_the_same_on_every_mesh(model, optimizer, mesh):
    one = create_state(model, optimizer, mesh, jax.random.key(5))
    eight = create_state(model, optimizer, sharding.make_mesh(EIGHT), jax.random.key(5))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), one, eight)
    assert int(one.step) == 0 and int(one.opt_state.count) == 0


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_parameters_and_moments_are_really_sharded(model, params, name):
    mesh = sharding.make_mesh(EIGHT)
    config = OptimizerConfig(name=name)
    state = create_state(model, config, mesh, params)
    leaves = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}

    def parts(name: str) -> int:
        leaf = leaves[name]
        assert len(leaf.addressable_shards) == 8
        return leaf.size // leaf.addressable_shards[0].data.size

    moments = [path for path in leaves if path.startswith("opt_state") and path.endswith("text/layers/q/kernel")]
    assert len(moments) == (2 if name == "adamw" else 1)  # first and second, or momentum
    for path in ["params/text/layers/q/kernel", *moments]:
        assert leaves[path].addressable_shards[0].data.shape == (2, 32, 32) and parts(path) == 4  # of [2, 64, 64]
    moments = [path for path in leaves if path.startswith("opt_state") and path.endswith("text/embed/embedding")]
    assert len(moments) == 2
    for path in ["params/text/embed/embedding", *moments]:
        assert leaves[path].addressable_shards[0].data.shape == (512, 32)  # of [1024, 64]
    assert parts("step") == parts("opt_state/count") == 1
    wanted = state_shardings(model, config, mesh)
    jax.tree.map(lambda leaf, where: leaf.sharding.is_equivalent_to(where, leaf.ndim) or pytest.fail(), state, wanted)


def test_the_abstract_state_has_the_shapes_and_places_of_the_real_one(model, optimizer, mesh, params):
    for where in (mesh, sharding.make_mesh(EIGHT)):
        abstract, real = abstract_state(model, optimizer, where), create_state(model, optimizer, where, params)
        assert jax.tree.structure(abstract) == jax.tree.structure(real)
        for left, right in zip(jax.tree.leaves(abstract), jax.tree.leaves(real)):
            assert (left.shape, left.dtype, left.sharding) == (right.shape, right.dtype, right.sharding)


def test_given_parameters_are_copied(model, optimizer, mesh, params, step, make_batch):
    given = jax.tree.map(jax.numpy.asarray, params)
    state = create_state(model, optimizer, mesh, given)
    step(state, sharding.put_batch(make_batch(0), mesh))  # donates the state
    jax.tree.map(np.testing.assert_array_equal, given, params)


def test_parameters_of_another_model_are_refused(model, optimizer, mesh, params):
    text = dict(params["text"], norm={"scale": np.ones(63, np.float32)})
    with pytest.raises(CheckpointError, match=r"in 1 places: text/norm/scale: wanted \(64,\), given \(63,\)"):
        create_state(model, optimizer, mesh, dict(params, text=text))
    with pytest.raises(CheckpointError, match=r"head/kernel: wanted None, given \(64, 1024\)"):
        create_state(model, optimizer, mesh, dict(params, head={"kernel": np.ones((64, 1024), np.float32)}))


def test_rules_are_checked_before_anything_is_made(model, optimizer, mesh, params):
    wrong = dataclasses.replace(optimizer, learning_rate_rules=((r"tower/.*", 0.0),))
    with pytest.raises(ConfigError, match="tower"):
        create_state(model, wrong, mesh, params)
