from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from gui_owl_jax.hf import names
from gui_owl_jax.models.config import get_preset
from gui_owl_jax.models.qwen_vl import abstract_params


def test_table_covers_the_reference_checkpoint(conformance):
    """Names and stored shapes are those of a model that transformers saved."""
    from gui_owl_jax.hf.checkpoint import load_config

    reference = json.loads((conformance / "qwen_vl" / "MANIFEST.json").read_text())["files"]["qwen3_vl"]
    slots = names.slots(load_config(conformance / "qwen_vl" / "qwen3_vl"))
    assert {name: list(slot.shape) for name, slot in slots.items()} == {n: shape for n, (shape, _) in reference.items()}


@pytest.mark.parametrize("preset", ["2b", "4b", "8b", "32b"])
def test_published_sizes_have_the_published_counts(conformance, preset):
    file = conformance / "qwen_configs" / f"Qwen3-VL-{preset.upper()}-{'Instruct'}.json"
    published = json.loads(file.read_text())["params"]
    slots = names.slots(get_preset(preset))
    assert len(slots) == published["tensors"]
    assert sum(int(np.prod(slot.shape)) for slot in slots.values()) == published["total"]


def test_every_parameter_is_filled_exactly_once(model):
    config, _ = model
    counts = jax.tree.map(lambda a: np.zeros(a.shape, np.int32), abstract_params(config))
    for slot in names.slots(config).values():
        leaf = names.leaf(counts, slot.path)
        leaf[... if slot.layer is None else slot.layer] += slot.to_param(np.ones(slot.shape, np.int32))
    assert all((leaf == 1).all() for leaf in jax.tree.leaves(counts))


def test_forms_are_inverse_and_transposed():
    slots = names.slots(get_preset("nano"))
    rng = np.random.default_rng(0)
    for slot in slots.values():
        stored = rng.standard_normal(slot.shape)
        np.testing.assert_array_equal(slot.to_stored(slot.to_param(stored)), stored)
    q = slots["model.language_model.layers.1.self_attn.q_proj.weight"]
    stored = rng.standard_normal(q.shape)
    assert q.layer == 1 and q.to_param(stored)[3, 5] == stored[5, 3]
    # The convolution's kernel [D, C, tp, p, p] is read as a matrix whose row is ((c*tp + t)*p + y)*p + x.
    conv = slots["model.visual.patch_embed.proj.weight"]
    stored = rng.standard_normal(conv.shape)
    _, _, tp, p, _ = conv.shape
    assert conv.to_param(stored)[((2 * tp + 1) * p + 4) * p + 7, 9] == stored[9, 2, 1, 4, 7]


def test_old_spellings():
    pairs = {
        "visual.blocks.0.norm1.weight": "model.visual.blocks.0.norm1.weight",
        "model.layers.3.mlp.up_proj.weight": "model.language_model.layers.3.mlp.up_proj.weight",
        "model.embed_tokens.weight": names.EMBEDDING,
        "model.norm.weight": "model.language_model.norm.weight",
        "lm_head.weight": names.HEAD,
    }
    for old, new in pairs.items():
        assert names.canonical(old) == new == names.canonical(new)


def test_tied_models_have_no_head():
    assert names.HEAD not in names.slots(get_preset("2b"))
    assert names.slots(get_preset("8b"))[names.HEAD].shape == (151_936, 4096)
