"""Packed rows give the per-token losses and the gradients of the same examples alone."""

import dataclasses

import jax
import numpy as np
import pytest

from gui_owl_jax.models import layout, qwen_vl
from gui_owl_jax.models.config import get_preset
from gui_owl_jax.ops.cross_entropy import token_logps

NANO = get_preset("nano")
CONFIG = dataclasses.replace(
    NANO,
    vision=dataclasses.replace(NANO.vision, mlp_width=96, num_position_embeddings=49),
    text=dataclasses.replace(NANO.text, layers=2, mlp_width=160),
    tie_word_embeddings=False,
)
# Text lengths and image grids; two examples hold two images of different sizes, one holds none.
PLANS = [[3, (4, 6), 7], [9], [2, (2, 2), 1, (6, 4), 6], [5, (2, 8), 5], [1, (4, 4), (2, 6), 8]]


@pytest.fixture(scope="module")
def examples(random_example):
    rng = np.random.default_rng(0)
    return [random_example(rng, CONFIG, plan) for plan in PLANS]


def losses_and_gradients(config, params, examples, rows, token_budget, patch_budget):
    """Per-token log-probabilities by example, and the gradient of the loss normalised over all examples."""
    batch = layout.lay_out_rows([[examples[i] for i in row] for row in rows], config, token_budget, patch_budget)

    def loss(params):
        hidden = qwen_vl.hidden_states(config, params, batch)
        kernel = qwen_vl.head_kernel(config, params)
        logps, _ = token_logps(hidden[:, :-1], kernel, batch["tokens"][:, 1:], chunk=16)
        mask = batch["loss_mask"][:, 1:]
        return -(logps * mask).sum() / mask.sum(), logps

    # Compiled in haste: this runs once.
    compiled = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options={"xla_backend_optimization_level": 0})
    (value, logps), gradients = compiled(params)
    by_example = {}
    for b, row in enumerate(rows):
        for segment, index in enumerate(row, start=1):
            inside = np.flatnonzero(batch["segment_ids"][b] == segment)[:-1]
            by_example[index] = np.asarray(logps[b])[inside]
    return float(value), by_example, gradients


@pytest.fixture(scope="module")
def alone(examples):
    params = qwen_vl.init_params(CONFIG, jax.random.key(1))
    rows = [[i] for i in range(len(examples))]
    return params, losses_and_gradients(CONFIG, params, examples, rows, 40, 44)


@pytest.mark.parametrize(
    ("rows", "token_budget", "patch_budget", "window"),
    [
        ([[0, 1, 2], [3, 4]], 64, 52, 0),
        ([[4, 2, 0, 3, 1]], 120, 128, 0),
        ([[3, 1, 4], [], [2, 0]], 70, 96, 24),
    ],
    ids=["two rows", "one row", "windows and an empty row"],
)
def test_packing_changes_nothing(examples, alone, rows, token_budget, patch_budget, window):
    params, (value, logps, gradients) = alone
    config = dataclasses.replace(CONFIG, vision=dataclasses.replace(CONFIG.vision, window=window))
    found = losses_and_gradients(config, params, examples, rows, token_budget, patch_budget)
    assert abs(found[0] - value) < 1e-5
    for index in range(len(examples)):
        np.testing.assert_allclose(found[1][index], logps[index], rtol=0, atol=1e-5)
    for (path, own), expected in zip(jax.tree.leaves_with_path(found[2]), jax.tree.leaves(gradients)):
        np.testing.assert_allclose(own, expected, rtol=0, atol=1e-5, err_msg=jax.tree_util.keystr(path))
        assert np.abs(expected).max() > 1e-4 or "qkv" in jax.tree_util.keystr(path), path
