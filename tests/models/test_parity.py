"""Parity with transformers in float32, and proof that the check sees each known fault."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gui_owl_jax.hf import names
from gui_owl_jax.models import layout, qwen_vl, rope, text, vision
from gui_owl_jax.ops.cross_entropy import token_logps


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
@pytest.mark.parametrize("name", ["text", "images", "batch"])
def test_matches_reference(reference_case, parity, name, packed):
    differences, tolerance = parity
    found = differences(reference_case(name), packed=packed)
    assert found.keys() >= ({"logits"} if name == "text" else {"logits", "vision", "positions"})
    if name == "images":
        assert "deepstack0" in found and "deepstack1" in found
    assert max(found.values()) <= tolerance, found


def test_greedy_decoding_with_cache(reference_case, reference_folder):
    case = reference_case("images")
    expected = np.load(reference_folder / "generate_and_grad.npz")["sequences"][0]
    config, prompt = case.config, case.examples[0]
    length = len(prompt.tokens)
    # Two rows: the prompt, and a shorter one, so that lengths differ inside the batch.
    short = layout.Example(prompt.tokens[:3], np.zeros(3, np.float32))
    batch = layout.lay_out_prompts([prompt, short], config, length + 2, prompt.patch_count)
    hidden, cache = qwen_vl.prefill(config, case.params, batch, length + 20)
    step = jax.jit(lambda *arguments: qwen_vl.decode_step(config, case.params, *arguments))
    sampled = []
    for i in range(len(expected) - length):
        tokens = qwen_vl.logits(config, case.params, hidden).argmax(axis=-1)
        sampled.append(int(tokens[0]))
        hidden, cache = step(cache, tokens, batch["next_position"] + i, batch["lengths"] + i)
    np.testing.assert_array_equal(sampled, expected[length:])


def test_decoding_equals_teacher_forcing(reference_case):
    """Every token behind the images, read one by one through the cache, gives the logits of the whole sequence."""
    case = reference_case("images")
    config, example = case.config, case.examples[0]
    length, tail = len(example.tokens), 5
    prompt = layout.Example(example.tokens[:-tail], np.zeros(length - tail, np.float32), example.images)
    batch = layout.lay_out_prompts([prompt], config, length, example.patch_count)
    hidden, cache = qwen_vl.prefill(config, case.params, batch, length)
    step = jax.jit(lambda *arguments: qwen_vl.decode_step(config, case.params, *arguments))
    expected = case.reference["out_logits"][0]
    for i in range(tail):
        own = qwen_vl.logits(config, case.params, hidden)[0]
        np.testing.assert_allclose(own, expected[length - tail + i - 1], atol=2e-5)
        token = jnp.asarray(example.tokens[length - tail + i : length - tail + i + 1])
        hidden, cache = step(cache, token, batch["next_position"] + i, batch["lengths"] + i)
    np.testing.assert_allclose(qwen_vl.logits(config, case.params, hidden)[0], expected[-1], atol=2e-5)


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
        gradient = names.get(gradients, slots[name].path)
        if slots[name].layer is not None:
            gradient = gradient[slots[name].layer]
        own = float(jnp.linalg.norm(gradient.ravel()))
        if name.endswith("patch_embed.proj.weight"):
            # Both frames see the same pixels, and the kernel of each gets the same gradient.
            assert own > 0
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
def test_the_check_sees_the_fault(reference_case, parity, monkeypatch, fault):
    differences, tolerance = parity
    monkeypatch.setattr(*FAULTS[fault])
    found = differences(reference_case("images"))
    assert max(found.values()) > tolerance, found
