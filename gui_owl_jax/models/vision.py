"""The Qwen3-VL vision tower: patches of any number of images per row -> one feature per merged patch, and DeepStack."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from gui_owl_jax.models import rope
from gui_owl_jax.models.config import QwenVLConfig, VisionConfig
from gui_owl_jax.models.layers import Embedding, LayerNorm, Linear, matmul, scan_layers, stack
from gui_owl_jax.ops.attention import attention


def block_activation(x: jax.Array) -> jax.Array:
    """The blocks' GELU: the tanh approximation."""
    return jax.nn.gelu(x, approximate=True)


def merger_activation(x: jax.Array) -> jax.Array:
    """The mergers' GELU: exact (erf)."""
    return jax.nn.gelu(x, approximate=False)


def image_segments(patch_segment_ids: jax.Array) -> jax.Array:
    """Returns the ids [B, P] inside which patches attend to each other: an image never sees another one."""
    return patch_segment_ids


def tapped_spans(config: VisionConfig) -> list[tuple[int, int]]:
    """Returns [start, stop) of the runs of blocks up to each tapped one, then the rest; (5, 11): 0-6, 6-12, 12-24."""
    ends = [index + 1 for index in config.deepstack_indexes]
    return list(zip([0, *ends], [*ends, config.blocks]))


