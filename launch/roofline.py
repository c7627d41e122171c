"""Floating-point operations of a step counted by hand, and what they and the traffic between chips cost at least.

A matrix product [m, k] x [k, n] counts 2 m k n; a backward pass counts twice its forward pass. Attention counts the
pairs that may see each other: half of them where the future is masked, all of them between patches of a row.
"""

from __future__ import annotations

import dataclasses

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.models.config import QwenVLConfig


@dataclasses.dataclass(frozen=True)
class Chip:
    """A TPU chip, as published by its maker (cloud.google.com/tpu/docs).

    Attributes:
      flops: of dense bfloat16 products, per second.
      memory: bytes of HBM that a program can use.
      bandwidth: bytes per second between HBM and cores.
      links: bytes per second that leave a chip over all its links to neighbours together.
    """

    flops: float
    memory: float
    bandwidth: float
    links: float


# `memory` is what the compiler lets a program use; `links` is half of the published rate both ways (1,600, 4,800 and
# 3,584 Gbit/s).
CHIPS = {
    "v5e": Chip(197e12, 15.75 * 2**30, 819e9, 100e9),
    "v5p": Chip(459e12, 95.74 * 2**30, 2765e9, 300e9),
    "v6e": Chip(918e12, 31.25 * 2**30, 1640e9, 224e9),
}


@dataclasses.dataclass(frozen=True)
class Flops:
    """Operations of one forward pass over the whole batch, by part."""

    text: float
    attention: float
    vision: float
    vision_attention: float
    head: float

    @property
    def forward(self) -> float:
        """All parts together."""
        return self.text + self.attention + self.vision + self.vision_attention + self.head


def chip(topology: str) -> Chip:
    """Returns the chip of a topology such as "v5e:4x4"; raises ConfigError for an unknown generation."""
    generation = topology.split(":")[0]
    if generation not in CHIPS:
        raise ConfigError(f"topology {topology!r}: no figures for {generation!r}; there are {', '.join(CHIPS)}")
    return CHIPS[generation]


def forward_flops(model: QwenVLConfig, rows: int, tokens: int, patches: int, *, scored: int | None = None) -> Flops:
    """Counts a forward pass over packed rows.

    Args:
      model: the model.
      rows: B.
      tokens: L, all of a row counted as real and of one segment: an upper bound for packed rows.
      patches: P, likewise as one image.
      scored: tokens of a row that go through the head; None: all.
    """
    text, vision = model.text, model.vision
    inner, kv = text.heads * text.head_width, text.kv_heads * text.head_width
    projections = text.width * (2 * inner + 2 * kv)
    if text.moe:
        mlp = text.width * (text.moe.experts + 3 * text.moe.per_token * text.moe.width)
    else:
        mlp = 3 * text.width * text.mlp_width
    block = vision.width * (4 * vision.width + (2 if vision.kind == "qwen3_vl" else 3) * vision.mlp_width)
    joined = vision.width * vision.merge_size**2
    merger = joined * (joined + vision.out_width) * (1 + len(vision.deepstack_indexes))
    pixels = vision.channels * vision.temporal_patch_size * vision.patch_size**2
    window = patches
    if vision.window:
        window = min(vision.window, patches)
    full = vision.blocks
    seen = full * window
    if vision.attention_window:
        full = len(vision.full_attention_blocks)
        seen = full * patches + (vision.blocks - full) * (vision.attention_window // vision.patch_size) ** 2
    return Flops(
        text=2.0 * rows * tokens * text.layers * (projections + mlp),
        attention=2.0 * rows * text.layers * 2 * inner * tokens * (tokens + 1) / 2,
        vision=2.0 * rows * patches * (vision.blocks * block + pixels * vision.width + merger / vision.merge_size**2),
        vision_attention=2.0 * rows * patches * 2 * vision.width * seen,
        head=2.0 * rows * (tokens if scored is None else scored) * text.width * text.vocab_size,
    )


def decode_flops(model: QwenVLConfig, rows: int, cached: int) -> float:
    """Counts one decode step of `rows` sequences that each see `cached` tokens."""
    one = forward_flops(model, rows, 1, 0)
    text = model.text
    return one.text + one.head + 4.0 * rows * text.layers * text.heads * text.head_width * cached


def estimate(
    topology: str, chips: int, model_flops: float, done_flops: float, hbm_bytes: float, wire_bytes: float
) -> dict[str, float]:
    """Estimates the time of a step as the longest of computing, reading memory and sending, each at its full rate.

    An upper bound of what can be reached: it takes all three to overlap perfectly and no operation to wait.

    Args:
      topology: names the chip.
      chips: that share the work.
      model_flops: of the whole step, what the mathematics needs.
      done_flops: of the whole step, with what is computed twice.
      hbm_bytes: that a chip reads and writes.
      wire_bytes: that leave a chip.

    Returns:
      seconds of each (`compute`, `memory`, `network`), of the `step`, and `mfu`: model_flops per second over the peak.
    """
    kind = chip(topology)
    seconds = {
        "compute": done_flops / chips / kind.flops,
        "memory": hbm_bytes / kind.bandwidth,
        "network": wire_bytes / kind.links,
    }
    step = max(seconds.values())
    return seconds | {"step": step, "mfu": model_flops / chips / kind.flops / step}
