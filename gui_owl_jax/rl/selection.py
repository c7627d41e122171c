"""Collapse-aware selection of a group from an oversampled pool (GUI-Owl-1.5, arXiv 2602.16855, section 2.4.3).

A pool holds M = k n on-policy trajectories of one task, s successes and f = M - s failures. A group of n is drawn
uniformly without replacement. If it collapsed (all outcomes equal) though the pool is mixed, swap1 replaces one
uniformly chosen member by a uniformly chosen pool member of the other outcome. A uniform pool gives no group.

Worked example: M = 4, n = 2, one success.

    pool     0  1  2  3
    outcome  1  0  0  0

    drawn         probability   case        group after swap1
    {0, i}        3/6           0 uniform   {0, i}
    {i, j}        3/6           1 swap1     {0, i} or {0, j}: trajectory 0 takes one slot

swap1 therefore always contains the one success. Its inclusion probabilities, from q_s = C(s,n)/C(M,n) = 0 (no two
successes) and q_f = C(f,n)/C(M,n) = 3/6, are not the n/M = 1/2 of a uniform draw:

    pi_success = n/M - q_s/s + q_f/s = 1/2 + 1/2       = 1
    pi_failure = n/M - q_f/f + q_s/f = 1/2 - (1/2)/3   = 1/3        1 * 1 + 3 * 1/3 = 2 = n

The weights w = (n/M)/pi = 1/2 for the success and 3/2 for a failure undo this selection bias exactly: for any g,

    E[(1/n) sum_group w g] = (1/2) (1/2 g_0 + 3/2 (g_1 + g_2 + g_3)/3) = (g_0 + g_1 + g_2 + g_3)/4

the mean over the pool. The weights lie in (0, n/(n-1)], so they never blow up. (The paper uses weight 1.)

All functions are pure, run under `jit` (n static), and vectorise over tasks with `vmap`.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from gui_owl_jax.agent.errors import ConfigError

WEIGHTINGS = ("none", "inclusion")


class Case(enum.IntEnum):
    """How a group came about."""

    UNIFORM = 0
    SWAP1 = 1
    EMPTY = 2


class Selection(NamedTuple):
    """A selected group of G trajectories (G = n, unless a strategy says otherwise).

    Attributes:
      indices: int32 [G], positions in the pool, pairwise different. Entries of weight 0 are no members. The value M
        (one past the pool) stands for a stored success that was inserted.
      case: int32 [], a `Case`. Empty groups teach nothing and have weight 0 throughout.
      weights: float32 [G], positive for members.
      rollouts: int32 [], how many finished trajectories this group cost.
      off_policy: bool [G], members drawn from an older policy. They need the importance weights of `rl.transport`.
    """

    indices: jax.Array
    case: jax.Array
    weights: jax.Array
    rollouts: jax.Array
    off_policy: jax.Array


def select(key: jax.Array, outcomes: ArrayLike, valid: ArrayLike, n: int, *, weighting: str = "inclusion") -> Selection:
    """Selects a group of n from a pool of one task, by uniform draw and swap1.

    Args:
      key: a PRNG key.
      outcomes: int [M], Z in {0, 1}; ignored where invalid.
      valid: bool [M], trajectories that finished with a verdict. With m < n valid ones all m are the group; its
        remaining slots have weight 0.
      n: group size, static, 2 <= n <= M.
      weighting: "inclusion" (exactly unbiased) or "none" (1 for every member, as in the paper).

    Returns:
      A `Selection` with G = n. In cases 0 and 1 the group holds both outcomes.

    Raises:
      ConfigError: n or the weighting cannot work.
    """
    check_weighting(weighting)
    outcomes, valid = as_pool(outcomes, valid, n)
    draw_key, partner_key = jax.random.split(key)
    order = shuffle_valid(draw_key, valid)
    # The largest of independent random numbers marks a uniformly random failure, and likewise success.
    luck = jax.random.bits(partner_key, outcomes.shape) | 1
    failure, success = (jnp.argmax(jnp.where(valid & (outcomes == z), luck, 0)) for z in (0, 1))
    return form_group(order[:n], failure, success, outcomes, valid, weighting=weighting)


def form_group(
    drawn: jax.Array,
    failure: jax.Array,
    success: jax.Array,
    outcomes: jax.Array,
    valid: jax.Array,
    *,
    weighting: str = "inclusion",
) -> Selection:
    """Applies swap1 to given draws: the deterministic half of `select`.

    Args:
      drawn: int [n], a uniform draw in random order, its min(n, m) valid trajectories first. If it collapsed, the first
        of them, in such an order a uniformly random member, leaves.
      failure: int [], the failure that enters an all-success draw.
      success: int [], the success that enters an all-failure draw.
      outcomes: int [M].
      valid: bool [M].
      weighting: as in `select`.

    Returns:
      The `Selection`.
    """
    n = drawn.shape[-1]
    finished, successes = valid.sum(), jnp.sum(outcomes * valid)
    size = jnp.minimum(n, finished)
    present = jnp.arange(n) < size
    drawn_successes = jnp.sum(outcomes[drawn] * present)
    collapsed = (drawn_successes == 0) | (drawn_successes == size)
    empty = (successes == 0) | (successes == finished)
    swapped = collapsed & ~empty

    incoming = jnp.where(drawn_successes == 0, success, failure)
    indices = jnp.where(swapped & (jnp.arange(n) == 0), incoming, drawn).astype(jnp.int32)
    case = jnp.where(empty, Case.EMPTY, jnp.where(swapped, Case.SWAP1, Case.UNIFORM))
    weights = jnp.ones(n)
    if weighting == "inclusion":
        pi_success, pi_failure = inclusion_probabilities(successes, finished - successes, n)
        pi = jnp.where(outcomes[indices] == 1, pi_success, pi_failure)
        weights = size / jnp.maximum(finished, 1) / jnp.where(pi > 0, pi, 1.0)
    return Selection(
        indices=indices,
        case=case.astype(jnp.int32),
        weights=jnp.where(present & ~empty, weights, 0.0).astype(jnp.float32),
        rollouts=finished.astype(jnp.int32),
        off_policy=jnp.zeros(n, bool),
    )


def inclusion_probabilities(successes: ArrayLike, failures: ArrayLike, n: int) -> tuple[jax.Array, jax.Array]:
    """Exact probabilities that a given success, or failure, of the pool ends up in the group of `select`.

    Args:
      successes: int [...], s.
      failures: int [...], f; s + f is at most about 10^6. Where s + f < n, the group is the whole pool.
      n: group size, static.

    Returns:
      (pi_success, pi_failure), float32 [...]; 0 for pools that are uniform, from which nothing is selected.
    """
    s, f = jnp.asarray(successes, jnp.float32), jnp.asarray(failures, jnp.float32)
    q_s, q_f = jnp.exp(log_draw_ratio(s, f, n)), jnp.exp(log_draw_ratio(f, s, n))
    mixed = (s > 0) & (f > 0)
    s, f = jnp.where(mixed, s, 1.0), jnp.where(mixed, f, 1.0)
    uniform = jnp.minimum(n, s + f) / (s + f)
    shift = q_s - q_f
    return jnp.where(mixed, uniform - shift / s, 0.0), jnp.where(mixed, uniform + shift / f, 0.0)


def informative_probability(successes: ArrayLike, failures: ArrayLike, n: int) -> jax.Array:
    """The probability that a uniform draw of n without replacement holds both outcomes: what naive GRPO gets.

    With selection the probability is 1 for every mixed pool. Draws *with* replacement, from a policy with success
    rate p, give 1 - p^n - (1 - p)^n.

    Args:
      successes: int [...].
      failures: int [...]; a draw from fewer than n trajectories is the whole pool.
      n: group size, static.

    Returns:
      float32 [...].
    """
    s, f = jnp.asarray(successes, jnp.float32), jnp.asarray(failures, jnp.float32)
    collapsed = jnp.exp(log_draw_ratio(s, f, n)) + jnp.exp(log_draw_ratio(f, s, n))
    return jnp.where((s > 0) & (f > 0), 1.0 - collapsed, 0.0)


def log_draw_ratio(inside: ArrayLike, outside: ArrayLike, n: int) -> jax.Array:
    """log C(a, n) / C(a + b, n): the log-probability that n draws without replacement all fall among a of a + b.

    The ratio of binomials is the product over i < n of (a - i)/(a + b - i) = 1 - b/(a + b - i). Its logarithm is summed
    with log1p, not as a difference of lgamma terms: lgamma(1024) = 6.1e3 carries a float32 rounding error of 2e-4,
    the sum of n small terms one of about 1e-7 each.

    Args:
      inside: float [...], a >= 0.
      outside: float [...], b >= 0.
      n: number of draws, static; at most a + b of them take place.

    Returns:
      float32 [...], -inf where it is impossible.
    """
    a, b = jnp.asarray(inside, jnp.float32)[..., None], jnp.asarray(outside, jnp.float32)[..., None]
    i = jnp.arange(n, dtype=jnp.float32)
    possible, drawn = a - i > 0, a + b - i > 0
    fraction = jnp.where(possible, b / jnp.where(possible, a + b - i, 1.0), 0.0)
    return jnp.sum(jnp.where(drawn, jnp.where(possible, jnp.log1p(-fraction), -jnp.inf), 0.0), axis=-1)


def shuffle_valid(key: jax.Array, valid: jax.Array) -> jax.Array:
    """A uniformly random order of the pool with its valid trajectories in front.

    Args:
      key: a PRNG key.
      valid: bool [M].

    Returns:
      int [M], a permutation of 0..M-1.
    """
    return jnp.lexsort((jax.random.bits(key, valid.shape), ~valid))


def as_pool(outcomes: ArrayLike, valid: ArrayLike, n: int) -> tuple[jax.Array, jax.Array]:
    """Checks a pool's shapes against the group size.

    Args:
      outcomes: [M].
      valid: [M].
      n: group size.

    Returns:
      (outcomes int32 [M], valid bool [M]).

    Raises:
      ConfigError: a group of n cannot be drawn from these arrays.
    """
    outcomes, valid = jnp.asarray(outcomes, jnp.int32), jnp.asarray(valid, bool)
    if outcomes.ndim != 1 or outcomes.shape != valid.shape:
        raise ConfigError(
            f"outcomes and valid must both be [M]; got {outcomes.shape} and {valid.shape} (vmap over tasks)"
        )
    if not 2 <= n <= outcomes.shape[0]:
        raise ConfigError(f"group size n = {n} must lie between 2 and the pool size {outcomes.shape[0]}")
    return outcomes, valid


def check_weighting(weighting: str) -> None:
    """Rejects unknown weightings.

    Args:
      weighting: a config value.

    Raises:
      ConfigError: it is not one of `WEIGHTINGS`.
    """
    if weighting not in WEIGHTINGS:
        raise ConfigError(f"weighting = {weighting!r} must be one of {WEIGHTINGS}")
