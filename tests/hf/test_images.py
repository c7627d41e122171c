from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from gui_owl_jax.agent.errors import CheckpointError, ConfigError, DataError
from gui_owl_jax.hf.images import ImageConfig, image_patches, patchify, pixel_values, resize, smart_resize
from gui_owl_jax.models.config import get_preset

QWEN3 = ImageConfig(min_pixels=4096, max_pixels=65536)
QWEN25 = ImageConfig(
    patch_size=14,
    min_pixels=3136,
    max_pixels=50176,
    mean=(0.48145466, 0.4578275, 0.40821073),
    std=(0.26862954, 0.26130258, 0.27577711),
    family="qwen2_5_vl",
)


def test_smart_resize_equals_the_published_one(conformance):
    cases = json.loads((conformance / "qwen_vl" / "smart_resize.json").read_text())["smart_resize"]
    assert len(cases) > 30
    for case in cases:
        arguments = [case[k] for k in ("h", "w", "factor", "min_pixels", "max_pixels")]
        if case["out"] is None:
            with pytest.raises(DataError, match="200"):
                smart_resize(*arguments)
        else:
            assert smart_resize(*arguments) == tuple(case["out"])


@pytest.mark.parametrize("size", [(0, 10), (10, 0), (1, 201), (201, 1)])
def test_smart_resize_refuses(size):
    with pytest.raises(DataError, match=f"{size[0]} x {size[1]}"):
        smart_resize(*size, 32, 4096, 65536)


def test_smart_resize_stays_in_bounds():
    rng = np.random.default_rng(0)
    for _ in range(2000):
        h, w = (int(v) for v in rng.integers(1, 4000, 2))
        if max(h, w) > 100 * min(h, w):
            continue
        rows, cols = smart_resize(h, w, 32, 65536, 1 << 20)
        assert rows % 32 == cols % 32 == 0
        # Long thin images cannot shrink below one factor, so they alone may stay above the upper bound.
        assert rows * cols >= 65536 and (rows * cols <= 1 << 20 or min(rows, cols) == 32)
        assert QWEN3.tokens(h, w) == np.prod(smart_resize(h, w, 32, 4096, 65536)) // 32**2


@pytest.mark.parametrize(("p", "m", "gh", "gw"), [(2, 2, 4, 6), (3, 2, 2, 2), (2, 3, 6, 3), (16, 2, 2, 4)])
def test_patchify_against_loops(p, m, gh, gw):
    config = ImageConfig(patch_size=p, merge_size=m)
    image = np.random.default_rng(0).integers(0, 256, (gh * p, gw * p, 3), dtype=np.uint8)
    result = patchify(image, config)
    assert result.grid == (gh, gw)
    assert result.patches.shape == (gh * gw, 3 * p * p) and result.patches.dtype == np.uint8
    for r in range(gh):
        for c in range(gw):
            row = ((r // m * (gw // m) + c // m) * m + r % m) * m + c % m
            for channel in range(3):
                block = image[r * p : (r + 1) * p, c * p : (c + 1) * p, channel]
                np.testing.assert_array_equal(
                    result.patches[row, channel * p * p : (channel + 1) * p * p], block.reshape(-1)
                )


@pytest.mark.parametrize(("name", "config"), [("qwen3", QWEN3), ("qwen25", QWEN25)])
def test_patches_equal_the_published_processor_without_resizing(conformance, name, config):
    image = np.load(conformance / "qwen_vl" / "images.npz")["a"][: 4 * config.patch_size, : 6 * config.patch_size]
    expected = np.load(conformance / "qwen_vl" / "preprocess.npz")[f"{name}_noresize_a"]
    np.testing.assert_array_equal(pixel_values(patchify(image, config), config), expected)


@pytest.mark.parametrize(("name", "config", "levels"), [("qwen3", QWEN3, 2), ("qwen25", QWEN25, 12)])
def test_patches_with_resizing(conformance, name, config, levels):
    files = np.load(conformance / "qwen_vl" / "preprocess.npz")
    ours = image_patches(np.load(conformance / "qwen_vl" / "images.npz")["b"], config)
    values = pixel_values(ours, config)
    assert (1, *ours.grid) == tuple(files[f"{name}_pil_b_grid"][0])
    # The references are stored as float16. Pillow's resampling is ours; torchvision's differs by up to two grey
    # levels where the image grows and up to twelve where noise shrinks (the second config).
    np.testing.assert_array_equal(values.astype(np.float16), files[f"{name}_pil_b"])
    grey_level = 1 / 255 / min(config.std)
    torchvision = files[f"{name}_torchvision_b"].astype(np.float32)
    assert np.abs(values - torchvision).max() < levels * grey_level
    assert np.abs(values - torchvision).mean() < grey_level


@pytest.mark.parametrize("config", [QWEN3, QWEN25], ids=lambda config: config.family)
def test_patches_equal_the_installed_processor(config):
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    content = {k: v for k, v in config.to_json().items() if not k.endswith(("_class", "_type"))}
    theirs = module.Qwen2VLImageProcessorPil(**content)
    rng = np.random.default_rng(1)
    for height, width in [(100, 150), (64, 96), (33, 250), (400, 300)]:
        image = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        expected = theirs(images=[image], return_tensors="np")
        ours = image_patches(image, config)
        assert (1, *ours.grid) == tuple(expected["image_grid_thw"][0])
        np.testing.assert_array_equal(pixel_values(ours, config), expected["pixel_values"])


def test_image_that_fits_is_not_touched():
    image = np.zeros((64, 96, 3), np.uint8)
    assert resize(image, QWEN3) is image


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((64, 64), np.uint8),
        np.zeros((64, 64, 4), np.uint8),
        np.zeros((64, 64, 3), np.float32),
        [[1]],
        None,
    ],
)
def test_malformed_screenshots_are_refused(image):
    with pytest.raises(DataError, match="uint8 array"):
        resize(image, QWEN3)


