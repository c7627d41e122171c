"""Live comparison with transformers on random models of several shapes (`-m parity`, needs torch)."""

import importlib.util
import json

import jax
import numpy as np
import pytest

from gui_owl_jax.hf.checkpoint import import_hf

pytestmark = pytest.mark.parity

# Changes to the golden model's settings: head widths, groupings, merge and patch sizes, DeepStack levels, tied heads.
SHAPES = {
    "published proportions": dict(
        text=dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_hidden_layers=4,
                  rope_theta=5e6, rope_scaling=dict(rope_type="default", mrope_interleaved=True,
                                                    mrope_section=[6, 5, 5])),
        vision=dict(patch_size=8, spatial_merge_size=2, depth=4, hidden_size=32, num_heads=2, out_hidden_size=64,
                    num_position_embeddings=49, deepstack_visual_indexes=[0, 1, 3]),
        tied=True,
    ),
    "one key head, one level": dict(
        text=dict(num_key_value_heads=1, num_hidden_layers=2),
        vision=dict(deepstack_visual_indexes=[4], num_heads=4),
        tied=False,
    ),
    "no grouping, a level per layer": dict(
        text=dict(num_key_value_heads=6, hidden_size=40),
        vision=dict(deepstack_visual_indexes=[0, 2, 4], out_hidden_size=40, spatial_merge_size=1, patch_size=6),
        tied=False,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def maker(golden):
    pytest.importorskip("torch", reason="the live comparison needs torch: bash tests/run.sh parity")
    spec = importlib.util.spec_from_file_location("make_golden", golden / "make_golden.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
@pytest.mark.parametrize("name", SHAPES)
def test_matches_transformers(maker, case_from_arrays, parity, tmp_path, tolerance, compiled_tolerance, name, packed):
    shape = SHAPES[name]
    text, vision = maker.TEXT | shape["text"], maker.VISION | shape["vision"]
    model = maker.build(text, vision, tied=shape["tied"], seed=len(name))
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] == shape["tied"]
    config, params = import_hf(tmp_path)

    rng, merge = np.random.default_rng(len(name)), vision["spatial_merge_size"]
    small, wide, tall = (merge, merge), (2 * merge, 5 * merge), (4 * merge, 3 * merge)
    plans = [[3, wide, 1, small, 6], [12], [1, tall, 4]]
    grids, rows = [wide, small, tall], [maker.sequence(rng, plan, merge) for plan in plans]
    patches = [maker.random_patches(rng, grid, vision) for grid in grids]
    inputs = maker.reference_inputs(rows, patches, grids, vision)
    outputs = maker.reference_outputs(model, inputs)
    arrays = {key: value.numpy() for key, value in inputs.items() if key != "pixel_values"}
    arrays["patches"] = np.concatenate(patches)
    case = case_from_arrays(config, jax.tree.map(jax.numpy.asarray, params), arrays | outputs)
    found = parity(case, packed=packed, compiled=packed)
    assert len(found) == 3 + len(config.vision.deepstack_indexes)
    assert max(found.values()) <= (compiled_tolerance if packed else tolerance), found
