"""Which device families an update trains on: GUI-Owl-1.5's alternating stages, and alternatives.

A schedule is a pure function of the step, schedule(step) -> weights [3] in the order of `DEVICE_FAMILIES` (mobile,
desktop, web), non-negative and summing to 1. A resumed run therefore continues it exactly.

    alternating, stage_length 2    step     0  1  2  3  4  5  6
                                   mobile   1  1  .  .  .  .  1
                                   desktop  .  .  1  1  .  .  .
                                   web      .  .  .  .  1  1  .

`gradient_aware` depends on gradients too; it carries a small `StageState`, to be kept in the checkpoint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from gui_owl_jax.agent.devices import DEVICE_FAMILIES
from gui_owl_jax.agent.errors import ConfigError

KINDS = ("alternating", "curriculum", "mixed", "gradient_aware")
MIXED = "mixed"
_NAMES = tuple(family.value for family in DEVICE_FAMILIES)


@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
    """The schedule's choices.

    Attributes:
      kind: one of `KINDS`.
      stage_length: updates per stage (alternating), at most (gradient_aware).
      order: the stages, device families or "mixed"; repeated for ever (alternating, gradient_aware).
      stages: (device family or "mixed", updates) in sequence; the last one goes on for ever (curriculum).
      shares: weights of mobile, desktop, web in "mixed"; scaled to sum to 1.
      patience: gradient_aware leaves a stage after this many updates in a row with a negative cosine.
    """

    kind: str = "alternating"
    stage_length: int = 10
    order: tuple[str, ...] = _NAMES
    stages: tuple[tuple[str, int], ...] = ()
    shares: tuple[float, ...] = (1.0, 1.0, 1.0)
    patience: int = 3

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"schedule kind = {self.kind!r} must be one of {KINDS}")
        if self.stage_length < 1 or self.patience < 1:
            raise ConfigError(f"stage_length = {self.stage_length} and patience = {self.patience} must be at least 1")
        if self.kind == "curriculum" and not self.stages:
            raise ConfigError("a curriculum needs stages: ((device family, updates), ...)")
        if not self.order:
            raise ConfigError("order must name at least one stage")
        if any(length < 1 for _, length in self.stages):
            raise ConfigError(f"stages = {self.stages}: every stage needs at least 1 update")
        if len(self.shares) != len(_NAMES) or min(self.shares) < 0 or sum(self.shares) <= 0:
            raise ConfigError(f"shares = {self.shares} must be {len(_NAMES)} non-negative numbers, not all 0")
        for name in (*self.order, *(device for device, _ in self.stages)):
            if name not in (*_NAMES, MIXED):
                raise ConfigError(f"schedule stage {name!r} must be one of {(*_NAMES, MIXED)}")


def make_schedule(config: ScheduleConfig) -> Callable[[jax.Array | int], jax.Array]:
    """Builds the schedule of a config.

    Args:
      config: of any kind but "gradient_aware", which needs `gradient_aware_weights` and a state.

    Returns:
      schedule(step int [], may be traced) -> float32 [3].

    Raises:
      ConfigError: the kind is "gradient_aware".
    """
    if config.kind == "alternating":
        return lambda step: alternating(step, config.stage_length, config.order, config.shares)
    if config.kind == "curriculum":
        return lambda step: curriculum(step, config.stages, config.shares)
    if config.kind == MIXED:
        return lambda step: mixed(step, config.shares)
    raise ConfigError("gradient_aware is no function of the step alone: use gradient_aware_weights with its state")


def mixed(step: jax.Array | int, shares: tuple[float, ...] = (1.0, 1.0, 1.0)) -> jax.Array:
    """All device families at once.

    Args:
      step: int [], without effect.
      shares: relative weights of mobile, desktop, web.

    Returns:
      float32 [3].
    """
    return jnp.asarray(shares, jnp.float32) / sum(shares)


def alternating(
    step: jax.Array | int,
    stage_length: int,
    order: tuple[str, ...] = _NAMES,
    shares: tuple[float, ...] = (1.0, 1.0, 1.0),
) -> jax.Array:
    """One device family per stage, in turn.

    Args:
      step: int [], the number of updates before this one.
      stage_length: updates per stage.
      order: the stages, repeated for ever.
      shares: what "mixed" means as a stage.

    Returns:
      float32 [3].
    """
    return _table(order, shares)[jnp.asarray(step) // stage_length % len(order)]


def curriculum(
    step: jax.Array | int, stages: tuple[tuple[str, int], ...], shares: tuple[float, ...] = (1.0, 1.0, 1.0)
) -> jax.Array:
    """A fixed sequence of stages; the last one goes on for ever.

        stages (("web", 2), ("mobile", 1), ("mixed", 5)):  step 0 1 web, 2 mobile, 3 4 5 ... mixed

    Args:
      step: int [], the number of updates before this one.
      stages: (device family or "mixed", updates).
      shares: what "mixed" means as a stage.

    Returns:
      float32 [3].
    """
    ends = jnp.cumsum(jnp.asarray([length for _, length in stages]))
    stage = jnp.searchsorted(ends, jnp.asarray(step), side="right")
    return _table(tuple(device for device, _ in stages), shares)[jnp.minimum(stage, len(stages) - 1)]


class StageState(NamedTuple):
    """What gradient_aware carries from update to update.

    Attributes:
      stage: int32 [], index into the order.
      updates: int32 [], updates done in this stage.
      conflicts: int32 [], latest updates in a row whose gradient opposed the held-out devices'.
    """

    stage: jax.Array
    updates: jax.Array
    conflicts: jax.Array


def initial_stage() -> StageState:
    """The state before the first update.

    Returns:
      A `StageState` of zeros.
    """
    zero = jnp.zeros((), jnp.int32)
    return StageState(zero, zero, zero)


def gradient_aware_weights(state: StageState, config: ScheduleConfig) -> jax.Array:
    """The weights of the stage that the state is in.

    Args:
      state: from `initial_stage` or `next_stage`.
      config: gives the order.

    Returns:
      float32 [3].
    """
    return _table(config.order, config.shares)[state.stage]


def next_stage(state: StageState, cosine: jax.Array, config: ScheduleConfig) -> StageState:
    """The state after an update: a stage ends at its length, or early when it keeps hurting the other devices.

        patience 2, cosines    .3 -.1 -.2   the stage ends after the third update
                               .3 -.1  .2   it goes on

    Args:
      state: before the update.
      cosine: float [], between the update's gradient and that of the held-out devices
        (`rl.interference.held_out_cosine`).
      config: stage_length, order, patience.

    Returns:
      The next `StageState`.
    """
    updates = state.updates + 1
    conflicts = jnp.where(cosine < 0, state.conflicts + 1, 0)
    leave = (updates >= config.stage_length) | (conflicts >= config.patience)
    return StageState(
        stage=jnp.where(leave, (state.stage + 1) % len(config.order), state.stage).astype(jnp.int32),
        updates=jnp.where(leave, 0, updates).astype(jnp.int32),
        conflicts=jnp.where(leave, 0, conflicts).astype(jnp.int32),
    )


def _table(order: tuple[str, ...], shares: tuple[float, ...]) -> jax.Array:
    """One row of device weights per stage, [stages, 3]."""
    rows = [mixed(0, shares) if name == MIXED else jax.nn.one_hot(_NAMES.index(name), len(_NAMES)) for name in order]
    return jnp.stack(rows)
