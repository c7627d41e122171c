"""The MRPO objective: a clipped policy-gradient loss on packed rows of sampled tokens.

Per sampled token t of sequence i, with advantage A_i (shared by all tokens of a trajectory),

    r_t    = exp(logp - old_logp)                                  ratio "token"     (PPO, GRPO)
           = exp(mean over the sequence of (logp - old_logp))      ratio "sequence"  (GSPO, arXiv 2507.18071)
    term_t = c_t min(r_t A, clip(r_t, 1 - low, 1 + high) A) - beta KL_t
    loss   = - sum_t w_t a_t term_t

with truncated importance weights c_t (`rl.transport`), selection weights w_t (`rl.selection`), and aggregation a_t:

    token_mean       1 / tokens                          every token counts the same (DAPO)
    sequence_mean    1 / (tokens of i * sequences)       every sequence counts the same (GRPO)
    fixed_length     1 / (fixed_length * sequences)      no length bias (Dr. GRPO)

A batch without any weight has loss and gradient 0. That alone would not stop momentum, weight decay and the step count
of an optimizer: the train step skips its update where `count_units` is 0.

Counts are global, over the whole batch, however it is packed and sharded; accumulation over micro-batches passes the
count of all of them as `normalizer`. A sequence is a segment of a row, one sampled response. To average per
trajectory instead, divide token_weights by the trajectory's tokens and use fixed_length = 1 with the number of
trajectories as normalizer.

The KL estimators, with x = ref_logp - logp (Schulman, "Approximating KL divergence", 2020):
k1 = -x, k2 = x^2 / 2, k3 = e^x - x - 1 (unbiased, never negative).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.rl.transport import (
    MAX_LOG_RATIO,
    importance_weights,
    masked_difference,
    mismatch_statistics,
    ratio,
    segment_count,
    segment_totals,
)


@dataclasses.dataclass(frozen=True)
class ObjectiveConfig:
    """The objective's choices.

    Attributes:
      clip_low: the ratio is clipped below at 1 - clip_low.
      clip_high: the ratio is clipped above at 1 + clip_high.
      kl_coefficient: beta; 0 needs no reference policy.
      kl_estimator: "k1", "k2" or "k3".
      aggregation: "token_mean", "sequence_mean" or "fixed_length".
      fixed_length: tokens, for aggregation "fixed_length".
      ratio: "token" or "sequence".
      importance: "none", "token" or "sequence": the level of the truncated importance weights.
      importance_cap: their cap c.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coefficient: float = 0.0
    kl_estimator: str = "k3"
    aggregation: str = "token_mean"
    fixed_length: int = 512
    ratio: str = "token"
    importance: str = "token"
    importance_cap: float = 2.0

    def __post_init__(self) -> None:
        choices = {
            "kl_estimator": ("k1", "k2", "k3"),
            "aggregation": ("token_mean", "sequence_mean", "fixed_length"),
            "ratio": ("token", "sequence"),
            "importance": ("none", "token", "sequence"),
        }
        for field, allowed in choices.items():
            if getattr(self, field) not in allowed:
                raise ConfigError(f"{field} = {getattr(self, field)!r} must be one of {allowed}")
        if not (0 <= self.clip_low <= 1 and self.clip_high >= 0):
            raise ConfigError(f"clip_low = {self.clip_low} must be in [0, 1], clip_high = {self.clip_high} at least 0")
        for field in ("fixed_length", "importance_cap"):
            if getattr(self, field) <= 0:
                raise ConfigError(f"{field} = {getattr(self, field)} must be positive")
        if self.kl_coefficient < 0:
            raise ConfigError(f"kl_coefficient = {self.kl_coefficient} must not be negative")


