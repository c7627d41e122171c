"""One MRPO update of the real model, from the outcomes of a pool to the parameters."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gui_owl_jax import sharding
from gui_owl_jax.models import config as model_config
from gui_owl_jax.models import layout, qwen_vl
from gui_owl_jax.rl.advantages import AdvantageConfig, group_advantages
from gui_owl_jax.rl.objective import ObjectiveConfig
from gui_owl_jax.rl.selection import Case, select
from gui_owl_jax.training import state as states
from gui_owl_jax.training import steps
from gui_owl_jax.training.optimizer import OptimizerConfig

POOL, GROUP, TURNS, ANSWER = 8, 4, 2, 5
OPTIMIZER = OptimizerConfig(learning_rate=1e-3, schedule="constant", weight_decay_rules=((r".*kernel", 0.1),))


@pytest.fixture(scope="module")
def model():
    nano = model_config.get_preset("nano")
    vision = dataclasses.replace(nano.vision, width=32, blocks=1, mlp_width=64, out_width=64, deepstack_indexes=(0,))
    text = dataclasses.replace(nano.text, width=64, layers=2, heads=2, mlp_width=96)
    return dataclasses.replace(nano, vision=vision, text=text)


def draw_params(model):
    """Random parameters, drawn with numpy: compiling the model's own initialisation would take longer than the test."""
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        if path[-1].key == "scale":
            return np.ones(leaf.shape, np.float32)
        return (0.1 * rng.standard_normal(leaf.shape)).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, qwen_vl.abstract_params(model))


@pytest.fixture(scope="module")
def machinery(model):
    """(initial state, scorer, update), compiled once."""
    mesh = sharding.make_mesh(sharding.MeshConfig(), jax.devices()[:1])
    state = states.create_state(model, OPTIMIZER, mesh, draw_params(model))
    update = steps.mrpo_step(model, OPTIMIZER, ObjectiveConfig(), mesh)
    return state, steps.score_step(model, mesh), update


def pool_batch(model, outcomes, seed=0):
    """Selects a group; returns it and its trajectories' turns, each with a screenshot, two turns to a row."""
    chosen = select(jax.random.key(seed), jnp.asarray(outcomes), jnp.ones(POOL, bool), GROUP)
    outcomes = np.asarray(outcomes, np.float32)
    advantages = group_advantages(
        AdvantageConfig(baseline="pool"), outcomes[chosen.indices], chosen.weights > 0, outcomes, np.ones(POOL, bool)
    )
    rows = []
    for slot, index in enumerate(np.asarray(chosen.indices)):
        rng = np.random.default_rng(int(index))
        row = []
        for _ in range(TURNS):
            patches = rng.integers(0, 256, (16, model.vision.patch_columns)).astype(np.uint8)
            prompt = [1004, 1002, *[1000] * 4, 1003]
            tokens = np.array(prompt + rng.integers(0, 1000, ANSWER).tolist(), np.int32)
            mask = (np.arange(len(tokens)) >= len(prompt)).astype(np.float32)
            extras = {
                "advantages": np.full(len(tokens), advantages[slot], np.float32),
                "weights": np.full(len(tokens), chosen.weights[slot], np.float32),
            }
            row.append(layout.Example(tokens, mask, (layout.ImagePatches(patches, (4, 4)),), extras))
        rows.append(row)
    batch = layout.lay_out_rows(rows, model, TURNS * (7 + ANSWER) + 2, TURNS * 16)
    return chosen, outcomes[chosen.indices], batch


def copy(tree):
    """The update donates its state."""
    return jax.tree.map(jnp.copy, tree)


@pytest.mark.parametrize("seed", [0, 1])
def test_an_informative_group_raises_its_successes_and_lowers_its_failures(model, machinery, seed):
    state, score, update = machinery
    chosen, outcomes, batch = pool_batch(model, [1, 0, 0, 1, 0, 0, 1, 0], seed)
    assert int(chosen.case) != Case.EMPTY
    before = score(state.params, batch)
    # On-policy: the sampler's log-probabilities are the trainer's own.
    after, metrics = update(copy(state), {**batch, "sampler_logps": np.asarray(before)})
    change = np.asarray(score(after.params, batch) - before).sum(1)
    assert bool(metrics["finite"]) and float(metrics["tokens"]) == GROUP * TURNS * ANSWER
    assert float(metrics["max_mismatch"]) < 1e-5
    assert ((change > 0) == (outcomes == 1)).all(), change


@pytest.mark.parametrize("outcome", [0, 1])
def test_an_empty_group_changes_no_parameter_and_no_optimizer_statistic(model, machinery, outcome):
    state, score, update = machinery
    _, _, batch = pool_batch(model, [1, 0, 0, 1, 0, 0, 1, 0])
    # After a first update there is momentum, which a zero gradient would not stop.
    warm, _ = update(copy(state), {**batch, "sampler_logps": np.asarray(score(state.params, batch))})
    chosen, _, empty = pool_batch(model, [outcome] * POOL)
    assert int(chosen.case) == Case.EMPTY
    after, metrics = update(copy(warm), {**empty, "sampler_logps": np.asarray(score(warm.params, empty))})
    assert float(metrics["loss"]) == float(metrics["grad_norm"]) == float(metrics["tokens"]) == 0
    pairs = zip(jax.tree.leaves((after.params, after.opt_state)), jax.tree.leaves((warm.params, warm.opt_state)))
    assert all(np.array_equal(new, old) for new, old in pairs)
    moved = [not np.array_equal(a, b) for a, b in zip(jax.tree.leaves(warm.params), jax.tree.leaves(state.params))]
    assert any(moved)
