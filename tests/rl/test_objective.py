"""The MRPO objective against a float64 numpy twin, its finite differences, and what an update must do."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.rl import objective
from gui_owl_jax.rl.advantages import grpo
from gui_owl_jax.rl.objective import ObjectiveConfig, mrpo_objective
from gui_owl_jax.rl.selection import Case, select

VOCAB = 5
FULL = ObjectiveConfig(
    clip_low=0.1, clip_high=0.2, kl_coefficient=0.3, kl_estimator="k3", importance="token", importance_cap=1.2
)


def batch(seed=0, rows=3, length=12):
    """Random packed rows: three examples per row and padding, whose entries are garbage."""
    rng = np.random.default_rng(seed)
    segments = np.sort(rng.integers(1, 4, (rows, length)), axis=1)
    segments[:, -2:] = 0
    mask = ((rng.random((rows, length)) < 0.7) & (segments > 0)).astype(np.float32)
    per_segment = lambda low, high: rng.uniform(low, high, (rows, 4))  # noqa: E731
    rolled = dict(
        contexts=rng.integers(0, 7, (rows, length)),
        tokens=rng.integers(0, VOCAB, (rows, length)),
        old_logps=rng.uniform(-3, -0.5, (rows, length)),
        sampler_logps=rng.uniform(-3, -0.5, (rows, length)),
        ref_logps=rng.uniform(-3, -0.5, (rows, length)),
        advantages=np.take_along_axis(per_segment(-2, 2), segments, axis=1),
        token_weights=np.take_along_axis(per_segment(0.5, 1.5), segments, axis=1),
        mask=mask,
        segment_ids=segments,
    )
    for name in ("old_logps", "sampler_logps", "ref_logps", "advantages"):
        rolled[name][mask == 0] = rng.choice([np.nan, np.inf, -np.inf, 1e30], (mask == 0).sum())
    return rolled


def policy_logps(params, rolled, xp=np):
    """A softmax table policy: one row of logits per context."""
    logits = params[rolled["contexts"]]
    logits = logits - logits.max(-1, keepdims=True)
    logps = logits - xp.log(xp.exp(logits).sum(-1, keepdims=True))
    return xp.take_along_axis(logps, rolled["tokens"][..., None], axis=-1)[..., 0]


def numpy_loss(params, rolled, config):
    """The loss in float64, one token at a time, straight from the formulas."""
    logps = policy_logps(params, rolled)
    old = rolled["old_logps"]
    sequences = {}
    for row, column in np.argwhere(rolled["mask"] > 0):
        if rolled["token_weights"][row, column] > 0:
            sequences.setdefault((row, rolled["segment_ids"][row, column]), []).append((row, column))
    tokens = sum(map(len, sequences.values()))
    loss = 0.0
    for members in sequences.values():
        differences = [logps[i] - old[i] for i in members]
        shifts = [old[i] - rolled["sampler_logps"][i] for i in members]
        for i, difference, shift in zip(members, differences, shifts):
            a, x = rolled["advantages"][i], rolled["ref_logps"][i] - logps[i]
            r = np.exp(np.mean(differences) if config.ratio == "sequence" else difference)
            c = {"none": 0.0, "token": shift, "sequence": sum(shifts)}[config.importance]
            c = min(np.exp(c), config.importance_cap) if config.importance != "none" else 1.0
            kl = {"k1": -x, "k2": x * x / 2, "k3": np.exp(x) - x - 1}[config.kl_estimator]
            term = (
                c * min(r * a, np.clip(r, 1 - config.clip_low, 1 + config.clip_high) * a) - config.kl_coefficient * kl
            )
            share = {
                "token_mean": 1 / tokens,
                "sequence_mean": 1 / len(members) / len(sequences),
                "fixed_length": 1 / config.fixed_length / len(sequences),
            }[config.aggregation]
            loss -= rolled["token_weights"][i] * share * term
    return loss


@functools.partial(jax.jit, static_argnames="config")
def jax_loss(params, rolled, config, **kwargs):
    arrays = {name: value for name, value in rolled.items() if name not in ("contexts", "tokens")}
    return mrpo_objective(policy_logps(params, rolled, jnp), **arrays, config=config, **kwargs)


CONFIGS = [
    dataclasses.replace(FULL, ratio=r, aggregation=a, importance=i, kl_estimator=k, fixed_length=7)
    for (r, a), (i, k) in zip(
        itertools.product(("token", "sequence"), ("token_mean", "sequence_mean", "fixed_length")),
        itertools.cycle([("token", "k3"), ("sequence", "k2"), ("none", "k1")]),
    )
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.ratio}-{c.aggregation}-{c.importance}-{c.kl_estimator}")
def test_loss_and_gradient_equal_numpy_and_its_finite_differences(config):
    rolled = batch()
    params = np.random.default_rng(1).normal(size=(7, VOCAB))
    value, gradient = jax.jit(jax.value_and_grad(lambda p: jax_loss(p, rolled, config)[0]))(
        jnp.asarray(params, jnp.float32)
    )
    assert float(value) == pytest.approx(numpy_loss(params, rolled, config), rel=1e-5)
    # Clipping makes the loss piecewise smooth: no token may sit on a kink.
    step, expected = 1e-6, np.zeros_like(params)
    for index in np.ndindex(*params.shape):
        shift = np.zeros_like(params)
        shift[index] = step
        expected[index] = numpy_loss(params + shift, rolled, config) - numpy_loss(params - shift, rolled, config)
    np.testing.assert_allclose(gradient, expected / (2 * step), rtol=2e-4, atol=2e-6)
    assert np.abs(expected).max() > 0


def test_both_clips_and_the_cap_are_active_in_these_tests():
    rolled = batch()
    params = jnp.asarray(np.random.default_rng(1).normal(size=(7, VOCAB)), jnp.float32)
    metrics = jax_loss(params, rolled, FULL)[1]
    for name in ("clip_low_share", "clip_high_share", "importance_truncated_share"):
        assert 0.05 < float(metrics[name]) < 0.95, name


def test_padding_contributes_exactly_nothing():
    """Garbage, NaN and inf included, in every masked entry: same loss bit for bit, gradient exactly 0 there."""
    rolled = batch()
    arrays = {k: jnp.asarray(v, jnp.float32) for k, v in rolled.items() if k not in ("contexts", "tokens")}
    arrays["segment_ids"] = jnp.asarray(rolled["segment_ids"])
    hidden = rolled["mask"] == 0
    logps = np.random.default_rng(2).uniform(-3, -0.5, hidden.shape).astype(np.float32)
    run = jax.jit(jax.value_and_grad(lambda x, rest: mrpo_objective(x, **rest, config=FULL), has_aux=True))
    results = []
    for garbage in (0.0, -50.0, np.nan, np.inf, -np.inf):
        filled = {k: jnp.where(hidden, garbage, v) if k.endswith("logps") else v for k, v in arrays.items()}
        results.append(run(jnp.where(hidden, garbage, logps), filled))
    for (value, metrics), gradient in results:
        assert np.isfinite(float(value)) and float(value) == float(results[0][0][0])
        assert all(np.isfinite(float(m)) for m in metrics.values())
        assert (np.asarray(gradient)[hidden] == 0).all() and np.asarray(gradient).any()


def test_packing_changes_nothing():
    """The same examples, one per row, in another order, beside an empty row."""
    rolled = batch()
    params = jnp.asarray(np.random.default_rng(1).normal(size=(7, VOCAB)), jnp.float32)
    rows = []
    for row, segment in reversed([(r, s) for r in range(3) for s in range(1, 4)]):
        take = np.flatnonzero(rolled["segment_ids"][row] == segment)
        padded = {k: np.zeros(12, v.dtype) for k, v in rolled.items()}
        for name, value in rolled.items():
            padded[name][2 : 2 + len(take)] = value[row, take]
        padded["segment_ids"][2 : 2 + len(take)] = 1
        rows.append(padded)
    rows.append({k: np.zeros(12, v.dtype) for k, v in rolled.items()})
    unpacked = {name: np.stack([row[name] for row in rows]) for name in rolled}
    for config in (CONFIGS[0], CONFIGS[4]):
        run = jax.jit(jax.value_and_grad(lambda p, b, c=config: jax_loss(p, b, c), has_aux=True))
        (loss, metrics), gradient = run(params, rolled)
        (other_loss, other_metrics), other_gradient = run(params, unpacked)
        np.testing.assert_allclose(other_loss, loss, rtol=1e-5)
        np.testing.assert_allclose(other_gradient, gradient, rtol=1e-4, atol=1e-6)
        for name in metrics:
            np.testing.assert_allclose(other_metrics[name], metrics[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("config", CONFIGS[:3], ids=lambda c: c.aggregation)
def test_parts_of_a_batch_add_up_under_the_global_count(config):
    rolled = batch()
    params = jnp.asarray(np.random.default_rng(1).normal(size=(7, VOCAB)), jnp.float32)
    loss, metrics = jax_loss(params, rolled, config)
    used = objective.used_tokens(*(jnp.asarray(rolled[k]) for k in ("mask", "token_weights", "segment_ids")))
    count = objective.count_units(used, jnp.asarray(rolled["segment_ids"]), config)
    parts = [jax_loss(params, {k: v[i : i + 1] for k, v in rolled.items()}, config, normalizer=count) for i in range(3)]
    np.testing.assert_allclose(sum(part[0] for part in parts), loss, rtol=1e-5)
    for name, value in metrics.items():
        values = [float(part[1][name]) for part in parts]
        expected = max(values) if name.startswith("max_") else sum(values)
        assert float(value) == pytest.approx(expected, rel=1e-5, abs=1e-6), name


def test_aggregation_weights_of_the_worked_example():
    used, segments = jnp.array([[1, 1, 0, 1, 0]], bool), jnp.array([[1, 1, 1, 2, 0]])
    expected = {
        "token_mean": [1 / 3, 1 / 3, 0, 1 / 3, 0],
        "sequence_mean": [1 / 4, 1 / 4, 0, 1 / 2, 0],
        "fixed_length": [1 / 16, 1 / 16, 0, 1 / 16, 0],
    }
    for name, weights in expected.items():
        config = ObjectiveConfig(aggregation=name, fixed_length=8)
        np.testing.assert_allclose(objective.aggregation_weights(used, segments, config), [weights], rtol=1e-6)


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_the_first_update_of_a_batch_needs_no_old_logps(ratio):
    rolled, config = batch(), dataclasses.replace(FULL, ratio=ratio)
    params = jnp.asarray(np.random.default_rng(1).normal(size=(7, VOCAB)), jnp.float32)
    run = jax.jit(jax.value_and_grad(lambda p, b: jax_loss(p, b, config)[0]))
    given = run(params, {**rolled, "old_logps": policy_logps(params, rolled, jnp)})
    for found, expected in zip(run(params, {**rolled, "old_logps": None}), given):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_kl_estimators_agree_in_expectation_and_k3_is_never_negative():
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(VOCAB), 2)
    tokens = rng.choice(VOCAB, (1, 200_000), p=p)
    exact = float((p * np.log(p / q)).sum())
    for estimator in ("k1", "k3"):
        found = objective.kl_divergence(np.log(p)[tokens], np.log(q)[tokens], jnp.ones(tokens.shape, bool), estimator)
        assert float(found.mean()) == pytest.approx(exact, rel=0.02)
    assert float(found.min()) >= 0


@pytest.mark.parametrize("missing", ["ref_logps", "sampler_logps"])
def test_a_missing_array_is_an_error(missing):
    rolled = {k: jnp.asarray(v) for k, v in batch().items() if k not in ("contexts", "tokens")}
    with pytest.raises(ConfigError, match=missing):
        mrpo_objective(rolled["old_logps"], **{**rolled, missing: None}, config=FULL)


@pytest.mark.parametrize(
    "fields",
    [
        {"kl_estimator": "k4"},
        {"aggregation": "mean"},
        {"ratio": "word"},
        {"importance": "all"},
        {"clip_low": 1.5},
        {"clip_high": -0.1},
        {"fixed_length": 0},
        {"importance_cap": 0.0},
        {"kl_coefficient": -1.0},
    ],
)
def test_bad_configs_are_rejected(fields):
    with pytest.raises(ConfigError, match=next(iter(fields))):
        ObjectiveConfig(**fields)


# One update, from the pool of outcomes to the parameters (tests/rl/test_update.py does it with the real model).

LENGTH, POOL, GROUP = 4, 8, 4


def update(outcomes, seed):
    """Selects a group of a table policy's responses and takes one AdamW step on it."""
    rng = np.random.default_rng(seed)
    # All responses start from one context, as trajectories of a task do, and go on to contexts of their own.
    contexts = 1 + np.arange(POOL * LENGTH).reshape(POOL, LENGTH)
    contexts[:, 0] = 0
    params = jnp.asarray(rng.normal(size=(contexts.max() + 1, VOCAB)), jnp.float32)
    pick = jax.jit(select, static_argnums=3)
    chosen = pick(jax.random.key(seed), jnp.asarray(outcomes), jnp.ones(POOL, bool), GROUP)
    rolled = {"contexts": contexts[chosen.indices], "tokens": rng.integers(0, VOCAB, (GROUP, LENGTH))}
    outcomes = np.asarray(outcomes, np.float32)[chosen.indices]
    advantages = grpo(outcomes, chosen.weights > 0)
    spread = lambda x: jnp.broadcast_to(x[:, None], (GROUP, LENGTH))  # noqa: E731
    old = policy_logps(params, rolled, jnp)

    def loss(p):
        return mrpo_objective(
            policy_logps(p, rolled, jnp), old, old, old, spread(advantages), spread(chosen.weights),
            jnp.ones((GROUP, LENGTH)), jnp.ones((GROUP, LENGTH), int), ObjectiveConfig(kl_coefficient=0.1),
        )  # fmt: skip

    gradient, metrics = jax.jit(jax.grad(loss, has_aux=True))(params)
    optimizer = optax.adamw(1e-2)
    moved = optax.apply_updates(params, optimizer.update(gradient, optimizer.init(params), params)[0])
    change = np.asarray(policy_logps(moved, rolled, jnp) - old).sum(1)
    return chosen, outcomes, np.asarray(gradient), change, metrics


@pytest.mark.parametrize("seed", range(3))
def test_a_step_on_an_informative_group_raises_its_successes_and_lowers_its_failures(seed):
    chosen, outcomes, _, change, _ = update([1, 0, 0, 1, 0, 0, 0, 0], seed)
    assert int(chosen.case) != Case.EMPTY
    assert ((change > 0) == (outcomes == 1)).all()


@pytest.mark.parametrize("outcome", [0, 1])
def test_an_empty_group_has_no_gradient(outcome):
    chosen, _, gradient, _, metrics = update([outcome] * POOL, 0)
    assert int(chosen.case) == Case.EMPTY
    assert not gradient.any() and float(metrics["tokens"]) == 0
