"""Makes the committed reference fixtures of the backbone with transformers and torch.

    python tests/golden/make_golden.py        (needs torch; transformers 5.24.0 and torch 2.13.0 were used)

A tiny Qwen3-VL with settings unlike the published ones (merge 3, patch 10, head widths apart from width / heads, an
untied head, DeepStack at the odd blocks), float32 weights of which none is zero or one, and in folder qwen3_vl:

  config.json, model.safetensors    as transformers saves them
  case_text / images / batch.npz    inputs (uint8 patches, temporal copies left out) and the reference's outputs; two
                                    non-square images; the batch is left-padded
  generate_and_grad.npz             greedy decoding with a cache, loss over the last tokens, gradient norms
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

# Models need no torchvision, and one that was built for another torch would keep them from being imported.
sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration  # noqa: E402

PAD, IMAGE, VIDEO, VISION_START, VISION_END = 0, 300, 301, 302, 303
TEXT = dict(
    vocab_size=320, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6,
    num_key_value_heads=3, head_dim=16, max_position_embeddings=512, rope_theta=10_000.0, pad_token_id=None,
    rope_scaling=dict(rope_type="default", mrope_interleaved=True, mrope_section=[4, 2, 2]),
)  # fmt: skip
VISION = dict(
    depth=5, hidden_size=16, intermediate_size=40, num_heads=2, in_channels=3, patch_size=10, spatial_merge_size=3,
    temporal_patch_size=2, out_hidden_size=48, num_position_embeddings=64, deepstack_visual_indexes=[1, 3],
)  # fmt: skip


def build(text: dict, vision: dict, *, tied: bool, seed: int) -> Qwen3VLForConditionalGeneration:
    """A model with random weights, each of which matters: no zeros, no ones."""
    config = Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=tied,
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
    )
    config._attn_implementation = "eager"
    model = Qwen3VLForConditionalGeneration(config).float().eval()
    generator = torch.Generator().manual_seed(seed)
    for name, value in sorted(dict(model.named_parameters()).items()):
        noise = torch.randn(value.shape, generator=generator)
        if value.ndim == 1:
            noise = 1 + 0.2 * noise if "norm" in name and name.endswith("weight") else 0.1 * noise
        elif "embed" in name and "patch" not in name:
            noise = 0.5 * noise
        else:
            noise = noise / value.flatten(1).shape[1] ** 0.5
        value.data.copy_(noise)
    model.tie_weights()
    return model


def random_patches(rng: np.random.Generator, grid: tuple[int, int], vision: dict) -> np.ndarray:
    """uint8 [gh * gw, C * p * p], smooth from patch to patch with some noise."""
    level = np.linspace(0, 200, grid[0] * grid[1])[:, None]
    columns = vision["in_channels"] * vision["patch_size"] ** 2
    return (level + rng.integers(0, 56, (grid[0] * grid[1], columns))).astype(np.uint8)


def pixel_values(patches: np.ndarray, vision: dict) -> torch.Tensor:
    """What the reference's image processor makes of the patches: normalised to [-1, 1], one copy per frame."""
    pixels = ((patches.astype(np.float32) / 255) - 0.5) / 0.5
    pixels = pixels.reshape(len(patches), vision["in_channels"], 1, -1)
    return torch.tensor(np.repeat(pixels, vision["temporal_patch_size"], axis=2).reshape(len(patches), -1))


