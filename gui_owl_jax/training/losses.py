"""Losses of packed batches, as shares that add up over rows.

A loss is a sum over tokens divided by a count over the whole batch, never a mean of means: packing, sharding and
gradient accumulation then change nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.models import qwen_vl
from gui_owl_jax.models.config import QwenVLConfig
from gui_owl_jax.models.layers import remat_name
from gui_owl_jax.models.moe import RouterLoad, router_metrics
from gui_owl_jax.ops.cross_entropy import TokenStatistics, token_statistics
from gui_owl_jax.rl import objective as objectives
from gui_owl_jax.rl.objective import ObjectiveConfig

# What an MRPO batch has besides the arrays of `models.layout`.
RL_ARRAYS = ("advantages", "weights", "sampler_logps", "old_logps", "ref_logps")

Batch = Mapping[str, jax.Array]
Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class ComputeConfig:
    """How a step computes, without a say in what it computes.

    Attributes:
      dtype: "float32" or "bfloat16", the type of the matmuls; parameters, moments, norms and losses stay float32.
      remat: "none", "full" or "dots": what of the layers the backward pass computes again, see
        `models.layers.REMAT_POLICIES`; True and False mean "full" and "none".
      accumulate: microbatches per step, one after the other; must divide the rows of the batch.
      chunk: tokens of a row whose logits exist at one time.
      attention: its implementation, see `ops.attention`.
    """

    dtype: str = "float32"
    remat: str | bool = "none"
    accumulate: int = 1
    chunk: int = 128
    attention: str = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "remat", remat_name(self.remat))
        if self.dtype not in ("float32", "bfloat16"):
            raise ConfigError(f"compute.dtype: wanted float32 or bfloat16, got {self.dtype!r}")
        if self.accumulate < 1 or self.chunk < 1:
            raise ConfigError(f"compute: accumulate and chunk must be at least 1, got {self}")


DEFAULT_COMPUTE = ComputeConfig()


@dataclasses.dataclass(frozen=True)
class Loss:
    """A loss in two functions.

    Attributes:
      count: batch -> f32 scalar, what the loss is divided by; 0: the batch has nothing to teach.
      shares: (params, rows, batch) -> (loss, metrics): what some rows of the batch contribute, where the count of the
        whole batch is already divided out. Shares are to be added up, except that of metrics named `max_*` the largest
        counts.
    """

    count: Callable[[Batch], jax.Array]
    shares: Callable[[Any, Batch, Batch], tuple[jax.Array, Metrics]]


def token_scores(model: QwenVLConfig, params: Any, batch: Batch, compute: ComputeConfig) -> TokenStatistics:
    """Scores the tokens under the loss mask by teacher forcing; differentiable in `params`.

    Fields are f32 [B, L]; entry i speaks of token i and is 0 outside the mask. Tokens [a b c d] are predicted from the
    hidden states of [. a b c]: targets are rolled left by one, scores rolled back. The first token of an example is
    never under the mask, so nothing is read across examples.
    """
    return _scores_and_load(model, params, batch, compute)[0]


def _scores_and_load(
    model: QwenVLConfig, params: Any, batch: Batch, compute: ComputeConfig
) -> tuple[TokenStatistics, RouterLoad | None]:
    hidden, kept = qwen_vl.forward(
        model,
        params,
        batch,
        dtype=jnp.dtype(compute.dtype),
        remat=compute.remat,
        implementation=compute.attention,
        keep=("load",),
    )
    targets, mask = jnp.roll(batch["tokens"], -1, axis=1), batch["loss_mask"] > 0
    head, scored = qwen_vl.head_kernel(model, params), jnp.roll(mask, -1, axis=1)
    scores = token_statistics(hidden, head, targets, chunk=compute.chunk, mask=scored)
    scores = jax.tree.map(lambda score: jnp.where(mask, jnp.roll(score, 1, axis=1), 0.0), scores)
    return scores, kept.load


def _with_router(
    value: jax.Array, metrics: Metrics, model: QwenVLConfig, load: RouterLoad | None, rows: Batch, batch: Batch
) -> tuple[jax.Array, Metrics]:
    """Adds the load-balancing loss of a model with experts, and its statistics.

    That loss is no sum over tokens: with accumulation it is the mean over the microbatches, weighted by their tokens.
    """
    if load is None or model.text.moe is None:
        return value, metrics
    share = jnp.sum(rows["segment_ids"] > 0) / jnp.maximum(jnp.sum(batch["segment_ids"] > 0), 1)
    own = router_metrics(load)
    own = {name: x if name.startswith("max_") else x * share for name, x in own.items()}
    return value + model.text.moe.aux_weight * own["router/balance_loss"], metrics | own


def supervised_loss(model: QwenVLConfig, compute: ComputeConfig = DEFAULT_COMPUTE) -> Loss:
    """Cross-entropy, the mean over the batch's tokens weighted by `loss_mask`.

    Metrics: `accuracy` (share of tokens that are the most likely ones, weighted alike), `tokens` (sum of the mask), and
    with experts those of `models.moe.router_metrics`.
    """

    def count(batch: Batch) -> jax.Array:
        return jnp.sum(batch["loss_mask"])

    def shares(params: Any, rows: Batch, batch: Batch) -> tuple[jax.Array, Metrics]:
        scores, load = _scores_and_load(model, params, rows, compute)
        weights = rows["loss_mask"] / jnp.maximum(count(batch), 1e-6)  # a batch without tokens divides 0 by that
        metrics = {"accuracy": jnp.sum(weights * scores.correct), "tokens": jnp.sum(rows["loss_mask"])}
        return _with_router(-jnp.sum(weights * scores.logps), metrics, model, load, rows, batch)

    return Loss(count, shares)


def mrpo_loss(model: QwenVLConfig, objective: ObjectiveConfig, compute: ComputeConfig = DEFAULT_COMPUTE) -> Loss:
    """The objective of `rl.objective` on sampled tokens.

    Besides the arrays of `models.layout` the batch has, all f32 [B, L]: `advantages`, `weights` (selection weights; a
    token of weight 0 is as if it were not there) and, where the objective needs or the caller has them,
    `sampler_logps`, `old_logps`, `ref_logps` (the last two from `steps.score_step`).
    Metrics: those of `rl.objective.mrpo_objective`.
    """

    def count(batch: Batch) -> jax.Array:
        used = objectives.used_tokens(batch["loss_mask"], batch["weights"], batch["segment_ids"])
        return objectives.count_units(used, batch["segment_ids"], objective)

    def shares(params: Any, rows: Batch, batch: Batch) -> tuple[jax.Array, Metrics]:
        scores, load = _scores_and_load(model, params, rows, compute)
        value, metrics = objectives.mrpo_objective(
            scores.logps,
            rows.get("old_logps"),
            rows.get("sampler_logps"),
            rows.get("ref_logps"),
            rows["advantages"],
            rows["weights"],
            rows["loss_mask"],
            rows["segment_ids"],
            objective,
            entropy=scores.entropy,
            normalizer=count(batch),
        )
        return _with_router(value, metrics, model, load, rows, batch)

    return Loss(count, shares)
