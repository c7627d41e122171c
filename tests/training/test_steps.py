"""Train steps: what is computed, and that mesh, microbatches and bad batches do not matter."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gui_owl_jax import sharding
from gui_owl_jax.agent.errors import ConfigError, TrainingError
from gui_owl_jax.models import qwen_vl
from gui_owl_jax.rl.objective import ObjectiveConfig
from gui_owl_jax.training import losses, steps
from gui_owl_jax.training.losses import ComputeConfig
from gui_owl_jax.training.optimizer import OptimizerConfig, path_name
from gui_owl_jax.training.state import TrainState, create_state

pytestmark = pytest.mark.usefixtures("nothing_stored")

EIGHT = sharding.MeshConfig(data=2, fsdp=2, tensor=2)
OBJECTIVE = ObjectiveConfig(kl_coefficient=0.05, clip_low=0.2, clip_high=0.3, aggregation="sequence_mean")


def _norm(tree) -> float:
    return float(np.sqrt(sum(np.sum(np.square(np.asarray(leaf, np.float64))) for leaf in jax.tree.leaves(tree))))


def _same(left, right) -> bool:
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def _host(tree):
    """A copy that survives donation."""
    return jax.tree.map(lambda leaf: np.array(leaf), tree)


@pytest.fixture(scope="module")
def score(model, mesh):
    return steps.score_step(model, mesh)


@pytest.fixture(scope="module")
def rl_batch(make_batch, score, params, mesh):
    """An MRPO batch whose old and reference log-probabilities are near those of `params`."""
    batch = make_batch(11, rl=True)
    logps = np.asarray(score(params, sharding.put_batch(batch, mesh)))
    rng = np.random.default_rng(1)
    for name, spread in (("old_logps", 0.1), ("ref_logps", 0.3), ("sampler_logps", 0.05)):
        noise = spread * rng.standard_normal(logps.shape).astype(np.float32)
        batch[name] = np.where(batch["loss_mask"] > 0, logps + noise, 0)
    return batch


@pytest.fixture(scope="module")
def rl_step(model, optimizer, mesh, quick):
    return quick(steps.mrpo_step(model, optimizer, OBJECTIVE, mesh))


# ------------------------------------------------------------------------------------------- supervised


def test_the_supervised_metrics_are_those_of_the_whole_logits(model, optimizer, mesh, params, step, make_batch):
    batch = make_batch(3)
    _, metrics = step(create_state(model, optimizer, mesh, params), sharding.put_batch(batch, mesh))
    hidden = jax.jit(lambda params, batch: qwen_vl.hidden_states(model, params, batch))(params, batch)
    logits = np.asarray(qwen_vl.logits(model, params, hidden), np.float64)[:, :-1]
    targets, mask = batch["tokens"][:, 1:], batch["loss_mask"][:, 1:]
    logps = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
    chosen = np.take_along_axis(logps, targets[..., None], axis=-1)[..., 0]
    assert float(metrics["tokens"]) == mask.sum() > 100
    np.testing.assert_allclose(float(metrics["loss"]), -(chosen * mask).sum() / mask.sum(), rtol=1e-5)
    hits = ((logits.argmax(axis=-1) == targets) * mask).sum() / mask.sum()
    np.testing.assert_allclose(float(metrics["accuracy"]), hits, atol=1e-6)
    np.testing.assert_allclose(float(metrics["param_norm"]), _norm(params), rtol=1e-5)
    np.testing.assert_allclose(float(metrics["lr"]), optimizer.learning_rate, rtol=1e-6)
    assert bool(metrics["finite"])


def test_training_lowers_the_loss(model, optimizer, mesh, params, step, make_batch):
    batch = sharding.put_batch(make_batch(3), mesh)
    state, values = create_state(model, optimizer, mesh, params), []
    for _ in range(8):
        state, metrics = step(state, batch)
        values.append(float(metrics["loss"]))
    assert values[-1] < 0.6 * values[0]
    assert int(state.step) == int(state.opt_state.count) == 8


def test_scores_are_the_masked_log_probabilities(score, model, mesh, params, make_batch):
    batch = make_batch(3)
    logps = np.asarray(score(params, sharding.put_batch(batch, mesh)))
    assert logps.dtype == np.float32 and (logps[batch["loss_mask"] == 0] == 0).all()
    assert (logps[batch["loss_mask"] > 0] < 0).all()
    loss = losses.supervised_loss(model)
    value, _ = jax.jit(lambda params, batch: loss.shares(params, batch, batch))(params, batch)
    np.testing.assert_allclose(-logps.sum() / batch["loss_mask"].sum(), float(value), rtol=1e-5)


def test_bfloat16_changes_the_matmuls_and_nothing_else(model, optimizer, mesh, params, step, make_batch, quick):
    batch = sharding.put_batch(make_batch(3), mesh)
    half = quick(steps.supervised_step(model, optimizer, mesh, ComputeConfig(dtype="bfloat16", remat=True)))
    full_state, full = step(create_state(model, optimizer, mesh, params), batch)
    half_state, metrics = half(create_state(model, optimizer, mesh, params), batch)
    assert 0 < abs(float(metrics["loss"]) / float(full["loss"]) - 1) < 0.02
    assert 0 < abs(float(metrics["grad_norm"]) / float(full["grad_norm"]) - 1) < 0.1
    assert [leaf.dtype for leaf in jax.tree.leaves(half_state)] == [leaf.dtype for leaf in jax.tree.leaves(full_state)]


def test_frozen_parameters_stay_as_they_are(model, mesh, params, make_batch, quick):
    config = OptimizerConfig(learning_rate=0.01, learning_rate_rules=((r"vision/.*", 0.0), (r"text/embed/.*", 0.5)))
    state, metrics = quick(steps.supervised_step(model, config, mesh))(
        create_state(model, config, mesh, params), sharding.put_batch(make_batch(3), mesh)
    )
    assert _same(state.params["vision"], params["vision"])
    changed = jax.tree.map(lambda new, old: not np.array_equal(new, old), state.params["text"], params["text"])
    assert all(jax.tree.leaves(changed))
    moments = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(state.opt_state)]
    assert moments and not [path for path in moments if "vision" in path]
    assert float(metrics["grad_norm"]) > 0


# ------------------------------------------------------------------------------------------- bad batches


def test_a_step_that_is_not_finite_changes_nothing(model, optimizer, mesh, params, step, make_batch):
    batch = make_batch(3)
    state, _ = step(create_state(model, optimizer, mesh, params), sharding.put_batch(batch, mesh))
    before = _host(state)
    poisoned = dict(batch, pos_weight=np.full_like(batch["pos_weight"], np.nan))
    state, metrics = step(state, sharding.put_batch(poisoned, mesh))
    assert not bool(metrics["finite"]) and _same(state, before)
    with pytest.raises(TrainingError, match=r"step 7 is not finite: loss nan.*Last good checkpoint: runs/a/5"):
        steps.check_finite(metrics, 7, "runs/a/5")
    state, metrics = step(state, sharding.put_batch(batch, mesh))  # and training could go on
    steps.check_finite(metrics, 8, "runs/a/5")
    assert int(state.step) == int(before.step) + 1 and not _same(state.params, before.params)


def test_an_infinite_gradient_of_a_finite_loss_changes_nothing(model, optimizer, mesh, params, make_batch):
    def shares(params, rows, batch):
        # sqrt has the value 0 and an infinite slope at 0.
        return jnp.sqrt(jnp.sum(params["text"]["norm"]["scale"]) - 64.0), {}

    loss = losses.Loss(lambda batch: jnp.float32(1), shares)
    state = create_state(model, optimizer, mesh, params)
    before = _host(state)
    state, metrics = steps.train_step(loss, model, optimizer, mesh)(state, sharding.put_batch(make_batch(3), mesh))
    assert np.isfinite(float(metrics["loss"])) and not np.isfinite(float(metrics["grad_norm"]))
    assert not bool(metrics["finite"]) and _same(state, before)


def test_a_batch_without_targets_changes_nothing_but_the_step(model, optimizer, mesh, params, step, make_batch):
    batch = make_batch(3)
    state, _ = step(create_state(model, optimizer, mesh, params), sharding.put_batch(batch, mesh))
    before = _host(state)
    state, metrics = step(state, sharding.put_batch(dict(batch, loss_mask=0 * batch["loss_mask"]), mesh))
    assert bool(metrics["finite"]) and float(metrics["loss"]) == float(metrics["tokens"]) == 0
    assert _same((state.params, state.opt_state), (before.params, before.opt_state))
    assert int(state.step) == int(before.step) + 1


# ------------------------------------------------------------------------------------------- MRPO


def test_an_mrpo_batch_of_empty_groups_changes_no_parameter_and_no_statistic(
    model, optimizer, mesh, params, rl_step, rl_batch
):
    state, _ = rl_step(create_state(model, optimizer, mesh, params), sharding.put_batch(rl_batch, mesh))
    before = _host(state)
    empty = dict(rl_batch, weights=0 * rl_batch["weights"])
    state, metrics = rl_step(state, sharding.put_batch(empty, mesh))
    assert bool(metrics["finite"]) and float(metrics["tokens"]) == 0 == float(metrics["loss"])
    assert _same((state.params, state.opt_state), (before.params, before.opt_state))
    assert int(state.step) == int(before.step) + 1


def test_one_mrpo_step_favours_successes_over_failures(model, optimizer, mesh, params, make_batch, score, rl_step):
    batch = make_batch(11, rl=True)
    logps = np.asarray(score(params, sharding.put_batch(batch, mesh)))
    batch |= {"sampler_logps": logps, "old_logps": logps, "ref_logps": logps}
    device_batch = sharding.put_batch(batch, mesh)
    state, metrics = rl_step(create_state(model, optimizer, mesh, params), device_batch)
    gain = np.asarray(score(state.params, sharding.put_batch(make_batch(11, rl=True), mesh))) - logps
    used = batch["loss_mask"] > 0
    assert gain[used & (batch["advantages"] > 0)].mean() > 1e-3
    assert gain[used & (batch["advantages"] < 0)].mean() < -1e-3
    # Two programs scored the same tokens; nothing but rounding may lie between them.
    assert float(metrics["max_mismatch"]) < 1e-4 and abs(float(metrics["max_ratio"]) - 1) < 1e-4


def test_the_mrpo_gradient_is_the_slope_of_its_loss(model, optimizer, mesh, params, rl_batch, quick):
    gradient = quick(steps.gradient_step(losses.mrpo_loss(model, OBJECTIVE), model, optimizer, mesh))
    batch = sharding.put_batch(rl_batch, mesh)
    _, grads = gradient(params, batch)
    rng = np.random.default_rng(0)
    # Along the gradient itself and along directions of a single parameter, by differences in the loss.
    along = jax.tree.map(np.asarray, grads)
    directions = [along]
    for chosen in ("vision/blocks/qkv/kernel", "text/layers/gate/kernel"):
        directions.append(
            jax.tree_util.tree_map_with_path(
                lambda path, leaf, chosen=chosen: leaf * rng.random(leaf.shape, np.float32)
                if path_name(path) == chosen
                else 0 * leaf,
                along,
            )
        )
    for direction in directions:
        size = 2e-3 / _norm(direction)
        values = []
        for sign in (1, -1):
            moved = jax.tree.map(lambda leaf, way, by=sign * size: leaf + np.float32(by) * way, params, direction)
            values.append(float(gradient(moved, batch)[0][0]))
        slope = sum(np.sum(np.float64(a) * b) for a, b in zip(jax.tree.leaves(along), jax.tree.leaves(direction)))
        np.testing.assert_allclose((values[0] - values[1]) / (2 * size), slope, rtol=0.03)


# ------------------------------------------------------------------------------------------- mesh, microbatches


@pytest.fixture(params=["supervised", "mrpo"])
def kind(request, model, optimizer, mesh, params, make_batch, step, rl_step, rl_batch):
    """(builder of the step, batch, state and metrics after the plain step on one device)."""
    if request.param == "supervised":
        build, single, batch = steps.supervised_step, step, make_batch(3)
    else:
        build, single, batch = lambda *args: steps.mrpo_step(*args[:2], OBJECTIVE, *args[2:]), rl_step, rl_batch
    return build, batch, *single(create_state(model, optimizer, mesh, params), sharding.put_batch(batch, mesh))


def _assert_same_update(left, right, optimizer: OptimizerConfig) -> None:
    """Equal metrics, and gradients within 1e-5 of their norm."""
    (state, metrics), (other_state, other_metrics) = left, right
    assert metrics.keys() == other_metrics.keys()
    for name, value in metrics.items():
        np.testing.assert_allclose(float(other_metrics[name]), float(value), rtol=2e-5, atol=1e-6, err_msg=name)
    # With clipping off, Adam's first moment after one update is (1 - b1) times the gradient.
    one, other = (_host(each.opt_state.moments.mu) for each in (state, other_state))
    assert _norm(one) / (1 - optimizer.b1) == pytest.approx(float(metrics["grad_norm"]), rel=1e-5)
    assert _norm(jax.tree.map(np.subtract, one, other)) <= 1e-5 * _norm(one)


def test_eight_devices_give_the_update_of_one(kind, model, optimizer, params, quick):
    build, batch, state, metrics = kind
    eight = sharding.make_mesh(EIGHT)
    sharded = quick(build(model, optimizer, eight))
    many = sharded(create_state(model, optimizer, eight, params), sharding.put_batch(batch, eight))
    _assert_same_update((state, metrics), many, optimizer)
    for tree in (many[0].params, many[0].opt_state.moments.mu, many[0].opt_state.moments.nu):
        shards = tree["text"]["layers"]["gate"]["kernel"].addressable_shards  # [2, 64, 96] over fsdp and tensor
        assert {shard.data.shape for shard in shards} == {(2, 32, 48)} and len({shard.device for shard in shards}) == 8


def test_microbatches_add_up_to_the_batch(kind, model, optimizer, mesh, params, quick):
    build, batch, state, metrics = kind
    parts = quick(build(model, optimizer, mesh, ComputeConfig(accumulate=4)))
    summed = parts(create_state(model, optimizer, mesh, params), sharding.put_batch(batch, mesh))
    _assert_same_update((state, metrics), summed, optimizer)


def test_microbatches_must_divide_the_rows(model, optimizer, mesh, params, make_batch):
    odd = steps.supervised_step(model, optimizer, mesh, ComputeConfig(accumulate=3))
    with pytest.raises(ConfigError, match="accumulate: 3 does not divide the 8 rows"):
        odd(create_state(model, optimizer, mesh, params), sharding.put_batch(make_batch(3), mesh))


@pytest.mark.parametrize("fields", [dict(dtype="float16"), dict(accumulate=0), dict(chunk=0)])
def test_compute_fields_that_cannot_work(fields):
    with pytest.raises(ConfigError, match="compute"):
        ComputeConfig(**fields)


def test_the_state_is_a_tree_of_arrays(model, optimizer, mesh, params):
    state = create_state(model, optimizer, mesh, params)
    assert isinstance(jax.tree.map(lambda leaf: leaf, state), TrainState)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
