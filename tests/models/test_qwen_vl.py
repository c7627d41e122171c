"""The model's functions: parameter trees, and what must and must not change their results."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gui_owl_jax.models import layout, qwen_vl, vision
from gui_owl_jax.models.config import get_preset
from gui_owl_jax.models.layers import matmul

NANO = get_preset("nano")


@pytest.fixture(scope="module")
def params():
    return qwen_vl.init_params(NANO, jax.random.key(0))


@pytest.fixture(scope="module")
def example(random_example):
    return random_example(np.random.default_rng(0), NANO, [3, (4, 6), 5])


# Compiled in haste: every program runs a few times only.
COMPILED = jax.jit(
    qwen_vl.hidden_states,
    static_argnames=("config", "implementation"),
    compiler_options={"xla_backend_optimization_level": 0},
)


def hidden(config, params, batch, implementation="xla"):
    return np.asarray(COMPILED(config, params, batch, implementation=implementation))


@pytest.mark.parametrize("tied", [True, False])
def test_parameter_trees_agree(tied):
    config = dataclasses.replace(NANO, tie_word_embeddings=tied)
    params = qwen_vl.init_params(config, jax.random.key(0), jnp.bfloat16)
    abstract = qwen_vl.abstract_params(config, jnp.bfloat16)
    describe = lambda tree: jax.tree.map(lambda a: (a.shape, a.dtype), tree)  # noqa: E731
    assert describe(params) == describe(abstract)
    assert ("head" in params) == (not tied) and set(params) - {"head"} == {"vision", "text"}
    axes = qwen_vl.logical_axes(config)
    for path, leaf in jax.tree.leaves_with_path(abstract):
        node = axes
        for key in path:
            node = node[key.key]
        assert len(node) == len(leaf.shape), path
    assert axes["text"]["layers"]["gate"]["kernel"] == ("layers", "embed", "mlp")
    assert axes["vision"]["deepstack"]["norm"]["bias"] == ("layers", "norm")
    assert abstract["vision"]["patch_embed"]["kernel"].shape == (1536, 64)
    assert abstract["vision"]["deepstack"]["fc1"]["kernel"].shape == (1, 256, 256)


def test_initial_parameters(params):
    """Layers differ from each other, keys decide, and the first loss is that of a uniform guess."""
    kernels = params["text"]["layers"]["q"]["kernel"]
    assert not np.allclose(kernels[0], kernels[1])
    again = qwen_vl.init_params(NANO, jax.random.key(0))
    other = qwen_vl.init_params(NANO, jax.random.key(1))
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), params, again)))
    assert not np.allclose(other["vision"]["blocks"]["qkv"]["kernel"], params["vision"]["blocks"]["qkv"]["kernel"])
    logits = qwen_vl.logits(NANO, params, jax.random.normal(jax.random.key(2), (64, NANO.text.width)))
    assert logits.dtype == jnp.float32
    guess = jax.nn.logsumexp(logits, axis=-1) - logits[:, 0]
    assert abs(float(guess.mean()) - math.log(NANO.text.vocab_size)) < 0.2


def test_padding_changes_nothing(params, example):
    plain = layout.lay_out_rows([[example]], NANO, 16, 24)
    padded = layout.lay_out_rows([[example]], NANO, 20, 40)
    rng = np.random.default_rng(1)
    padded["patches"][:, 24:] = rng.integers(0, 256, padded["patches"][:, 24:].shape)
    padded["tokens"][:, 16:] = 7
    np.testing.assert_allclose(hidden(NANO, params, padded)[:, :16], hidden(NANO, params, plain), rtol=0, atol=2e-5)


def test_text_needs_no_patches(params, random_example):
    text = random_example(np.random.default_rng(2), NANO, [16])
    without = hidden(NANO, params, layout.lay_out_rows([[text]], NANO, 16, 0))
    spare = hidden(NANO, params, layout.lay_out_rows([[text]], NANO, 16, 24))
    np.testing.assert_allclose(without, spare, rtol=0, atol=2e-5)
    features, deepstack = qwen_vl.encode_images(NANO, params, layout.lay_out_rows([[text]], NANO, 16, 0))
    assert features.shape == (1, 0, 128) and deepstack.shape == (0, 1, 0, 128)


def test_a_model_without_deepstack(params, example):
    config = dataclasses.replace(NANO, vision=dataclasses.replace(NANO.vision, deepstack_indexes=()))
    vision = {name: value for name, value in params["vision"].items() if name != "deepstack"}
    plain = {**params, "vision": vision}
    assert jax.tree.structure(plain) == jax.tree.structure(qwen_vl.abstract_params(config))
    batch = layout.lay_out_rows([[example]], NANO, 16, 24)
    with_levels, without = hidden(NANO, params, batch), hidden(config, plain, batch)
    # Tokens before the image cannot tell; the image's own can.
    np.testing.assert_allclose(with_levels[:, :4], without[:, :4], rtol=0, atol=2e-5)
    assert np.abs(with_levels[:, 4:10] - without[:, 4:10]).max() > 0.01


def test_a_sampled_image_pad_is_an_ordinary_token(params):
    tokens = np.array([5, NANO.image_token_id, 6, 7], np.int32)
    batch = layout.lay_out_rows([[layout.Example(tokens, np.zeros(4, np.float32))]], NANO, 4, 0)
    batch["tokens"][0, 1] = 9
    swapped = dict(params, text=dict(params["text"]))
    table = params["text"]["embed"]["embedding"]
    swapped["text"]["embed"] = {"embedding": table.at[9].set(table[NANO.image_token_id])}
    expected = hidden(NANO, swapped, batch)
    batch["tokens"][0, 1] = NANO.image_token_id
    np.testing.assert_allclose(hidden(NANO, params, batch), expected, rtol=0, atol=2e-5)


def test_later_tokens_and_other_images_are_out_of_sight(params, random_example):
    rng = np.random.default_rng(3)
    first, second = (random_example(rng, NANO, [3, (4, 6), 5]) for _ in range(2))
    together = layout.lay_out_rows([[first, second]], NANO, 32, 48)
    before = hidden(NANO, params, together)
    together["patches"][:, 24:] = 255 - together["patches"][:, 24:]
    together["tokens"][:, 31] = 11
    after = hidden(NANO, params, together)
    np.testing.assert_array_equal(before[:, :20], after[:, :20])
    assert (np.abs(before[:, 20:26] - after[:, 20:26]).max(axis=-1) > 1e-3).all()


def test_image_statistics_normalise_patches(params, example):
    """Other means and deviations give what the same function gives on patches changed to match."""
    config = dataclasses.replace(NANO, image_mean=(0.0, 0.2, 0.4), image_std=(1.0, 0.5, 0.25))
    batch = layout.lay_out_rows([[example]], NANO, 16, 24)
    tower = qwen_vl._bind(config, params).vision
    found = vision.embed_patches(config, jnp.asarray(batch["patches"]), tower.patch_embed, jnp.float32)
    pixels = (batch["patches"].reshape(1, 24, 3, 1, 256) / 255 - np.reshape(config.image_mean, (3, 1, 1))) / np.reshape(
        config.image_std, (3, 1, 1)
    )
    frames = np.repeat(pixels, 2, axis=3).reshape(1, 24, 1536)  # two equal frames
    expected = frames @ np.asarray(params["vision"]["patch_embed"]["kernel"], np.float64)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


def test_attention_implementations_agree(params, example):
    batch = layout.lay_out_rows([[example]], NANO, 16, 24)
    np.testing.assert_allclose(
        hidden(NANO, params, batch, implementation="einsum"), hidden(NANO, params, batch), rtol=0, atol=2e-5
    )


def test_bfloat16_stays_close(params, example):
    batch = layout.lay_out_rows([[example]], NANO, 16, 24)
    low = qwen_vl.hidden_states(NANO, params, batch, dtype=jnp.bfloat16)
    assert low.dtype == jnp.bfloat16
    # Values are about 1; a bfloat16 carries 8 bits.
    assert np.abs(np.asarray(low, np.float32) - hidden(NANO, params, batch)).max() < 0.15


def test_remat_changes_no_gradient(params, example):
    batch = layout.lay_out_rows([[example]], NANO, 16, 24)

    def loss(params, remat):
        return jnp.square(qwen_vl.hidden_states(NANO, params, batch, remat=remat)[:, -3:, :5]).sum()

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    for own, expected in zip(jax.tree.leaves(gradient(params, True)), jax.tree.leaves(gradient(params, False))):
        np.testing.assert_allclose(own, expected, rtol=1e-4, atol=1e-5)


def test_remat_keeps_less(params, example):
    batch = layout.lay_out_rows([[example] * 8] * 4, NANO, 128, 192)

    def kept(remat):
        pullback = jax.eval_shape(
            lambda p: jax.vjp(lambda p: qwen_vl.hidden_states(NANO, p, batch, remat=remat), p)[1], params
        )
        return sum(leaf.size for leaf in jax.tree.leaves(pullback))

    weights = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert kept(True) - weights < 0.2 * (kept(False) - weights)


def test_cache_dtype_and_shape(params, example):
    cache = qwen_vl.init_cache(NANO, 2, 20, jnp.bfloat16)
    assert cache.k.shape == cache.v.shape == (3, 2, 20, 2, 32) and cache.k.dtype == jnp.bfloat16
    ids, slots = jnp.array([4, 5]), jnp.array([0, 0])
    state, cache = jax.jit(lambda c: qwen_vl.decode_step(NANO, params, c, ids, slots, slots))(cache)
    assert state.shape == (2, 128) and state.dtype == jnp.bfloat16
    assert np.asarray(cache.k[:, :, 0], np.float32).any() and not np.asarray(cache.k[:, :, 1:], np.float32).any()


def test_flat_matmul():
    x, kernel = jax.random.normal(jax.random.key(0), (2, 3, 4)), jax.random.normal(jax.random.key(1), (4, 5))
    np.testing.assert_allclose(matmul(x, kernel), jnp.einsum("bli,io->blo", x, kernel), rtol=1e-5, atol=1e-6)
