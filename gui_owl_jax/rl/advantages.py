"""Advantages of a group's trajectories, and of steps that start from the same state.

    rewards        1      0      0      0        mean 1/4, standard deviation sqrt(3)/4
    grpo           1.73  -0.58  -0.58  -0.58     (R - mean)/(std + eps)             GRPO, arXiv 2402.03300
    dr_grpo        0.75  -0.25  -0.25  -0.25     R - mean                           Dr. GRPO, arXiv 2503.20783
    rloo           1.00  -0.33  -0.33  -0.33     R - mean of the others             RLOO, arXiv 2402.14740

The baseline (mean and standard deviation) comes from the group or from the whole pool it was selected from. The pool
costs no rollout, has less variance, and makes the inclusion weights of `rl.selection` exactly unbiased, since an
advantage then no longer depends on which other trajectories were selected. Groups (pools, with the pool baseline)
whose rewards are equal up to float32 rounding have advantage exactly 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.rl.outcomes import tied

KINDS = ("grpo", "dr_grpo", "rloo")


@dataclasses.dataclass(frozen=True)
class AdvantageConfig:
    """How rewards become advantages.

    Attributes:
      kind: "grpo", "dr_grpo" or "rloo".
      baseline: "group" or "pool".
      credit: "trajectory" (one advantage for all its steps) or "step" (adds `step_advantages`).
      step_weight: factor of the step advantages.
      discount: per step, for the returns of `step_advantages`.
      eps: added to the standard deviation in grpo.
      negative_scale: factor of negative advantages. A policy of low entropy already gives its successes all the
        probability there is, so that an update mostly takes away from failures and the mass lands anywhere; below 1
        successes lead. 1 is the published objective.
    """

    kind: str = "grpo"
    baseline: str = "group"
    credit: str = "trajectory"
    step_weight: float = 1.0
    discount: float = 0.95
    eps: float = 1e-6
    negative_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.negative_scale < 0:
            raise ConfigError(f"negative_scale = {self.negative_scale} must not be negative")
        for field, allowed in (
            ("kind", KINDS),
            ("baseline", ("group", "pool")),
            ("credit", ("trajectory", "step")),
        ):
            if getattr(self, field) not in allowed:
                raise ConfigError(f"{field} = {getattr(self, field)!r} must be one of {allowed}")


def group_advantages(
    config: AdvantageConfig,
    rewards: ArrayLike,
    members: ArrayLike,
    pool_rewards: ArrayLike | None = None,
    pool_valid: ArrayLike | None = None,
) -> jax.Array:
    """Advantages by config.

    Args:
      config: kind and baseline.
      rewards: float [..., G], of the selected group.
      members: bool [..., G], where the selection weight is positive.
      pool_rewards: float [..., M], of the pool; needed by baseline "pool". Members belong to the pool.
      pool_valid: bool [..., M].

    Returns:
      float32 [..., G], 0 outside the members.

    Raises:
      ConfigError: the pool baseline without a pool.
    """
    rewards, members = jnp.asarray(rewards), jnp.asarray(members, bool)
    if config.baseline == "group":
        return _KINDS[config.kind](rewards, members, rewards, members, config.eps)
    if pool_rewards is None or pool_valid is None:
        raise ConfigError('baseline = "pool" needs pool_rewards and pool_valid')
    return _KINDS[config.kind](rewards, members, jnp.asarray(pool_rewards), jnp.asarray(pool_valid, bool), config.eps)


def grpo(rewards: jax.Array, members: jax.Array, *, eps: float = 1e-6) -> jax.Array:
    """Group-normalised advantages (population standard deviation).

    Args:
      rewards: float [..., G].
      members: bool [..., G].
      eps: added to the standard deviation.

    Returns:
      float32 [..., G].
    """
    return _grpo(rewards, members, rewards, members, eps)


def dr_grpo(rewards: jax.Array, members: jax.Array) -> jax.Array:
    """Advantages over the group's mean, not divided by its standard deviation.

    Args:
      rewards: float [..., G].
      members: bool [..., G].

    Returns:
      float32 [..., G].
    """
    return _dr_grpo(rewards, members, rewards, members, 0.0)


def rloo(rewards: jax.Array, members: jax.Array) -> jax.Array:
    """Advantages over the mean of the other members.

    Args:
      rewards: float [..., G].
      members: bool [..., G].

    Returns:
      float32 [..., G].
    """
    return _rloo(rewards, members, rewards, members, 0.0)


def returns_to_go(outcome: float, steps: int, discount: float) -> np.ndarray:
    """Discounted returns of the steps of one trajectory that is rewarded at its end.

    Args:
      outcome: the reward of the trajectory.
      steps: T, its number of steps.
      discount: in (0, 1].

    Returns:
      float32 [T], discount^(T-1-t) outcome.
    """
    return (outcome * discount ** np.arange(steps - 1, -1, -1)).astype(np.float32)


def anchor_ids(state_hashes: Sequence[str]) -> np.ndarray:
    """Numbers the states in which steps start, in order of appearance.

    Args:
      state_hashes: S strings, the steps of one task's trajectories; "" where the state is unknown.

    Returns:
      int32 [S]: equal numbers for equal states, each unknown state alone. ["a", "b", "a", "", ""] -> [0, 1, 0, 2, 3].
    """
    seen: dict[tuple[str, int], int] = {}
    keys = [(name, -1 if name else i) for i, name in enumerate(state_hashes)]
    return np.array([seen.setdefault(key, len(seen)) for key in keys], np.int32)


def step_advantages(
    returns: jax.Array, anchors: jax.Array, trajectories: jax.Array, valid: jax.Array, *, eps: float = 1e-6
) -> jax.Array:
    """Step-level credit: a step against the other steps from the same state (GiGPO, arXiv 2505.10978).

        trajectory  0    0    1    1    2
        anchor      7    8    7    9    7      state 7 is left by three trajectories
        return      0.9  1.0  0.0  0.0  0.9
        advantage   0.7  0   -1.4  0    0.7    (R - mean of the anchor)/(std + eps)

    Args:
      returns: float [S], returns to go of the steps of one task's group.
      anchors: int [S], from `anchor_ids`, in 0..S-1.
      trajectories: int [S], which trajectory a step belongs to.
      valid: bool [S], False on padding.
      eps: added to the standard deviation.

    Returns:
      float32 [S]; 0 where fewer than two different trajectories start from the state, or all returns there are equal.
    """
    size = returns.shape[0]
    # Padding goes to a segment of its own.
    ids = jnp.where(valid, anchors, size)
    together = ids[:, None] == ids[None, :]
    compared = jnp.any(together & (trajectories[:, None] != trajectories[None, :]), axis=-1)
    groups = jnp.broadcast_to(returns, (size, size))
    advantages = jnp.diagonal(_grpo(groups, together, groups, together, eps))
    return jnp.where(valid & compared, advantages, 0.0)


def _moments(rewards: jax.Array, members: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Count, mean and population variance over the last axis, which is kept."""
    count = jnp.maximum(members.sum(-1, keepdims=True), 1)
    mean = jnp.sum(jnp.where(members, rewards, 0.0), -1, keepdims=True) / count
    variance = jnp.sum(jnp.where(members, jnp.square(rewards - mean), 0.0), -1, keepdims=True) / count
    return count, mean, variance


def _where_informative(values, members, base_rewards, base_members) -> jax.Array:
    informative = ~tied(base_rewards, base_members)[..., None]
    return jnp.where(members & informative, values, 0.0).astype(jnp.float32)


def _grpo(rewards, members, base_rewards, base_members, eps) -> jax.Array:
    _, mean, variance = _moments(base_rewards, base_members)
    return _where_informative((rewards - mean) / (jnp.sqrt(variance) + eps), members, base_rewards, base_members)


def _dr_grpo(rewards, members, base_rewards, base_members, eps) -> jax.Array:
    _, mean, _ = _moments(base_rewards, base_members)
    return _where_informative(rewards - mean, members, base_rewards, base_members)


def _rloo(rewards, members, base_rewards, base_members, eps) -> jax.Array:
    count, mean, _ = _moments(base_rewards, base_members)
    # R_i minus the mean of the count - 1 others.
    others = count / jnp.maximum(count - 1, 1)
    return _where_informative((rewards - mean) * others, members, base_rewards, base_members)


_KINDS = {"grpo": _grpo, "dr_grpo": _dr_grpo, "rloo": _rloo}
