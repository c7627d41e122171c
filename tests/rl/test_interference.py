"""Per-layer cosines and PCGrad against plain numpy on explicit vectors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gui_owl_jax.rl import interference


def tree(seed):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    return {
        "text": {"layers": {"q": {"kernel": draw(3, 4, 5)}, "norm": {"scale": draw(3, 4)}}, "embed": {"e": draw(7, 4)}},
        "vision": {"blocks": {"fc1": {"bias": draw(2, 6)}}},
    }


def flat(t):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(t)])


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_cosines_per_layer_of_stacked_towers():
    a, b = tree(0), tree(1)
    found = jax.jit(interference.layer_cosines)(a, b)
    assert {name: value.shape for name, value in found.items()} == {
        "text/layers": (3,), "text/embed": (1,), "vision/blocks": (2,)
    }  # fmt: skip
    for layer in range(3):
        left, right = (flat(jax.tree.map(lambda x, i=layer: x[i], t["text"]["layers"])) for t in (a, b))
        assert float(found["text/layers"][layer]) == pytest.approx(cosine(left, right), abs=1e-6)


def test_report_covers_every_pair():
    gradients = {"mobile": tree(0), "desktop": tree(1), "web": jax.tree.map(lambda x: -2 * x, tree(0))}
    report = interference.interference_report(gradients)
    assert list(report) == ["mobile/desktop", "mobile/web", "desktop/web"]
    np.testing.assert_allclose(report["mobile/web"]["text/layers"], -1, rtol=1e-5)
    expected = cosine(flat(tree(0)), flat(tree(1)))
    assert float(report["mobile/desktop"]["all"][0]) == pytest.approx(expected, abs=1e-6)


def test_zero_gradients_have_cosine_zero():
    nothing = jax.tree.map(jnp.zeros_like, tree(0))
    assert all(not np.asarray(v).any() for v in interference.layer_cosines(tree(0), nothing).values())


def test_held_out_cosine_from_the_gram_matrix():
    trees = [tree(i) for i in range(3)]
    gram = interference.gram_matrix(trees)
    vectors = [flat(t) for t in trees]
    np.testing.assert_allclose(gram, [[a @ b for a in vectors] for b in vectors], rtol=1e-5, atol=1e-4)
    found = interference.held_out_cosine(gram, jnp.array(1))
    assert float(found) == pytest.approx(cosine(vectors[1], vectors[0] + vectors[2]), abs=1e-6)


def pcgrad(vectors, orders):
    merged = []
    for i, order in enumerate(orders):
        g = vectors[i].copy()
        for j in order:
            if j != i and g @ vectors[j] < 0:
                g -= g @ vectors[j] / (vectors[j] @ vectors[j]) * vectors[j]
        merged.append(g)
    return np.mean(merged, axis=0)


def test_pcgrad_equals_projecting_the_vectors():
    """Coefficients from the Gram matrix against the algorithm on the vectors, in the same order."""
    rng = np.random.default_rng(3)
    find = jax.jit(interference.pcgrad_coefficients)
    conflicts = 0
    for seed in range(8):
        vectors = rng.normal(size=(3, 4))
        key = jax.random.key(seed)
        orders = [np.asarray(jax.random.permutation(k, 3)) for k in jax.random.split(key, 3)]
        gram = vectors @ vectors.T
        conflicts += bool((gram < 0).any())
        merged = interference.combine([jnp.asarray(v) for v in vectors], find(key, jnp.asarray(gram)))
        np.testing.assert_allclose(merged, pcgrad(vectors, orders), rtol=1e-4, atol=1e-5)
    assert conflicts >= 4


def test_pcgrad_averages_what_agrees():
    found = interference.pcgrad_coefficients(jax.random.key(0), jnp.array([[1.0, 0.2], [0.2, 2.0]]))
    np.testing.assert_allclose(found, [0.5, 0.5])
