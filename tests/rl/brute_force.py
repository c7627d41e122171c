"""Numpy-only twins of the arithmetic in gui_owl_jax.rl: they enumerate instead of computing."""

from __future__ import annotations

import functools
import itertools
import json
import os
import pathlib
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest

EVERY_POOL = [(s, m, n) for m in range(2, 9) for n in range(2, m + 1) for s in range(m + 1)]


def pool_outcomes(s: int, m: int) -> tuple[int, ...]:
    return (1,) * s + (0,) * (m - s)


@functools.cache
def enumerate_groups(outcomes: tuple[int, ...], n: int) -> dict[tuple[int, tuple[int, ...]], Fraction]:
    """Probability of every (case, sorted group): all subsets, and for a collapsed one all swaps."""
    m = len(outcomes)
    subsets = list(itertools.combinations(range(m), n))
    result: dict[tuple[int, tuple[int, ...]], Fraction] = defaultdict(Fraction)
    for subset in subsets:
        p = Fraction(1, len(subsets))
        total = sum(outcomes[i] for i in subset)
        if sum(outcomes) in (0, m):
            result[2, subset] += p
        elif 0 < total < n:
            result[0, subset] += p
        else:
            other = [i for i in range(m) if outcomes[i] != outcomes[subset[0]]]
            for leaving, entering in itertools.product(subset, other):
                group = tuple(sorted({*subset} - {leaving} | {entering}))
                result[1, group] += p / (n * len(other))
    return dict(result)


@functools.cache
def inclusion(outcomes: tuple[int, ...], n: int) -> list[Fraction]:
    """P(trajectory i is in the group), from the enumeration; 0 for uniform pools."""
    groups = enumerate_groups(outcomes, n)
    return [
        sum((p for (case, g), p in groups.items() if case < 2 and i in g), Fraction()) for i in range(len(outcomes))
    ]


def conformance(name: str) -> pathlib.Path:
    folder = pathlib.Path(os.environ.get("GUI_OWL_CONFORMANCE", "../shared/conformance"))
    if not (folder / name).exists():
        pytest.skip(f"no conformance data at {folder / name}: set GUI_OWL_CONFORMANCE")
    return folder / name


def osworld_rewards() -> list[np.ndarray]:
    """Rewards of 369 OSWorld tasks, about 32 rollouts each."""
    tasks: dict[str, list[float]] = defaultdict(list)
    for rollout in json.loads(conformance("rollouts/osworld_pass32_rollouts.json").read_text()):
        tasks[rollout["task_id"]].append(rollout["reward"])
    return [np.array(rewards) for rewards in tasks.values()]
