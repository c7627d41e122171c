from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from gui_owl_jax.agent.errors import CheckpointError, ConfigError, DataError
from gui_owl_jax.agent.prompts import Special
from gui_owl_jax.hf.images import ImageConfig, patchify, pixel_values
from gui_owl_jax.hf.video import (
    Video,
    VideoConfig,
    patchify_frames,
    sample_frames,
    timestamps,
    video_patches,
    video_pieces,
    video_size,
)
from gui_owl_jax.models.config import get_preset
from gui_owl_jax.models.layout import ImagePatches

QWEN3 = ImageConfig.for_model(get_preset("4b"))
QWEN25 = ImageConfig.for_model(get_preset("qwen2.5-3b"))
# The bounds of the reference fixtures.
SMALL3, SMALL25 = VideoConfig(4096, 262144), VideoConfig(3136, 50176)


def frames(count: int, height: int = 64, width: int = 96, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("total", "fps", "images", "expected"),
    [
        (30, 10.0, QWEN3, [0, 6, 12, 17, 23, 29]),
        (30, 10.0, QWEN25, [0, 5, 10, 15, 20, 25]),
        (10, 30.0, QWEN3, [0, 3, 6, 9]),  # four frames at least
        (10, 30.0, QWEN25, [0, 2, 5, 7]),
        (3, 1.0, QWEN3, [0, 1, 2]),  # but no more than there are
        (3, 1.0, QWEN25, [0, 1]),  # in pairs
        (6, 0.5, QWEN3, [0, 1, 2, 3, 4, 5]),  # slower than the wanted rate: all of them
        (6, 0.5, QWEN25, [0, 1, 2, 3, 4, 5]),
        (2, 2.0, QWEN25, [0, 1]),
    ],
)
def test_sampled_frames(total, fps, images, expected):
    assert sample_frames(total, fps, images, VideoConfig()).tolist() == expected


@pytest.mark.parametrize("images", [QWEN3, QWEN25], ids=lambda images: images.family)
def test_sampled_frames_ascend_within_the_video(images):
    rng = np.random.default_rng(0)
    for _ in range(500):
        total, fps = int(rng.integers(2, 30_000)), float(rng.uniform(0.2, 120))
        found = sample_frames(total, fps, images, VideoConfig(fps=float(rng.uniform(0.1, 8))))
        assert (np.diff(found) > 0).all() and found[0] == 0 and found[-1] < total
        assert min(total, 4) // 2 * 2 <= len(found) <= 768
    assert len(sample_frames(100_000, 1.0, images, VideoConfig(fps=1.0))) == 768


def test_half_way_indices_go_to_the_even_frame():
    config = VideoConfig(min_frames=3, max_frames=3)
    assert sample_frames(6, 1.0, QWEN3, config).tolist() == [0, 2, 5]  # 2.5
    assert sample_frames(8, 1.0, QWEN3, config).tolist() == [0, 4, 7]  # 3.5


def test_sizes_equal_the_published_ones(conformance):
    cases = json.loads((conformance / "qwen_vl" / "smart_resize.json").read_text())["smart_resize_video_qwen3"]
    assert len(cases) > 4
    for case in cases:
        assert video_size(case["t"], case["h"], case["w"], QWEN3, VideoConfig()) == tuple(case["out"])


def test_sizes_per_frame_or_for_all_frames():
    # A long Qwen3-VL video gets smaller frames, a Qwen2.5-VL video does not.
    sizes = {count: video_size(count, 1080, 1920, QWEN3, VideoConfig()) for count in (4, 64, 768)}
    assert sizes == {4: (1088, 1920), 64: (448, 832), 768: (128, 224)}
    per_frame = {count: video_size(count, 1080, 1920, QWEN25, VideoConfig.for_family("qwen2_5_vl")) for count in sizes}
    assert set(per_frame.values()) == {(560, 1008)}
    # Five frames count as four when the area is compared, and as five when the frames shrink.
    tight = VideoConfig(max_pixels=4 * 64 * 64)
    assert video_size(4, 64, 64, QWEN3, tight) == video_size(5, 64, 64, QWEN3, tight) == (64, 64)
    assert video_size(5, 64, 96, QWEN3, tight) == (32, 64)
    with pytest.raises(DataError, match="0 x 64"):
        video_size(4, 0, 64, QWEN3, VideoConfig())


