"""Log-probabilities by parts of the vocabulary: values, gradients, and that the full logits never exist."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gui_owl_jax import sharding
from gui_owl_jax.ops import partition
from gui_owl_jax.ops.cross_entropy import token_statistics as by_tokens
from gui_owl_jax.ops.vocab_parts import parts_for, token_statistics

pytestmark = pytest.mark.usefixtures("nothing_stored")

T, D, V = 46, 16, 96


def inputs():
    keys = jax.random.split(jax.random.key(0), 4)
    hidden, kernel = jax.random.normal(keys[0], (T, D)), jax.random.normal(keys[1], (D, V))
    return hidden, kernel, jax.random.randint(keys[2], (T,), 0, V), jax.random.normal(keys[3], (2, T))


def plain(hidden, kernel, targets):
    logits = hidden @ kernel
    logps = jax.nn.log_softmax(logits, axis=-1)
    correct = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0] >= logits.max(axis=-1)
    chosen = jnp.take_along_axis(logps, targets[:, None], axis=-1)[:, 0]
    return chosen, -(jnp.exp(logps) * logps).sum(axis=-1), correct


def value_and_gradients(function):
    hidden, kernel, targets, weights = inputs()

    def weighted(hidden, kernel):
        logps, entropy, correct = function(hidden, kernel, targets)
        return (weights[0] * logps + weights[1] * entropy).sum(), (logps, entropy, correct.astype(jnp.float32))

    return jax.tree.leaves(jax.jit(jax.value_and_grad(weighted, argnums=(0, 1), has_aux=True))(hidden, kernel))


@pytest.mark.parametrize("parts", [1, 8, 96])
def test_values_and_gradients(parts):
    found = value_and_gradients(lambda *arguments: token_statistics(*arguments, parts))
    for own, reference in zip(found, value_and_gradients(plain), strict=True):
        np.testing.assert_allclose(own, reference, rtol=1e-4, atol=5e-5)


def test_a_mesh_walks_along_the_vocabulary():
    """The same call computes the same numbers, and its program has no logits of all the vocabulary."""
    mesh = sharding.make_mesh(sharding.MeshConfig(fsdp=2, tensor=2), jax.devices()[:4])

    def on_mesh(hidden, kernel, targets):
        with partition.on_mesh(mesh):
            found = by_tokens(hidden.reshape(2, -1, D), kernel, targets.reshape(2, -1), chunk=6)
        return [field.ravel() for field in found]

    for own, reference in zip(value_and_gradients(on_mesh), value_and_gradients(plain), strict=True):
        np.testing.assert_allclose(own, reference, rtol=1e-4, atol=5e-5)
    hidden, kernel, targets, _ = inputs()
    gradient = jax.grad(lambda h, k: sum(on_mesh(h, k, targets)[:2]).sum(), argnums=(0, 1))
    text = str(jax.make_jaxpr(gradient)(hidden, kernel))
    assert f"{T},{V // 4}]" in text and f"{T},{V}]" not in text  # 23 tokens in chunks of 6: 4 parts


def test_low_precision():
    """Sums and gradients of the kernel stay float32; the logits' error is that of bfloat16 products."""
    hidden, kernel, targets, _ = inputs()
    low = hidden.astype(jnp.bfloat16)
    found = token_statistics(low, kernel, targets, 8)
    assert {field.dtype for field in found} == {jnp.dtype("float32")}
    np.testing.assert_allclose(found[0], plain(hidden, kernel, targets)[0], atol=0.2)
    gradients = jax.grad(lambda h, k: token_statistics(h, k, targets, 8)[0].sum(), argnums=(0, 1))(low, kernel)
    assert [g.dtype for g in gradients] == [jnp.bfloat16, jnp.float32]


def test_parts_divide_the_vocabulary():
    assert [parts_for(151_936, n) for n in (1, 3, 8, 20, 64)] == [1, 4, 8, 32, 64]
    assert parts_for(7, 3) == 7
    assert parts_for(4, 9) == 4