def sequence(rng: np.random.Generator, parts: list[int | tuple[int, int]], merge: int) -> np.ndarray:
    """Token ids from a plan: an int is that many random text tokens, a grid is an image."""
    ids: list[int] = []
    for part in parts:
        if isinstance(part, tuple):
            ids += [VISION_START, *[IMAGE] * (part[0] * part[1] // merge**2), VISION_END]
        else:
            ids += rng.integers(1, 299, part).tolist()
    return np.array(ids)


def reference_inputs(rows: list[np.ndarray], patches: list[np.ndarray], grids: list, vision: dict) -> dict[str, Any]:
    """Left-padded arguments of the reference's forward."""
    length = max(len(row) for row in rows)
    ids = np.stack([np.pad(row, (length - len(row), 0), constant_values=PAD) for row in rows])
    mask = np.stack([np.arange(length) >= length - len(row) for row in rows]).astype(np.int64)
    inputs = dict(
        input_ids=torch.tensor(ids),
        attention_mask=torch.tensor(mask),
        mm_token_type_ids=torch.tensor((ids == IMAGE).astype(np.int64)),
    )
    if patches:
        inputs["pixel_values"] = torch.cat([pixel_values(p, vision) for p in patches])
        inputs["image_grid_thw"] = torch.tensor([[1, *grid] for grid in grids])
    return inputs


def reference_outputs(model: Qwen3VLForConditionalGeneration, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """Logits, and with images the vision features, DeepStack features and position ids."""
    recorded: dict[str, np.ndarray] = {}
    hooks = []
    for level, merger in enumerate(model.model.visual.deepstack_merger_list):

        def keep(_module: Any, _inputs: Any, output: torch.Tensor, level: int = level) -> None:
            recorded[f"out_vit_deepstack{level}_out"] = output.numpy().copy()

        hooks.append(merger.register_forward_hook(keep))
    with torch.no_grad():
        if "pixel_values" in inputs:
            vision = model.model.visual(inputs["pixel_values"], grid_thw=inputs["image_grid_thw"])
            recorded["out_vit_out"] = vision.pooler_output.numpy()
            positions, _ = model.model.get_rope_index(
                inputs["input_ids"],
                inputs["mm_token_type_ids"],
                image_grid_thw=inputs["image_grid_thw"],
                attention_mask=inputs["attention_mask"],
            )
            recorded["position_ids"] = positions.numpy()
        recorded["out_logits"] = model(**inputs, use_cache=False).logits.numpy()
    for hook in hooks:
        hook.remove()
    return recorded


def reference_gradients(model: Qwen3VLForConditionalGeneration, inputs: dict[str, Any], targets: int) -> dict[str, Any]:
    """Loss over the last `targets` tokens and the norm of every parameter's gradient."""
    labels = torch.full_like(inputs["input_ids"], -100)
    labels[:, -targets:] = inputs["input_ids"][:, -targets:]
    model.model.rope_deltas = None
    model.zero_grad()
    loss = model(**inputs, labels=labels, use_cache=False).loss
    loss.backward()
    gradients = {name: p.grad.norm().item() for name, p in sorted(model.named_parameters()) if p.grad is not None}
    return dict(
        labels=labels.numpy(),
        loss=loss.item(),
        grad_names=np.array(list(gradients)),
        grad_norms=np.array(list(gradients.values())),
    )


def main() -> None:
    """Writes the fixtures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "qwen3_vl")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    model, rng, merge = build(TEXT, VISION, tied=False, seed=1), np.random.default_rng(2), VISION["spatial_merge_size"]
    model.config.save_pretrained(out)
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, out / "model.safetensors")

    wide, tall = (6, 12), (9, 6)
    cases: dict[str, tuple[list, list]] = {
        "text": ([[17]], []),
        "images": ([[4, wide, 2, tall, 9]], [wide, tall]),
        "batch": ([[3, tall, 5], [2, wide, 8]], [tall, wide]),
    }
    for name, (plans, grids) in cases.items():
        rows = [sequence(rng, plan, merge) for plan in plans]
        patches = [random_patches(rng, grid, VISION) for grid in grids]
        inputs = reference_inputs(rows, patches, grids, VISION)
        outputs = reference_outputs(model, inputs)
        arrays = {key: value.numpy() for key, value in inputs.items() if key != "pixel_values"}
        if patches:
            arrays["patches"] = np.concatenate(patches)
        np.savez_compressed(out / f"case_{name}.npz", **arrays, **outputs)
        if name == "images":
            model.model.rope_deltas = None
            with torch.no_grad():
                sampled = model.generate(
                    **inputs, max_new_tokens=6, do_sample=False, use_cache=True, eos_token_id=None, pad_token_id=PAD,
                    return_dict_in_generate=True, output_logits=True,
                )  # fmt: skip
            decoded = dict(sequences=sampled.sequences.numpy(), step_logits=torch.stack(sampled.logits, 1).numpy())
            gradients = reference_gradients(model, inputs, targets=6)
            np.savez_compressed(out / "generate_and_grad.npz", **decoded, **gradients)


if __name__ == "__main__":
    main()
