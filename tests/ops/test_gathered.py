"""The product with a split kernel: what it computes, and what it sends."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gui_owl_jax import sharding
from gui_owl_jax.models.layers import Linear, scan_layers, stack
from gui_owl_jax.ops import partition

pytestmark = pytest.mark.usefixtures("nothing_stored")

WIDTH = 16
LAYERS = stack(lambda r: Linear(WIDTH, WIDTH, ("embed", "mlp"), rngs=r), 3, nnx.Rngs(0))
GRAPH, STATE = nnx.split(LAYERS)
X = jax.random.normal(jax.random.key(1), (8, 4, WIDTH))


def gradient(mesh, remat="none", dtype=jnp.float32):
    """A function of (parameters, x): the loss of three layers and its gradients."""

    def loss(state, x):
        with partition.on_mesh(mesh):
            call = lambda layer, h, _: (jnp.tanh(layer(h)), None)  # noqa: E731
            y, _ = scan_layers(call, nnx.merge(GRAPH, state), x.astype(dtype), remat=remat)
        return jnp.square(y.astype(jnp.float32)).sum()

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))


@pytest.fixture(scope="module")
def mesh():
    return sharding.make_mesh(sharding.MeshConfig(data=2, fsdp=2, expert=2), jax.devices()[:8])


@pytest.mark.parametrize("remat", ["none", "full", "dots"])
def test_equals_one_device(mesh, remat):
    expected = jax.tree.leaves(gradient(None)(STATE, X))
    for own, reference in zip(jax.tree.leaves(gradient(mesh, remat)(STATE, X)), expected, strict=True):
        np.testing.assert_allclose(own, reference, rtol=0, atol=1e-5 * np.abs(reference).max())


def test_kernels_travel_in_low_precision_and_gradients_are_scattered(mesh):
    """Weights are float32, yet nothing but bfloat16 is gathered; no kernel's gradient is summed as a whole."""
    shardings = jax.tree.map(
        lambda leaf: jax.NamedSharding(mesh, jax.P(None, *(("fsdp", None) if leaf.ndim == 3 else (None,)))), STATE
    )
    rows = sharding.batch_sharding(mesh)
    step = jax.jit(gradient(mesh, dtype=jnp.bfloat16), in_shardings=(shardings, rows))
    text = step.lower(STATE, X).as_text()
    assert set(re.findall(r'"stablehlo.all_gather".*?-> tensor<[\dx]+x(\w+)>', text)) == {"bf16"}
    assert len(re.findall(r'"stablehlo.reduce_scatter"', text)) == 1  # in the one loop over the layers


def test_rows_that_cannot_be_split_are_left_to_the_partitioner(mesh):
    layer = Linear(WIDTH, WIDTH, ("embed", "mlp"), rngs=nnx.Rngs(0))
    with partition.on_mesh(mesh):
        found = jax.jit(layer)(X[:3, 0])
    np.testing.assert_allclose(found, layer(X[:3, 0]), rtol=0, atol=1e-5)
