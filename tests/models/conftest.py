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
from gui_owl_jax.models import layout, moe, qwen_vl, rope
from gui_owl_jax.models.config import QwenVLConfig

# Largest difference allowed, in float32. Logits of the reference models reach 20, and against the same function in
# float64 the reference's own are off by up to 1.7e-5. Executed op by op, every operation rounds where the reference
# rounds; a compiled program fuses operations and rounds elsewhere.
TOLERANCE = 2e-5
COMPILED_TOLERANCE = 4e-5
# On the Qwen3-VL video the reference is 1.8e-5 from float64 and this project 1.6e-5, in different directions: 2.6e-5.
VIDEO_TOLERANCE = 3e-5


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """Inputs of the reference with padding removed, one Example per sequence, and what the reference returned."""

    config: QwenVLConfig
    params: Any
    examples: list[layout.Example]
    reference: Mapping[str, np.ndarray]
    real: np.ndarray  # bool [sequences, length]: tokens that are no padding


def uint8_patches(values: np.ndarray, config: QwenVLConfig, frames: int) -> np.ndarray:
    """Patches as this project carries them: `frames` is 1 for images, whose reference has equal copies per frame."""
    vision = config.vision
    values = values.reshape(-1, vision.channels, vision.temporal_patch_size, vision.patch_size**2)
    assert frames > 1 or (values == values[:, :, :1]).all()
    mean, std = (np.reshape(x, (-1, 1, 1)) for x in (config.image_mean, config.image_std))
    return np.rint((values[:, :, :frames] * std + mean) * 255).astype(np.uint8).reshape(len(values), -1)


def visual_inputs(
    config: QwenVLConfig, arrays: Mapping[str, np.ndarray]
) -> tuple[list[layout.ImagePatches], list[layout.ImagePatches]]:
    """The images and the videos of a case, each in order; a Qwen3-VL video is one piece per temporal patch."""
    images, videos = [], []
    if "image_grid_thw" in arrays:
        patches = arrays.get("patches")
        patches = uint8_patches(arrays["pixel_values"], config, 1) if patches is None else patches
        for _, height, width in arrays["image_grid_thw"].tolist():
            images.append(layout.ImagePatches(patches[: height * width], (height, width)))
            patches = patches[height * width :]
    if "video_grid_thw" in arrays:
        patches = uint8_patches(arrays["pixel_values_videos"], config, config.vision.temporal_patch_size)
        seconds = arrays.get("second_per_grid_ts", np.zeros(len(arrays["video_grid_thw"])))
        for (frames, height, width), pace in zip(arrays["video_grid_thw"].tolist(), seconds.tolist()):
            parts = [frames] if config.model_type == "qwen2_5_vl" else [1] * frames
            for part in parts:
                count = part * height * width
                videos.append(layout.ImagePatches(patches[:count], (height, width), part, True, pace))
                patches = patches[count:]
    return images, videos


def make_case(config: QwenVLConfig, params: Any, arrays: Mapping[str, np.ndarray]) -> Case:
    """Cuts the reference's inputs into examples."""
    real = arrays["attention_mask"] == 1
    if "video_grid_thw" in arrays:
        config = dataclasses.replace(config, vision=dataclasses.replace(config.vision, video=True))
    images, videos = visual_inputs(config, arrays)
    examples = []
    for ids, keep in zip(arrays["input_ids"], real):
        tokens = ids[keep].astype(np.int32)
        pads = tokens[np.flatnonzero(tokens == config.vision_start_token_id) + 1]
        own = tuple((images if pad == config.image_token_id else videos).pop(0) for pad in pads)
        examples.append(layout.Example(tokens, np.zeros(len(tokens), np.float32), own))
    assert not images and not videos
    return Case(config, params, examples, arrays, real)


