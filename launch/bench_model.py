"""The work that `launch.bench model` compares: ours and that of `transformers` on the same weights and inputs."""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from data.packing import Budget, pack_batches
from gui_owl_jax import sharding
from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.hf.checkpoint import export_hf
from gui_owl_jax.hf.images import ImageConfig, pixel_values
from gui_owl_jax.hf.processor import EncodedPrompt
from gui_owl_jax.models import layout, qwen_vl
from gui_owl_jax.models.config import QwenVLConfig, TextConfig, VisionConfig
from gui_owl_jax.models.layout import Example, ImagePatches
from gui_owl_jax.rollout.engine import Engine, SamplerConfig
from gui_owl_jax.training import steps
from gui_owl_jax.training.losses import ComputeConfig, supervised_loss
from gui_owl_jax.training.optimizer import OptimizerConfig
from launch.comparison import Comparison

# Models need no torchvision, and one that was built for another torch would keep them from being imported.
sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]
try:
    import torch
    import transformers
except ImportError as error:
    raise ConfigError(f"bench model: {error}; it needs the parity environment (bash tests/run.sh parity)") from error


@dataclasses.dataclass(frozen=True)
class Size:
    """Shapes of the comparisons.

    Attributes:
      model: the model.
      screen: (width, height) of the screens of equal size, in pixels.
      prompt: tokens of a prompt with one such screen.
      rows: of a batch of training and of the forward pass.
      screens: (width, height) of the screens of mixed sizes.
      text: fewest and most tokens of text beside a screen of mixed size.
      packed: row, token and patch budget of ours.
      group: prompts to generate from.
      new_tokens: tokens to generate.
      chunk: of the logits, see `ops.cross_entropy`.
    """

    model: QwenVLConfig
    screen: tuple[int, int]
    prompt: int
    rows: int
    screens: tuple[tuple[int, int], ...]
    text: tuple[int, int]
    packed: tuple[int, int, int]
    group: int
    new_tokens: int
    chunk: int


def _model(vocabulary: int, vision: VisionConfig, **text: Any) -> QwenVLConfig:
    return QwenVLConfig(
        vision=vision,
        text=TextConfig(vocab_size=vocabulary, head_width=64, mrope_section=(12, 10, 10), **text),
        image_token_id=vocabulary - 1,
        video_token_id=vocabulary - 2,
        vision_start_token_id=vocabulary - 3,
        vision_end_token_id=vocabulary - 4,
    )


# Phones, tablets and windows of desktops, each a multiple of 32 pixels.
_SCREENS = ((992, 608), (448, 960), (640, 384), (480, 320), (352, 768), (1024, 576), (320, 224), (608, 992))

SIZES = {
    "anchor": Size(
        model=_model(
            32_000,
            VisionConfig(256, 6, 4, 1024, out_width=512, deepstack_indexes=(1, 3, 5)),
            width=512,
            layers=8,
            heads=8,
            kv_heads=4,
            mlp_width=1536,
        ),
        screen=(992, 608),
        prompt=1024,
        rows=4,
        screens=_SCREENS * 2,
        text=(60, 300),
        packed=(2, 1152, 3328),
        group=8,
        new_tokens=64,
        chunk=256,
    ),
    "tiny": Size(
        model=_model(
            512,
            VisionConfig(64, 2, 2, 128, out_width=128, num_position_embeddings=64, deepstack_indexes=(0,)),
            width=128,
            layers=2,
            heads=2,
            kv_heads=1,
            mlp_width=128,
        ),
        screen=(64, 96),
        prompt=32,
        rows=2,
        screens=((64, 96), (32, 64), (96, 96)),
        text=(8, 20),
        packed=(2, 40, 64),
        group=2,
        new_tokens=4,
        chunk=16,
    ),
}


def comparisons(size: Size) -> dict[str, Callable[[], Comparison]]:
    """Returns what can be compared: name -> a function that prepares it."""
    pair = functools.cache(lambda: _Pair(size))
    return {
        "forward": lambda: _forward(pair()),
        "train": lambda: _train(pair()),
        "packed": lambda: _packed(pair()),
        "generate": lambda: _generate(pair(), pair().prompts(size.group), "a prompt each"),
        "generate_group": lambda: _generate(pair(), pair().prompts(1) * size.group, "one prompt", same=True),
        "generate_text": lambda: _generate(pair(), pair().texts(size.group), "a short text each"),
    }


def surroundings() -> str:
    """Says in a line what the figures were measured with."""
    versions = f"jax {jax.__version__}, torch {torch.__version__}, transformers {transformers.__version__}"
    cores, load = os.cpu_count(), os.getloadavg()[0]
    return f"{versions}, float32, {cores} {platform.machine()} cores, load average {load:.1f} at the start"


