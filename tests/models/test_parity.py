"""Parity with transformers in float32, and proof that the check sees each known fault."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gui_owl_jax.hf import names
from gui_owl_jax.models import layout, moe, qwen_vl, rope, text, vision, vision_windows
from gui_owl_jax.ops.cross_entropy import token_logps


@pytest.mark.parametrize("name", ["text", "images", "batch", "video"])
def test_matches_reference(reference_case, parity, tolerance, video_tolerance, name):
    case = reference_case(name)
    found = parity(case)
    wanted = {"logits"} if name == "text" else {"logits", "vision", "positions"}
    if name == "images" and case.config.vision.deepstack_indexes:
        wanted |= {"deepstack0", "deepstack1"}
    if name == "images" and "out_rope_cos" in case.reference:
        wanted |= {"rope cos", "rope sin", "vision rope cos", "vision rope sin"}
    if case.config.text.moe:
        wanted |= {"router0", "router1", "router2"} | ({"balance loss"} if name != "batch" else set())
    assert found.keys() >= wanted
    assert max(found.values()) <= (video_tolerance if name == "video" else tolerance), found


def test_both_rules_of_what_follows_a_video(reference_case, parity, tolerance):
    """The files hold what transformers 5 computes, and what 4.57 computed, as "classic"."""
    case = reference_case("video")
    if "position_ids_classic" not in case.reference:
        pytest.skip("the rules differ for Qwen2.5-VL alone")
    classic = {name: case.reference[f"{name}_classic"] for name in ("position_ids",)}
    classic["out_logits"] = case.reference["out_logits_classic"]
    found = parity(dataclasses.replace(case, reference=dict(case.reference) | classic), rule="largest")
    assert max(found.values()) <= tolerance, found
    assert parity(case, rule="largest")["positions"] > 0


def test_compiled_and_packed_matches_reference(reference_case, parity, compiled_tolerance):
    found = parity(reference_case("batch"), packed=True, compiled=True)
    assert max(found.values()) <= compiled_tolerance, found


def decode_greedily(case, expected, *, forget_delta=False):
    """Largest difference of each step's logits, and the chosen ids; `forget_delta` counts positions like tokens."""
    config, prompt = case.config, case.examples[0]
    length = len(prompt.tokens)
    # Two rows: the prompt, and a shorter one, so that lengths differ inside the batch.
    short = layout.Example(prompt.tokens[:3], np.zeros(3, np.float32))
    slots = sum(layout.patch_slots(image, config.vision) for image in prompt.images)
    batch = layout.lay_out_prompts([prompt, short], config, length + 2, slots)
    following = batch["lengths"] if forget_delta else batch["next_position"]

    @jax.jit
    def first(params):
        hidden, cache = qwen_vl.prefill(config, params, batch, length + 8)
        return qwen_vl.logits(config, params, hidden), cache

    @jax.jit
    def step(params, cache, tokens, i):
        positions, slots = following + i, batch["lengths"] + i
        hidden, cache = qwen_vl.decode_step(config, params, cache, tokens, positions, slots)
        return qwen_vl.logits(config, params, hidden), cache

    logits, cache = first(case.params)
    differences, chosen = [], []
    for i, reference in enumerate(expected["step_logits"][0]):
        differences.append(float(np.abs(logits[0] - reference).max()))
        tokens = logits.argmax(axis=-1)
        chosen.append(int(tokens[0]))
        logits, cache = step(case.params, cache, tokens, i)
    return differences, chosen


def test_greedy_decoding_with_cache(reference_case, reference_folder, compiled_tolerance):
    case, expected = reference_case("images"), np.load(reference_folder / "generate_and_grad.npz")
    differences, chosen = decode_greedily(case, expected)
    assert max(differences) <= compiled_tolerance, differences
    length = len(case.examples[0].tokens)
    assert chosen == expected["sequences"][0, length : length + len(chosen)].tolist()


def test_decoding_needs_the_rope_delta(reference_case, reference_folder, compiled_tolerance):
    """A fault injected: the positions of new tokens do not go on where the prompt's ended."""
    case, expected = reference_case("images"), np.load(reference_folder / "generate_and_grad.npz")
    differences, _ = decode_greedily(case, expected, forget_delta=True)
    assert max(differences[:1]) <= compiled_tolerance < max(differences), differences


