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


@pytest.fixture(scope="session", params=["tied", "untied"])
def model(request) -> tuple[QwenVLConfig, dict]:
    """A nano model of which no parameter is zero or one, tied and untied, with two DeepStack levels."""
    config = get_preset("nano")
    vision = dataclasses.replace(config.vision, blocks=3, deepstack_indexes=(0, 2))
    config = dataclasses.replace(config, vision=vision, tie_word_embeddings=request.param == "tied")
    rng = np.random.default_rng(0)

    def draw(path: tuple, shape: jax.ShapeDtypeStruct) -> np.ndarray:
        noise = rng.standard_normal(shape.shape)
        kind = path[-1].key
        if kind == "kernel":
            noise /= np.sqrt(shape.shape[-2])
        else:
            noise = {"scale": 1 + 0.2 * noise, "bias": 0.1 * noise, "embedding": 0.1 * noise}[kind]
        return noise.astype(np.float32)

    return config, jax.tree_util.tree_map_with_path(draw, qwen_vl.abstract_params(config))