def attend_in_windows(
    qkv: jax.Array,
    heads: int,
    cos_sin: tuple[jax.Array, jax.Array],
    segments: jax.Array,
    window: int,
    implementation: str,
) -> jax.Array:
    """Self-attention of patches, inside runs of `window` patches and inside segments.

    Args:
      qkv: [B, P, 3 D], queries, keys and values one behind the other.
      heads: N.
      cos_sin: of the rotary angles, each broadcastable to [B, P, N, .].
      segments: int [B, P].
      window: must divide P.
      implementation: of the attention.

    Returns:
      [B, P, D].
    """
    batch, patches, width = qkv.shape
    qkv = qkv.reshape(batch, patches, 3, heads, width // (3 * heads))
    q, k = rope.rotate(qkv[:, :, 0], cos_sin), rope.rotate(qkv[:, :, 1], cos_sin)
    windows = (batch * patches // window, window)
    mixed = attention(
        *(y.reshape(*windows, *y.shape[2:]) for y in (q, k, qkv[:, :, 2])),
        segment_ids=segments.reshape(windows),
        implementation=implementation,
    )
    return mixed.reshape(batch, patches, width // 3)


class Block(nnx.Module):
    """x += attention(norm(x)); x += MLP(norm(x))."""

    def __init__(self, config: VisionConfig, *, rngs: nnx.Rngs):
        width, residual = config.width, (2 * config.blocks) ** -0.5
        self.config = config
        self.norm1 = LayerNorm(width, config.norm_eps)
        self.qkv = Linear(width, 3 * width, ("vision_embed", "vision_heads"), rngs=rngs)
        self.proj = Linear(width, width, ("vision_heads", "vision_embed"), rngs=rngs, scale=residual)
        self.norm2 = LayerNorm(width, config.norm_eps)
        self.fc1 = Linear(width, config.mlp_width, ("vision_embed", "vision_mlp"), rngs=rngs)
        self.fc2 = Linear(config.mlp_width, width, ("vision_mlp", "vision_embed"), rngs=rngs, scale=residual)

    def __call__(
        self, x: jax.Array, cos_sin: tuple[jax.Array, jax.Array], segments: jax.Array, implementation: str
    ) -> jax.Array:
        """Maps [B, P, D] to [B, P, D]; segments int [B, P] bound the attention."""
        window = self.config.window or x.shape[1]
        qkv = self.qkv(self.norm1(x))
        x = x + self.proj(attend_in_windows(qkv, self.config.heads, cos_sin, segments, window, implementation))
        return x + self.fc2(block_activation(self.fc1(self.norm2(x))))


class Merger(nnx.Module):
    """Joins the m * m adjacent patches of a token and maps them to the decoder's width.

    The main merger normalises each patch before joining (norm width D), the DeepStack mergers the joined vector.
    """

    def __init__(self, config: VisionConfig, *, norm_joined: bool, rngs: nnx.Rngs):
        joined = config.width * config.merge_size**2
        self.joined = joined
        self.norm_joined = norm_joined
        self.norm = LayerNorm(joined if norm_joined else config.width, config.norm_eps)
        self.fc1 = Linear(joined, joined, ("vision_embed", "vision_mlp"), rngs=rngs)
        self.fc2 = Linear(joined, config.out_width, ("vision_mlp", "embed"), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [B, P, D] to [B, M, out_width]."""
        if not self.norm_joined:
            x = self.norm(x)
        x = x.reshape(x.shape[0], -1, self.joined)
        if self.norm_joined:
            x = self.norm(x)
        return self.fc2(merger_activation(self.fc1(x)))


class VisionTower(nnx.Module):
    """Patch embedding, learned and rotary positions, blocks, merger and DeepStack mergers."""

    def __init__(self, config: QwenVLConfig, *, rngs: nnx.Rngs):
        tower = config.vision
        self.config = config
        self.patch_embed = Linear(patch_kernel_rows(tower), tower.width, ("patch", "vision_embed"), rngs=rngs)
        # As large as the embedded patches: at 0.02 a fresh tower sees places only once it has learned to (measured on
        # screen reading: 0.66 of the words after 150 updates against 0.77).
        axes = (None, "vision_embed")
        self.pos_embed = Embedding(tower.num_position_embeddings, tower.width, axes, rngs=rngs, scale=1.0)
        self.blocks = stack(lambda r: Block(tower, rngs=r), tower.blocks, rngs)
        self.merger = Merger(tower, norm_joined=False, rngs=rngs)
        if tower.deepstack_indexes:
            make = functools.partial(Merger, tower, norm_joined=True)
            self.deepstack = stack(lambda r: make(rngs=r), len(tower.deepstack_indexes), rngs)

    def __call__(
        self, batch: Mapping[str, jax.Array], dtype: jnp.dtype, remat: str | bool, implementation: str
    ) -> tuple[jax.Array, jax.Array]:
        """Returns features [B, M, D] and DeepStack features [X, B, M, D] of a batch's patches."""
        tower = self.config.vision
        x = embed_patches(self.config, batch["patches"], self.patch_embed, dtype)
        x = x + interpolate(self.pos_embed.embedding[...], batch["pos_index"], batch["pos_weight"]).astype(dtype)
        cos_sin = rope.vision_rope(tower, batch["patch_coords"])
        segments = image_segments(batch["patch_segment_ids"])

        def call(block: Block, x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return block(x, cos_sin, segments, implementation), None

        taps = []
        for start, stop in tapped_spans(tower):
            if start < stop:
                x, _ = scan_layers(call, self.blocks, x, start=start, stop=stop, remat=remat)
            taps.append(x)
        features = self.merger(x)
        if not tower.deepstack_indexes:
            return features, jnp.zeros((0, *features.shape), dtype)
        levels = jnp.stack(taps[:-1])
        _, deepstack = scan_layers(lambda merger, _, tap: (None, merger(tap)), self.deepstack, None, levels)
        return features, deepstack


def patch_kernel_rows(vision: VisionConfig) -> int:
    """Rows of the patch embedding's kernel: the pixels of all frames of a patch."""
    return vision.channels * vision.temporal_patch_size * vision.patch_size**2


def embed_patches(config: QwenVLConfig, patches: jax.Array, embed: Linear, dtype: jnp.dtype) -> jax.Array:
    """Normalises uint8 [B, P, columns] and projects to [B, P, D].

    Where an image's pixels travel once, it counts as `temporal_patch_size` equal frames, so their kernels may be added
    up before the product.
    """
    tower = config.vision
    area, frames = tower.patch_size**2, tower.temporal_patch_size
    copies = frames if tower.video else 1
    mean = np.repeat(np.asarray(config.image_mean, np.float32), copies * area)
    std = np.repeat(np.asarray(config.image_std, np.float32), copies * area)
    pixels = (patches.astype(jnp.float32) / 255 - mean) / std
    kernel = embed.kernel[...]
    if not tower.video:
        kernel = kernel.reshape(tower.channels, frames, area, tower.width).sum(axis=1).reshape(-1, tower.width)
    x = matmul(pixels.astype(dtype), kernel)
    return x + embed.bias[...].astype(dtype) if hasattr(embed, "bias") else x


def interpolate(table: jax.Array, index: jax.Array, weight: jax.Array) -> jax.Array:
    """Weighted sum, in float32, of the four table rows around each patch: [S*S, D], [B, P, 4] twice -> [B, P, D]."""
    return jnp.einsum("bpkd,bpk->bpd", table.astype(jnp.float32)[index], weight)