def differences(case: Case, *, packed: bool = False, compiled: bool = False, rule: str = "extent") -> dict[str, float]:
    """Largest difference from the reference for each thing it recorded.

    With `packed` all sequences share one row; with `compiled` the model runs as one XLA program, else op by op. `rule`
    is `video_positions`; the reference is transformers 5.
    """
    config, reference = dataclasses.replace(case.config, video_positions=rule), case.reference
    rows = [case.examples] if packed else [[example] for example in case.examples]
    vision = config.vision
    unit = (max(vision.window_side, 1) * vision.merge_size) ** 2
    longest = max(sum(len(e.tokens) for e in row) for row in rows)
    patches = max(sum(layout.patch_slots(i, vision) for e in row for i in e.images) for row in rows)
    if compiled and patches:
        longest, patches = longest + 3, patches + unit  # padding must not matter
    batch = layout.lay_out_rows(rows, config, longest, patches)

    def run(params: Any, batch: Any) -> tuple[Any, ...]:
        features, deepstack = qwen_vl.encode_images(config, params, batch)
        hidden, kept = qwen_vl.forward(config, params, batch, keep=("load", "router_logits"))
        angles = rope.text_rope(config.text, batch["positions"]), rope.vision_rope(vision, batch["patch_coords"])
        return features, deepstack, qwen_vl.logits(config, params, hidden), kept, angles

    with jax.disable_jit(not compiled):
        features, deepstack, logits, kept, angles = jax.device_get(jax.jit(run)(case.params, batch))
    token_at = batch["segment_ids"] > 0
    found = {"logits": (logits[token_at], reference["out_logits"][case.real])}
    if "position_ids" in reference:
        found["positions"] = batch["positions"][token_at], np.moveaxis(reference["position_ids"], 0, -1)[case.real]
    if "out_rope_cos" in reference:
        for name, own in zip(("cos", "sin"), angles[0]):
            own = own[:, :, 0][token_at]
            found[f"rope {name}"] = own, reference[f"out_rope_{name}"][case.real][:, : own.shape[-1]]
    for layer in range(config.text.layers if config.text.moe else 0):
        expected = reference[f"out_router_logits{layer}"].reshape(*case.real.shape, -1)[case.real]
        found[f"router{layer}"] = kept.router_logits[layer][token_at], expected
    if "out_aux_loss" in reference and case.real.all():
        # With padding transformers counts the padded tokens' visits only in part; its own text says they are left out.
        found["balance loss"] = moe.balance_loss(kept.load), reference["out_aux_loss"]
    if patches:
        # The feature that each pad receives, in the order of the pads. The videos' come last in the reference.
        last = config.video_token_id if "video_grid_thw" in reference else config.image_token_id
        at = np.nonzero(batch["tokens"] == last)
        chosen = (at[0], batch["visual_index"][at])
        found["vision"] = features[chosen], reference["out_vit_out"]
        for level, own in enumerate(deepstack):
            if f"out_vit_deepstack{level}_out" in reference:
                found[f"deepstack{level}"] = own[chosen], reference[f"out_vit_deepstack{level}_out"]
    if "out_vit_rope_cos" in reference:
        for name, own in zip(("cos", "sin"), angles[1]):
            own = own.reshape(len(own), -1, vision.merge_size**2, own.shape[-1])[chosen].reshape(-1, own.shape[-1])
            found[f"vision rope {name}"] = own, reference[f"out_vit_rope_{name}"][:, : own.shape[-1]]
    return {name: float(np.abs(own - expected).max()) for name, (own, expected) in found.items()}


@functools.cache
def _checkpoint(folder: pathlib.Path) -> tuple[QwenVLConfig, Any]:
    config, params = import_hf(folder)
    return config, jax.tree.map(jax.numpy.asarray, params)


@pytest.fixture(scope="session", params=["golden", "qwen3_vl", "qwen3_vl_moe", "qwen2_5_vl"])
def reference_folder(request: pytest.FixtureRequest) -> pathlib.Path:
    """Folder of a reference model with its cases: the committed one, then the shared ones where present."""
    if request.param == "golden":
        return request.getfixturevalue("golden") / "qwen3_vl"
    return request.getfixturevalue("conformance") / "qwen_vl" / request.param


def read_case(folder: pathlib.Path, name: str) -> Case:
    """Reads a case of the reference model in a folder."""
    if not (folder / f"case_{name}.npz").exists():
        pytest.skip(f"{folder.name} has no case {name}")
    config, params = _checkpoint(folder)
    return make_case(config, params, dict(np.load(folder / f"case_{name}.npz")))


@pytest.fixture(scope="session")
def reference_case(reference_folder: pathlib.Path):
    """Returns a function: case name -> Case."""
    return functools.partial(read_case, reference_folder)


@pytest.fixture(scope="session")
def tolerance() -> float:
    """Largest difference allowed where the model runs op by op."""
    return TOLERANCE


@pytest.fixture(scope="session")
def compiled_tolerance() -> float:
    """Largest difference allowed where the model is compiled."""
    return COMPILED_TOLERANCE


@pytest.fixture(scope="session")
def video_tolerance() -> float:
    """Largest difference allowed on videos."""
    return VIDEO_TOLERANCE


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
