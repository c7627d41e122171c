"""Splash attention, interpreted on the CPU, against the plain reference: forward, backward, and on a mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gui_owl_jax import sharding
from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.ops import partition
from gui_owl_jax.ops.attention import attention

pytestmark = pytest.mark.usefixtures("nothing_stored")


def inputs(batch, length, heads, kv_heads, width):
    keys = jax.random.split(jax.random.key(width), 4)
    q, k, v, weight = (
        jax.random.normal(key, (batch, length, n, width))
        for key, n in zip(keys, (heads, kv_heads, kv_heads, heads), strict=True)
    )
    segments = np.sort(np.random.default_rng(width).integers(0, 4, (batch, length)), axis=1)[:, ::-1].copy()
    return q, k, v, weight, segments


def value_and_gradients(implementation, arguments, causal, mesh=None):
    """Output and gradients of a weighted sum of it."""
    q, k, v, weight, segments = arguments

    def loss(q, k, v):
        with partition.on_mesh(mesh):
            out = attention(q, k, v, segment_ids=segments, causal=causal, implementation=implementation)
        return (out * weight).sum(), out

    (_, out), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(q, k, v)
    return [out, *gradients]


@pytest.mark.parametrize(
    ("width", "causal", "kv_heads"), [(128, True, 1), (64, False, 2), (72, False, 2), (80, False, 2)]
)
def test_agrees_with_the_reference(width, causal, kv_heads):
    """Head widths of the decoder (128) and of the towers; 160 tokens are no multiple of the kernel's blocks."""
    arguments = inputs(1, 160, 2, kv_heads, width)
    expected = value_and_gradients("einsum", arguments, causal)
    for own, reference in zip(value_and_gradients("splash", arguments, causal), expected, strict=True):
        np.testing.assert_allclose(own, reference, rtol=0, atol=2e-5)


@pytest.mark.parametrize("sizes", [{"fsdp": 2, "tensor": 2}, {"data": 2, "expert": 2}])
def test_agrees_on_a_mesh(sizes):
    """Rows and heads lie on different devices; one key head cannot be split, two can."""
    mesh = sharding.make_mesh(sharding.MeshConfig(**sizes), jax.devices()[:4])
    arguments = inputs(4, 128, 4, 2, 64)
    expected = value_and_gradients("einsum", arguments, causal=True)
    for own, reference in zip(value_and_gradients("splash", arguments, True, mesh), expected, strict=True):
        np.testing.assert_allclose(own, reference, rtol=0, atol=2e-5)


def test_no_square_array_exists():
    """The point of the kernel: nothing of the size of the mask or of the scores is in the program."""
    length = 1024
    q = jnp.zeros((1, length, 1, 64))
    segments = jnp.ones((1, length), jnp.int32)

    def loss(implementation):
        return lambda q: attention(q, q, q, segment_ids=segments, causal=True, implementation=implementation).sum()

    square = f"{length},{length}"
    assert square in str(jax.make_jaxpr(jax.grad(loss("einsum")))(q))
    assert square not in str(jax.make_jaxpr(jax.grad(loss("splash")))(q))


def test_cross_attention_is_refused():
    q, k = jnp.zeros((1, 128, 1, 64)), jnp.zeros((1, 256, 1, 64))
    with pytest.raises(ConfigError, match="128 and 256"):
        attention(q, k, k, implementation="splash")
