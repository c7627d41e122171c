from __future__ import annotations

import dataclasses
import json

import jax
import numpy as np
import pytest

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.hf import names
from gui_owl_jax.hf.checkpoint import load_config
from gui_owl_jax.models.config import get_preset
from gui_owl_jax.models.qwen_vl import abstract_params

NANO = ("nano", "nano-moe", "nano-qwen2.5")


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_vl_moe", "qwen2_5_vl"])
def test_table_covers_the_reference_checkpoint(conformance, family):
    """Names and stored shapes are those of a model that transformers saved."""
    reference = json.loads((conformance / "qwen_vl" / "MANIFEST.json").read_text())["files"][family]
    slots = names.slots(load_config(conformance / "qwen_vl" / family), "transformers")
    assert {name: list(slot.shape) for name, slot in slots.items()} == {n: shape for n, (shape, _) in reference.items()}


def test_every_parameter_is_filled_exactly_once(model):
    config, _ = model
    for layout in names.EXPERT_LAYOUTS:
        counts = jax.tree.map(lambda a: np.zeros(a.shape, np.int32), abstract_params(config))
        for slot in names.slots(config, layout).values():
            leaf = names.leaf(counts, slot.path)
            leaf[... if slot.layer is None else slot.layer] += slot.to_param(np.ones(slot.shape, np.int32))
        assert all((leaf == 1).all() for leaf in jax.tree.leaves(counts))


def test_a_tower_without_deepstack():
    nano = get_preset("nano")
    config = dataclasses.replace(nano, vision=dataclasses.replace(nano.vision, deepstack_indexes=()))
    dropped = names.slots(nano).keys() - names.slots(config).keys()
    assert dropped and all("deepstack" in name for name in dropped)


@pytest.mark.parametrize("preset", NANO)
@pytest.mark.parametrize("layout", names.EXPERT_LAYOUTS)
def test_forms_are_inverse(preset, layout):
    slots = names.slots(get_preset(preset), layout)
    rng = np.random.default_rng(0)
    for slot in slots.values():
        stored = rng.standard_normal(slot.shape)
        np.testing.assert_array_equal(slot.to_stored(slot.to_param(stored)), stored)
        assert np.shares_memory(slot.to_param(stored), stored)  # a view: parts of a file can be taken from it


def test_kernels_are_transposed():
    slots = names.slots(get_preset("nano"))
    rng = np.random.default_rng(0)
    q = slots["model.language_model.layers.1.self_attn.q_proj.weight"]
    stored = rng.standard_normal(q.shape)
    assert q.layer == 1 and q.to_param(stored)[3, 5] == stored[5, 3]
    # The convolution's kernel [D, C, tp, p, p] is read as a matrix whose row is ((c*tp + t)*p + y)*p + x.
    conv = slots["model.visual.patch_embed.proj.weight"]
    stored = rng.standard_normal(conv.shape)
    _, _, tp, p, _ = conv.shape
    assert conv.to_param(stored)[((2 * tp + 1) * p + 4) * p + 7, 9] == stored[9, 2, 1, 4, 7]


def test_experts_in_both_layouts():
    """Of expert 5: [input 7] to [gate or up, hidden unit 11], and [hidden unit 11] to [output 7]."""
    config = get_preset("nano-moe")
    width, layer = config.text.moe.width, "model.language_model.layers.2.mlp"
    rng = np.random.default_rng(0)
    for layout in names.EXPERT_LAYOUTS:
        slots = names.slots(config, layout)
        fused, down = slots[f"{layer}.experts.gate_up_proj"], slots[f"{layer}.experts.down_proj"]
        stored, hub = rng.standard_normal(fused.shape), layout == "hub"
        gate, up = fused.to_param(stored)[5, 7, :, 11]
        assert gate == (stored[5, 7, 11] if hub else stored[5, 11, 7])
        assert up == (stored[5, 7, width + 11] if hub else stored[5, width + 11, 7])
        stored = rng.standard_normal(down.shape)
        assert down.to_param(stored)[5, 11, 7] == (stored[5, 11, 7] if hub else stored[5, 7, 11])
        assert slots[f"{layer}.gate.weight"].path == ("text", "layers", "router", "kernel")
    with pytest.raises(ConfigError, match="expert layout 'theirs' is unknown"):
        names.slots(config, "theirs")


def test_spellings():
    pairs = {
        "visual.blocks.0.norm1.weight": "model.visual.blocks.0.norm1.weight",
        "model.layers.3.mlp.up_proj.weight": "model.language_model.layers.3.mlp.up_proj.weight",
        "model.embed_tokens.weight": names.EMBEDDING,
        "model.norm.weight": "model.language_model.norm.weight",
        "lm_head.weight": names.HEAD,
    }
    for old, new in pairs.items():
        assert names.canonical(old) == new == names.canonical(new)


@pytest.mark.parametrize("preset", NANO)
def test_names_of_the_family(preset):
    """Qwen2.5-VL files have no common root; canonical names are distinct in every family."""
    slots = names.slots(get_preset(preset))
    roots = {name.split(".")[0] for name in slots} - {"lm_head"}
    assert roots == ({"visual", "model"} if preset == "nano-qwen2.5" else {"model"})
    assert len({names.canonical(name) for name in slots}) == len(slots)


def test_tied_models_have_no_head():
    assert names.HEAD not in names.slots(get_preset("2b"))
    assert names.slots(get_preset("8b"))[names.HEAD].shape == (151_936, 4096)
