"""Attention: one plain reference and two fast paths that agree with it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from gui_owl_jax.agent.errors import ConfigError

IMPLEMENTATIONS = ("xla", "einsum", "splash")


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    segment_ids: jax.Array | None = None,
    causal: bool = False,
    mask: jax.Array | None = None,
    implementation: str = "xla",
) -> jax.Array:
    """Scaled dot-product attention with grouped queries; softmax in float32.

    Query head n reads key head n // (N / K). A token sees the tokens of its own segment, with `causal` only those up
    to itself; padding (segment 0) sees padding, so that no row of the softmax is empty.

    Args:
      q: [B, L, N, H].
      k: [B, S, K, H].
      v: [B, S, K, H].
      segment_ids: int [B, L] for self-attention (L = S); None lets all tokens see each other.
      causal: mask the future; L = S.
      mask: bool, broadcastable to [B, 1, L, S], True where a query may look; instead of segment_ids and causal.
      implementation: "einsum" (the reference), "xla" (`jax.nn.dot_product_attention`: fused on GPU) or "splash" (the
        Pallas TPU kernel; self-attention, L a multiple of 128).

    Returns:
      [B, L, N, H] in the dtype of q.

    Raises:
      ConfigError: the implementation is unknown or cannot take these arguments.
    """
    if mask is not None and (segment_ids is not None or causal):
        raise ConfigError("attention: give either mask or segment_ids/causal")
    if implementation == "splash":
        if mask is not None:
            raise ConfigError("attention: splash takes segment_ids and causal, not a mask")
        return _splash(q, k, v, segment_ids, causal)
    if implementation not in IMPLEMENTATIONS:
        raise ConfigError(f"attention: implementation {implementation!r} is none of {', '.join(IMPLEMENTATIONS)}")
    if mask is None:
        mask = allowed(segment_ids, causal, q.shape[1])
    if implementation == "einsum":
        return _einsum(q, k, v, mask)
    return jax.nn.dot_product_attention(q, k, v, mask=mask)


def allowed(segment_ids: jax.Array | None, causal: bool, length: int) -> jax.Array | None:
    """Returns bool [B or 1, 1, L, L], True where the query (axis 2) may see the key (axis 3); None: everywhere."""
    mask = None
    if segment_ids is not None:
        mask = (segment_ids[:, :, None] == segment_ids[:, None, :])[:, None]
    if causal:
        past = jnp.tril(jnp.ones((length, length), bool))[None, None]
        mask = past if mask is None else mask & past
    return mask


def _einsum(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None) -> jax.Array:
    batch, length, heads, width = q.shape
    grouped = q.reshape(batch, length, k.shape[2], -1, width)
    scores = jnp.einsum("blkgh,bskh->bkgls", grouped, k, preferred_element_type=jnp.float32) * width**-0.5
    if mask is not None:
        scores = jnp.where(mask[:, :, None], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bkgls,bskh->blkgh", weights, v).reshape(batch, length, heads, width)


def _splash(q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array | None, causal: bool) -> jax.Array:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    length, heads = q.shape[1], q.shape[2]
    if length % 128 or k.shape[1] != length:
        raise ConfigError(f"attention: splash needs self-attention over a multiple of 128 tokens, got {length}")
    mask_type = masks.CausalMask if causal else masks.FullMask
    block = next(size for size in (512, 256, 128) if length % size == 0)
    sizes = kernel.BlockSizes(
        block_q=block, block_kv=block, block_kv_compute=block,
        block_q_dkv=block, block_kv_dkv=block, block_kv_dkv_compute=block,
        block_q_dq=block, block_kv_dq=block,
    )  # fmt: skip
    attend = kernel.make_splash_mha_single_device(
        mask=masks.MultiHeadMask([mask_type((length, length))] * heads),
        block_sizes=sizes,
        interpret=jax.default_backend() != "tpu",
    )
    scaled = q * q.shape[-1] ** -0.5
    order = (0, 2, 1, 3)
    arguments = (scaled.transpose(order), k.transpose(order), v.transpose(order))
    if segment_ids is None:
        out = jax.vmap(lambda a, b, c: attend(a, b, c))(*arguments)
    else:
        out = jax.vmap(lambda a, b, c, s: attend(a, b, c, segment_ids=kernel.SegmentIds(s, s)))(*arguments, segment_ids)
    return out.transpose(order).astype(q.dtype)
