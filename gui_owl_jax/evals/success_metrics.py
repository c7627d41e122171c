"""Figures of interactive benchmarks beyond the success rate: pass@k, intervals over tasks, steps, use of tools.

Outcomes are given as task -> one 0 or 1 per attempt. Attempts of one task are alike, so that the tasks are what is
sampled: intervals resample tasks and keep the attempts of each together.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from gui_owl_jax.agent.actions import TOOL_KIND
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.agent.trajectory import Trajectory
from gui_owl_jax.evals.statistics import Interval, PairedDifference, paired_difference

Outcomes = Mapping[str, Sequence[int]]  # task_id -> 0 or 1 per attempt


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over tasks.

    Attributes:
      mean: NaN without tasks.
      interval: percentile bootstrap over tasks; its ends are NaN without tasks. With few tasks, or a mean at 0 or 1,
        it is too short: prefer Wilson's interval (`statistics.success_rate`) for single attempts.
      tasks: how many there are.
    """

    mean: float
    interval: Interval
    tasks: int


def pass_at_k(successes: int, attempts: int, k: int) -> float:
    """Chance that at least one of k attempts drawn from those made succeeds: 1 - C(n - c, k) / C(n, k).

    Unbiased for the chance that one of k fresh attempts succeeds (Chen et al. 2021, arXiv 2107.03374).

    Args:
      successes: c, of 0..n.
      attempts: n.
      k: 1..n.

    Raises:
      DataError: a count is impossible.
    """
    if not 0 <= successes <= attempts or not 1 <= k <= attempts:
        raise DataError(f"pass@{k} of {successes} successes in {attempts} attempts: need 0 <= c <= n and 1 <= k <= n")
    return 1.0 - math.comb(attempts - successes, k) / math.comb(attempts, k)


def mean_pass_at_k(outcomes: Outcomes, k: int, **bootstrap: float) -> Estimate:
    """pass@k, averaged over tasks.

    Args:
      outcomes: task -> outcome of each attempt, at least k.
      k: attempts allowed; 1 gives the success rate.
      **bootstrap: confidence, resamples, seed of `over_tasks`.

    Raises:
      DataError: an outcome is neither 0 nor 1, or a task has fewer than k attempts; names the task.
    """
    values = []
    for task, attempts in outcomes.items():
        _check(task, attempts)
        if len(attempts) < k:
            raise DataError(f"task {task!r} has {len(attempts)} attempts, pass@{k} needs {k}")
        values.append(pass_at_k(sum(attempts), len(attempts), k))
    return over_tasks(values, **bootstrap)  # type: ignore[arg-type]


def over_tasks(values: Sequence[float], confidence: float = 0.95, resamples: int = 10_000, seed: int = 0) -> Estimate:
    """A mean over tasks with its percentile bootstrap interval; with the mean of a task's attempts, a clustered one.

    Args:
      values: one number per task.
      confidence: of the interval, in (0, 1).
      resamples: bootstrap samples.
      seed: of the bootstrap.
    """
    array = np.asarray(values, np.float64)
    if not len(array):
        return Estimate(math.nan, Interval(math.nan, math.nan), 0)
    rng = np.random.default_rng(seed)
    means = np.concatenate(
        # In slices, so that memory stays small for many tasks.
        [
            array[rng.integers(0, len(array), (min(1000, resamples - start), len(array)))].mean(axis=1)
            for start in range(0, resamples, 1000)
        ]
    )
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(float(array.mean()), Interval(float(low), float(high)), len(array))


def compare_outcomes(
    before: Outcomes, after: Outcomes, strata: Mapping[str, str] | None = None
) -> PairedDifference | None:
    """How much better `after` is on the tasks that both attempted.

    A task counts once, with the share of its attempts that succeeded, so that several attempts make the pairs more
    exact but never more.

    Args:
      before: outcomes of the first run.
      after: outcomes of the second run.
      strata: task -> device family; given, the difference is averaged over families with equal weight.

    Returns:
      The difference, None where a stratum has fewer than two tasks in common.
    """
    shared = [task for task in before if before[task] and after.get(task)]
    for task in shared:
        _check(task, before[task])
        _check(task, after[task])
    labels = None if strata is None else [strata[task] for task in shared]
    if len(shared) < 2 or (labels and min(map(labels.count, labels)) < 2):
        return None
    first, second = ([sum(run[task]) / len(run[task]) for task in shared] for run in (before, after))
    return paired_difference(first, second, strata=labels)


def _check(task: str, attempts: Sequence[int]) -> None:
    if not all(type(outcome) is int and outcome in (0, 1) for outcome in attempts):
        raise DataError(f"task {task!r}: outcomes are {attempts!r:.80}, must be 0 or 1")


@dataclasses.dataclass(frozen=True)
class EpisodeFacts:
    """What the figures below need of an episode that its environment did not spoil.

    Attributes:
      task_id: its task.
      success: whether it succeeded.
      steps: turns taken.
      tool_calls: turns that called an extra (MCP) tool instead of acting on the screen.
    """

    task_id: str
    success: bool
    steps: int
    tool_calls: int


def facts_of(trajectories: Iterable[Trajectory]) -> list[EpisodeFacts]:
    """The facts of all trajectories with an outcome."""
    return [
        EpisodeFacts(
            trajectory.task_id,
            trajectory.outcome == 1,
            len(trajectory.steps),
            sum(step.action is not None and step.action.kind == TOOL_KIND for step in trajectory.steps),
        )
        for trajectory in trajectories
        if trajectory.outcome is not None
    ]


def tool_invocation_rate(episodes: Sequence[EpisodeFacts], beneficial: Collection[str]) -> float:
    """OSWorld-MCP's TIR: the share of episodes that succeed having decided rightly for or against tools.

        TIR = (successes with a tool call among tasks that tools benefit
             + successes without one among all other tasks) / all episodes

    It never exceeds the success rate. This is our reading: the release's README only says "correct decisions to use a
    tool or not", and all of its rows lie below their accuracy, as here.

    Args:
      episodes: one or more.
      beneficial: ids of the tasks that tools benefit (the release lists them).

    Raises:
      DataError: no episode.
    """
    if not episodes:
        raise DataError("a tool invocation rate needs at least one episode")
    right = sum(episode.success and (episode.tool_calls > 0) == (episode.task_id in beneficial) for episode in episodes)
    return right / len(episodes)


def average_steps(episodes: Sequence[EpisodeFacts], only_successes: bool = False) -> float:
    """OSWorld-MCP's ACS, average completion steps: turns per episode, calls of tools included.

    The mean is over all episodes, failures with the steps they took (usually the budget): the release's rows (14.0 of
    15 steps for an agent with 14.5 % success) cannot be means over successes.

    Args:
      episodes: one or more.
      only_successes: the mean over successes instead; NaN where there is none.

    Raises:
      DataError: no episode.
    """
    if not episodes:
        raise DataError("average steps need at least one episode")
    counted = [episode.steps for episode in episodes if episode.success or not only_successes]
    return sum(counted) / len(counted) if counted else math.nan