def mrpo_objective(
    logps: jax.Array,
    old_logps: jax.Array | None,
    sampler_logps: jax.Array | None,
    ref_logps: jax.Array | None,
    advantages: jax.Array,
    token_weights: jax.Array,
    mask: jax.Array,
    segment_ids: jax.Array,
    config: ObjectiveConfig,
    *,
    entropy: jax.Array | None = None,
    normalizer: jax.Array | float | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The loss to minimise, and what to watch.

    Tokens count where mask, token_weight and segment id are all positive. All others contribute exactly 0 to value,
    gradient, counts and metrics, whatever their entries are. The gradient flows through `logps` alone.

    Args:
      logps: float [B, L], log-probabilities of the tokens under the policy being trained.
      old_logps: float [B, L], by the trainer at the start of the update; None: equal to `logps` (one step per batch).
      sampler_logps: float [B, L], of the distribution the tokens were drawn from; None if importance is "none".
      ref_logps: float [B, L], of the reference policy; None if kl_coefficient is 0.
      advantages: float [B, L], constant over a trajectory's tokens (or a step's).
      token_weights: float [B, L], selection weights of the trajectories the tokens belong to.
      mask: float or bool [B, L], positive on sampled tokens.
      segment_ids: int [B, L], examples of a row from 1; 0 is padding.
      config: the choices.
      entropy: float [B, L], of the policy at each token, for the metric; None: estimated by -logp of the samples.
      normalizer: the global count from `count_units`, where this is a part of the batch; None: counted here.

    Returns:
      (loss float32 [], metrics of float32 []): policy_loss; averages kl, ratio, clip_low_share, clip_high_share,
      importance, importance_truncated_share, entropy; max_ratio; the counts tokens and sequences; and the mismatch
      figures of `rl.transport` where sampler_logps are given. Given the global `normalizer`, the loss and all metrics
      add up over the parts of a batch, but for those named max_, of which the largest counts.

    Raises:
      ConfigError: an array is missing that the config needs.
    """
    if config.kl_coefficient > 0 and ref_logps is None:
        raise ConfigError(f"kl_coefficient = {config.kl_coefficient} needs ref_logps")
    if config.importance != "none" and sampler_logps is None:
        raise ConfigError(f"importance = {config.importance!r} needs sampler_logps")
    used = used_tokens(mask, token_weights, segment_ids)
    old_logps, ref_logps, advantages, token_weights = jax.lax.stop_gradient(
        (logps if old_logps is None else old_logps, ref_logps, advantages, token_weights)
    )
    advantages = jnp.where(used, advantages, 0.0).astype(jnp.float32)
    per_token = aggregation_weights(used, segment_ids, config, normalizer) * jnp.where(used, token_weights, 0.0)

    log_ratio = masked_difference(logps, old_logps, used)
    if config.ratio == "sequence":
        lengths = segment_totals(used.astype(jnp.float32), segment_ids)
        log_ratio = segment_totals(log_ratio, segment_ids) / jnp.maximum(lengths, 1.0)
    r = ratio(log_ratio)
    clipped = jnp.clip(r, 1.0 - config.clip_low, 1.0 + config.clip_high)
    importance = _importance(old_logps, sampler_logps, used, segment_ids, config)
    policy_loss = -jnp.sum(per_token * importance * jnp.minimum(r * advantages, clipped * advantages))

    kl = jnp.zeros_like(r)
    if ref_logps is not None:
        kl = kl_divergence(logps, ref_logps, used, config.kl_estimator)
    loss = policy_loss
    if config.kl_coefficient > 0:
        loss = loss + config.kl_coefficient * jnp.sum(per_token * kl)

    # Averages weigh tokens as the loss does (a fixed length would not sum to 1).
    shares = aggregation_weights(used, segment_ids, _averaging(config), normalizer)

    def average(values: jax.Array) -> jax.Array:
        return jnp.sum(shares * jnp.where(used, values, 0.0))

    metrics = {
        "policy_loss": policy_loss,
        "kl": average(kl),
        "ratio": average(r),
        "max_ratio": jnp.max(jnp.where(used, r, 0.0)),
        "clip_low_share": average((advantages < 0) & (r < 1.0 - config.clip_low)),
        "clip_high_share": average((advantages > 0) & (r > 1.0 + config.clip_high)),
        "importance": average(importance),
        "importance_truncated_share": average(importance >= config.importance_cap),
        "entropy": average(-logps if entropy is None else entropy),
        "tokens": jnp.sum(used).astype(jnp.float32),
        "sequences": segment_count(used, segment_ids),
    }
    if sampler_logps is not None:
        metrics |= mismatch_statistics(old_logps, sampler_logps, used, segment_ids, shares)
    return loss, jax.lax.stop_gradient(metrics)


def used_tokens(mask: jax.Array, token_weights: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Which tokens the objective sees.

    Args:
      mask: float or bool [B, L].
      token_weights: float [B, L].
      segment_ids: int [B, L].

    Returns:
      bool [B, L].
    """
    return (mask > 0) & (token_weights > 0) & (segment_ids > 0)


