"""Group selection strategies behind one interface, for ablations of collapse-aware selection.

Every strategy is a pure function (key, outcomes [M], valid [M], stored []) -> `Selection`, and `selection_statistics`
reports the same figures for each:

    swap1              uniform draw of n; a collapsed one is repaired from the pool (see `rl.selection`)
    discard            uniform draw of n; a collapsed one is dropped: naive GRPO, costs n rollouts
    oversample_filter  the whole pool is the group (G = M); uniform pools are dropped
    resample           disjoint draws of n, one after the other, until one is mixed; at most max_draws (DAPO,
                       arXiv 2503.14476, dynamic sampling, within one task); costs n rollouts per draw
    window             uniform draw of n, from tasks whose pool success rate lies in [low, high]
    success_replay     uniform draw of n; an all-failure one gets a stored success, off-policy; costs n rollouts
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.rl.selection import Case, Selection, as_pool, check_weighting, select, shuffle_valid

Selector = Callable[[jax.Array, jax.Array, jax.Array, jax.Array | bool], Selection]


@dataclasses.dataclass(frozen=True)
class SelectionConfig:
    """Which strategy forms the groups.

    Attributes:
      strategy: a key of `STRATEGIES`.
      group_size: n.
      weighting: "inclusion" or "none"; swap1 only, the others have weight 1.
      max_draws: resample: the bound on draws, the first one included; never more than M // n.
      low: window: the least pool success rate that is kept.
      high: window: the greatest pool success rate that is kept.
    """

    strategy: str = "swap1"
    group_size: int = 4
    weighting: str = "inclusion"
    max_draws: int = 4
    low: float = 0.1
    high: float = 0.9

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ConfigError(f"strategy = {self.strategy!r} must be one of {tuple(STRATEGIES)}")
        if self.max_draws < 1:
            raise ConfigError(f"max_draws = {self.max_draws} must be at least 1")
        if not 0 <= self.low <= self.high <= 1:
            raise ConfigError(f"low = {self.low} and high = {self.high} must satisfy 0 <= low <= high <= 1")
        check_weighting(self.weighting)


def make_selector(config: SelectionConfig) -> Selector:
    """Builds the selection function of a config.

    Args:
      config: the strategy and its numbers.

    Returns:
      select(key, outcomes int [M], valid bool [M], stored bool [] = False) -> `Selection`, ready for `jit` and `vmap`.
      `stored` says whether a stored success of this task is at hand (success_replay only).
    """
    strategy = STRATEGIES[config.strategy]

    def selector(key: jax.Array, outcomes: jax.Array, valid: jax.Array, stored: jax.Array | bool = False) -> Selection:
        outcomes, valid = as_pool(outcomes, valid, config.group_size)
        return strategy(config, key, outcomes, valid, jnp.asarray(stored, bool))

    return selector


def selection_statistics(selections: Selection) -> dict[str, jax.Array]:
    """The figures by which strategies are compared.

    Args:
      selections: with a leading task axis, as `vmap` returns it.

    Returns:
      Scalars: informative_share, swap_share (both outcomes only thanks to a swap or an inserted success), empty_share,
      and rollouts_per_informative_group (where no group is informative: all rollouts spent, a lower bound).
    """
    informative = jnp.sum(selections.case != Case.EMPTY)
    return {
        "informative_share": jnp.mean(selections.case != Case.EMPTY),
        "swap_share": jnp.mean(selections.case == Case.SWAP1),
        "empty_share": jnp.mean(selections.case == Case.EMPTY),
        "rollouts_per_informative_group": jnp.sum(selections.rollouts) / jnp.maximum(informative, 1),
    }


def _swap1(config: SelectionConfig, key, outcomes, valid, stored) -> Selection:
    return select(key, outcomes, valid, config.group_size, weighting=config.weighting)


def _discard(config: SelectionConfig, key, outcomes, valid, stored) -> Selection:
    n = config.group_size
    drawn = shuffle_valid(key, valid)[:n]
    return _take(drawn, _is_mixed(drawn, outcomes, valid), valid, rollouts=jnp.minimum(n, valid.sum()))


def _oversample_filter(config: SelectionConfig, key, outcomes, valid, stored) -> Selection:
    everything = jnp.arange(outcomes.shape[0])
    return _take(everything, _is_mixed(everything, outcomes, valid), valid, rollouts=valid.sum())


def _resample(config: SelectionConfig, key, outcomes, valid, stored) -> Selection:
    n = config.group_size
    draws = min(config.max_draws, outcomes.shape[0] // n)
    # Trajectories are exchangeable, so a shuffled pool cut into blocks of n is a sequence of fresh draws.
    blocks = shuffle_valid(key, valid)[: draws * n].reshape(draws, n)
    mixed = jax.vmap(_is_mixed, in_axes=(0, None, None))(blocks, outcomes, valid)
    first = jnp.argmax(mixed)
    spent = jnp.where(mixed.any(), (first + 1) * n, draws * n)
    return _take(blocks[first], mixed.any(), valid, rollouts=jnp.minimum(spent, valid.sum()))


def _window(config: SelectionConfig, key, outcomes, valid, stored) -> Selection:
    drawn = shuffle_valid(key, valid)[: config.group_size]
    rate = jnp.sum(outcomes * valid) / jnp.maximum(valid.sum(), 1)
    kept = (rate >= config.low) & (rate <= config.high)
    return _take(drawn, kept & _is_mixed(drawn, outcomes, valid), valid, rollouts=valid.sum())


def _success_replay(config: SelectionConfig, key, outcomes, valid, stored) -> Selection:
    n, pool = config.group_size, outcomes.shape[0]
    drawn = shuffle_valid(key, valid)[:n]
    size = jnp.minimum(n, valid.sum())
    # Next to an inserted success there must be a failure left: a group of one would be the stored success alone.
    inserted = stored & (size >= 2) & (jnp.sum(outcomes[drawn] * valid[drawn]) == 0)
    group = _take(drawn, inserted | _is_mixed(drawn, outcomes, valid), valid, rollouts=size)
    # The draw is in random order: its first member is a uniformly random one.
    replaced = inserted & (jnp.arange(n) == 0)
    return group._replace(
        indices=jnp.where(replaced, pool, group.indices),
        case=jnp.where(inserted, Case.SWAP1, group.case).astype(jnp.int32),
        off_policy=replaced,
    )


def _is_mixed(drawn: jax.Array, outcomes: jax.Array, valid: jax.Array) -> jax.Array:
    """Whether the valid ones among the trajectories `drawn` [n] have both outcomes."""
    present, z = valid[drawn], outcomes[drawn]
    return jnp.any(present & (z == 1)) & jnp.any(present & (z == 0))


def _take(drawn: jax.Array, informative: jax.Array, valid: jax.Array, rollouts: jax.Array) -> Selection:
    """The valid ones among `drawn` [G] with weight 1, or an empty group."""
    return Selection(
        indices=drawn.astype(jnp.int32),
        case=jnp.where(informative, Case.UNIFORM, Case.EMPTY).astype(jnp.int32),
        weights=jnp.where(informative & valid[drawn], 1.0, 0.0).astype(jnp.float32),
        rollouts=rollouts.astype(jnp.int32),
        off_policy=jnp.zeros(drawn.shape, bool),
    )


STRATEGIES: dict[str, Callable[[SelectionConfig, jax.Array, jax.Array, jax.Array, jax.Array], Selection]] = {
    "swap1": _swap1,
    "discard": _discard,
    "oversample_filter": _oversample_filter,
    "resample": _resample,
    "window": _window,
    "success_replay": _success_replay,
}
