"""Random actions and trajectories that the tests of this folder share."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gui_owl_jax.agent.actions import ACTION_TABLE, Action
from gui_owl_jax.agent.devices import BUTTONS, DIRECTIONS, STATUSES, WINDOW, DeviceFamily
from gui_owl_jax.agent.trajectory import Observation, Step, Trajectory

ALPHABET = list("abcXYZ019 \t\n\r\\/\"'{}[]<>&:,#%") + [
    "é",
    "中",
    "（",
    "】",
    "😀",
    "\u2028",
    "\x00",
    "\x1f",
    "\u200b",
    "\\n",
    "###",
]
SNIPPETS = [
    "</tool_call>",
    "<tool_call>",
    "</think>",
    "<|im_end|>",
    "Action: ",
    "null",
    '"}}',
    "f(x)\n\ng(x)",
    "point=3",
]


def text_of(rng: random.Random, size: int = 12) -> str:
    """A random string with a taste for what breaks parsers."""
    return "".join(rng.choice(ALPHABET + SNIPPETS) for _ in range(rng.randrange(size)))


def action_of(rng: random.Random, family: DeviceFamily, kind: str) -> Action:
    """A random action of one kind; optional arguments are there half of the time."""

    def point() -> tuple[float, float]:
        draw = rng.choice([lambda: rng.randint(0, 1000), lambda: round(rng.uniform(0, 1000), 3)])
        return float(draw()), float(draw())

    draws = {
        "coordinate": point,
        "coordinate2": point,
        "text": lambda: text_of(rng),
        "option": lambda: text_of(rng),
        "button": lambda: rng.choice(BUTTONS),
        "keys": lambda: tuple(rng.choice(["ctrl", "a", "+", '"', "é"]) for _ in range(rng.randint(1, 3))),
        "time": lambda: rng.choice([0.0, 2.0, 0.25]),
        "status": lambda: rng.choice(STATUSES),
        "pixels": lambda: rng.randint(-500, 500),
        "label": lambda: WINDOW if kind == "scroll" and rng.random() < 0.5 else rng.randint(0, 99),
        "direction": lambda: rng.choice(DIRECTIONS),
    }
    spec = ACTION_TABLE[family][kind]
    names = [*spec.required, *(name for name in spec.optional if rng.random() < 0.5)]
    return Action(kind, **{name: draws[name]() for name in names})


def every_action(rng: random.Random, repeats: int) -> list[tuple[DeviceFamily, Action]]:
    """`repeats` random actions of every kind of every family."""
    return [
        (family, action_of(rng, family, kind))
        for family, table in ACTION_TABLE.items()
        for kind in table
        for _ in range(repeats)
    ]


def trajectory_of(rng: random.Random, family: DeviceFamily, length: int) -> Trajectory:
    """A random trajectory; about half of the steps carry arrays, some are parse errors."""
    steps = []
    for index in range(length):
        image = np.array(rng.choices(range(256), k=2 * 3 * 3), np.uint8).reshape(2, 3, 3)
        failed, sampled = rng.random() < 0.2, rng.random() < 0.5
        tokens = rng.randint(1, 5)
        arrays = {}
        if sampled:
            arrays = {
                "token_ids": np.arange(tokens, dtype=np.int32),
                "logps": np.full(tokens, -0.5, np.float32),
                "sampler_logps": np.full(tokens, -0.25, np.float32),
                "prompt_ids": np.arange(7, dtype=np.int32),
                "image_steps": tuple(range(max(0, index - 2), index + 1)),
            }
        steps.append(
            Step(
                Observation(image, text_of(rng)),
                thought=text_of(rng),
                conclusion=text_of(rng),
                action=None if failed else action_of(rng, family, rng.choice(list(ACTION_TABLE[family]))),
                response=text_of(rng),
                error="bad_json" if failed else "",
                state_hash=str(rng.random()),
                **arrays,
            )
        )
    return Trajectory(
        task_id="demo/7",
        app="demo",
        family=family,
        instruction=text_of(rng),
        steps=tuple(steps),
        outcome=rng.choice([0, 1, None]),
        source=rng.choice(["rpa", "policy", "human"]),
        seed=rng.randrange(2**40),
        subtasks=(True, False),
        metadata={"note": text_of(rng), "nested": {"list": [1, 2.5, None]}},
    )


@pytest.fixture
def rng() -> random.Random:
    return random.Random(0)


@pytest.fixture
def actions(rng) -> list[tuple[DeviceFamily, Action]]:
    return every_action(rng, 25)


@pytest.fixture
def trajectories(rng) -> list[Trajectory]:
    return [trajectory_of(rng, family, length) for family in DeviceFamily for length in range(6)]