@pytest.mark.parametrize("count", [2, 4, 5])
def test_patchify_against_loops(count):
    images = ImageConfig(patch_size=3, merge_size=2)
    video, (p, m, tp) = frames(count, 6, 12), (3, 2, 2)
    patches, (gt, gh, gw) = patchify_frames(video, images)
    assert (gt, gh, gw) == (-(-count // 2), 2, 4)
    assert patches.shape == (gt * gh * gw, 3 * tp * p * p) and patches.dtype == np.uint8
    for a in range(gt):
        for r in range(gh):
            for c in range(gw):
                row = a * gh * gw + ((r // m * (gw // m) + c // m) * m + r % m) * m + c % m
                for channel in range(3):
                    for t in range(tp):
                        frame = video[min(a * tp + t, count - 1)]  # the last one is repeated
                        block = frame[r * p : (r + 1) * p, c * p : (c + 1) * p, channel]
                        column = (channel * tp + t) * p * p
                        np.testing.assert_array_equal(patches[row, column : column + p * p], block.reshape(-1))


def test_a_still_video_has_the_pixels_of_an_image():
    still = np.repeat(frames(1), 2, axis=0)
    patches, _ = patchify_frames(still, QWEN3)
    moving = pixel_values(ImagePatches(patches, (4, 6), video=True), QWEN3)
    np.testing.assert_array_equal(moving, pixel_values(patchify(still[0], QWEN3), QWEN3))


def test_timestamps():
    assert timestamps([0, 1, 2, 3], 2.0, 2) == [0.25, 1.25]
    assert timestamps((0, 1, 2), 2.0, 2) == [0.25, 1.0]
    assert timestamps(np.array([0, 12, 24, 36]), 24.0, 2) == [0.25, 1.25]
    assert timestamps([0, 30, 60, 90], 10.0, 4) == [4.5]


@pytest.mark.parametrize(
    ("images", "config", "fps", "case"),
    [(QWEN3, SMALL3, 2.0, "qwen3_vl"), (QWEN25, SMALL25, 0.5, "qwen2_5_vl")],
    ids=["qwen3_vl", "qwen2_5_vl"],
)
def test_patches_equal_the_published_processor(conformance, images, config, fps, case):
    reference = np.load(conformance / "qwen_vl" / case / "case_video.npz")
    video = Video(np.load(conformance / "qwen_vl" / "images.npz")["video"], fps)
    parts = video_patches(video, images, config)
    gt, gh, gw = reference["video_grid_thw"][0].tolist()
    assert sum(part.frames for part in parts) == gt and all(part.grid == (gh, gw) and part.video for part in parts)
    assert len(parts) == (gt if case == "qwen3_vl" else 1)
    values = np.concatenate([pixel_values(part, images) for part in parts])
    expected = reference["pixel_values_videos"]
    if case == "qwen3_vl":  # nothing to resize; the reference multiplies out 1 / 255 and so rounds elsewhere
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-6)
    else:  # frames grow: its resampling differs by up to one grey level
        assert parts[0].seconds_per_patch == reference["second_per_grid_ts"][0]
        assert np.abs(values - expected).max() < 1.01 / 255 / min(images.std)
        assert np.abs(values - expected).mean() < 1e-4


def test_qwen3_pieces():
    start, end = Special("<|vision_start|>"), Special("<|vision_end|>")
    pieces = video_pieces(Video(frames(5), 2.0), QWEN3, SMALL3)
    assert [piece for piece in pieces if not isinstance(piece, ImagePatches)] == [
        *("<0.2 seconds>", start, end),
        *("<1.2 seconds>", start, end),
        *("<2.0 seconds>", start, end),
    ]
    shapes = [(p.frames, p.grid, p.video, p.patches.shape) for p in pieces if isinstance(p, ImagePatches)]
    assert shapes == [(1, (4, 6), True, (24, 1536))] * 3
    outer = video_pieces(Video(frames(5), 2.0), QWEN3, dataclasses.replace(SMALL3, outer_pair=True))
    assert (outer[0], outer[1], outer[-1], len(outer)) == (start, "<0.2 seconds>", end, len(pieces) + 2)


def test_qwen25_pieces():
    first, part, last = video_pieces(Video(frames(7), 7.0), QWEN25, SMALL25)
    assert (first, last) == (Special("<|vision_start|>"), Special("<|vision_end|>"))
    # Four of seven frames in a second: half a second per pair.
    assert part.frames == 2 and part.grid == (4, 6) and part.seconds_per_patch == 0.5


def test_frames_chosen_by_the_caller():
    source = frames(20)
    indices = sample_frames(20, 4.0, QWEN3, SMALL3)
    whole = video_pieces(Video(source, 4.0), QWEN3, SMALL3)
    chosen = video_pieces(Video(source[indices], 4.0, tuple(indices.tolist()), 20), QWEN3, SMALL3)
    assert len(whole) == len(chosen) == 5 * 4
    for ours, theirs in zip(whole, chosen):
        if isinstance(ours, ImagePatches):
            np.testing.assert_array_equal(ours.patches, theirs.patches)
        else:
            assert ours == theirs
    (part,) = video_patches(Video(source[:4], 4.0, (0, 5, 10, 15), 20), QWEN25, SMALL25)
    assert part.seconds_per_patch == 2.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Video(frames(2)[0]), "uint8 array"),
        (lambda: Video(frames(2) / 255), "uint8 array"),
        (lambda: Video([1]), "got list"),
        (lambda: Video(frames(2), 0.0), "fps is 0.0"),
        (lambda: Video(frames(2), indices=(0, 1)), "indices and total"),
        (lambda: Video(frames(2), indices=(0, 2), total=2), "2 of 2 frames"),
        (lambda: Video(frames(2), indices=(1, 0), total=2), "2 of 2 frames"),
        (lambda: video_patches(Video(frames(1)), QWEN3, SMALL3), "1 frames has no temporal patch"),
        (lambda: video_patches(Video(frames(1)), QWEN25, SMALL25), "1 frames has no temporal patch"),
        (lambda: patchify_frames(frames(2, 33, 32), QWEN3), "multiple of 32"),
    ],
)
def test_malformed_videos(make, message):
    with pytest.raises(DataError, match=message):
        make()