def count_units(used: jax.Array, segment_ids: jax.Array, config: ObjectiveConfig) -> jax.Array:
    """What the aggregation divides by: the number of tokens (token_mean) or of sequences.

    Args:
      used: bool [B, L], from `used_tokens`.
      segment_ids: int [B, L].
      config: names the aggregation.

    Returns:
      float32 []; add up over micro-batches for the `normalizer` of `mrpo_objective`.
    """
    if config.aggregation == "token_mean":
        return jnp.sum(used).astype(jnp.float32)
    return segment_count(used, segment_ids)


def aggregation_weights(
    used: jax.Array,
    segment_ids: jax.Array,
    config: ObjectiveConfig,
    normalizer: jax.Array | float | None = None,
) -> jax.Array:
    """The factors a_t of the loss.

        segment_ids      1    1    1    2    0
        used             1    1    0    1    0
        token_mean      1/3  1/3   0   1/3   0
        sequence_mean   1/4  1/4   0   1/2   0
        fixed_length 8  1/16 1/16  0   1/16  0

    Args:
      used: bool [B, L], from `used_tokens`.
      segment_ids: int [B, L].
      config: names the aggregation.
      normalizer: a global count instead of this batch's own.

    Returns:
      float32 [B, L], 0 outside `used`.
    """
    units = count_units(used, segment_ids, config) if normalizer is None else jnp.asarray(normalizer, jnp.float32)
    length: jax.Array | float = 1.0
    if config.aggregation == "sequence_mean":
        length = jnp.maximum(segment_totals(used.astype(jnp.float32), segment_ids), 1.0)
    elif config.aggregation == "fixed_length":
        length = float(config.fixed_length)
    return used / (jnp.maximum(units, 1.0) * length)


def kl_divergence(logps: jax.Array, ref_logps: jax.Array, mask: jax.Array, estimator: str = "k3") -> jax.Array:
    """Estimates KL(policy || reference) from sampled tokens.

    As a loss, the gradient of k1 has expectation 0 and that of k2 is the gradient of the KL; k3 is the usual choice.

    Args:
      logps: float [B, L].
      ref_logps: float [B, L].
      mask: bool [B, L].
      estimator: "k1", "k2" or "k3".

    Returns:
      float32 [B, L], exactly 0 outside the mask.
    """
    x = masked_difference(ref_logps, logps, mask)
    if estimator == "k1":
        return -x
    if estimator == "k2":
        return 0.5 * jnp.square(x)
    # expm1: x is tiny as long as the policies are close, and e^x - 1 would cancel.
    clipped = jnp.clip(x, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    return jnp.expm1(clipped) - clipped


def _averaging(config: ObjectiveConfig) -> ObjectiveConfig:
    """The aggregation whose weights sum to 1 over the same units."""
    if config.aggregation == "fixed_length":
        return dataclasses.replace(config, aggregation="sequence_mean")
    return config


def _importance(
    train_logps: jax.Array,
    sampler_logps: jax.Array | None,
    used: jax.Array,
    segment_ids: jax.Array,
    config: ObjectiveConfig,
) -> jax.Array:
    if config.importance == "none" or sampler_logps is None:
        return used.astype(jnp.float32)
    by_sequence = segment_ids if config.importance == "sequence" else None
    return importance_weights(train_logps, sampler_logps, used, cap=config.importance_cap, segment_ids=by_sequence)
