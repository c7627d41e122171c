"""Rotary embeddings: which position turns which frequency, and what turning does."""

import jax
import jax.numpy as jnp
import numpy as np

from gui_owl_jax.models import rope
from gui_owl_jax.models.config import get_preset


def test_interleaved_axes():
    np.testing.assert_array_equal(rope.mrope_axes((3, 2, 2), True), [0, 1, 2, 0, 1, 2, 0])
    published = rope.mrope_axes((24, 20, 20), True)
    np.testing.assert_array_equal(np.flatnonzero(published == 1), np.arange(1, 60, 3))
    np.testing.assert_array_equal(np.flatnonzero(published == 2), np.arange(2, 60, 3))
    assert (published[60:] == 0).all() and len(published) == 64


def test_chunked_axes():
    np.testing.assert_array_equal(rope.mrope_axes((3, 2, 2), False), [0, 0, 0, 1, 1, 2, 2])


def test_text_angles_follow_their_axis():
    config = get_preset("nano").text
    moved = jnp.zeros((1, 4, 3), jnp.int32).at[0, [1, 2, 3], [0, 1, 2]].set(7)
    cos, sin = rope.text_rope(config, moved)
    angles = np.arctan2(sin, cos)[0, :, 0]
    assert angles.shape == (4, config.head_width // 2) and (angles[0] == 0).all()
    for axis in range(3):
        np.testing.assert_array_equal(angles[1 + axis] != 0, rope.mrope_axes(config.mrope_section, True) == axis)
    frequencies = 10_000.0 ** (-np.arange(16) / 16)
    np.testing.assert_allclose(np.cos(7 * frequencies)[0], cos[0, 1, 0, 0], atol=1e-6)


def test_vision_rows_turn_the_first_half():
    config = get_preset("nano").vision
    cos, sin = rope.vision_rope(config, jnp.array([[[3, 0], [0, 3]]]))
    assert cos.shape == (1, 2, 1, config.head_width // 2)
    half = config.head_width // 4
    assert (sin[0, 0, 0, :half] != 0).all() and (sin[0, 0, 0, half:] == 0).all()
    np.testing.assert_array_equal(sin[0, 0, 0, :half], sin[0, 1, 0, half:])


def test_scores_depend_on_distance_alone():
    config = get_preset("nano").text
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, config.head_width))

    def score(at_q: int, at_k: int) -> jax.Array:
        turned = [rope.rotate(x, rope.text_rope(config, jnp.full((1, 1, 3), at))) for x, at in ((q, at_q), (k, at_k))]
        return (turned[0] * turned[1]).sum()

    np.testing.assert_allclose(score(5, 2), score(105, 102), rtol=1e-4)
    assert abs(score(5, 2) - score(5, 3)) > 1e-2
