"""A small tokenizer and the model it belongs to."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from gui_owl_jax.hf.images import ImageConfig
from gui_owl_jax.hf.processor import Processor
from gui_owl_jax.hf.tokenizer import Tokenizer, small_tokenizer
from gui_owl_jax.models import qwen_vl
from gui_owl_jax.models.config import QwenVLConfig, get_preset

CORPUS = (
    'Action: Tap the "Save" button.\n<tool_call>\n'
    '{"name": "mobile_use", "arguments": {"action": "click", "coordinate": [512, 384]}}\n</tool_call>',
    "Action: Type the name.\n<tool_call>\n"
    '{"name": "mobile_use", "arguments": {"action": "type", "text": "Ada"}}\n</tool_call>',
    'Action: Go back.\n<tool_call>\n{"name": "browser_use", "arguments": {"action": "go_back"}}\n</tool_call>',
    "Device: mobile. Tool: mobile_use.",
    "Task: Open Settings and turn on the dark theme\nPrevious actions: Step 1: Tap Settings.; Step 2: Scroll down.\n",
)
PLACES = {
    "image_pad": 1000,
    "video_pad": 1001,
    "vision_start": 1002,
    "vision_end": 1003,
    "im_start": 1004,
    "im_end": 1005,
    "endoftext": 1006,
}

VARIANTS = ("tied", "untied", "moe", "qwen2.5")


@pytest.fixture(scope="session")
def corpus() -> tuple[str, ...]:
    """Texts of the kind that agents read and write."""
    return CORPUS


@pytest.fixture(scope="session")
def places() -> dict[str, int]:
    """Where the nano model expects the special tokens."""
    return PLACES


@pytest.fixture(scope="session")
def small() -> Tokenizer:
    return small_tokenizer(CORPUS, 1024, PLACES)


@pytest.fixture(scope="session")
def processor(small) -> Processor:
    return Processor(small, ImageConfig(min_pixels=32 * 32, max_pixels=320 * 320))


def nano_model(variant: str) -> QwenVLConfig:
    """A nano model of one of `VARIANTS`."""
    if variant == "qwen2.5":
        return get_preset("nano-qwen2.5")
    config = get_preset("nano-moe" if variant == "moe" else "nano")
    vision = dataclasses.replace(config.vision, blocks=3, deepstack_indexes=(0, 2))
    return dataclasses.replace(config, vision=vision, tie_word_embeddings=variant == "tied")


def random_params(config: QwenVLConfig) -> dict:
    """Parameters float32 of which none is zero or one."""
    rng = np.random.default_rng(0)

    def draw(path: tuple, shape: jax.ShapeDtypeStruct) -> np.ndarray:
        noise = rng.standard_normal(shape.shape)
        kind = path[-1].key
        if kind == "kernel":
            noise /= np.sqrt(shape.shape[-3 if path[-2].key == "gate_up" else -2])
        else:
            noise = {"scale": 1 + 0.2 * noise, "bias": 0.1 * noise, "embedding": 0.1 * noise}[kind]
        return noise.astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, qwen_vl.abstract_params(config))


@pytest.fixture(scope="session", params=VARIANTS)
def model(request) -> tuple[QwenVLConfig, dict]:
    """A nano model of every family with random parameters; of Qwen3-VL a tied and an untied one."""
    config = nano_model(request.param)
    return config, random_params(config)


@pytest.fixture(scope="session")
def model_processor(model, small) -> Processor:
    """The processor of `model`."""
    factor = model[0].vision.patch_size * model[0].vision.merge_size
    return Processor(small, ImageConfig.for_model(model[0], min_pixels=factor**2, max_pixels=100 * factor**2))
