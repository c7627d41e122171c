"""One task per seed: press the right one of two buttons, twice."""

from __future__ import annotations

import random

from envs.interface import TaskSpec
from gui_owl_jax.agent.devices import DeviceFamily

BUTTONS = ("Back", "Enter")
LENGTH = 2


def template_names(family: DeviceFamily) -> tuple[str, ...]:
    return ("press",) if family == DeviceFamily.MOBILE else ()


def sample_task(template: str, seed: int, split: str = "train") -> TaskSpec:
    buttons = random.Random(f"{split}/{seed}").choices(BUTTONS, k=LENGTH)
    return TaskSpec(
        task_id=f"{template}/{split}/{seed}",
        app="coin",
        family=DeviceFamily.MOBILE,
        instruction="Press the right button.",
        seed=seed,
        split=split,
        max_steps=LENGTH,
        template=template,
        params={"buttons": buttons},
    )


def tasks(family: DeviceFamily, split: str, count: int, seed: int) -> list[TaskSpec]:
    return [sample_task(name, 1000 * seed + i, split) for name in template_names(family) for i in range(count)]
