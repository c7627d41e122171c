"""Live comparison with the processors of transformers: what we save they load, and both make the same inputs.

Needs torch; what concerns videos needs torchvision as well, which transformers uses to resize their frames.
"""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from PIL import Image

from gui_owl_jax.agent.prompts import ImageRef, Message, VideoRef
from gui_owl_jax.hf.images import ImageConfig, image_patches, pixel_values
from gui_owl_jax.hf.processor import Processor
from gui_owl_jax.hf.tokenizer import qwen_tokenizer
from gui_owl_jax.hf.video import Video, VideoConfig, sample_frames, video_size
from gui_owl_jax.models.config import get_preset

pytestmark = pytest.mark.parity
PRESETS = {"qwen3_vl": "4b", "qwen2_5_vl": "qwen2.5-3b"}
CLASSES = {
    "qwen3_vl": ("Qwen3VLProcessor", "Qwen3VLVideoProcessor"),
    "qwen2_5_vl": ("Qwen2_5_VLProcessor", "Qwen2VLVideoProcessor"),
}


@pytest.fixture(params=PRESETS)
def processor(request) -> Processor:
    images = ImageConfig.for_model(get_preset(PRESETS[request.param]), min_pixels=4096, max_pixels=65536)
    # transformers 5 keeps the outer pair around a Qwen3-VL video.
    videos = VideoConfig(4096 * 4, 65536 * 8, fps=2.0, outer_pair=request.param == "qwen3_vl")
    return Processor(qwen_tokenizer(), images, videos)


@pytest.fixture(scope="module")
def transformers():
    """The module, where torch and torchvision are there too."""
    for name in ("torch", "torchvision"):
        pytest.importorskip(name, reason="the live comparison needs it: bash tests/run.sh parity")
    return importlib.import_module("transformers")


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Smooth colours: on noise the two ways of resizing differ by many grey levels."""
    colours = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return np.array(Image.fromarray(colours).resize((width, height), Image.Resampling.BICUBIC))


def test_saved_processors_load_and_make_the_same_inputs(transformers, processor, tmp_path):
    import torch

    processor.save(tmp_path)
    theirs = transformers.AutoProcessor.from_pretrained(tmp_path)
    names = type(theirs).__name__, type(theirs.video_processor).__name__
    assert names == CLASSES[processor.image_config.family]
    image, frames = picture(100, 150), np.stack([picture(140, 224, seed) for seed in range(17)])
    content = [{"type": "image"}, {"type": "text", "text": "a"}, {"type": "video"}, {"type": "text", "text": "What?"}]
    text = theirs.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    found = theirs(
        text=[text],
        images=[torch.from_numpy(image).permute(2, 0, 1)],
        videos=[torch.from_numpy(frames).permute(0, 3, 1, 2)],
        video_metadata=[transformers.video_utils.VideoMetadata(total_num_frames=17, fps=3.0)],
        return_tensors="pt",
    )
    messages = [Message("user", (ImageRef(0), "a", VideoRef(0), "What?"))]
    ours = processor.encode_prompt(messages, {0: image}, videos={0: Video(frames, 3.0)})
    assert ours.ids.tolist() == found["input_ids"][0].tolist()
    parts = [part for part in ours.images if part.video]
    gt, gh, gw = found["video_grid_thw"][0].tolist()
    assert sum(part.frames for part in parts) == gt and {part.grid for part in parts} == {(gh, gw)}
    if "second_per_grid_ts" in found:
        assert float(found["second_per_grid_ts"][0]) == pytest.approx(parts[0].seconds_per_patch)
    for key, own in {"pixel_values": ours.images[:1], "pixel_values_videos": parts}.items():
        values = np.concatenate([pixel_values(part, processor.image_config) for part in own])
        difference = np.abs(values - found[key].numpy()) * min(processor.image_config.std) * 255
        # In grey levels: the resampling of torchvision against Pillow's.
        assert values.shape == found[key].shape and difference.max() < 2.1 and difference.mean() < 0.5


def test_what_transformers_saves_is_loaded(transformers, processor, tmp_path):
    processor.save(tmp_path / "ours")
    transformers.AutoProcessor.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    assert not (tmp_path / "theirs" / "preprocessor_config.json").exists()
    loaded = Processor.load(tmp_path / "theirs")
    assert loaded.image_config == processor.image_config
    saved = processor.video_config
    assert loaded.video_config == VideoConfig(saved.min_pixels, saved.max_pixels, saved.fps)


def test_sampled_frames_equal_theirs(transformers, processor):
    family = processor.image_config.family
    module = {"qwen3_vl": "qwen3_vl", "qwen2_5_vl": "qwen2_vl"}[family]
    module = importlib.import_module(f"transformers.models.{module}.video_processing_{module}")
    theirs = getattr(module, CLASSES[family][1])(fps=2.0)
    rng = np.random.default_rng(0)
    for _ in range(300):
        total = int(rng.integers(2, rng.choice([50, 5_000, 60_000])))
        fps = float(rng.choice([rng.uniform(0.2, 120), 24, 25, 30, 60]))
        metadata = transformers.video_utils.VideoMetadata(total_num_frames=total, fps=fps)
        ours = sample_frames(total, fps, processor.image_config, VideoConfig())
        expected = np.asarray(theirs.sample_frames(metadata=metadata))
        if family == "qwen2_5_vl":
            # Theirs counts in steps of a rounded size: long videos are off by a frame, and one index too many may come.
            assert len(expected) - len(ours) in (0, 1)
            np.testing.assert_allclose(ours, expected[: len(ours)], rtol=0, atol=total > 5_000)
        else:
            np.testing.assert_array_equal(ours, expected)


def test_sizes_equal_theirs(transformers, processor):
    images, config = processor.image_config, processor.video_config
    newer = importlib.import_module("transformers.models.qwen3_vl.video_processing_qwen3_vl")
    older = importlib.import_module("transformers.models.qwen2_vl.video_processing_qwen2_vl")
    rng = np.random.default_rng(0)
    for _ in range(500):
        frames, height, width = int(rng.integers(2, 60)), *(int(v) for v in rng.integers(5, 900, 2))
        if images.family == "qwen3_vl":
            arguments = (frames, height, width, 2, images.factor)
            expected = newer.smart_resize(*arguments, config.min_pixels, config.max_pixels)
        else:
            expected = older.smart_resize(height, width, images.factor, config.min_pixels, config.max_pixels)
        assert video_size(frames, height, width, images, config) == expected, (frames, height, width)


def test_saved_image_settings_load_without_torchvision(processor, tmp_path):
    """The Pillow version of their image processor gives the very same numbers."""
    pytest.importorskip("torch", reason="the live comparison needs torch: bash tests/run.sh parity")
    auto = pytest.importorskip("transformers").AutoImageProcessor
    processor.save(tmp_path)
    theirs = auto.from_pretrained(tmp_path, backend="pil")
    image = np.random.default_rng(0).integers(0, 256, (70, 45, 3), dtype=np.uint8)
    found = theirs(images=[image], return_tensors="np")
    ours = image_patches(image, processor.image_config)
    np.testing.assert_array_equal(found["pixel_values"], pixel_values(ours, processor.image_config))
    assert found["image_grid_thw"].tolist() == [[1, *ours.grid]]
