"""Experts against a loop over tokens, and what is said about their load."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gui_owl_jax.models import layout, moe, qwen_vl
from gui_owl_jax.models.config import get_preset

T, D, E, K, INNER = 11, 6, 5, 3, 4


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    x, router = rng.normal(size=(T, D)), rng.normal(size=(D, E))
    return x, router, rng.normal(size=(E, D, 2, INNER)), rng.normal(size=(E, INNER, D))


def brute_force(x, router, gate_up, down):
    """One token and one expert at a time, in float64."""
    y = np.zeros_like(x)
    for t in range(T):
        scores = np.exp(x[t] @ router)
        probability = scores / scores.sum()
        chosen = np.argsort(-probability)[:K]
        for e in chosen:
            gate, up = x[t] @ gate_up[e, :, 0], x[t] @ gate_up[e, :, 1]
            y[t] += probability[e] / probability[chosen].sum() * ((gate / (1 + np.exp(-gate)) * up) @ down[e])
    return y


def run(x, router, gate_up, down):
    routing = moe.route(jnp.matmul(x, router), K)
    return moe.run_experts(x, routing.experts, routing.weights, gate_up, down)


def test_equals_a_loop_over_tokens(arrays):
    own = jax.jit(run)(*(jnp.asarray(a, jnp.float32) for a in arrays))
    np.testing.assert_allclose(own, brute_force(*arrays), rtol=0, atol=2e-5)


def test_gradients_equal_finite_differences(arrays):
    arrays32 = [jnp.asarray(a, jnp.float32) for a in arrays]
    weights = np.random.default_rng(1).normal(size=(T, D))
    gradients = jax.jit(jax.grad(lambda *a: jnp.sum(run(*a) * weights), argnums=(0, 1, 2, 3)))(*arrays32)
    rng = np.random.default_rng(2)
    for index, gradient in enumerate(gradients):
        direction = rng.normal(size=gradient.shape)
        moved = [
            brute_force(*(a + sign * 1e-5 * direction if i == index else a for i, a in enumerate(arrays)))
            for sign in (1, -1)
        ]
        expected = np.sum((moved[0] - moved[1]) * weights) / 2e-5
        np.testing.assert_allclose(np.sum(np.asarray(gradient, np.float64) * direction), expected, rtol=2e-4)


def test_no_token_is_dropped_when_all_choose_the_same_expert():
    x = jnp.ones((T, D))
    router = jnp.zeros((D, E)).at[:, 2].set(1.0)
    down = jnp.ones((E, INNER, D))
    routing = moe.route(x @ router, 1)
    assert (routing.experts == 2).all()
    y = moe.run_experts(x, routing.experts, routing.weights, jnp.ones((E, D, 2, INNER)), down)
    np.testing.assert_allclose(y, y[:1].repeat(T, axis=0))
    assert (y > 0).all()


def test_visits_of_experts_elsewhere_give_nothing(arrays):
    """Under expert parallelism a device has some experts only; the shares of all devices add up."""
    x, router, gate_up, down = (jnp.asarray(a, jnp.float32) for a in arrays)
    routing = moe.route(x @ router, K)
    whole = moe.run_experts(x, routing.experts, routing.weights, gate_up, down)
    parts = []
    for start, stop in ((0, 2), (2, E)):
        inside = (routing.experts >= start) & (routing.experts < stop)
        chosen = jnp.where(inside, routing.experts - start, stop - start)
        parts.append(moe.run_experts(x, chosen, routing.weights, gate_up[start:stop], down[start:stop]))
    np.testing.assert_allclose(parts[0] + parts[1], whole, rtol=0, atol=2e-5)
    assert float(jnp.abs(parts[0]).max()) > 0.1


def test_load_counts_real_tokens_only():
    logits = jnp.log(jnp.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]]))
    load = moe.router_load(moe.route(logits, 2), jnp.array([True, True, False]))
    np.testing.assert_array_equal(load.assigned, [1, 2, 1])
    np.testing.assert_allclose(load.probability, [0.8, 0.8, 0.4], atol=1e-6)
    assert load.tokens == 2


def test_balance_loss_is_k_when_even_and_grows_with_preference():
    even = moe.RouterLoad(jnp.full((2, 4), 6.0), jnp.full((2, 4), 3.0), jnp.full(2, 12.0))
    np.testing.assert_allclose(moe.balance_loss(even), 2.0)
    skewed = even._replace(assigned=jnp.array([[12.0, 12, 0, 0]] * 2), probability=jnp.array([[6.0, 6, 0, 0]] * 2))
    np.testing.assert_allclose(moe.balance_loss(skewed), 4.0)
    metrics = moe.router_metrics(skewed)
    assert metrics["max_router/load"] == 2 and metrics["router/idle"] == 0.5
    np.testing.assert_allclose(metrics["router/entropy"], 0.5, atol=1e-6)
    np.testing.assert_allclose(moe.router_metrics(even)["router/entropy"], 1.0, atol=1e-6)


def test_a_dense_model_keeps_nothing_of_experts(random_example):
    config = get_preset("nano")
    params = qwen_vl.init_params(config, jax.random.key(0))
    example = random_example(np.random.default_rng(0), config, [4, (2, 2), 3])
    batch = layout.lay_out_rows([[example]], config, 16, 4)
    _, kept = qwen_vl.forward(config, params, batch, keep=("load", "router_logits"))
    assert kept.load is None and kept.router_logits is None and kept.kv is None
