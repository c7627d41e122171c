"""The parity check: one code path, used by the parity tests, the mutation tests and the live comparison."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pytest

from gui_owl_jax.hf.checkpoint import import_hf
from gui_owl_jax.models import layout, qwen_vl
from gui_owl_jax.models.config import QwenVLConfig

# Largest difference allowed, in float32. Logits of the reference models reach 20, and against the same function in
# float64 the reference's own are off by up to 1.7e-5. Executed op by op, every operation rounds where the reference
# rounds; a compiled program fuses operations and rounds elsewhere.
TOLERANCE = 2e-5
COMPILED_TOLERANCE = 4e-5


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """Inputs of the reference with padding removed, one Example per sequence, and what the reference returned."""

    config: QwenVLConfig
    params: Any
    examples: list[layout.Example]
    reference: Mapping[str, np.ndarray]
    real: np.ndarray  # bool [sequences, length]: tokens that are no padding


def uint8_patches(arrays: Mapping[str, np.ndarray], config: QwenVLConfig) -> np.ndarray:
    """Patches as this project carries them; the reference's are normalised and have a copy per frame."""
    if "patches" in arrays:
        return arrays["patches"]
    vision = config.vision
    frames = arrays["pixel_values"].reshape(-1, vision.channels, vision.temporal_patch_size, vision.patch_size**2)
    assert (frames == frames[:, :, :1]).all()
    return np.rint((frames[:, :, 0] + 1) * 127.5).astype(np.uint8).reshape(len(frames), -1)


def make_case(config: QwenVLConfig, params: Any, arrays: Mapping[str, np.ndarray]) -> Case:
    """Cuts the reference's inputs into examples."""
    real = arrays["attention_mask"] == 1
    images: list[layout.ImagePatches] = []
    if "image_grid_thw" in arrays:
        patches, done = uint8_patches(arrays, config), 0
        for _, height, width in arrays["image_grid_thw"].tolist():
            images.append(layout.ImagePatches(patches[done : done + height * width], (height, width)))
            done += height * width
    examples = []
    for ids, keep in zip(arrays["input_ids"], real):
        tokens = ids[keep].astype(np.int32)
        own = int((tokens == config.vision_start_token_id).sum())
        examples.append(layout.Example(tokens, np.zeros(len(tokens), np.float32), tuple(images[:own])))
        images = images[own:]
    return Case(config, params, examples, arrays, real)


def differences(case: Case, *, packed: bool = False, compiled: bool = False) -> dict[str, float]:
    """Largest difference from the reference for each thing it recorded.

    With `packed` all sequences share one row; with `compiled` the model runs as one XLA program, else op by op.
    """
    config, reference = case.config, case.reference
    rows = [case.examples] if packed else [[example] for example in case.examples]
    merge = config.vision.merge_size**2
    longest = max(sum(len(e.tokens) for e in row) for row in rows)
    patches = max(sum(e.patch_count for e in row) for row in rows)
    if compiled and patches:
        longest, patches = longest + 3, patches + merge  # padding must not matter
    batch = layout.lay_out_rows(rows, config, longest, patches)

    def run(params: Any, batch: Any) -> tuple[jax.Array, ...]:
        features, deepstack = qwen_vl.encode_images(config, params, batch)
        return features, deepstack, qwen_vl.logits(config, params, qwen_vl.hidden_states(config, params, batch))

    with jax.disable_jit(not compiled):
        features, deepstack, logits = jax.device_get(jax.jit(run)(case.params, batch))
    result = {}
    token_at = batch["segment_ids"] > 0
    result["logits"] = np.abs(logits[token_at] - reference["out_logits"][case.real]).max()
    if patches:
        used = batch["patch_segment_ids"][:, ::merge] > 0
        result["vision"] = np.abs(features[used] - reference["out_vit_out"]).max()
        for level, own in enumerate(deepstack):
            if f"out_vit_deepstack{level}_out" in reference:
                difference = own[used] - reference[f"out_vit_deepstack{level}_out"]
                result[f"deepstack{level}"] = np.abs(difference).max()
    if "position_ids" in reference:
        expected = np.moveaxis(reference["position_ids"], 0, -1)[case.real]
        result["positions"] = np.abs(batch["positions"][token_at] - expected).max()
    return {name: float(value) for name, value in result.items()}


@functools.cache
def _checkpoint(folder: pathlib.Path) -> tuple[QwenVLConfig, Any]:
    config, params = import_hf(folder)
    return config, jax.tree.map(jax.numpy.asarray, params)


@pytest.fixture(scope="session", params=["golden", "conformance"])
def reference_folder(request: pytest.FixtureRequest) -> pathlib.Path:
    """Folder of a reference model with its cases: the committed one, then the shared one where present."""
    if request.param == "golden":
        return request.getfixturevalue("golden") / "qwen3_vl"
    return request.getfixturevalue("conformance") / "qwen_vl" / "qwen3_vl"


@pytest.fixture(scope="session")
def reference_case(reference_folder: pathlib.Path):
    """Returns a function: case name -> Case."""

    def load(name: str) -> Case:
        config, params = _checkpoint(reference_folder)
        return make_case(config, params, dict(np.load(reference_folder / f"case_{name}.npz")))

    return load


@pytest.fixture(scope="session")
def tolerance() -> float:
    """Largest difference allowed where the model runs op by op."""
    return TOLERANCE


@pytest.fixture(scope="session")
def compiled_tolerance() -> float:
    """Largest difference allowed where the model is compiled."""
    return COMPILED_TOLERANCE


@pytest.fixture(scope="session")
def parity():
    """Returns the function `differences`."""
    return differences


@pytest.fixture(scope="session")
def case_from_arrays():
    """Returns the function `make_case`."""
    return make_case


@pytest.fixture(scope="session")
def random_example():
    """Returns a function (rng, config, plan, targets) -> Example; a plan lists text lengths and image grids."""

    def make(rng: np.random.Generator, config: QwenVLConfig, plan: list, targets: int = 4) -> layout.Example:
        ids: list[int] = []
        images = []
        for part in plan:
            if isinstance(part, tuple):
                count = part[0] * part[1]
                pixels = rng.integers(0, 256, (count, config.vision.patch_columns), dtype=np.uint8)
                images.append(layout.ImagePatches(pixels, part))
                pads = [config.image_token_id] * (count // config.vision.merge_size**2)
                ids += [config.vision_start_token_id, *pads, config.vision_end_token_id]
            else:
                ids += rng.integers(0, config.image_token_id, part).tolist()
        mask = np.zeros(len(ids), np.float32)
        mask[-targets:] = rng.uniform(0.5, 2.0, targets)
        return layout.Example(np.array(ids, np.int32), mask, tuple(images))

    return make
