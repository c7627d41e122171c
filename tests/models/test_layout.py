"""Host-side layout: worked examples, brute force, packing, and what is refused."""

import dataclasses

import numpy as np
import pytest

from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.models import layout
from gui_owl_jax.models.config import get_preset

CONFIG = get_preset("nano")
START, PAD, END = CONFIG.vision_start_token_id, CONFIG.image_token_id, CONFIG.vision_end_token_id
COLUMNS = CONFIG.vision.patch_columns


def image(grid, value=0):
    return layout.ImagePatches(np.full((grid[0] * grid[1], COLUMNS), value, np.uint8), grid)


def example(tokens, *images, mask=None, extras=None, **kwargs):
    tokens = np.array(tokens, np.int32)
    mask = np.zeros(len(tokens), np.float32) if mask is None else np.array(mask, np.float32)
    return layout.Example(tokens, mask, images, extras or {}, **kwargs)


def test_merge_order():
    expected = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]
    np.testing.assert_array_equal(layout.merge_order((2, 4), 2), expected)
    order = layout.merge_order((6, 9), 3)
    assert len({tuple(rc) for rc in order.tolist()}) == 54
    for block in order.reshape(-1, 9, 2):
        assert (block // 3 == block[0] // 3).all()


@pytest.mark.parametrize(("grid", "side"), [((4, 6), 12), ((2, 2), 5), ((16, 20), 7)])
def test_table_corners_reconstruct_the_position(grid, side):
    """The corners' coordinates, weighted, give back the point; align_corners: first and last patch meet the ends."""
    index, weight = layout.table_corners(grid, 2, side)
    assert index.dtype == np.int32 and weight.dtype == np.float32
    assert index.min() >= 0 and index.max() < side * side and (weight >= 0).all()
    point = np.stack([index // side, index % side], axis=-1)
    reached = (point * weight[..., None]).sum(axis=1)
    scale = (side - 1) / (np.array(grid) - 1)
    np.testing.assert_allclose(reached, layout.merge_order(grid, 2) * scale, atol=1e-5)
    np.testing.assert_allclose(weight.sum(axis=1), 1, atol=1e-6)


def test_rope_positions_of_text_and_image():
    positions, following = layout.rope_positions(10, [layout.VisualRun(3, 1, 2, 3)])
    np.testing.assert_array_equal(
        positions.T,
        [[0, 1, 2, 3, 3, 3, 3, 3, 3, 6], [0, 1, 2, 3, 3, 3, 4, 4, 4, 6], [0, 1, 2, 3, 4, 5, 3, 4, 5, 6]],
    )
    assert following == 7


def test_rope_positions_without_images():
    positions, following = layout.rope_positions(4, [])
    np.testing.assert_array_equal(positions, np.arange(4)[:, None].repeat(3, axis=1))
    assert following == 4


def test_image_runs_skip_stray_pads():
    # A sampled lone pad, and a sampled run of another length, come before the image of two merged tokens.
    tokens = [5, PAD, START, PAD, END, START, PAD, PAD, END, 6]
    assert layout.image_runs(example(tokens, image((2, 4))), CONFIG) == [layout.VisualRun(6, 1, 1, 2)]
    # Given starts win: two equal runs, the second is the image.
    twice = [START, PAD, END, START, PAD, END]
    assert layout.image_runs(example(twice, image((2, 2))), CONFIG) == [layout.VisualRun(1, 1, 1, 1)]
    assert layout.image_runs(example(twice, image((2, 2)), image_starts=(4,)), CONFIG) == [layout.VisualRun(4, 1, 1, 1)]


def test_stray_pads_are_ordinary_tokens():
    batch = layout.lay_out_rows([[example([START, PAD, END, PAD, START, PAD, END], image((2, 2)))]], CONFIG, 8, 4)
    np.testing.assert_array_equal(batch["visual_index"][0], [-1, 0, -1, -1, -1, -1, -1, -1])
    np.testing.assert_array_equal(batch["positions"][0, :7, 0], np.arange(7))


def test_two_examples_share_a_row():
    first = example([1, START, PAD, PAD, END, 2], image((2, 4), 7), mask=[0, 0, 0, 0, 0, 1], extras={"a": np.arange(6)})
    second = example([3, START, PAD, END], image((2, 2), 9), mask=[0, 0, 0, 2], extras={"a": np.arange(4) + 10})
    batch = layout.lay_out_rows([[first, second], []], CONFIG, 12, 16)
    np.testing.assert_array_equal(batch["tokens"][0], [1, START, PAD, PAD, END, 2, 3, START, PAD, END, 0, 0])
    np.testing.assert_array_equal(batch["segment_ids"][0], [1] * 6 + [2] * 4 + [0, 0])
    np.testing.assert_array_equal(batch["positions"][0, :, 0], [0, 1, 2, 2, 4, 5, 0, 1, 2, 3, 0, 0])
    np.testing.assert_array_equal(batch["positions"][0, :, 2], [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 0, 0])
    np.testing.assert_array_equal(batch["loss_mask"][0], [0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0])
    np.testing.assert_array_equal(batch["visual_index"][0], [-1, -1, 0, 1, -1, -1, -1, -1, 2, -1, -1, -1])
    np.testing.assert_array_equal(batch["patch_segment_ids"][0], [1] * 8 + [2] * 4 + [0] * 4)
    np.testing.assert_array_equal(batch["patches"][0, :, 0], [7] * 8 + [9] * 4 + [0] * 4)
    np.testing.assert_array_equal(batch["patch_coords"][0, 8:12], [(0, 0), (0, 1), (1, 0), (1, 1)])
    np.testing.assert_array_equal(batch["a"][0], [*range(6), 10, 11, 12, 13, 0, 0])
    for name, array in batch.items():
        assert array.shape[0] == 2, name
        assert not array[1].any() or name == "visual_index"


def test_windows_keep_images_whole():
    assert layout.place_images([40, 40, 20], 64) == ([0, 64, 104], 124)
    assert layout.place_images([40, 40, 20], 0) == ([0, 40, 80], 100)
    with pytest.raises(DataError, match="window"):
        layout.place_images([65], 64)
    windowed = dataclasses.replace(CONFIG, vision=dataclasses.replace(CONFIG.vision, window=8))
    pair = example([START, PAD, END, START, PAD, PAD, END], image((2, 2), 1), image((2, 4), 2))
    batch = layout.lay_out_rows([[pair]], windowed, 8, 16)
    np.testing.assert_array_equal(batch["patch_segment_ids"][0], [1] * 4 + [0] * 4 + [2] * 8)
    np.testing.assert_array_equal(batch["visual_index"][0], [-1, 0, -1, -1, 2, 3, -1, -1])
    assert not layout.fits([], pair, windowed, 8, 12) and layout.fits([], pair, CONFIG, 8, 12)


def test_first_fit_by_both_budgets():
    long, pictured, small = example([1] * 6), example([START, PAD, PAD, END], image((2, 4))), example([2] * 3)
    examples = [long, pictured, pictured, small, small]
    filled, left = layout.assign(examples, CONFIG, rows=2, token_budget=9, patch_budget=8)
    assert (filled, left) == ([[0, 3], [1, 4]], [2])
    batch, left = layout.pack(examples, CONFIG, rows=2, token_budget=9, patch_budget=8)
    assert left == [2] and batch["tokens"].shape == (2, 9)
    np.testing.assert_array_equal(batch["segment_ids"], [[1] * 6 + [2] * 3, [1] * 4 + [2] * 3 + [0] * 2])


def test_prompts_tell_length_and_next_position():
    pictured = example([1, START, *[PAD] * 6, END], image((4, 6)))
    batch = layout.lay_out_prompts([pictured, example([1, 2])], CONFIG, 12, 24)
    np.testing.assert_array_equal(batch["lengths"], [9, 2])
    np.testing.assert_array_equal(batch["next_position"], [2 + 3 + 1, 2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layout.ImagePatches(np.zeros((8, 4), np.uint8), (2, 2)), "grid"),
        (lambda: layout.ImagePatches(np.zeros((4, 4), np.float32), (2, 2)), "uint8"),
        (lambda: example([]), "non-empty"),
        (lambda: example([1, 2], mask=[1, 0]), "first token"),
        (lambda: example([1, 2], mask=[0]), "loss_mask"),
        (lambda: example([1, 2], extras={"a": np.zeros(3)}), "a has shape"),
        (lambda: example([1, 2], image_starts=(0,)), "image_starts"),
    ],
)
def test_malformed_examples(make, message):
    with pytest.raises(DataError, match=message):
        make()


@pytest.mark.parametrize(
    ("rows", "budgets", "message"),
    [
        ([[example([START, PAD, END], image((2, 4)))]], (8, 8), "run of 2 image pads"),
        ([[example([START, PAD, PAD], image((2, 4)))]], (8, 8), "run of 2 image pads"),
        ([[example([START, PAD, PAD, END], image((2, 4)), image_starts=(2,))]], (8, 8), "token 2"),
        ([[example([1] * 9)]], (8, 8), "9 tokens"),
        ([[example([START, PAD, PAD, END], image((2, 4)))]], (8, 4), "8 patches"),
        ([[example([1])]], (8, 6), "multiple of 4"),
        ([[example([1], extras={"a": np.zeros(1)})], [example([1])]], (8, 8), "different extras"),
        ([[example([START, PAD, END], image((1, 4)))]], (8, 8), "merge size"),
        ([[example([START, PAD, END], layout.ImagePatches(np.zeros((4, 3), np.uint8), (2, 2)))]], (8, 8), "columns"),
    ],
)
def test_rows_that_cannot_be_laid_out(rows, budgets, message):
    with pytest.raises(DataError, match=message):
        layout.lay_out_rows(rows, CONFIG, *budgets)


def test_an_example_too_large_for_any_row_is_an_error():
    with pytest.raises(DataError, match="example 1 has 9 tokens"):
        layout.pack([example([1]), example([1] * 9)], CONFIG, rows=4, token_budget=8, patch_budget=4)
