"""Rotary position embeddings: multi-axis for the decoder, two-dimensional for patches. Angles are float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from gui_owl_jax.models.config import TextConfig, VisionConfig


def mrope_axes(section: tuple[int, int, int], interleaved: bool) -> np.ndarray:
    """Returns int [sum(section)]: which position (0 T, 1 H, 2 W) turns each frequency.

    Section (3, 2, 2) gives T H W T H W T interleaved (Qwen3-VL), else T T T H H W W (Qwen2.5-VL).
    """
    if not interleaved:
        return np.repeat(np.arange(3, dtype=np.int32), section)
    axes = np.zeros(sum(section), np.int32)
    for axis in (1, 2):
        axes[axis : 3 * section[axis] : 3] = axis
    return axes


def text_rope(config: TextConfig, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns cos and sin, float32 [B, L, 1, H / 2], for positions int [B, L, 3]."""
    half = config.head_width // 2
    frequencies = config.rope_theta ** (-np.arange(half, dtype=np.float64) / half)
    chosen = positions[..., mrope_axes(config.mrope_section, config.mrope_interleaved)].astype(jnp.float32)
    return _cos_sin(chosen * frequencies.astype(np.float32))


def vision_rope(config: VisionConfig, coords: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns cos and sin, float32 [B, P, 1, H / 2], for (row, column) int [B, P, 2]; rows turn the first half."""
    quarter = config.head_width // 4
    frequencies = config.rope_theta ** (-np.arange(quarter, dtype=np.float64) / quarter)
    angles = coords[..., None].astype(jnp.float32) * frequencies.astype(np.float32)
    return _cos_sin(angles.reshape(*coords.shape[:-1], 2 * quarter))


def rotate(x: jax.Array, cos_sin: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Turns pairs (x[i], x[i + H / 2]) of x [B, L, N, H] by their angles, in float32; returns the dtype of x."""
    cos, sin = cos_sin
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


def _cos_sin(angles: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.cos(angles)[..., None, :], jnp.sin(angles)[..., None, :]
