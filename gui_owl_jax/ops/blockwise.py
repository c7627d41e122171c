"""Attention for CPUs: exact, in blocks of queries that stay in the cache, with a backward pass written by hand.

As FlashAttention (Dao et al. 2022, arXiv 2205.14135) it keeps the logarithm of the softmax's denominator instead of
the weights and computes those again in the backward pass. Unlike it a block of queries meets all its keys at once:
a core's cache holds that product, and no running maximum needs correcting.

What made it fast with XLA on CPUs, each measured alone:
- The loop over (row, kv head) keeps one tile of scores in the cache; all at once they stream through memory.
- Causal blocks stop at the diagonal, which halves the work; the loop over blocks is unrolled, so shapes are static.
- In packed rows a block of queries meets the keys of its own segments only, rounded up to quarters of all (`_on_keys`).
- The query heads of one kv head are rows of one matrix: grouped queries need no copies of keys and values.
- Gradients of keys and values are accumulated transposed. As `dO^T P` the product runs at full speed, as `P^T dO` the
  large matrix is the one to be transposed, at half of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

QUERY_ROWS = 256  # rows of a tile of scores: block of queries times query heads per kv head
MOST_BLOCKS = 8  # longer sequences get larger blocks: every block adds to the time of compilation
TILE_BYTES = 1 << 20  # tiles of several heads are handled together up to this size
SKIP_FROM = 512  # fewer keys than these are all met, whatever their segments: nothing to gain

Residuals = tuple[jax.Array, jax.Array, jax.Array, jax.Array | None, jax.Array, jax.Array]


def blockwise_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array | None = None, causal: bool = False
) -> jax.Array:
    """Self-attention with grouped queries; see `ops.attention.attention`, whose reference it equals.

    Args:
      q: [B, L, N, H].
      k: [B, L, K, H].
      v: [B, L, K, H].
      segment_ids: int [B, L]; None: all tokens see each other.
      causal: mask the future.

    Returns:
      [B, L, N, H] in the dtype of q.
    """
    batch, length, heads, width = q.shape
    kv_heads = k.shape[2]
    group = heads // kv_heads
    # One leading axis Z = B K.
    queries = q.reshape(batch, length, kv_heads, group, width).transpose(0, 2, 3, 1, 4)
    queries = queries.reshape(batch * kv_heads, group, length, width)
    keys, values = (x.transpose(0, 2, 1, 3).reshape(batch * kv_heads, length, width) for x in (k, v))
    segments = None if segment_ids is None else jnp.repeat(segment_ids, kv_heads, axis=0)
    out = _attend(queries, keys, values, segments, causal)
    return out.reshape(batch, heads, length, width).transpose(0, 2, 1, 3)


def one_query_attention(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Attention of one new token to a cache, without a transposed copy of that cache.

    As products with whole slots of the cache, all their heads in a row; a query has zeros at the heads it does not
    read. K times the arithmetic, but what one token costs is reading the cache: measured 1.8 times as fast.

    Args:
      q: [B, 1, N, H].
      k: [B, S, K, H].
      v: [B, S, K, H].
      mask: bool, broadcastable to [B, 1, 1, S], or None.

    Returns:
      [B, 1, N, H] in the dtype of q.
    """
    batch, _, heads, width = q.shape
    kv_heads = k.shape[2]
    keys, values = (x.reshape(batch, -1, kv_heads * width) for x in (k, v))
    reads = jnp.repeat(jnp.eye(kv_heads, dtype=q.dtype), heads // kv_heads, axis=0)[:, :, None]  # [N, K, 1]
    spread = (q[:, 0, :, None] * reads).reshape(batch, heads, -1)
    scores = _product(spread, keys, 2, 2) * width**-0.5
    if mask is not None:
        scores = jnp.where(mask[:, 0], scores, jnp.finfo(jnp.float32).min)
    mixed = _product(jax.nn.softmax(scores, axis=-1).astype(v.dtype), values, 2, 1)
    mixed = mixed.reshape(batch, heads, kv_heads, width)
    return jnp.sum(mixed * reads, axis=2)[:, None].astype(q.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attend(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array | None, causal: bool) -> jax.Array:
    """q [Z, G, L, H], k and v [Z, L, H], segments [Z, L] -> [Z, G, L, H]."""
    return _forward(q, k, v, segments, causal)[0]


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array | None, causal: bool
) -> tuple[jax.Array, Residuals]:
    out, log_total = _map_tiles(functools.partial(_tile_forward, causal=causal), q, (q, k, v, segments))
    return out, (q, k, v, segments, out, log_total)


def _backward(causal: bool, kept: Residuals, d_out: jax.Array) -> tuple:
    d_q, d_k, d_v = _map_tiles(functools.partial(_tile_backward, causal=causal), kept[0], (*kept, d_out))
    return d_q, d_k, d_v, None


_attend.defvjp(_forward, _backward)


def _map_tiles(function, q: jax.Array, arrays: tuple) -> tuple[jax.Array, ...]:
    """Applies a function of arrays [z, ...] to slices of the leading axis that are small enough for the cache."""
    count, group, length, _ = q.shape
    fits = max(1, TILE_BYTES // (group * _block(group, length) * length * 4))
    size = next(n for n in range(min(fits, count), 0, -1) if count % n == 0)
    if size == count:
        return function(*arrays)
    slices = jax.tree.map(lambda x: x.reshape(count // size, size, *x.shape[1:]), arrays)
    mapped = jax.lax.map(lambda tile: function(*tile), slices)
    return jax.tree.map(lambda x: x.reshape(count, *x.shape[2:]), mapped)


def _block(group: int, length: int) -> int:
    return min(length, max(QUERY_ROWS // group, -(-length // MOST_BLOCKS), 1))


def _blocks(group: int, length: int, causal: bool) -> Iterator[tuple[slice, int]]:
    """Yields each block of queries and how many keys it may see, from the first on."""
    block = _block(group, length)
    for start in range(0, length, block):
        stop = min(start + block, length)
        yield slice(start, stop), stop if causal else length


def _on_keys(function: Callable[..., tuple], segments: jax.Array | None, rows: slice, keys: int) -> tuple:
    """Calls function(start, width=...) for the keys start : start + width that a block of queries needs.

    Where there are segments, these are the keys from the first to the last of the block's own segments; the width is
    the next of a quarter, half, three quarters or all of the keys, so that each is a program of static shapes.
    Segments 1 1 2 2 3 3 3 0, queries 2:4: keys 2:4 are needed, and start = 2, width = 2.
    """
    if segments is None or keys < SKIP_FROM:
        return function(0, width=keys)
    widths = [-(-keys * quarters // 4) for quarters in range(1, 5)]
    needed = (segments[:, rows, None] == segments[:, None, :keys]).any((0, 1))
    first, stop = jnp.argmax(needed), keys - jnp.argmax(needed[::-1])
    choice = jnp.searchsorted(jnp.array(widths), stop - first)
    start = jnp.minimum(first, keys - jnp.array(widths)[choice])
    return jax.lax.switch(choice, [functools.partial(function, width=width) for width in widths], start)


def _cut(x: jax.Array, start: jax.Array | int, width: int) -> jax.Array:
    """[z, L, ...] -> [z, width, ...]."""
    return x[:, :width] if isinstance(start, int) else jax.lax.dynamic_slice_in_dim(x, start, width, axis=1)


def _placed(x: jax.Array, start: jax.Array | int, keys: int) -> jax.Array:
    """[z, H, width] -> [z, H, keys], zeros elsewhere."""
    if x.shape[2] == keys:
        return x
    return jax.lax.dynamic_update_slice_in_dim(jnp.zeros((*x.shape[:2], keys), x.dtype), x, start, axis=2)


def _visible(
    segments: jax.Array | None, rows: slice, start: jax.Array | int, width: int, causal: bool
) -> jax.Array | bool:
    """Bool, broadcastable to [z, G, rows, width]: which keys each query of a block sees."""
    visible: jax.Array | bool = True
    if segments is not None:
        visible = (segments[:, rows, None] == _cut(segments, start, width)[:, None])[:, None]
    if causal:
        visible &= jnp.arange(rows.start, rows.stop)[:, None] >= start + jnp.arange(width)
    return visible


def _product(a: jax.Array, b: jax.Array, a_axis: int, b_axis: int) -> jax.Array:
    """Batched product over the leading axis in float32, contracting one axis of each."""
    dimensions = (((a_axis,), (b_axis,)), ((0,), (0,)))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def _flat(x: jax.Array) -> jax.Array:
    """[z, G, l, H] -> [z, G l, H]."""
    return x.reshape(x.shape[0], -1, x.shape[-1])


def _scores(q: jax.Array, keys: jax.Array, rows: slice) -> tuple[jax.Array, jax.Array]:
    """The block's queries [z, G l, H] and scores [z, G, l, s], scaled behind the product as the reference does."""
    z, group, _, width = q.shape
    queries = _flat(q[:, :, rows])
    scores = _product(queries, keys, 2, 2) * width**-0.5
    return queries, scores.reshape(z, group, rows.stop - rows.start, -1)


def _tile_forward(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array | None, *, causal: bool) -> tuple:
    """Returns the output and the logarithm of the softmax's denominator, float32 [z, G, L, 1]."""
    z, group, length, head = q.shape
    outs, log_totals = [], []
    for rows, keys in _blocks(group, length, causal):

        def block(start, *, width, rows=rows):
            _, scores = _scores(q, _cut(k, start, width), rows)
            visible = _visible(segments, rows, start, width, causal)
            scores = jnp.where(visible, scores, jnp.finfo(jnp.float32).min)
            largest = scores.max(axis=-1, keepdims=True)
            weights = jnp.exp(scores - largest)
            total = weights.sum(axis=-1, keepdims=True)
            mixed = _product(_flat(weights).astype(v.dtype), _cut(v, start, width), 2, 1)
            return (mixed.reshape(z, group, -1, head) / total).astype(q.dtype), largest + jnp.log(total)

        out, log_total = _on_keys(block, segments, rows, keys)
        outs.append(out)
        log_totals.append(log_total)
    return jnp.concatenate(outs, axis=2), jnp.concatenate(log_totals, axis=2)


def _tile_backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array | None,
    out: jax.Array,
    log_total: jax.Array,
    d_out: jax.Array,
    *,
    causal: bool,
) -> tuple:
    """Gradients of q, k, v. With weights P = exp(scores - log_total): dV = P^T dO, dS = P (dO V^T - rowsum(dO O))."""
    z, group, length, head = q.shape
    scale = head**-0.5
    shift = jnp.sum(d_out.astype(jnp.float32) * out.astype(jnp.float32), axis=-1, keepdims=True)
    parts: tuple[list[jax.Array], ...] = ([], [], [])
    for rows, keys in _blocks(group, length, causal):

        def block(start, *, width, rows=rows, keys=keys):
            met = _cut(k, start, width)
            queries, scores = _scores(q, met, rows)
            weights = jnp.exp(scores - log_total[:, :, rows])
            weights = jnp.where(_visible(segments, rows, start, width, causal), weights, 0.0)
            d_block = _flat(d_out[:, :, rows])
            d_weights = _product(d_block, _cut(v, start, width), 2, 2).reshape(weights.shape)
            d_scores = _flat(weights * (d_weights - shift[:, :, rows])).astype(q.dtype)
            d_queries = (_product(d_scores, met, 2, 1) * scale).reshape(z, group, -1, head)
            d_keys = _product(_transposed(queries), d_scores, 2, 1) * scale
            d_values = _product(_transposed(d_block), _flat(weights).astype(v.dtype), 2, 1)
            return d_queries, _placed(d_keys, start, keys), _placed(d_values, start, keys)

        for part, gradient in zip(parts, _on_keys(block, segments, rows, keys)):
            part.append(gradient)
    d_q, d_k, d_v = parts
    total = functools.partial(_sum_over_blocks, blocks=list(_blocks(group, length, causal)))
    return jnp.concatenate(d_q, axis=2).astype(q.dtype), total(d_k).astype(k.dtype), total(d_v).astype(v.dtype)


def _transposed(x: jax.Array) -> jax.Array:
    # The barrier keeps XLA from folding the transposition back into the product.
    return jax.lax.optimization_barrier(x.swapaxes(1, 2))


def _sum_over_blocks(parts: list[jax.Array], blocks: list[tuple[slice, int]]) -> jax.Array:
    """Adds up gradients [z, H, s], each of the keys its block sees, to [z, L, H]."""
    parts = jax.lax.optimization_barrier(parts)
    if blocks[0][1] == blocks[-1][1]:
        return sum(parts[1:], parts[0]).swapaxes(1, 2)
    columns = [sum(part[:, :, rows] for part in parts[i:]) for i, (rows, _) in enumerate(blocks)]
    return jnp.concatenate(columns, axis=2).swapaxes(1, 2)
