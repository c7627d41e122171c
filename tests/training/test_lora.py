"""LoRA: what it trains, what it leaves alone, what merging gives; and that frozen towers have no backward pass."""

import dataclasses

import jax
import numpy as np
import pytest

from gui_owl_jax import sharding
from gui_owl_jax.agent.errors import CheckpointError, ConfigError
from gui_owl_jax.models import config as model_config
from gui_owl_jax.models import qwen_vl
from gui_owl_jax.training import lora, steps
from gui_owl_jax.training import state as train_state
from gui_owl_jax.training.lora import LoraConfig
from gui_owl_jax.training.losses import supervised_loss

pytestmark = pytest.mark.usefixtures("nothing_stored")

LORA = LoraConfig(rank=2, alpha=6.0, pattern=r"text/layers/(q|down)/kernel|vision/merger/fc1/kernel")


@pytest.fixture(scope="module")
def adapted(params):
    return lora.init(LORA, params, jax.random.key(0))


def test_adapters_stand_beside_the_kernels(params, adapted, model):
    shapes = jax.tree.map(lambda leaf: leaf.shape, adapted["lora"])
    text, width = model.text, model.text.width
    assert shapes["text"]["layers"]["q"]["kernel"] == {"a": (2, width, 2), "b": (2, 2, text.heads * text.head_width)}
    assert shapes["text"]["layers"]["down"]["kernel"] == {"a": (2, text.mlp_width, 2), "b": (2, 2, width)}
    assert shapes["vision"]["merger"]["fc1"]["kernel"] == {"a": (128, 2), "b": (2, 128)}
    assert len(jax.tree.leaves(adapted["lora"])) == 6
    wanted = jax.tree.map(lambda leaf: leaf.shape, adapted)
    assert wanted == jax.tree.map(lambda leaf: leaf.shape, lora.abstract_params(model, LORA))


def test_fresh_adapters_change_nothing(params, adapted):
    jax.tree.map(np.testing.assert_array_equal, lora.merge(LORA, adapted), params)
    assert lora.init(LoraConfig(), params, jax.random.key(0)) is params
    assert lora.merge(LoraConfig(), params) is params


def test_merge_adds_the_scaled_product(params, adapted):
    filled = dict(adapted)
    filled["lora"] = jax.tree.map(
        lambda leaf: np.random.default_rng(leaf.size).normal(size=leaf.shape), adapted["lora"]
    )
    merged = lora.merge(LORA, filled)
    own = filled["lora"]["text"]["layers"]["q"]["kernel"]
    for layer in range(2):
        expected = params["text"]["layers"]["q"]["kernel"][layer] + 3 * own["a"][layer] @ own["b"][layer]
        np.testing.assert_allclose(merged["text"]["layers"]["q"]["kernel"][layer], expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(merged["text"]["layers"]["k"]["kernel"], params["text"]["layers"]["k"]["kernel"])


def test_the_rules_before_win(optimizer):
    rules = lora.train_adapters_only(dataclasses.replace(optimizer, learning_rate_rules=((".*norm.*", 0.5),)), LORA)
    assert rules.learning_rate_rules == ((".*norm.*", 0.5), ("lora/.*", 1.0), (".*", 0.0))
    assert lora.train_adapters_only(optimizer, LoraConfig()) is optimizer


def test_training_moves_the_adapters_only(model, optimizer, mesh, params, adapted, make_batch, quick, step):
    """And the trained adapters, merged, give the loss of the next step: what is exported is what was trained."""
    rules = lora.train_adapters_only(dataclasses.replace(optimizer, weight_decay_rules=()), LORA)
    own_step = quick(steps.supervised_step(model, rules, mesh, lora=LORA))
    state = train_state.create_state(model, rules, mesh, adapted, LORA)
    batch = make_batch(0)
    losses = []
    for _ in range(6):
        state, metrics = own_step(state, batch)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < losses[0] - 0.01
    trained = jax.device_get(state.params)
    jax.tree.map(np.testing.assert_array_equal, {k: trained[k] for k in params}, params)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(trained["lora"]))
    moments = jax.tree.leaves(state.opt_state.moments)
    assert sum(leaf.size for leaf in moments) < 3 * sum(leaf.size for leaf in jax.tree.leaves(adapted["lora"]))

    exported = train_state.create_state(model, optimizer, mesh, lora.merge(LORA, trained))
    _, metrics = own_step(state, batch)
    np.testing.assert_allclose(step(exported, batch)[1]["loss"], metrics["loss"], rtol=1e-5)


def test_adapters_lie_as_their_kernels_do():
    """On a mesh of 2 x 2: A is split like the rows of its kernel, B like its columns."""
    mesh = sharding.make_mesh(sharding.MeshConfig(fsdp=2, tensor=2), jax.devices()[:4])
    nano = model_config.get_preset("nano")
    places = lora.param_shardings(nano, mesh, LORA)
    q = places["lora"]["text"]["layers"]["q"]["kernel"]
    assert (tuple(q["a"].spec), tuple(q["b"].spec)) == ((None, "fsdp", None), (None, None, "tensor"))
    assert jax.tree.structure(places) == jax.tree.structure(lora.abstract_params(nano, LORA))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rank": -1}, "rank"),
        ({"alpha": 0.0}, "alpha"),
        ({"pattern": "("}, "pattern"),
        ({"pattern": "text/layer/.*"}, "none of the parameters"),
        ({"pattern": "text/norm/scale"}, "no kernel"),
        ({"pattern": "text/layers/gate_up/kernel"}, "no kernel"),
    ],
)
def test_what_cannot_work(fields, message):
    with pytest.raises(ConfigError, match=message):
        config = LoraConfig(**{"rank": 2, **fields})
        lora.init(config, qwen_vl.abstract_params(model_config.get_preset("nano-moe")), jax.random.key(0))


def test_a_state_of_lora_wants_adapters(model, optimizer, mesh, params):
    with pytest.raises(CheckpointError, match="lora/text/layers/q/kernel/a"):
        train_state.create_state(model, lora.train_adapters_only(optimizer, LORA), mesh, params, LORA)


def test_a_frozen_tower_costs_no_backward_pass(model, optimizer, mesh, make_batch):
    """FLOPs that XLA counts: freezing the tower saves about twice its forward pass."""
    batch, abstract = make_batch(0), qwen_vl.abstract_params(model)
    loss = supervised_loss(model)

    def flops(function, *arguments):
        return jax.jit(function).lower(*arguments).cost_analysis()["flops"]

    def gradient(rules):
        own = dataclasses.replace(optimizer, learning_rate_rules=rules)
        return flops(steps.gradient_step(loss, model, own, mesh), abstract, batch)

    tower = flops(lambda p, b: qwen_vl.encode_images(model, p, b), abstract, batch)
    saved = gradient(()) - gradient(((r"vision/.*", 0.0),))
    assert 1.5 * tower < saved < 2.5 * tower  # a backward pass has two products for each one of the forward pass
