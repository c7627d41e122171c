"""The attention implementations against arithmetic in plain numpy, and against each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.ops import blockwise, partition
from gui_owl_jax.ops.attention import attention, chosen


def inputs(length=12, heads=4, kv_heads=2, width=8, batch=2, seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    shapes = ((batch, length, heads, width), (batch, length, kv_heads, width), (batch, length, kv_heads, width))
    return [jax.random.normal(key, shape) for key, shape in zip(keys, shapes)]


def segments(length=12):
    """Two rows: three segments and padding, and one segment without padding."""
    first = np.repeat([1, 2, 3, 0], [length // 4, length // 3, length // 4, length - 2 * (length // 4) - length // 3])
    return np.stack([first, np.ones(length, int)])


def by_hand(q, k, v, segment_ids, causal):
    """Loops over rows, heads and queries in float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.zeros(q.shape)
    group = q.shape[2] // k.shape[2]
    for b, i, n in np.ndindex(q.shape[:3]):
        seen = segment_ids[b] == segment_ids[b, i]
        if causal:
            seen &= np.arange(len(seen)) <= i
        scores = k[b, seen, n // group] @ q[b, i, n] / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max())
        out[b, i, n] = weights / weights.sum() @ v[b, seen, n // group]
    return out


@pytest.mark.parametrize("implementation", ["einsum", "xla", "blockwise"])
@pytest.mark.parametrize("causal", [True, False])
def test_matches_plain_arithmetic(implementation, causal):
    q, k, v = inputs()
    found = attention(q, k, v, segment_ids=segments(), causal=causal, implementation=implementation)
    np.testing.assert_allclose(found, by_hand(q, k, v, segments(), causal), rtol=0, atol=2e-6)


@pytest.mark.parametrize("implementation", ["einsum", "xla", "blockwise"])
def test_decoding_with_a_mask(implementation):
    """One query against a cache of which a part is filled."""
    q, k, v = inputs()
    filled = np.array([5, 12])
    mask = (np.arange(12)[None] < filled[:, None])[:, None, None]
    found = attention(q[:, :1], k, v, mask=mask, implementation=implementation)
    for b, n in enumerate(filled):
        expected = by_hand(q[b : b + 1, :1], k[b : b + 1, :n], v[b : b + 1, :n], np.ones((1, n)), False)
        np.testing.assert_allclose(found[b], expected[0], rtol=0, atol=2e-6)


def values_and_gradients(implementation, q, k, v, segment_ids, causal):
    weight = jax.random.normal(jax.random.key(9), q.shape)

    def loss(q, k, v):
        out = attention(q, k, v, segment_ids=segment_ids, causal=causal, implementation=implementation)
        return (out * weight).sum(), out

    (_, out), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(q, k, v)
    return [out, *gradients]


@pytest.mark.parametrize("causal", [True, False])
def test_gradients_agree(causal):
    arguments = (*inputs(seed=1), segments(), causal)
    for own, expected in zip(values_and_gradients("xla", *arguments), values_and_gradients("einsum", *arguments)):
        np.testing.assert_allclose(own, expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("length", "heads", "kv_heads", "rows", "most", "tile", "segmented", "causal"),
    [
        (12, 4, 2, 256, 8, 1 << 20, True, True),  # one block, one tile
        (37, 4, 2, 32, 8, 1 << 20, True, True),  # blocks of 16, the last one shorter
        (37, 4, 2, 32, 8, 1 << 20, True, False),
        (37, 4, 1, 64, 8, 2000, False, True),  # a tile per head
        (53, 3, 3, 4, 2, 9000, False, False),  # no groups; blocks of 27, so that there are 2
        (1, 2, 2, 256, 8, 1 << 20, True, True),
    ],
)
def test_blockwise_agrees(monkeypatch, length, heads, kv_heads, rows, most, tile, segmented, causal):
    for name, value in {"QUERY_ROWS": rows, "MOST_BLOCKS": most, "TILE_BYTES": tile}.items():
        monkeypatch.setattr(blockwise, name, value)
    arguments = (
        *inputs(length=length, heads=heads, kv_heads=kv_heads, seed=3),
        segments(length) if segmented else None,
        causal,
    )
    for own, expected in zip(
        values_and_gradients("blockwise", *arguments), values_and_gradients("einsum", *arguments), strict=True
    ):
        np.testing.assert_allclose(own, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_blockwise_meets_the_keys_of_its_segments_only(monkeypatch, causal):
    """Packed rows: same numbers; and what other segments hold, be it infinite, does not even enter the arithmetic."""
    monkeypatch.setattr(blockwise, "QUERY_ROWS", 32)
    monkeypatch.setattr(blockwise, "SKIP_FROM", 32)
    lengths = np.array([[9, 30, 2, 40, 31, 0], [64, 1, 1, 20, 10, 16], [0, 0, 0, 0, 0, 112]])
    ids = np.stack([np.repeat([1, 2, 3, 4, 5, 0], row) for row in lengths])
    arguments = (*inputs(length=112, heads=4, kv_heads=2, batch=3, seed=4), ids, causal)
    for own, expected in zip(
        values_and_gradients("blockwise", *arguments), values_and_gradients("einsum", *arguments), strict=True
    ):
        np.testing.assert_allclose(own, expected, rtol=0, atol=1e-5)

    q, k, v = inputs(length=128, heads=2, kv_heads=2, batch=1)
    half = np.repeat([[1, 2]], 64, axis=1)
    broken = v.at[:, 64:].set(jnp.inf)  # 0 * inf would be NaN
    out = attention(q, k, broken, segment_ids=half, implementation="blockwise")
    assert np.isfinite(out[:, :64]).all()
    monkeypatch.setattr(blockwise, "SKIP_FROM", 1000)
    out = attention(q, k, broken, segment_ids=half, implementation="blockwise")
    assert np.isnan(out[:, :64]).all()


def test_blockwise_keeps_no_weights_for_the_backward_pass():
    q, k, v = inputs(length=512, heads=2, kv_heads=1, batch=1)
    _, backward = jax.vjp(lambda q: attention(q, k, v, causal=True, implementation="blockwise"), q)
    assert max(x.size for x in jax.tree.leaves(backward)) <= q.size
    _, backward = jax.vjp(lambda q: attention(q, k, v, causal=True, implementation="einsum"), q)
    assert max(x.size for x in jax.tree.leaves(backward)) >= 2 * 512 * 512


def test_auto_follows_the_platform(monkeypatch):
    assert chosen(general=False, queries=12) == chosen(general=True, queries=1) == "blockwise"
    assert chosen(general=True, queries=12) == "xla"
    for platform, expected in {"tpu": "splash", "gpu": "xla"}.items():
        monkeypatch.setattr(partition, "platform", lambda platform=platform: platform)
        assert chosen(general=False, queries=12) == expected
        assert chosen(general=True, queries=1) == "xla"


def test_auto_leaves_rows_on_several_devices_where_they_are(monkeypatch):
    monkeypatch.setattr(partition, "current_mesh", object)
    assert chosen(general=False, queries=12) == chosen(general=True, queries=1) == "xla"


@pytest.mark.parametrize(("causal", "kv_heads"), [(True, 2), (False, 1)])
def test_splash_agrees(causal, kv_heads):
    """The TPU kernel, interpreted."""
    arguments = (*inputs(length=128, heads=2, kv_heads=kv_heads, width=64, seed=2), segments(128), causal)
    for own, expected in zip(values_and_gradients("splash", *arguments), values_and_gradients("einsum", *arguments)):
        np.testing.assert_allclose(own, expected, rtol=0, atol=2e-5)


def test_low_precision_keeps_its_dtype():
    q, k, v = (x.astype(jnp.bfloat16) for x in inputs())
    for implementation in ("einsum", "xla", "blockwise"):
        found = attention(q, k, v, segment_ids=segments(), causal=True, implementation=implementation)
        assert found.dtype == jnp.bfloat16
        expected = by_hand(q, k, v, segments(), True)
        assert np.abs(np.asarray(found, np.float64) - expected).max() < 0.03


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"implementation": "flash"}, "none of"),
        ({"implementation": "blockwise", "mask": np.ones((1, 1, 12, 12), bool)}, "mask"),
        ({"implementation": "splash", "mask": np.ones((1, 1, 12, 12), bool)}, "mask"),
        ({"causal": True, "mask": np.ones((1, 1, 12, 12), bool)}, "either"),
    ],
)
def test_impossible_requests(arguments, message):
    with pytest.raises(ConfigError, match=message):
        attention(*inputs(), **arguments)
