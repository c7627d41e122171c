"""A shrunk nano model, batches with images for it, and one compiled step that several tests share."""

from __future__ import annotations

import dataclasses
import zlib

import jax
import numpy as np
import pytest

from gui_owl_jax import sharding
from gui_owl_jax.models import config as model_config
from gui_owl_jax.models import layout, qwen_vl
from gui_owl_jax.models.config import QwenVLConfig
from gui_owl_jax.training import steps
from gui_owl_jax.training.optimizer import OptimizerConfig, path_name

TOKENS, PATCHES, ROWS = 48, 48, 8


@pytest.fixture(scope="session")
def model() -> QwenVLConfig:
    nano = model_config.get_preset("nano")
    vision = dataclasses.replace(nano.vision, width=32, mlp_width=64, out_width=64, deepstack_indexes=(0, 1))
    text = dataclasses.replace(nano.text, width=64, layers=2, heads=2, mlp_width=96)
    return dataclasses.replace(nano, vision=vision, text=text)


@pytest.fixture(scope="session")
def optimizer() -> OptimizerConfig:
    decay = ((r".*kernel", 0.1),)
    return OptimizerConfig(learning_rate=3e-3, schedule="constant", clip_norm=0.0, weight_decay_rules=decay)


@pytest.fixture(scope="session")
def mesh() -> jax.sharding.Mesh:
    return sharding.make_mesh(sharding.MeshConfig(), jax.devices()[:1])


@pytest.fixture(scope="session")
def params(model):
    """Parameters drawn with numpy: no compilation."""

    def draw(path, leaf):
        name = path_name(path)
        if name.endswith("scale"):
            return np.ones(leaf.shape, np.float32)
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        fan_in = leaf.shape[-2] if name.endswith("kernel") else 100
        return (rng.standard_normal(leaf.shape) / fan_in**0.5).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, qwen_vl.abstract_params(model))


@pytest.fixture(scope="session")
def make_batch(model):
    """Gives make(seed, rl=False): rows with two examples of different lengths, the first with an image."""

    def example(rng: np.random.Generator, grid: tuple[int, int] | None, text: int, rl: bool) -> layout.Example:
        pads = grid[0] * grid[1] // model.vision.merge_size**2 if grid else 0
        image = [1002, *[1000] * pads, 1003] if grid else []
        answer = rng.integers(0, 1000, text)
        tokens = np.concatenate([[1004, 7], image, answer]).astype(np.int32)
        mask = (np.arange(len(tokens)) >= len(tokens) - text).astype(np.float32)
        patches = ()
        if grid:
            values = rng.integers(0, 256, (grid[0] * grid[1], model.vision.patch_columns)).astype(np.uint8)
            patches = (layout.ImagePatches(values, grid),)
        extras = {}
        if rl:
            extras = {
                "advantages": np.full(len(tokens), rng.choice([-1.0, 1.0]), np.float32),
                "weights": np.full(len(tokens), rng.uniform(0.5, 1.5), np.float32),
                "sampler_logps": (-8.0 + rng.standard_normal(len(tokens))).astype(np.float32),
            }
        return layout.Example(tokens, mask, patches, extras)

    def make(seed: int, rl: bool = False) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        rows = []
        for row in range(ROWS):
            grid = [(4, 6), (6, 4), (2, 8)][row % 3]
            rows.append([example(rng, grid, 6 + row, rl), example(rng, None, 3 + row % 4, rl)])
        return layout.lay_out_rows(rows, model, TOKENS, PATCHES)

    return make


@pytest.fixture(scope="session")
def quick():
    """Gives quick(function): the jitted function, compiled at its first call and in half the usual time.

    LLVM's optimizations are what it leaves out; they do not pay for programs that run a few times.
    """

    def wrap(function):
        compiled = []

        def call(*args):
            if not compiled:
                compiled.append(function.lower(*args).compile({"xla_backend_optimization_level": 0}))
            return compiled[0](*args)

        return call

    return wrap


@pytest.fixture(scope="session")
def step(model, optimizer, mesh, quick):
    """The supervised step on one device."""
    return quick(steps.supervised_step(model, optimizer, mesh))
