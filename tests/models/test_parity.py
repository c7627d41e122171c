"""Parity with transformers in float32, and proof that the check sees each known fault."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gui_owl_jax.hf import names
from gui_owl_jax.models import layout, qwen_vl, rope, text, vision
from gui_owl_jax.ops.cross_entropy import token_logps


@pytest.mark.parametrize("name", ["text", "images", "batch"])
def test_matches_reference(reference_case, parity, tolerance, name):
    found = parity(reference_case(name))
    assert found.keys() >= ({"logits"} if name == "text" else {"logits", "vision", "positions"})
    if name == "images":
        assert "deepstack0" in found and "deepstack1" in found
    assert max(found.values()) <= tolerance, found


def test_compiled_and_packed_matches_reference(reference_case, parity, compiled_tolerance):
    found = parity(reference_case("batch"), packed=True, compiled=True)
    assert max(found.values()) <= compiled_tolerance, found


def test_greedy_decoding_with_cache(reference_case, reference_folder, compiled_tolerance):
    case, expected = reference_case("images"), np.load(reference_folder / "generate_and_grad.npz")
    config, prompt = case.config, case.examples[0]
    length = len(prompt.tokens)
    # Two rows: the prompt, and a shorter one, so that lengths differ inside the batch.
    short = layout.Example(prompt.tokens[:3], np.zeros(3, np.float32))
    batch = layout.lay_out_prompts([prompt, short], config, length + 2, prompt.patch_count)

    @jax.jit
    def first(params):
        hidden, cache = qwen_vl.prefill(config, params, batch, length + 8)
        return qwen_vl.logits(config, params, hidden), cache

    @jax.jit
    def step(params, cache, tokens, i):
        positions, slots = batch["next_position"] + i, batch["lengths"] + i
        hidden, cache = qwen_vl.decode_step(config, params, cache, tokens, positions, slots)
        return qwen_vl.logits(config, params, hidden), cache

    logits, cache = first(case.params)
    for i, reference in enumerate(expected["step_logits"][0]):
        np.testing.assert_allclose(logits[0], reference, rtol=0, atol=compiled_tolerance)
        tokens = logits.argmax(axis=-1)
        assert int(tokens[0]) == expected["sequences"][0, length + i]
        logits, cache = step(case.params, cache, tokens, i)


def test_loss_and_gradient_norms(reference_case, reference_folder):
    case, expected = reference_case("images"), np.load(reference_folder / "generate_and_grad.npz")
    config, example = case.config, case.examples[0]
    mask = (expected["labels"][0] != -100).astype(np.float32)
    example = layout.Example(example.tokens, mask, example.images)
    batch = layout.lay_out_rows([[example]], config, len(mask), example.patch_count)

    def loss(params):
        hidden = qwen_vl.hidden_states(config, params, batch)
        kernel = qwen_vl.head_kernel(config, params)
        logps, _ = token_logps(hidden[:, :-1], kernel, batch["tokens"][:, 1:], chunk=7)
        return -(logps * batch["loss_mask"][:, 1:]).sum() / batch["loss_mask"].sum()

    value, gradients = jax.jit(jax.value_and_grad(loss))(case.params)
    np.testing.assert_allclose(value, expected["loss"], rtol=1e-4)
    slots = names.slots(config)
    assert set(expected["grad_names"]) == set(slots)
    for name, norm in zip(expected["grad_names"].tolist(), expected["grad_norms"].tolist()):
        gradient = functools.reduce(dict.__getitem__, slots[name].path, gradients)
        if slots[name].layer is not None:
            gradient = gradient[slots[name].layer]
        own = float(jnp.linalg.norm(gradient.ravel()))
        # The key part of the qkv bias has no gradient in exact arithmetic; the floor covers its rounding.
        np.testing.assert_allclose(own, norm, rtol=1e-4, atol=1e-6, err_msg=name)


# ------------------------------------------------------------------------------------------ injected faults


def _raster_order(grid, merge):
    rows, columns = np.indices(grid, dtype=np.int32)
    return np.stack([rows.ravel(), columns.ravel()], axis=-1)


def _half_pixel_coordinates(index, length, side):
    return np.clip((index + np.float32(0.5)) * np.float32(side / length) - np.float32(0.5), 0, side - 1)


def _bf16_interpolation(table, index, weight):
    return jnp.einsum("bpkd,bpk->bpd", table.astype(jnp.bfloat16)[index], weight.astype(jnp.bfloat16))


def _deepstack_then_layer(h, run_layer, features, visual_index):
    return run_layer(text.place_features(h, features, visual_index, add=True))


def _one_block_early(config):
    ends = list(config.deepstack_indexes)
    return list(zip([0, *ends], [*ends, config.blocks]))


FAULTS = {
    "tanh GELU in mergers": (vision, "merger_activation", lambda x: jax.nn.gelu(x, approximate=True)),
    "exact GELU in blocks": (vision, "block_activation", lambda x: jax.nn.gelu(x, approximate=False)),
    "raster-order rope": (layout, "rotary_coordinates", _raster_order),
    "no mask between images": (vision, "image_segments", lambda ids: jnp.minimum(ids, 1)),
    "align_corners=False": (layout, "table_coordinates", _half_pixel_coordinates),
    "position table in bf16": (vision, "interpolate", _bf16_interpolation),
    "DeepStack enters one layer early": (text, "layer_then_deepstack", _deepstack_then_layer),
    "DeepStack tapped one block early": (vision, "tapped_spans", _one_block_early),
    "chunked MRoPE": (rope, "mrope_axes", lambda section: np.repeat(np.arange(3), section)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_sees_the_fault(reference_case, parity, tolerance, monkeypatch, fault):
    """The check of `test_matches_reference`, which passes without the fault."""
    monkeypatch.setattr(*FAULTS[fault])
    found = parity(reference_case("images"))
    assert max(found.values()) > tolerance, found
