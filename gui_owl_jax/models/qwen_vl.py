"""Qwen-VL as pure functions of (config, params, batch).

The modules are Flax NNX; their parameters are handled as the plain nested dict of their state, so that jit, grad and
checkpoints see arrays and nothing else. The batch is that of `gui_owl_jax.models.layout.lay_out_rows`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from gui_owl_jax.models.config import QwenVLConfig
from gui_owl_jax.models.layers import Linear
from gui_owl_jax.models.text import Decoder, Kept, KVCache, place_features
from gui_owl_jax.models.vision import VisionTower
from gui_owl_jax.models.vision_windows import WindowedTower

Params = dict[str, Any]
DeviceBatch = Mapping[str, jax.Array]


class QwenVL(nnx.Module):
    """The whole model: vision tower, decoder, and a head when it is not tied to the embedding."""

    def __init__(self, config: QwenVLConfig, *, rngs: nnx.Rngs):
        tower = WindowedTower if config.vision.window_side else VisionTower
        self.vision = tower(config, rngs=rngs)
        self.text = Decoder(config.text, rngs=rngs)
        if not config.tie_word_embeddings:
            self.head = Linear(config.text.width, config.text.vocab_size, ("embed", "vocab"), rngs=rngs, bias=False)


@functools.cache
def _abstract(config: QwenVLConfig) -> tuple[nnx.GraphDef, nnx.State]:
    return nnx.split(nnx.eval_shape(lambda: QwenVL(config, rngs=nnx.Rngs(0))))


def _bind(config: QwenVLConfig, params: Params) -> QwenVL:
    return nnx.merge(_abstract(config)[0], params)


def init_params(config: QwenVLConfig, key: jax.Array, dtype: jnp.dtype = jnp.float32) -> Params:
    """Returns freshly drawn parameters as a nested dict; kernels are [in, out], stacked layers have a leading axis."""

    def make(key: jax.Array) -> Params:
        params = nnx.to_pure_dict(nnx.state(QwenVL(config, rngs=nnx.Rngs(key))))
        return jax.tree.map(lambda a: a.astype(dtype), params)

    return jax.jit(make)(key)


def abstract_params(config: QwenVLConfig, dtype: jnp.dtype = jnp.float32) -> Params:
    """Returns the tree of `init_params` as ShapeDtypeStructs; nothing is computed."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, dtype), nnx.to_pure_dict(_abstract(config)[1]))


def logical_axes(config: QwenVLConfig) -> Params:
    """Returns the tree of `init_params` with a tuple of logical axis names (or None) per array dimension."""

    def axes(variable: nnx.Param) -> tuple[str | None, ...]:
        own = variable.get_metadata()["axes"]
        return ("layers",) * (len(variable.shape) - len(own)) + own

    tree = jax.tree.map(axes, _abstract(config)[1], is_leaf=lambda node: isinstance(node, nnx.Variable))
    return nnx.to_pure_dict(tree)


def encode_images(
    config: QwenVLConfig,
    params: Params,
    batch: DeviceBatch,
    *,
    dtype: jnp.dtype = jnp.float32,
    remat: str | bool = False,
    implementation: str = "xla",
) -> tuple[jax.Array, jax.Array]:
    """Runs the vision tower over a batch's patches.

    Args:
      config: shapes and image statistics.
      params: as `init_params` makes them.
      batch: needs patches, patch_segment_ids, patch_coords and, for Qwen3-VL, pos_index and pos_weight.
      dtype: of activations and matmuls.
      remat: compute the blocks' insides again in the backward pass.
      implementation: of the attention, see `gui_owl_jax.ops.attention`.

    Returns:
      features [B, M, D] and DeepStack features [X, B, M, D], D the text width.
    """
    rows, patches, _ = batch["patches"].shape
    if patches == 0:
        empty = (rows, 0, config.text.width)
        return jnp.zeros(empty, dtype), jnp.zeros((0, *empty), dtype)
    return _bind(config, params).vision(batch, dtype, remat, implementation)


def hidden_states(
    config: QwenVLConfig,
    params: Params,
    batch: DeviceBatch,
    *,
    dtype: jnp.dtype = jnp.float32,
    remat: str | bool = False,
    implementation: str = "xla",
) -> jax.Array:
    """Returns the final-normed hidden states [B, L, D] of a batch of `lay_out_rows`; arguments as `encode_images`."""
    return forward(config, params, batch, dtype=dtype, remat=remat, implementation=implementation)[0]


