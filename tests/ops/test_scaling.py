"""The product with a weight per channel: values, gradients and dtypes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gui_owl_jax.ops.scaling import scaled


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 4, 5)])
def test_it_is_a_product(shape):
    x, weight, gradient = (np.random.default_rng(i).normal(size=s) for i, s in enumerate([shape, (5,), shape]))
    value, backward = jax.vjp(scaled, jnp.asarray(x, jnp.float32), jnp.asarray(weight, jnp.float32))
    np.testing.assert_allclose(value, x * weight, rtol=1e-6)
    of_x, of_weight = backward(jnp.asarray(gradient, jnp.float32))
    np.testing.assert_allclose(of_x, gradient * weight, rtol=1e-6)
    np.testing.assert_allclose(of_weight, (gradient * x).reshape(-1, 5).sum(axis=0), rtol=1e-5, atol=1e-6)


def test_the_weights_gradient_is_summed_in_float32():
    x = jnp.ones((4096, 1), jnp.bfloat16)  # in bfloat16 the sum stops growing at 256
    assert jax.grad(lambda weight: scaled(x, weight).astype(jnp.float32).sum())(jnp.ones(1, jnp.bfloat16)) == 4096
