"""Train steps: pure functions (state, batch) -> (state, metrics) under `jax.jit` on a mesh.

A step whose loss or gradient is not finite, or whose batch has nothing to teach, hands the state on as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from gui_owl_jax import sharding
from gui_owl_jax.agent.errors import ConfigError, TrainingError
from gui_owl_jax.models.config import QwenVLConfig
from gui_owl_jax.ops import partition
from gui_owl_jax.rl.objective import ObjectiveConfig
from gui_owl_jax.training import lora as adapters
from gui_owl_jax.training import optimizer as optimizers
from gui_owl_jax.training.lora import LoraConfig
from gui_owl_jax.training.losses import (
    DEFAULT_COMPUTE,
    RL_ARRAYS,
    Batch,
    ComputeConfig,
    Loss,
    Metrics,
    mrpo_loss,
    supervised_loss,
    token_scores,
)
from gui_owl_jax.training.optimizer import OptimizerConfig
from gui_owl_jax.training.state import TrainState, state_shardings

TrainStep = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]
LossAndGradient = Callable[[Any, Batch], tuple[tuple[jax.Array, Metrics], Any]]


def supervised_step(
    model: QwenVLConfig,
    optimizer: OptimizerConfig,
    mesh: Mesh,
    compute: ComputeConfig = DEFAULT_COMPUTE,
    lora: LoraConfig = adapters.OFF,
) -> TrainStep:
    """Builds the step of pre-training and SFT; see `train_step` and `losses.supervised_loss`."""
    return train_step(supervised_loss(model, compute), model, optimizer, mesh, compute, lora)


def mrpo_step(
    model: QwenVLConfig,
    optimizer: OptimizerConfig,
    objective: ObjectiveConfig,
    mesh: Mesh,
    compute: ComputeConfig = DEFAULT_COMPUTE,
    lora: LoraConfig = adapters.OFF,
) -> TrainStep:
    """Builds the MRPO update; see `train_step` and `losses.mrpo_loss`.

    A batch of empty groups (all weights 0) changes no parameter and no optimizer statistic; the state's step moves on.
    """
    return train_step(mrpo_loss(model, objective, compute), model, optimizer, mesh, compute, lora)


def score_step(
    model: QwenVLConfig, mesh: Mesh, compute: ComputeConfig = DEFAULT_COMPUTE
) -> Callable[[Any, Batch], jax.Array]:
    """Builds the scoring of a batch: (params, batch) -> log-probabilities [B, L] f32, 0 where the loss mask is 0.

    Under the parameters before an update they are its `old_logps`, under those of the reference its `ref_logps`.
    """
    rows = sharding.batch_sharding(mesh)

    def logps(params: Any, batch: Batch) -> jax.Array:
        with partition.on_mesh(mesh):
            return token_scores(model, params, batch, compute).logps

    score = jax.jit(
        logps,
        in_shardings=(sharding.param_shardings(model, mesh), rows),
        out_shardings=rows,
    )
    # Without what it does not read, batches before and after their `ref_logps` are known share one compilation.
    return lambda params, batch: score(params, {name: batch[name] for name in batch if name not in RL_ARRAYS})


def train_step(
    loss: Loss,
    model: QwenVLConfig,
    optimizer: OptimizerConfig,
    mesh: Mesh,
    compute: ComputeConfig = DEFAULT_COMPUTE,
    lora: LoraConfig = adapters.OFF,
) -> TrainStep:
    """Builds one update of a loss.

    Args:
      loss: from `losses`.
      model: the model.
      optimizer: the optimizer.
      mesh: where state (`state.create_state`) and batch (`sharding.put_batch`) lie.
      compute: its `accumulate` is read here.
      lora: when it is on, the state's parameters have adapters; freezing the rest is up to the optimizer's rules
        (`lora.train_adapters_only`).

    Returns:
      A jitted function (state, batch) -> (state, metrics) that donates the state. Metrics are those of the loss and, as
      f32 scalars: `loss`, `grad_norm` (before clipping, of the trained parameters), `param_norm` (before the update),
      `lr` (of this update), and `finite` (bool; false: the state was handed on unchanged, step included).
    """
    transform = optimizers.make_optimizer(optimizer)
    shares = loss.shares
    if lora.rank:
        loss = Loss(loss.count, lambda params, rows, batch: shares(adapters.merge(lora, params), rows, batch))

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        with partition.on_mesh(mesh):
            (value, metrics), grads = _loss_and_gradient(loss, optimizer, compute.accumulate, state.params, batch)
        grad_norm = optimizers.global_norm(grads)
        finite = jnp.isfinite(value) & jnp.isfinite(grad_norm)
        learn = finite & (loss.count(batch) > 0)
        updates, opt_state = transform.update(grads, state.opt_state, state.params)
        params = optimizers.apply_updates(state.params, updates)
        # A select and not a branch: the new values cost little beside the gradient, and may be NaN.
        params, opt_state = jax.tree.map(
            lambda new, old: new if new is old else jnp.where(learn, new, old),
            (params, opt_state),
            (state.params, state.opt_state),
        )
        metrics |= {
            "loss": value,
            "grad_norm": grad_norm,
            "param_norm": optimizers.global_norm(state.params),
            "lr": optimizers.learning_rate(optimizer, state.opt_state.count),
            "finite": finite,
        }
        return TrainState(state.step + finite, params, opt_state), metrics

    shardings = state_shardings(model, optimizer, mesh, lora)
    return jax.jit(
        step,
        in_shardings=(shardings, sharding.batch_sharding(mesh)),
        out_shardings=(shardings, sharding.replicated(mesh)),
        donate_argnums=0,
    )


def gradient_step(
    loss: Loss, model: QwenVLConfig, optimizer: OptimizerConfig, mesh: Mesh, compute: ComputeConfig = DEFAULT_COMPUTE
) -> LossAndGradient:
    """Builds (params, batch) -> ((loss, metrics), gradients) without an update.

    The gradients lie as the parameters do; where a parameter is frozen they have None.
    """
    trained, _ = optimizers.split_frozen(optimizer, sharding.param_shardings(model, mesh))

    def gradient(params: Any, batch: Batch) -> tuple[tuple[jax.Array, Metrics], Any]:
        with partition.on_mesh(mesh):
            return _loss_and_gradient(loss, optimizer, compute.accumulate, params, batch)

    return jax.jit(
        gradient,
        in_shardings=(sharding.param_shardings(model, mesh), sharding.batch_sharding(mesh)),
        out_shardings=(sharding.replicated(mesh), trained),
    )


def check_finite(metrics: Mapping[str, Any], step: int, last_good: str) -> None:
    """Stops training after a step that was not finite.

    Args:
      metrics: what the step returned.
      step: its number, for the message.
      last_good: where the last good checkpoint is, for the message.

    Raises:
      TrainingError: when `metrics["finite"]` is false.
    """
    if not bool(metrics["finite"]):
        raise TrainingError(
            f"step {step} is not finite: loss {float(metrics['loss'])}, gradient norm {float(metrics['grad_norm'])}; "
            f"the state was not updated. Last good checkpoint: {last_good}"
        )


def _loss_and_gradient(
    loss: Loss, optimizer: OptimizerConfig, accumulate: int, params: Any, batch: Batch
) -> tuple[tuple[jax.Array, Metrics], Any]:
    """((loss, metrics), gradients of the trained parameters), summed over `accumulate` microbatches."""
    trained, frozen = optimizers.split_frozen(optimizer, params)
    shares = jax.value_and_grad(
        lambda trained, rows: loss.shares(optimizers.merge_frozen(trained, frozen), rows, batch), has_aux=True
    )
    if accumulate == 1:
        return shares(trained, batch)
    rows = batch["tokens"].shape[0]
    if rows % accumulate:
        raise ConfigError(f"compute.accumulate: {accumulate} does not divide the {rows} rows of the batch")

    def split(value: jax.Array) -> jax.Array:
        # [B, ...] -> [accumulate, B / accumulate, ...]. Microbatch i takes the rows i, i + accumulate, ...: every
        # device holds consecutive rows and so keeps some of its own in each.
        return jnp.moveaxis(value.reshape(rows // accumulate, accumulate, *value.shape[1:]), 1, 0)

    def add(total: Any, micro: Batch) -> tuple[Any, None]:
        (value, metrics), grads = shares(trained, micro)
        (value_sum, metrics_sum), grads_sum = total
        for name, other in metrics_sum.items():
            metrics[name] = jnp.maximum(metrics[name], other) if name.startswith("max_") else metrics[name] + other
        return ((value_sum + value, metrics), jax.tree.map(jnp.add, grads_sum, grads)), None

    micros = {name: split(value) for name, value in batch.items()}
    shapes = jax.eval_shape(shares, trained, {name: value[0] for name, value in micros.items()})
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.scan(add, zeros, micros)[0]
