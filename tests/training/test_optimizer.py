"""The optimizer against plain-numpy twins, on a tree with the paths of the real one."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax.contrib
import pytest

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.training import optimizer as opt
from gui_owl_jax.training.optimizer import OptimizerConfig


def _tree(seed: int, scale: float = 1.0) -> dict:
    """A small tree with the paths of the real one: stacked kernels, vectors, an embedding."""
    draw = np.random.default_rng(seed).standard_normal
    shapes = {
        "vision": {"patch_embed": {"kernel": (6, 4), "bias": (4,)}, "blocks": {"qkv": {"kernel": (2, 4, 12)}}},
        "text": {"embed": {"embedding": (8, 4)}, "layers": {"q": {"kernel": (3, 4, 6)}}, "norm": {"scale": (4,)}},
    }
    return jax.tree.map(
        lambda shape: (scale * draw(shape)).astype(np.float32), shapes, is_leaf=lambda node: isinstance(node, tuple)
    )


def _paths(tree: dict) -> dict[str, np.ndarray]:
    return {opt.path_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _run(config: OptimizerConfig, params: dict, grads: list[dict]) -> tuple[dict, opt.OptimizerState]:
    tx = opt.make_optimizer(config)
    state = tx.init(params)

    @jax.jit
    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return opt.apply_updates(params, updates), state

    for grad in grads:
        params, state = step(params, state, grad)
    return params, state


RULES = dict(
    learning_rate_rules=((r"vision/.*", 0.0), (r"text/embed/.*", 0.25)),
    weight_decay_rules=((r"text/embed/embedding", 0.0), (r".*(kernel|embedding)", 0.1)),
)


def test_adamw_with_rules_equals_a_numpy_twin_for_five_steps():
    config = OptimizerConfig(
        learning_rate=0.1, schedule="linear", warmup_steps=2, total_steps=8, clip_norm=1.5, b2=0.99, **RULES
    )
    params, grads = _tree(0), [_tree(i + 1, scale) for i, scale in enumerate((0.01, 1.0, 3.0, 0.1, 1.0))]
    got, state = _run(config, params, grads)

    want = {path: leaf.astype(np.float64) for path, leaf in _paths(params).items()}
    factor = {path: 0.0 if path.startswith("vision") else 0.25 if "embed" in path else 1.0 for path in want}
    decay = {path: 0.1 if path.endswith("kernel") else 0.0 for path in want}
    trained = [path for path in want if factor[path]]
    mu, nu = ({path: np.zeros_like(want[path]) for path in trained} for _ in range(2))
    rates = [0.05, 0.1, 0.1, 0.1 * 5 / 6, 0.1 * 4 / 6]
    for t, (grad, rate) in enumerate(zip(grads, rates), start=1):
        grad = {path: leaf.astype(np.float64) for path, leaf in _paths(grad).items()}
        norm = math.sqrt(sum(np.sum(grad[path] ** 2) for path in trained))
        for path in trained:
            g = grad[path] * min(1.0, 1.5 / norm)
            mu[path] = 0.9 * mu[path] + 0.1 * g
            nu[path] = 0.99 * nu[path] + 0.01 * g * g
            step = (mu[path] / (1 - 0.9**t)) / (np.sqrt(nu[path] / (1 - 0.99**t)) + 1e-8)
            want[path] -= rate * factor[path] * (step + decay[path] * want[path])

    for path, leaf in _paths(got).items():
        np.testing.assert_allclose(leaf, want[path], rtol=2e-5, atol=2e-6, err_msg=path)
    assert int(state.count) == 5


def test_clipping_only_shrinks():
    config = OptimizerConfig(clip_norm=2.0)
    grads = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}
    np.testing.assert_allclose(float(opt.global_norm(opt.clip_by_norm(config, grads))), 2.0, rtol=1e-6)
    small = jax.tree.map(lambda leaf: leaf / 10, grads)
    jax.tree.map(np.testing.assert_array_equal, opt.clip_by_norm(config, small), small)
    jax.tree.map(np.testing.assert_array_equal, opt.clip_by_norm(OptimizerConfig(clip_norm=0), grads), grads)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_frozen_parameters_keep_their_bits_and_have_no_moments(name):
    params, grads = _tree(0), [_tree(1)]
    grads[0]["vision"]["patch_embed"]["bias"] = np.full(4, np.nan, np.float32)  # frozen: must not be looked at
    got, state = _run(OptimizerConfig(name=name, **RULES), params, grads)
    for path, leaf in _paths(got).items():
        if path.startswith("vision"):
            np.testing.assert_array_equal(leaf, _paths(params)[path])
        else:
            assert np.isfinite(leaf).all() and not np.array_equal(leaf, _paths(params)[path])
    names = [opt.path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    assert not [name for name in names if "vision" in name]
    assert [name for name in names if "text/layers/q/kernel" in name]


def test_no_backward_pass_is_built_for_frozen_parameters():
    config, params = OptimizerConfig(learning_rate_rules=((r"vision/.*", 0.0),)), _tree(0)
    trained, frozen = opt.split_frozen(config, params)
    jax.tree.map(np.testing.assert_array_equal, opt.merge_frozen(trained, frozen), params)

    def loss(tree: dict) -> jax.Array:
        features = jnp.ones((5, 6)) @ tree["vision"]["patch_embed"]["kernel"]
        return jnp.sum(jnp.square(features @ tree["text"]["layers"]["q"]["kernel"][0]))

    def dots(fun, *args) -> int:
        return str(jax.make_jaxpr(fun)(*args)).count("dot_general")

    full = dots(jax.grad(loss), params)
    part = dots(jax.grad(lambda trained: loss(opt.merge_frozen(trained, frozen))), trained)
    assert (full, part) == (5, 3)  # two forward; backward to both kernels and the features, or to one kernel


def test_muon_on_stacked_kernels_equals_muon_on_each_layer():
    config = OptimizerConfig(name="muon", learning_rate=0.01, schedule="constant", clip_norm=0.0)
    params, grads = _tree(0), [_tree(1), _tree(2), _tree(3)]
    got, _ = _run(config, params, grads)
    for layer in range(3):
        tx = optax.contrib.muon(0.01)
        kernel = params["text"]["layers"]["q"]["kernel"][layer]
        state = tx.init(kernel)
        for grad in grads:
            updates, state = tx.update(grad["text"]["layers"]["q"]["kernel"][layer], state, kernel)
            kernel = kernel + updates
        np.testing.assert_allclose(got["text"]["layers"]["q"]["kernel"][layer], kernel, rtol=1e-5, atol=1e-6)


def test_muon_moves_all_directions_of_a_matrix_alike_and_leaves_the_rest_to_adam():
    config = OptimizerConfig(name="muon", learning_rate=1.0, schedule="constant", clip_norm=0.0)
    params, grad = _tree(0), _tree(1)
    got, _ = _run(config, params, [grad])
    moved = jax.tree.map(lambda new, old: np.asarray(new) - old, got, params)
    # The quintic iteration brings singular values to about 1 (0.7 to 1.2), then comes sqrt(out / in).
    for path, scale in (("text/layers/q/kernel", math.sqrt(6 / 4)), ("vision/patch_embed/kernel", 1.0)):
        values = np.linalg.svd(_paths(moved)[path], compute_uv=False) / scale
        assert values.min() > 0.5 and values.max() < 1.5
    for path in ("text/embed/embedding", "text/norm/scale", "vision/patch_embed/bias"):
        signs = -np.sign(_paths(grad)[path])  # Adam's first step, with Nesterov as in optax.contrib.muon
        np.testing.assert_allclose(_paths(moved)[path] / signs, np.mean(_paths(moved)[path] / signs), rtol=1e-3)


def test_schedules():
    config = OptimizerConfig(learning_rate=1.0, schedule="linear", warmup_steps=2, total_steps=6)
    rates = [float(opt.learning_rate(config, count)) for count in range(8)]
    np.testing.assert_allclose(rates, [0.5, 1, 1, 0.75, 0.5, 0.25, 0, 0], atol=1e-6)
    cosine = dataclasses.replace(config, schedule="cosine", end_fraction=0.1)
    rates = [float(opt.learning_rate(cosine, count)) for count in (0, 1, 2, 4, 6, 9)]
    np.testing.assert_allclose(rates, [0.5, 1, 1, 0.55, 0.1, 0.1], atol=1e-6)
    constant = dataclasses.replace(config, schedule="constant", warmup_steps=4)
    rates = [float(opt.learning_rate(constant, count)) for count in (0, 1, 3, 4, 10**6)]
    np.testing.assert_allclose(rates, [0.25, 0.5, 1, 1, 1], atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            dict(learning_rate_rules=((r"vision/tower/.*", 0.0),)),
            r"learning_rate_rules.*'vision/tower/.*' matches none",
        ),
        (dict(weight_decay_rules=((r".*", 0.0), (r"text/.*", 0.1))), r"weight_decay_rules.*earlier rules took"),
        (dict(learning_rate_rules=((r"text/(", 0.0),)), r"learning_rate_rules.*regexes"),
        (dict(learning_rate_rules=((r".*", 0.0),)), r"every parameter is frozen"),
        (dict(name="muon", muon_pattern=r"decoder/.*"), r"muon_pattern.*matches none"),
    ],
)
def test_a_rule_that_decides_nothing_is_an_error(fields, message):
    with pytest.raises(ConfigError, match=message):
        opt.make_optimizer(OptimizerConfig(**fields)).init(_tree(0))


@pytest.mark.parametrize(
    "fields",
    [
        dict(name="sgd"),
        dict(schedule="step"),
        dict(learning_rate=0.0),
        dict(total_steps=10, warmup_steps=10),
        dict(end_fraction=1.5),
        dict(clip_norm=-1.0),
        dict(weight_decay_rules=((".*", -0.1),)),
    ],
)
def test_field_values_that_cannot_work(fields):
    with pytest.raises(ConfigError, match=f"optimizer.{next(iter(fields))}"):
        OptimizerConfig(**fields)


def test_a_shadowed_decay_rule_is_judged_by_all_parameters_not_by_the_trained_ones():
    rules = dict(learning_rate_rules=((r"vision/.*", 0.0),), weight_decay_rules=((r"vision/.*", 0.0), (r".*", 0.1)))
    _run(OptimizerConfig(**rules), _tree(0), [_tree(1)])
