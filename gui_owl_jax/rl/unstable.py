"""Unstable tasks, and how often to visit which task.

From R rounds of rollouts per task: a task is unstable iff 0 < successes < R. Only those give informative groups now;
a floor keeps solved and unsolved tasks visited, so that regressions and first successes are seen.

    successes of 4     0      1      2      3      4
    unstable           no     yes    yes    yes    no
    E[p(1-p)]          5/42   4/21   3/14   4/21   5/42      Beta(1 + s, 1 + f)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from gui_owl_jax.agent.errors import ConfigError

WEIGHTINGS = ("uniform", "unstable", "posterior")


def unstable(successes: ArrayLike, trials: ArrayLike) -> jax.Array:
    """Tells tasks that sometimes succeed.

    Args:
      successes: int [T].
      trials: int [T].

    Returns:
      bool [T].
    """
    successes = jnp.asarray(successes)
    return (successes > 0) & (successes < jnp.asarray(trials))


def task_weights(
    successes: jax.Array, trials: jax.Array, weighting: str = "posterior", *, floor: float = 0.1
) -> jax.Array:
    """Probabilities of visiting tasks.

    Args:
      successes: int [T].
      trials: int [T], may be 0.
      weighting: "uniform"; "unstable": the unstable tasks (all, where there is none); "posterior": proportional to
        E[p(1 - p)], the expected variance of an outcome, under a Beta(1, 1) prior. It is 1/6 for a task that was never
        tried: less than for an unstable one, more than for a solved one.
      floor: the share of visits that is spread over all tasks alike, in [0, 1].

    Returns:
      float32 [T], summing to 1, each at least floor / T.

    Raises:
      ConfigError: unknown weighting, or a floor outside [0, 1].
    """
    if weighting not in WEIGHTINGS:
        raise ConfigError(f"task weighting = {weighting!r} must be one of {WEIGHTINGS}")
    if not 0 <= floor <= 1:
        raise ConfigError(f"floor = {floor} must be in [0, 1]")
    successes, trials = jnp.asarray(successes, jnp.float32), jnp.asarray(trials, jnp.float32)
    even = jnp.ones_like(successes)
    if weighting == "unstable":
        chosen = unstable(successes, trials)
        raw = jnp.where(chosen.any(), chosen.astype(jnp.float32), even)
    elif weighting == "posterior":
        a, b = successes + 1.0, trials - successes + 1.0
        raw = a * b / ((a + b) * (a + b + 1.0))
    else:
        raw = even
    return floor * even / even.sum() + (1.0 - floor) * raw / raw.sum()
