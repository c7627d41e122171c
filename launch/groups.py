"""From pools of trajectories to one MRPO batch: the wiring between environments, `gui_owl_jax.rl` and the train step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from data.examples import rl_example
from gui_owl_jax.agent.devices import DEVICE_FAMILIES
from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.agent.trajectory import Trajectory
from gui_owl_jax.models import layout
from gui_owl_jax.rl.advantages import AdvantageConfig, group_advantages
from gui_owl_jax.rl.selection import Selection
from gui_owl_jax.rl.unstable import task_weights
from gui_owl_jax.rollout.engine import bucket
from launch.common import Policy
from launch.worlds import World


@dataclasses.dataclass(frozen=True)
class TaskHistory:
    """Successes and trials of every task template so far; part of the checkpoint."""

    counts: Mapping[str, tuple[int, int]]

    @classmethod
    def empty(cls, templates: Mapping[str, Sequence[str]]) -> TaskHistory:
        """No trials yet, for the templates of each device family."""
        return cls({name: (0, 0) for names in templates.values() for name in names})

    def add(self, tasks: Sequence[Any], outcomes: np.ndarray, valid: np.ndarray) -> TaskHistory:
        """Counts a batch of pools: outcomes and valid [tasks, M]."""
        counts = dict(self.counts)
        for task, z, ok in zip(tasks, outcomes, valid):
            successes, trials = counts[task.template]
            counts[task.template] = (successes + int((z * ok).sum()), trials + int(ok.sum()))
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
        family = DEVICE_FAMILIES[rng.choice(len(DEVICE_FAMILIES), p=family_weights / family_weights.sum())]
        names = list(templates[family])
        successes, trials = np.array([history.counts[name] for name in names]).T
        weights = np.asarray(task_weights(successes, trials, rl.task_weights, floor=rl.task_floor), np.float64)
        name = names[rng.choice(len(names), p=weights / weights.sum())]
        tasks.append(world.sample(name, seed=int(rng.integers(1 << 31)), split="train"))
    return tasks


def outcome_arrays(pools: Sequence[Sequence[Trajectory]]) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes int32 [tasks, M] and validity bool [tasks, M]; a trajectory whose environment failed is not valid."""
    outcomes = np.array([[t.outcome or 0 for t in pool] for pool in pools], np.int32)
    valid = np.array([[t.outcome is not None for t in pool] for pool in pools])
    return outcomes, valid


def advantages(config: AdvantageConfig, selections: Selection, outcomes: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Advantages [tasks, G] of the selected trajectories."""
    rewards = outcomes.astype(np.float32)
    chosen = np.take_along_axis(rewards, np.minimum(np.asarray(selections.indices), rewards.shape[1] - 1), axis=1)
    members = np.asarray(selections.weights) > 0
    return np.asarray(group_advantages(config, chosen, members, rewards, valid))


def make_batch(
    pools: Sequence[Sequence[Trajectory]],
    selections: Selection,
    advantages: np.ndarray,
    policy: Policy,
    rl: ConfigDict,
) -> dict[str, np.ndarray]:
    """Packs every step of every selected trajectory into rows; the smallest row bucket that holds them.

    A batch without any member is one empty bucket: the train step changes nothing on it.
    """
    indices, weights = np.asarray(selections.indices), np.asarray(selections.weights)
    examples = [
        rl_example(pools[i][indices[i, j]], step, policy.processor, float(advantages[i, j]), float(weights[i, j]))
        for i, j in zip(*np.nonzero(weights > 0))
        for step in range(len(pools[i][indices[i, j]].steps))
    ]
    if not examples:
        tokens = np.zeros(1, np.int32)
        none = np.zeros(1, np.float32)
        names = ("logps", "sampler_logps", "advantages", "weights")
        examples = [layout.Example(tokens, none, (), {name: none for name in names})]
    # Long examples first, as first-fit-decreasing packs tighter.
    examples.sort(key=lambda e: -len(e.tokens))
    budgets = dict(token_budget=rl.token_budget, patch_budget=rl.patch_budget)
    filled, left = layout.assign(examples, policy.model, rows=rl.row_buckets[-1], **budgets)
    if left:
        raise ConfigError(f"rl.row_buckets: {len(left)} of {len(examples)} examples found no room; add a larger bucket")
    used = [members for members in filled if members]
    rows = bucket(len(used), rl.row_buckets, "rl.row_buckets")
    members = [[examples[i] for i in row] for row in used] + [[] for _ in range(rows - len(used))]
    return layout.lay_out_rows(members, policy.model, **budgets)


def rollout_metrics(pools: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
    """Success (overall and by device family), failures, parse errors and lengths of a batch of rollouts."""
    done = [t for pool in pools for t in pool if t.outcome is not None]
    everything = [t for pool in pools for t in pool]
    steps = [s for t in done for s in t.steps]
    values = {
        "success": float(np.mean([t.outcome for t in done])) if done else 0.0,
        "environment_failures": float(len(everything) - len(done)),
        "parse_error_share": float(np.mean([bool(s.error) for s in steps])) if steps else 0.0,
        "steps_per_episode": len(steps) / max(len(done), 1),
        "tokens_per_step": float(np.mean([len(s.token_ids) for s in steps])) if steps else 0.0,
    }
    for family in DEVICE_FAMILIES:
        own = [t.outcome for t in done if t.family == family]
        if own:
            values[f"success_{family}"] = float(np.mean(own))
    return values