class _Pair:
    """One set of random weights as our parameters and, written and loaded, as a model of transformers."""

    def __init__(self, size: Size):
        torch.set_num_threads(os.cpu_count() or 1)
        self.size, self.model = size, size.model
        self.params = qwen_vl.init_params(size.model, jax.random.key(0))
        self.images = ImageConfig.for_model(size.model, min_pixels=1024, max_pixels=1 << 24)
        with tempfile.TemporaryDirectory() as folder:
            export_hf(size.model, self.params, f"{folder}/model")
            self.peer = transformers.AutoModelForImageTextToText.from_pretrained(f"{folder}/model", dtype=torch.float32)
        self.peer.eval()

    def example(self, rng: np.random.Generator, screen: tuple[int, int], length: int) -> Example:
        """A screen behind some text, then text that is trained on: `length` tokens in all."""
        vision, model = self.model.vision, self.model
        grid = (screen[1] // vision.patch_size, screen[0] // vision.patch_size)
        count = grid[0] * grid[1]
        patches = rng.integers(0, 256, (count, vision.patch_columns), dtype=np.uint8)
        tokens = rng.integers(5, model.vision_end_token_id, length).astype(np.int32)
        start, pads = 4, count // vision.merge_size**2
        tokens[start : start + pads + 2] = model.image_token_id
        tokens[[start, start + pads + 1]] = model.vision_start_token_id, model.vision_end_token_id
        mask = (tokens != model.image_token_id).astype(np.float32)
        mask[0] = 0
        return Example(tokens, mask, (ImagePatches(patches, grid),))

    def prompts(self, count: int) -> list[Example]:
        """Prompts with screens of equal size."""
        rng = np.random.default_rng(0)
        return [self.example(rng, self.size.screen, self.size.prompt) for _ in range(count)]

    def texts(self, count: int) -> list[Example]:
        """Prompts without a screen, of the fewest tokens of text."""
        rng, length = np.random.default_rng(0), self.size.text[0]
        draws = [rng.integers(5, self.model.vision_end_token_id, length).astype(np.int32) for _ in range(count)]
        return [Example(tokens, np.zeros(length, np.float32), ()) for tokens in draws]

    def padded(self, examples: Sequence[Example]) -> dict[str, Any]:
        """A batch of transformers, padded to its longest example, with labels."""
        longest = max(len(example.tokens) for example in examples)
        ids = np.zeros((len(examples), longest), np.int64)
        labels = np.full(ids.shape, -100)
        for row, example in enumerate(examples):
            ids[row, : len(example.tokens)] = example.tokens
            labels[row, : len(example.tokens)] = np.where(example.loss_mask > 0, example.tokens, -100)
        images = [image for example in examples for image in example.images]
        lengths = np.array([len(example.tokens) for example in examples])
        arrays = {
            "input_ids": ids,
            "attention_mask": (np.arange(longest) < lengths[:, None]).astype(np.int64),
            "mm_token_type_ids": (ids == self.model.image_token_id).astype(np.int64),
            "labels": labels,
        }
        if images:
            arrays["pixel_values"] = np.concatenate([pixel_values(image, self.images) for image in images])
            arrays["image_grid_thw"] = np.array([[1, *image.grid] for image in images])
        return {name: torch.tensor(array) for name, array in arrays.items()}

    def gradient(self) -> Callable[[dict[str, Any]], tuple[float, Any]]:
        """Our forward and backward pass: batch -> (loss, gradients)."""
        mesh = sharding.make_mesh(sharding.MeshConfig(), jax.devices()[:1])
        loss = supervised_loss(self.model, ComputeConfig(chunk=self.size.chunk))
        step = steps.gradient_step(loss, self.model, OptimizerConfig(), mesh)

        def run(batch: dict[str, Any]) -> tuple[float, Any]:
            (value, _), gradients = jax.block_until_ready(step(self.params, batch))
            return float(value), gradients

        return run

    def their_gradient(self, batch: dict[str, Any]) -> float:
        """Their forward and backward pass; the gradients are in the model."""
        self.peer.train()
        self.peer.zero_grad(set_to_none=True)
        loss = self.peer(**batch).loss
        loss.backward()
        return float(loss.detach())


def _lay_out(pair: _Pair, examples: Sequence[Example]) -> layout.Batch:
    longest = max(len(example.tokens) for example in examples)
    patches = max(example.patch_count for example in examples)
    return layout.lay_out_rows([[example] for example in examples], pair.model, longest, patches)


def _forward(pair: _Pair) -> Comparison:
    """Logits of every token."""
    examples = pair.prompts(pair.size.rows)
    batch, theirs = _lay_out(pair, examples), pair.padded(examples)
    theirs.pop("labels")

    @jax.jit
    def run(params: Any, batch: Any) -> jax.Array:
        hidden = qwen_vl.hidden_states(pair.model, params, batch, implementation="auto")
        return qwen_vl.logits(pair.model, params, hidden)

    def peer() -> Any:
        pair.peer.eval()
        with torch.no_grad():
            return pair.peer(**theirs).logits

    def agreement(own: Any, other: Any) -> str:
        return _close("logits", float(np.abs(np.asarray(own) - other.numpy()).max()), 1e-3)

    tokens = pair.size.rows * pair.size.prompt
    ours = lambda: jax.block_until_ready(run(pair.params, batch))  # noqa: E731
    return Comparison("forward pass, all logits", ours, peer, agreement, (tokens, "tokens"))


def _train(pair: _Pair) -> Comparison:
    """Forward and backward pass over examples of equal size: nothing to gain by packing."""
    examples = pair.prompts(pair.size.rows)
    batch, theirs, gradient = _lay_out(pair, examples), pair.padded(examples), pair.gradient()

    def agreement(own: Any, other: float) -> str:
        return _close("losses", abs(own[0] - other), 1e-3)

    tokens = pair.size.rows * pair.size.prompt
    peer = functools.partial(pair.their_gradient, theirs)
    return Comparison("train step, equal inputs", lambda: gradient(batch), peer, agreement, (tokens, "tokens"))


def _packed(pair: _Pair) -> Comparison:
    """Forward and backward passes over screens of mixed sizes: our packed rows against their padded batches."""
    size, rng = pair.size, np.random.default_rng(1)
    merge = (pair.model.vision.patch_size * pair.model.vision.merge_size) ** 2
    screens = [size.screens[i] for i in rng.permutation(len(size.screens))]
    examples = [
        pair.example(rng, screen, screen[0] * screen[1] // merge + 6 + int(rng.integers(*size.text)))
        for screen in screens
    ]
    batches = list(pack_batches(examples, pair.model, Budget(*size.packed)))
    padded = [pair.padded(examples[i : i + size.rows]) for i in range(0, len(examples), size.rows)]
    gradient = pair.gradient()
    counts = [float(batch["loss_mask"].sum()) for batch in batches]
    their_counts = [float((batch["labels"] != -100).sum()) for batch in padded]

    def ours() -> float:
        return float(np.average([gradient(batch)[0] for batch in batches], weights=counts))

    def theirs() -> float:
        return float(np.average([pair.their_gradient(batch) for batch in padded], weights=their_counts))

    def agreement(own: float, other: float) -> str:
        return _close("losses", abs(own - other), 1e-3)

    tokens = sum(len(example.tokens) for example in examples)
    return Comparison("training on mixed screens, packed / padded", ours, theirs, agreement, (tokens, "useful tokens"))


def _generate(pair: _Pair, prompts: Sequence[Example], what: str, same: bool = False) -> Comparison:
    """Greedy generation; `same` reads one prompt for all rows, as for a group of rollouts."""
    size = pair.size
    length, merged = len(prompts[0].tokens), pair.model.vision.merge_size**2
    buckets = ((size.group,), (length,), (max(prompts[0].patch_count, merged),))
    sampler = SamplerConfig(size.new_tokens, 0.0, 0, 1.0, *buckets, share_prompts=same)
    engine = Engine(pair.model, sampler, stop_ids=(-1,))
    encoded = [EncodedPrompt(prompt.tokens, prompt.images) for prompt in prompts]
    seeds = np.zeros((size.group, 2), np.uint32)
    batch = pair.padded(prompts)
    batch.pop("labels")
    count = size.new_tokens

    def ours() -> np.ndarray:
        return np.stack([sample.token_ids for sample in engine.generate(pair.params, encoded, seeds)])

    def theirs() -> np.ndarray:
        pair.peer.eval()
        with torch.no_grad():
            out = pair.peer.generate(
                **batch, do_sample=False, min_new_tokens=count, max_new_tokens=count, pad_token_id=0, eos_token_id=1
            )
        return out[:, length:].numpy()

    def agreement(own: Any, other: Any) -> str:
        return f"{np.mean(own == other):.1%} of the tokens equal"

    name = f"generation of {count} tokens, {size.group} rows, {what}"
    return Comparison(name, ours, theirs, agreement, (size.group * count, "tokens"))


def _close(what: str, difference: float, bound: float) -> str:
    if not difference < bound:
        raise AssertionError(f"{what} differ by {difference}, more than {bound}: not the same work")
    return f"{what} differ by {difference:.0e}"
