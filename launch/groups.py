"""From pools of trajectories to one MRPO batch: wiring between environments, `gui_owl_jax.rl` and the train step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from data.examples import rl_example
from gui_owl_jax.agent.devices import DEVICE_FAMILIES
from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.agent.trajectory import Trajectory
from gui_owl_jax.models import layout
from gui_owl_jax.rl.advantages import AdvantageConfig, group_advantages
from gui_owl_jax.rl.selection import Selection
from gui_owl_jax.rl.strategies import SelectionConfig
from gui_owl_jax.rl.unstable import task_weights
from launch.common import Policy, gather_hosts
from launch.worlds import World


def check_wired(selection: SelectionConfig, advantage: AdvantageConfig, rl: ConfigDict) -> None:
    """Raises ConfigError for choices of `gui_owl_jax.rl` that need what the loop does not keep."""
    if selection.strategy == "success_replay":
        raise ConfigError("config.selection.strategy: success_replay needs a store of successes, which is not wired")
    if advantage.credit != "trajectory":
        raise ConfigError(f"config.advantage.credit: {advantage.credit!r} is not wired, use 'trajectory'")
    if rl.transport != "ids":
        raise ConfigError(f"config.rl.transport: {rl.transport!r} is not wired, use 'ids'")


@dataclasses.dataclass(frozen=True)
class TaskHistory:
    """Successes and trials of every task template so far, on all hosts; part of the checkpoint."""

    counts: Mapping[str, tuple[int, int]]

    @classmethod
    def empty(cls, templates: Mapping[Any, Sequence[str]]) -> TaskHistory:
        """No trials yet, for the templates of each device family."""
        return cls({name: (0, 0) for names in templates.values() for name in names})

    def add(self, tasks: Sequence[Any], outcomes: np.ndarray, valid: np.ndarray) -> TaskHistory:
        """Counts a batch of pools of every host: outcomes and valid [tasks, M]."""
        own = [(t.template, int((z * ok).sum()), int(ok.sum())) for t, z, ok in zip(tasks, outcomes, valid)]
        counts = dict(self.counts)
        for name, successes, trials in (row for rows in gather_hosts(own) for row in rows):
            counts[name] = (counts[name][0] + successes, counts[name][1] + trials)
        return TaskHistory(counts)

    def to_json(self) -> dict[str, list[int]]:
        """For the checkpoint."""
        return {name: list(pair) for name, pair in self.counts.items()}

    @classmethod
    def from_json(cls, saved: Mapping[str, Sequence[int]]) -> TaskHistory:
        """From the checkpoint."""
        return cls({name: (int(s), int(t)) for name, (s, t) in saved.items()})


def draw_tasks(
    world: World, rng: np.random.Generator, family_weights: np.ndarray, history: TaskHistory, rl: ConfigDict
) -> list[Any]:
    """Draws rl.tasks training tasks: a device family by the schedule, then a template by the history."""
    templates = world.templates()
    tasks = []
    for _ in range(rl.tasks):
        family = DEVICE_FAMILIES[rng.choice(len(DEVICE_FAMILIES), p=_probabilities(family_weights))]
        names = list(templates[family])
        successes, trials = np.array([history.counts[name] for name in names]).T
        weights = _probabilities(task_weights(successes, trials, rl.task_weights, floor=rl.task_floor))
        name = names[rng.choice(len(names), p=weights)]
        tasks.append(world.sample(name, seed=int(rng.integers(1 << 31)), split="train"))
    return tasks


def _probabilities(weights: Any) -> np.ndarray:
    values = np.asarray(weights, np.float64)
    return values / values.sum()


def outcome_arrays(pools: Sequence[Sequence[Trajectory]]) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes int32 [tasks, M] and validity bool [tasks, M]; a trajectory whose environment failed is not valid."""
    outcomes = np.array([[t.outcome or 0 for t in pool] for pool in pools], np.int32)
    valid = np.array([[t.outcome is not None for t in pool] for pool in pools])
    return outcomes, valid


