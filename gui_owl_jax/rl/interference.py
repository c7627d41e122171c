"""Do device families help or hinder each other? Cosines of their gradients, and PCGrad.

Gradients are parameter trees (nested dicts). Stacked layers have a leading axis, so one leaf holds a whole tower; the
report unstacks it: "text/layers" has one cosine per layer, "text/embed" has one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

Tree = Any

# Path components whose subtree has a leading layer axis.
STACKED = re.compile(r"^(blocks|layers|deepstack)$")


def layer_products(left: Tree, right: Tree) -> dict[str, jax.Array]:
    """Inner products of two gradient trees, layer by layer.

    Args:
      left: a nested dict of arrays.
      right: the same structure.

    Returns:
      Name of a layer group -> float32 [number of layers] (stacked) or [1].
    """
    products: dict[str, jax.Array] = {}
    paired = zip(jax.tree_util.tree_leaves_with_path(left), jax.tree.leaves(right), strict=True)
    for (path, a), b in paired:
        name, stacked = _group(path)
        layers = a.shape[0] if stacked else 1
        product = jnp.sum((a.astype(jnp.float32) * b.astype(jnp.float32)).reshape(layers, -1), axis=-1)
        products[name] = products[name] + product if name in products else product
    return products


def layer_cosines(left: Tree, right: Tree) -> dict[str, jax.Array]:
    """Cosine similarity <a, b>/(|a||b|) per layer.

    Args:
      left: a gradient tree.
      right: the same structure.

    Returns:
      As `layer_products`; 0 where one of the gradients is 0.
    """
    dots, lefts, rights = layer_products(left, right), layer_products(left, left), layer_products(right, right)
    return {name: _cosine(dots[name], lefts[name], rights[name]) for name in dots}


def interference_report(gradients: Mapping[str, Tree]) -> dict[str, dict[str, jax.Array]]:
    """Per-layer cosines for every pair of devices.

    Args:
      gradients: device family -> gradient tree.

    Returns:
      "mobile/desktop" -> {layer group -> cosines [layers], "all" -> [1] over the whole tree}.
    """
    names = list(gradients)
    report = {}
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            cosines = layer_cosines(gradients[first], gradients[second])
            pair = gram_matrix([gradients[first], gradients[second]])
            report[f"{first}/{second}"] = cosines | {"all": _cosine(pair[0, 1], pair[0, 0], pair[1, 1])[None]}
    return report


def gram_matrix(gradients: Sequence[Tree]) -> jax.Array:
    """All inner products of d gradient trees.

    Args:
      gradients: d trees of one structure.

    Returns:
      float32 [d, d].
    """
    flat = [jax.tree.leaves(tree) for tree in gradients]

    def dot(left: list[jax.Array], right: list[jax.Array]) -> jax.Array:
        return sum((jnp.vdot(a.astype(jnp.float32), b.astype(jnp.float32)) for a, b in zip(left, right)), jnp.zeros(()))

    return jnp.stack([jnp.stack([dot(left, right) for right in flat]) for left in flat])


def held_out_cosine(gram: jax.Array, device: jax.Array) -> jax.Array:
    """Cosine between one device's gradient and the sum of the others', from the Gram matrix alone.

    Args:
      gram: float [d, d].
      device: int [].

    Returns:
      float32 [].
    """
    others = 1.0 - jax.nn.one_hot(device, gram.shape[0])
    return _cosine(gram[device] @ others, gram[device, device], others @ gram @ others)


def pcgrad_coefficients(key: jax.Array, gram: jax.Array) -> jax.Array:
    """PCGrad (arXiv 2001.06782) as d numbers: the merged gradient is sum_j coefficient_j g_j.

    Each device's gradient is projected, in random order, onto the normal plane of every other gradient it conflicts
    with; the results are averaged. A projection only ever subtracts multiples of the given gradients, so all that is
    needed are their inner products.

        gram [[1, -.5], [-.5, 1]]:  g_0 -> g_0 + .5 g_1,  g_1 -> g_1 + .5 g_0;  coefficients [.75, .75]

    Args:
      key: a PRNG key, for the order of projections.
      gram: float [d, d], from `gram_matrix`.

    Returns:
      float32 [d]; all 1/d where nothing conflicts.
    """
    devices = gram.shape[0]

    def project(i: jax.Array, order: jax.Array) -> jax.Array:
        coefficients = jax.nn.one_hot(i, devices)
        for step in range(devices):
            j = order[step]
            dot = coefficients @ gram[:, j]
            conflict = (dot < 0) & (j != i)
            shift = jnp.where(conflict, dot / jnp.maximum(gram[j, j], jnp.finfo(jnp.float32).tiny), 0.0)
            coefficients = coefficients.at[j].add(-shift)
        return coefficients

    orders = jax.vmap(lambda k: jax.random.permutation(k, devices))(jax.random.split(key, devices))
    return jnp.mean(jax.vmap(project)(jnp.arange(devices), orders), axis=0)


def combine(gradients: Sequence[Tree], coefficients: jax.Array) -> Tree:
    """sum_j coefficient_j g_j.

    Args:
      gradients: d trees of one structure.
      coefficients: float [d].

    Returns:
      A tree of that structure.
    """
    return jax.tree.map(lambda *leaves: sum(c * leaf for c, leaf in zip(coefficients, leaves)), *gradients)


def _group(path: tuple[Any, ...]) -> tuple[str, bool]:
    """text/layers/q/kernel -> ("text/layers", True), text/embed/embedding -> ("text/embed", False)."""
    parts = [str(getattr(part, "key", getattr(part, "idx", getattr(part, "name", part)))) for part in path]
    for i, part in enumerate(parts):
        if STACKED.match(part):
            return "/".join(parts[: i + 1]), True
    return "/".join(parts[:2]), False


def _cosine(dot: jax.Array, left_square: jax.Array, right_square: jax.Array) -> jax.Array:
    # Two roots, not the root of a product, which would underflow for small gradients.
    scale = jnp.sqrt(left_square) * jnp.sqrt(right_square)
    return jnp.where(scale > 0, dot / jnp.where(scale > 0, scale, 1.0), 0.0)