@pytest.mark.parametrize("change", [{"fps": 0.0}, {"min_frames": 0}, {"min_frames": 9, "max_frames": 8}])
def test_malformed_settings(change):
    with pytest.raises(ConfigError, match="video"):
        VideoConfig(**change)


@pytest.mark.parametrize("images", [QWEN3, QWEN25], ids=lambda images: images.family)
def test_config_json_round_trip(images):
    for config in (VideoConfig.for_family(images.family), VideoConfig(5000, 60000, 1.0, 2, 16)):
        assert VideoConfig.from_json(config.to_json(images), images) == config
    content = VideoConfig().to_json(images)
    with pytest.raises(CheckpointError, match="x.json: patch_size is 15"):
        VideoConfig.from_json(content | {"patch_size": 15}, images, "x.json")
    with pytest.raises(CheckpointError, match="x.json has a malformed field"):
        VideoConfig.from_json(content | {"fps": "fast"}, images, "x.json")
    with pytest.raises(CheckpointError, match="x.json has a malformed field: video fps is 0"):
        VideoConfig.from_json(content | {"fps": 0}, images, "x.json")
    with pytest.raises(CheckpointError, match="x.json lacks the field 'merge_size'"):
        VideoConfig.from_json({k: v for k, v in content.items() if k != "merge_size"}, images, "x.json")


def test_published_video_config(conformance):
    published = json.loads((conformance / "qwen_configs" / "Qwen3-VL-4B-Instruct.json").read_text())
    content = published["video_preprocessor_config"]
    assert VideoConfig.from_json(content, QWEN3) == VideoConfig() == VideoConfig.for_family("qwen3_vl")
    assert VideoConfig().to_json(QWEN3) == content


def test_a_folder_without_a_word_on_videos(tmp_path):
    """Qwen2.5-VL publishes image settings only."""
    assert VideoConfig.load(tmp_path, QWEN25) == VideoConfig.for_family("qwen2_5_vl")
    part = {k: v for k, v in SMALL25.to_json(QWEN25).items() if not k.endswith("_pixels")}
    part["size"] = {"shortest_edge": 3136, "longest_edge": 50176}
    (tmp_path / "processor_config.json").write_text(json.dumps({"video_processor": part}))
    assert VideoConfig.load(tmp_path, QWEN25) == SMALL25
