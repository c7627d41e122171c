"""Attention: one plain reference and three fast paths that agree with it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.ops import partition, splash
from gui_owl_jax.ops.blockwise import blockwise_attention, one_query_attention

IMPLEMENTATIONS = ("auto", "einsum", "xla", "splash", "blockwise")


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    segment_ids: jax.Array | None = None,
    causal: bool = False,
    mask: jax.Array | None = None,
    implementation: str = "auto",
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
      implementation: "einsum" (the reference), "xla" (`jax.nn.dot_product_attention`: fused on GPU), "splash" (the
        Pallas TPU kernel, see `ops.splash`; self-attention), "blockwise" (for CPUs, see `ops.blockwise`;
        self-attention, or one query) or "auto", which chooses by where the program will run (`chosen`). For fewer than
        128 tokens, such as those of a window of patches, "splash" means "xla": no block of the kernel is that short.

    Returns:
      [B, L, N, H] in the dtype of q.

    Raises:
      ConfigError: the implementation is unknown or cannot take these arguments.
    """
    if mask is not None and (segment_ids is not None or causal):
        raise ConfigError("attention: give either mask or segment_ids/causal")
    if implementation not in IMPLEMENTATIONS:
        raise ConfigError(f"attention: implementation {implementation!r} is none of {', '.join(IMPLEMENTATIONS)}")
    if implementation == "auto":
        implementation = chosen(general=mask is not None or q.shape[1] != k.shape[1], queries=q.shape[1])
    if implementation == "blockwise" and q.shape[1] == 1 and segment_ids is None:
        return one_query_attention(q, k, v, mask)  # causal or not: L = S = 1
    if implementation in ("splash", "blockwise"):
        if mask is not None:
            raise ConfigError(f"attention: {implementation} takes segment_ids and causal, not a mask")
        if q.shape[1] != k.shape[1]:
            raise ConfigError(f"attention: {implementation} needs L = S, got {q.shape[1]} and {k.shape[1]}")
    if implementation == "blockwise":
        return blockwise_attention(q, k, v, segment_ids, causal)
    if implementation == "splash" and q.shape[1] >= splash.LANES:
        return splash.splash_attention(q, k, v, segment_ids, causal)
    if mask is None:
        mask = allowed(segment_ids, causal, q.shape[1])
    if implementation == "einsum":
        return _einsum(q, k, v, mask)
    return jax.nn.dot_product_attention(q, k, v, mask=mask)


def chosen(*, general: bool, queries: int) -> str:
    """Returns what "auto" stands for, by the platform that the program being traced will run on.

    TPUs get splash, one CPU device blockwise. GPUs get xla, and so does a mesh of CPU devices: blockwise loops over
    rows, and a loop over rows that lie on several devices would gather them.

    Args:
      general: there is a mask, or keys are not those of the queries' own tokens. Only xla takes that, and for one query
        blockwise.
      queries: L.
    """
    platform = partition.platform()
    if platform == "cpu" and partition.current_mesh() is None and (not general or queries == 1):
        return "blockwise"
    return "splash" if platform == "tpu" and not general else "xla"


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
