"""The Qwen2.5-VL vision tower: most blocks attend inside windows, a few over the whole image.

The host lays the patches of each window side by side (`layout.window_order`) and tells every image pad which feature is
its own, so that nothing is reordered here.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from gui_owl_jax.models import rope
from gui_owl_jax.models.config import QwenVLConfig, VisionConfig
from gui_owl_jax.models.layers import Linear, RMSNorm, scan_layers, stack
from gui_owl_jax.models.vision import (
    attend_in_windows,
    embed_patches,
    image_segments,
    merger_activation,
    patch_kernel_rows,
)


def attention_spans(config: VisionConfig) -> list[tuple[int, int, bool]]:
    """Returns runs of blocks as (start, stop, whether they see the whole image).

    Full blocks (1, 3) of 5 give (0, 1, no) (1, 2, yes) (2, 3, no) (3, 4, yes) (4, 5, no).
    """
    spans: list[tuple[int, int, bool]] = []
    for block in range(config.blocks):
        full = block in config.full_attention_blocks
        if spans and spans[-1][2] == full:
            spans[-1] = (spans[-1][0], block + 1, full)
        else:
            spans.append((block, block + 1, full))
    return spans


class WindowedBlock(nnx.Module):
    """x += attention(norm(x)); x += SwiGLU(norm(x))."""

    def __init__(self, config: VisionConfig, *, rngs: nnx.Rngs):
        width, residual = config.width, (2 * config.blocks) ** -0.5
        self.config = config
        self.norm1 = RMSNorm(width, config.norm_eps)
        self.qkv = Linear(width, 3 * width, ("vision_embed", "vision_heads"), rngs=rngs)
        self.proj = Linear(width, width, ("vision_heads", "vision_embed"), rngs=rngs, scale=residual)
        self.norm2 = RMSNorm(width, config.norm_eps)
        self.gate = Linear(width, config.mlp_width, ("vision_embed", "vision_mlp"), rngs=rngs)
        self.up = Linear(width, config.mlp_width, ("vision_embed", "vision_mlp"), rngs=rngs)
        self.down = Linear(config.mlp_width, width, ("vision_mlp", "vision_embed"), rngs=rngs, scale=residual)

    def __call__(
        self, x: jax.Array, cos_sin: tuple[jax.Array, jax.Array], segments: jax.Array, window: int, implementation: str
    ) -> jax.Array:
        """Maps [B, P, D] to [B, P, D]; attention stays inside runs of `window` patches and inside segments [B, P]."""
        qkv = self.qkv(self.norm1(x))
        x = x + self.proj(attend_in_windows(qkv, self.config.heads, cos_sin, segments, window, implementation))
        y = self.norm2(x)
        return x + self.down(jax.nn.silu(self.gate(y)) * self.up(y))


class RMSMerger(nnx.Module):
    """Norms each patch, joins the m * m adjacent ones of a token, and maps them to the decoder's width."""

    def __init__(self, config: VisionConfig, *, rngs: nnx.Rngs):
        self.joined = config.width * config.merge_size**2
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.fc1 = Linear(self.joined, self.joined, ("vision_embed", "vision_mlp"), rngs=rngs)
        self.fc2 = Linear(self.joined, config.out_width, ("vision_mlp", "embed"), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [B, P, D] to [B, M, out_width]."""
        x = self.norm(x).reshape(x.shape[0], -1, self.joined)
        return self.fc2(merger_activation(self.fc1(x)))


class WindowedTower(nnx.Module):
    """Patch embedding, rotary positions, blocks and merger; no DeepStack."""

    def __init__(self, config: QwenVLConfig, *, rngs: nnx.Rngs):
        tower = config.vision
        self.config = config
        axes = ("patch", "vision_embed")
        self.patch_embed = Linear(patch_kernel_rows(tower), tower.width, axes, rngs=rngs, bias=False)
        self.blocks = stack(lambda r: WindowedBlock(tower, rngs=r), tower.blocks, rngs)
        self.merger = RMSMerger(tower, rngs=rngs)

    def __call__(
        self, batch: Mapping[str, jax.Array], dtype: jnp.dtype, remat: str | bool, implementation: str
    ) -> tuple[jax.Array, jax.Array]:
        """Returns features [B, M, D], and no DeepStack features [0, B, M, D], of a batch's patches."""
        tower = self.config.vision
        x = embed_patches(self.config, batch["patches"], self.patch_embed, dtype)
        cos_sin = rope.vision_rope(tower, batch["patch_coords"])
        segments = image_segments(batch["patch_segment_ids"])
        slot = (tower.window_side * tower.merge_size) ** 2
        for start, stop, full in attention_spans(tower):
            window = x.shape[1] if full else slot

            def call(block: WindowedBlock, x: jax.Array, _: None, window: int = window) -> tuple[jax.Array, None]:
                return block(x, cos_sin, segments, window, implementation if window > slot else "einsum"), None

            x, _ = scan_layers(call, self.blocks, x, start=start, stop=stop, remat=remat)
        features = self.merger(x)
        return features, jnp.zeros((0, *features.shape), dtype)