def forward(
    config: QwenVLConfig,
    params: Params,
    batch: DeviceBatch,
    *,
    dtype: jnp.dtype = jnp.float32,
    remat: str | bool = False,
    implementation: str = "xla",
    keep: tuple[str, ...] = (),
) -> tuple[jax.Array, Kept]:
    """Returns what `hidden_states` does, and the things that `keep` names of every layer (`models.text.Kept`)."""
    features, deepstack = encode_images(config, params, batch, dtype=dtype, remat=remat, implementation=implementation)
    text = _bind(config, params).text
    h = text.embed.embedding[...].astype(dtype)[batch["tokens"]]
    if features.shape[1]:
        h = place_features(h, features, batch["visual_index"], add=False)
    return text(
        h,
        batch["positions"],
        batch["segment_ids"],
        deepstack,
        batch["visual_index"],
        remat=remat,
        implementation=implementation,
        keep=keep,
    )


def head_kernel(config: QwenVLConfig, params: Params) -> jax.Array:
    """Returns the output kernel [D, V]: the head's own, or the transposed embedding when tied."""
    return params["text"]["embed"]["embedding"].T if config.tie_word_embeddings else params["head"]["kernel"]


def logits(config: QwenVLConfig, params: Params, hidden: jax.Array) -> jax.Array:
    """Returns float32 logits [..., V] of hidden states [..., D]."""
    kernel = head_kernel(config, params).astype(hidden.dtype)
    return jnp.matmul(hidden, kernel, preferred_element_type=jnp.float32)


def init_cache(config: QwenVLConfig, rows: int, cache_length: int, dtype: jnp.dtype = jnp.float32) -> KVCache:
    """Returns an empty cache for `rows` sequences of up to `cache_length` tokens."""
    text = config.text
    shape = (text.layers, rows, cache_length, text.kv_heads, text.head_width)
    return KVCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


def prefill(
    config: QwenVLConfig,
    params: Params,
    batch: DeviceBatch,
    cache_length: int,
    *,
    dtype: jnp.dtype = jnp.float32,
    implementation: str = "xla",
) -> tuple[jax.Array, KVCache]:
    """Reads one right-padded prompt per row (`layout.lay_out_prompts`).

    Args:
      config: shapes.
      params: as `init_params` makes them.
      batch: arrays of `lay_out_prompts`; lengths int [B] counts each row's tokens.
      cache_length: slots S per row, at least L. Slot i holds token i; what padding leaves is overwritten or masked.
      dtype: of activations, matmuls and cache.
      implementation: of the attention.

    Returns:
      hidden [B, D] of each prompt's last token, and the cache.
    """
    hidden, kept = forward(config, params, batch, dtype=dtype, implementation=implementation, keep=("kv",))
    room = cache_length - hidden.shape[1]
    cache = jax.tree.map(lambda a: jnp.pad(a, [(0, 0), (0, 0), (0, room), (0, 0), (0, 0)]), kept.kv)
    last = jnp.take_along_axis(hidden, batch["lengths"][:, None, None] - 1, axis=1)[:, 0]
    return last, cache


def decode_step(
    config: QwenVLConfig,
    params: Params,
    cache: KVCache,
    tokens: jax.Array,
    positions: jax.Array,
    write_index: jax.Array,
) -> tuple[jax.Array, KVCache]:
    """Reads one more token per row; the activations take the dtype of the cache.

    Args:
      config: shapes.
      params: as `init_params` makes them.
      cache: of `prefill` or the step before.
      tokens: int [B]; an image pad here is an ordinary token.
      positions: rotary positions, int [B] (the same on all axes) or [B, 3].
      write_index: int [B], the slot of this token: the number of tokens the row has so far. Later slots stay unseen.

    Returns:
      final-normed hidden [B, D] and the cache with this token.
    """
    text = _bind(config, params).text
    if positions.ndim == 1:
        positions = jnp.stack([positions] * 3, axis=-1)
    h = text.embed.embedding[...].astype(cache.k.dtype)[tokens]
    h, cache = text.decode(h[:, None], positions[:, None], write_index, cache)
    return h[:, 0], cache