def test_patchify_refuses_odd_sizes():
    with pytest.raises(DataError, match="multiple of 32"):
        patchify(np.zeros((64, 80, 3), np.uint8), QWEN3)


def test_config_json_round_trip_and_old_form():
    for config in (QWEN3, QWEN25):
        content = config.to_json()
        assert ImageConfig.from_json(content) == config
        # Without the name of the class the form decides.
        assert ImageConfig.from_json({k: v for k, v in content.items() if k != "processor_class"}) == config
    size = {"size": {"shortest_edge": 3136, "longest_edge": 50176}, "min_pixels": None, "max_pixels": None}
    assert ImageConfig.from_json(QWEN25.to_json() | size) == QWEN25


def test_config_of_a_model():
    for name in ("nano", "4b", "30b-a3b"):
        vision = get_preset(name).vision
        config = ImageConfig.for_model(get_preset(name))
        assert config == ImageConfig() and config.patch_size == vision.patch_size
        assert ImageConfig.for_model(get_preset(name), min_pixels=1024).min_pixels == 1024
    config = ImageConfig.for_model(get_preset("qwen2.5-7b"))
    assert config == dataclasses.replace(QWEN25, max_pixels=12845056) and config.factor == 28
    with pytest.raises(ConfigError, match="family 'qwen2_vl'"):
        dataclasses.replace(config, family="qwen2_vl")


@pytest.mark.parametrize("name", ["Qwen3-VL-4B-Instruct", "Qwen3-VL-8B-Thinking", "Qwen2.5-VL-7B-Instruct"])
def test_published_preprocessor_configs(conformance, name):
    published = json.loads((conformance / "qwen_configs" / f"{name}.json").read_text())["preprocessor_config"]
    config = ImageConfig.from_json(published)
    assert config == ImageConfig.for_model(get_preset("4b" if "Qwen3" in name else "qwen2.5-7b"))
    assert config.to_json() == published


def test_the_shared_file_of_transformers_5(tmp_path):
    """There one file holds all processors; it goes before the older one."""
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(QWEN3.to_json()))
    part = {k: v for k, v in QWEN25.to_json().items() if not k.endswith(("_class", "_pixels"))}
    part["size"] = {"shortest_edge": 3136, "longest_edge": 50176}
    shared = {"processor_class": "Qwen2_5_VLProcessor", "image_processor": part}
    (tmp_path / "processor_config.json").write_text(json.dumps(shared))
    assert ImageConfig.load(tmp_path) == QWEN25
    (tmp_path / "processor_config.json").write_text(json.dumps({"processor_class": "Qwen3VLProcessor"}))
    assert ImageConfig.load(tmp_path) == QWEN3
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": {"patch_size": 1}}))
    with pytest.raises(CheckpointError, match="processor_config.json: image_processor lacks the field"):
        ImageConfig.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "field"), [({"patch_size": None}, "malformed"), ({"image_mean": [1, 2]}, "malformed")]
)
def test_malformed_config_is_named(change, field):
    with pytest.raises(CheckpointError, match=f"x.json.*{field}"):
        ImageConfig.from_json(QWEN3.to_json() | change, "x.json")
    content = QWEN3.to_json()
    del content["merge_size"]
    with pytest.raises(CheckpointError, match="x.json lacks the field 'merge_size'"):
        ImageConfig.from_json(content, "x.json")