def test_loss_and_gradient_norms(reference_case, reference_folder):
    case, expected = reference_case("images"), np.load(reference_folder / "generate_and_grad.npz")
    config, example = case.config, case.examples[0]
    mask = (expected["labels"][0] != -100).astype(np.float32)
    example = layout.Example(example.tokens, mask, example.images)
    slots = sum(layout.patch_slots(image, config.vision) for image in example.images)
    batch = layout.lay_out_rows([[example]], config, len(mask), slots)

    def loss(params):
        hidden, kept = qwen_vl.forward(config, params, batch, keep=("load",))
        kernel = qwen_vl.head_kernel(config, params)
        logps, _ = token_logps(hidden[:, :-1], kernel, batch["tokens"][:, 1:], chunk=7)
        loss = -(logps * batch["loss_mask"][:, 1:]).sum() / batch["loss_mask"].sum()
        return loss + (config.text.moe.aux_weight * moe.balance_loss(kept.load) if config.text.moe else 0.0)

    value, gradients = jax.jit(jax.value_and_grad(loss))(case.params)
    np.testing.assert_allclose(value, expected["loss"], rtol=1e-4)
    slots = {names.canonical(name): slot for name, slot in names.slots(config).items()}
    expected_names = [names.canonical(name) for name in expected["grad_names"].tolist()]
    assert set(expected_names) == set(slots)
    for name, norm in zip(expected_names, expected["grad_norms"].tolist()):
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


def _slots_in_order(slots, merge):
    return np.flatnonzero(slots[:: merge**2] >= 0).astype(np.int32)


QWEN3 = {
    "tanh GELU in mergers": (vision, "merger_activation", lambda x: jax.nn.gelu(x, approximate=True)),
    "exact GELU in blocks": (vision, "block_activation", lambda x: jax.nn.gelu(x, approximate=False)),
    "align_corners=False": (layout, "table_coordinates", _half_pixel_coordinates),
    "position table in bf16": (vision, "interpolate", _bf16_interpolation),
    "DeepStack enters one layer early": (text, "layer_then_deepstack", _deepstack_then_layer),
    "DeepStack tapped one block early": (vision, "tapped_spans", _one_block_early),
    "chunked MRoPE": (rope, "mrope_axes", lambda section, interleaved: np.repeat(np.arange(3), section)),
}
ALL = {
    "raster-order rope": (layout, "rotary_coordinates", _raster_order),
    "no mask between images": (vision, "image_segments", lambda ids: jnp.minimum(ids, 1)),
}
MOE = {
    "unnormalised top-k": (moe, "share_out", lambda top: top),
    "gate and up swapped": (moe, "split_gate_up", lambda joint: (joint[:, 1], joint[:, 0])),
}
WINDOWS = {
    "window order not undone": (layout, "feature_order", _slots_in_order),
    "full-attention blocks ignored": (vision_windows, "attention_spans", lambda config: [(0, config.blocks, False)]),
    "no window at all": (vision_windows, "attention_spans", lambda config: [(0, config.blocks, True)]),
    "no mask between images (windows)": (vision_windows, "image_segments", lambda ids: jnp.minimum(ids, 1)),
    "tanh GELU in the merger": (vision_windows, "merger_activation", lambda x: jax.nn.gelu(x, approximate=True)),
}
FAULTS_OF = {"qwen3_vl": QWEN3 | ALL, "qwen3_vl_moe": QWEN3 | ALL | MOE, "qwen2_5_vl": WINDOWS}
FAULTS_OF["qwen2_5_vl"]["raster-order rope"] = ALL["raster-order rope"]
FAULTS = QWEN3 | ALL | MOE | WINDOWS


@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_sees_the_fault(reference_case, parity, tolerance, monkeypatch, fault):
    """The check of `test_matches_reference`, which passes without the fault."""
    case = reference_case("images")
    if fault not in FAULTS_OF[case.config.model_type]:
        pytest.skip("this variant has no such part")
    monkeypatch.setattr(*FAULTS[fault])
    found = parity(case)
    assert max(found.values()) > tolerance, found