def advantages(config: AdvantageConfig, selections: Selection, outcomes: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Advantages [tasks, G] of the selected trajectories; 0 where the selection weight is 0."""
    rewards = outcomes.astype(np.float32)
    chosen = np.take_along_axis(rewards, _indices(selections, rewards.shape[1]), axis=1)
    members = np.asarray(selections.weights) > 0
    return np.asarray(group_advantages(config, chosen, members, rewards, valid))


def _indices(selections: Selection, size: int) -> np.ndarray:
    """The pool positions [tasks, G] of the selected trajectories; all lie in pools of `size`."""
    indices = np.asarray(selections.indices)
    if (indices >= size).any():
        raise ConfigError("config.selection: a stored success was selected (success_replay), which is not wired")
    return indices


def all_selections(selections: Selection) -> Selection:
    """The selections of all hosts' tasks."""
    if jax.process_count() == 1:
        return selections
    return multihost_utils.process_allgather(selections, tiled=True)


def make_batch(
    pools: Sequence[Sequence[Trajectory]],
    selections: Selection,
    advantages: np.ndarray,
    policy: Policy,
    rl: ConfigDict,
) -> dict[str, np.ndarray]:
    """Packs every step of every selected trajectory into rows, of a number that all hosts agree on (`row_count`).

    With rl.trajectory_mean every trajectory counts the same, however many steps it took (its weight is shared out among
    them; use objective.aggregation "sequence_mean"). Otherwise a failure, which uses up its budget of steps, counts
    more than a success, and the update mostly pushes down: measured on the nano model, it unlearns its format.

    A batch without any member is one empty bucket: the train step changes nothing on it.
    """
    indices, weights = _indices(selections, len(pools[0])), np.asarray(selections.weights)
    examples = []
    for i, j in zip(*np.nonzero(weights > 0)):
        trajectory = pools[i][indices[i, j]]
        weight = float(weights[i, j]) / (len(trajectory.steps) if rl.trajectory_mean else 1)
        for step in range(len(trajectory.steps)):
            examples.append(rl_example(trajectory, step, policy.processor, float(advantages[i, j]), weight))
    if not examples:
        none = np.zeros(1, np.float32)
        names = ("logps", "sampler_logps", "advantages", "weights")
        examples = [layout.Example(np.zeros(1, np.int32), none, (), {name: none for name in names})]
    # Long examples first, as first-fit-decreasing packs tighter.
    examples.sort(key=lambda e: -len(e.tokens))
    budgets = dict(token_budget=rl.token_budget, patch_budget=rl.patch_budget)
    filled, _ = layout.assign(examples, policy.model, rows=len(examples), **budgets)
    used = [[examples[i] for i in members] for members in filled if members]
    rows = row_count(max(gather_hosts(len(used))), rl.row_buckets)
    return layout.lay_out_rows(used + [[]] * (rows - len(used)), policy.model, **budgets)


def row_count(used: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds `used` rows, beyond the largest a multiple of it; few shapes, few compilations.

    Buckets (16, 32): 5 -> 16, 32 -> 32, 33 -> 64, 70 -> 96.
    """
    for rows in buckets:
        if used <= rows:
            return rows
    logging.warning("a batch needs %d rows, more than the largest of config.rl.row_buckets %s", used, tuple(buckets))
    return -(-used // buckets[-1]) * buckets[-1]


def rollout_metrics(pools: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
    """Success (overall and by device family), failures, parse errors and lengths of the rollouts of all hosts."""
    everything = [trajectory for pool in pools for trajectory in pool]
    done = [trajectory for trajectory in everything if trajectory.outcome is not None]
    steps = [step for trajectory in done for step in trajectory.steps]
    own: dict[str, int] = {
        "failed": len(everything) - len(done),
        "steps": len(steps),
        "errors": sum(bool(step.error) for step in steps),
        "tokens": sum(len(step.token_ids) for step in steps if step.token_ids is not None),
    }
    for family in DEVICE_FAMILIES:
        outcomes = [trajectory.outcome or 0 for trajectory in done if trajectory.family == family]
        own |= {f"done_{family}": len(outcomes), f"won_{family}": sum(outcomes)}
    counts = {name: sum(host[name] for host in gather_hosts(own)) for name in own}

    episodes = sum(counts[f"done_{family}"] for family in DEVICE_FAMILIES)
    turns = max(counts["steps"], 1)
    values = {
        "success": sum(counts[f"won_{family}"] for family in DEVICE_FAMILIES) / max(episodes, 1),
        "environment_failures": float(counts["failed"]),
        "parse_error_share": counts["errors"] / turns,
        "steps_per_episode": counts["steps"] / max(episodes, 1),
        "tokens_per_step": counts["tokens"] / turns,
    }
    for family in DEVICE_FAMILIES:
        if counts[f"done_{family}"]:
            values[f"success_{family}"] = counts[f"won_{family}"] / counts[f"done_{family}"]
    return values
