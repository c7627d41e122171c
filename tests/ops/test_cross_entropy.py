"""Chunked log-probabilities: values, gradients, and that the full logits never exist."""

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from gui_owl_jax.ops.cross_entropy import token_logps, token_statistics

B, L, D, V = 2, 23, 16, 96


def inputs():
    keys = jax.random.split(jax.random.key(0), 3)
    hidden, kernel = jax.random.normal(keys[0], (B, L, D)), jax.random.normal(keys[1], (D, V))
    return hidden, kernel, jax.random.randint(keys[2], (B, L), 0, V)


def plain(hidden, kernel, targets):
    logps = jax.nn.log_softmax(hidden @ kernel, axis=-1)
    chosen = jnp.take_along_axis(logps, targets[..., None], axis=-1)[..., 0]
    return chosen, -(jnp.exp(logps) * logps).sum(axis=-1)


@pytest.mark.parametrize("chunk", [1, 5, 128])
def test_values_and_gradients(chunk):
    hidden, kernel, targets = inputs()
    weights = jax.random.normal(jax.random.key(1), (2, B, L))

    def loss(function):
        def weighted(hidden, kernel):
            logps, entropy = function(hidden, kernel, targets)
            return (weights[0] * logps + weights[1] * entropy).sum(), (logps, entropy)

        return jax.jit(jax.value_and_grad(weighted, argnums=(0, 1), has_aux=True))(hidden, kernel)

    found = loss(lambda *arguments: token_logps(*arguments, chunk=chunk))
    expected = loss(plain)
    for own, reference in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        np.testing.assert_allclose(own, reference, rtol=1e-4, atol=2e-5)


def test_a_worked_example():
    """One token, logits (0, ln 2, ln 5): p = (1, 2, 5) / 8, target 1; everything else in float64 by hand."""
    logits, p = np.log([1.0, 2.0, 5.0]), np.array([1, 2, 5]) / 8
    hidden, kernel, targets = jnp.ones((1, 2, 1)), jnp.asarray(logits, jnp.float32)[None], jnp.full((1, 2), 1)

    def score(name):
        return lambda kernel: getattr(token_statistics(hidden, kernel, targets), name)[0, 0]

    entropy = np.log(8) - p @ logits
    np.testing.assert_allclose(score("logps")(kernel), np.log(2 / 8), rtol=1e-6)
    np.testing.assert_allclose(score("entropy")(kernel), entropy, rtol=1e-6)
    # d logp / d l = [target] - p; d entropy / d l_i = -p_i (ln p_i + entropy). The hidden state is 1, so the same for
    # the kernel.
    np.testing.assert_allclose(jax.grad(score("logps"))(kernel)[0], [-1 / 8, 6 / 8, -5 / 8], rtol=1e-6)
    np.testing.assert_allclose(jax.grad(score("entropy"))(kernel)[0], -p * (np.log(p) + entropy), rtol=1e-5)


@pytest.mark.parametrize("seen", [0, 1, 17, B * L])
def test_only_tokens_under_the_mask_count(seen):
    hidden, kernel, targets = inputs()
    mask = jnp.asarray(np.random.default_rng(seen).permutation(B * L).reshape(B, L) < seen)

    def loss(hidden, kernel, **options):
        logps, entropy, _ = token_statistics(hidden, kernel, targets, chunk=3, **options)
        return jnp.where(mask, logps + 0.3 * entropy, 0).sum()

    expected = jax.value_and_grad(loss, argnums=(0, 1))(hidden, kernel)
    found = jax.jit(lambda h, k: jax.value_and_grad(loss, argnums=(0, 1))(h, k, mask=mask))(hidden, kernel)
    for own, reference in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        np.testing.assert_allclose(own, reference, rtol=1e-5, atol=1e-5)


def test_chunks_without_tokens_under_the_mask_are_not_visited():
    """Were they, the infinite hidden states would make the gradient of the kernel NaN."""
    hidden, kernel, targets = inputs()
    mask = jnp.arange(L)[None] >= jnp.array([[L - 2], [L - 4]])  # 6 tokens: one chunk of 3 per row
    hidden = jnp.where(mask[..., None], hidden, jnp.inf)

    def loss(kernel, mask):
        logps, entropy, _ = token_statistics(hidden, kernel, targets, chunk=3, mask=mask)
        return jnp.where(mask, logps + entropy, 0).sum()

    assert jnp.isfinite(jax.grad(loss)(kernel, mask)).all()
    assert not jnp.isfinite(jax.grad(loss)(kernel, jnp.ones_like(mask))).all()


def test_the_gradient_of_the_kernel_is_summed_in_float32():
    """Summed over 23 chunks as over 2; in bfloat16 the sums would differ by a hundredth."""
    hidden, kernel, targets = inputs()
    hidden = hidden.astype(jnp.bfloat16)

    def gradient(chunk):
        return jax.grad(lambda kernel: token_logps(hidden, kernel, targets, chunk=chunk)[0].sum())(kernel)

    np.testing.assert_allclose(gradient(1), gradient(128), rtol=1e-4, atol=1e-4)


def test_correct_marks_the_likeliest_token():
    hidden, kernel, _ = inputs()
    best = (hidden @ kernel).argmax(axis=-1)
    targets = jnp.where(jnp.arange(L) % 2 == 0, best, (best + 1) % V)
    found = token_statistics(hidden, kernel, targets).correct
    np.testing.assert_array_equal(found, np.tile(np.arange(L) % 2 == 0, (B, 1)).astype(np.float32))


def test_low_precision_hidden_gives_float32_results():
    hidden, kernel, targets = inputs()
    gradient = jax.grad(lambda k: token_logps(hidden.astype(jnp.bfloat16), k, targets, chunk=8)[0].sum())(kernel)
    assert gradient.dtype == jnp.float32
    logps, entropy = token_logps(hidden.astype(jnp.bfloat16), kernel, targets, chunk=8)
    assert logps.dtype == entropy.dtype == jnp.float32
    np.testing.assert_allclose(logps, plain(hidden, kernel, targets)[0], atol=0.2)


def largest_array(jaxpr) -> int:
    """Elements of the largest floating-point array inside a jaxpr, in its inner jaxprs too."""
    sizes = [0]
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            if jnp.issubdtype(variable.aval.dtype, jnp.floating):
                sizes.append(variable.aval.size)
        sizes += [largest_array(inner) for inner in jax.extend.core.jaxprs_in_params(equation.params)]
    return max(sizes)


@pytest.mark.parametrize(("length", "chunk"), [(512, 64), (40, 128)])
def test_full_logits_never_exist(length, chunk):
    hidden, kernel, targets = jnp.zeros((3, length, 8)), jnp.zeros((8, 700)), jnp.zeros((3, length), int)

    def loss(function):
        return lambda h, k: jnp.sum(jnp.asarray(function(h, k, targets)))

    chunked = loss(lambda *arguments: token_logps(*arguments, chunk=chunk))
    for transform in (lambda f: f, lambda f: jax.grad(f, argnums=(0, 1))):
        # The measure sees the full logits where they are: in the plain function.
        assert largest_array(jax.make_jaxpr(transform(loss(plain)))(hidden, kernel).jaxpr) >= 3 * length * 700
        largest = largest_array(jax.make_jaxpr(transform(chunked))(hidden, kernel).jaxpr)
        assert largest == 3 * min(chunk, length // 2) * 700
