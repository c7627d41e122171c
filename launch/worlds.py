"""Opening a world by its name in a config: its environments, its tasks, its scripted policies."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from envs.interface import TaskSpec
from envs.pool import EnvPool
from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.devices import DEVICE_FAMILIES, DeviceFamily
from gui_owl_jax.agent.elements import ScreenElement
from gui_owl_jax.agent.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class World:
    """A package of environments (config.env.world) with modules `world`, `tasks`, `policies` and `hand`.

    A world with fixed benchmarks has a module `suites` too, with `names()` and `load(name)`.

    Attributes:
      name: the package, e.g. "envs.virtual".
      slots: environments at a time.
      deadline_s: seconds that a call of an environment may take.
    """

    name: str
    slots: int
    deadline_s: float

    @property
    def _tasks(self) -> Any:
        return importlib.import_module(f"{self.name}.tasks")

    def templates(self) -> Mapping[DeviceFamily, Sequence[str]]:
        """The task templates of each device family."""
        return {family: self._tasks.template_names(family) for family in DEVICE_FAMILIES}

    def sample(self, template: str, seed: int, split: str) -> TaskSpec:
        """One task."""
        return self._tasks.sample_task(template, seed, split)

    def tasks(self, split: str, per_family: int, seed: int) -> list[TaskSpec]:
        """The same number of different tasks of every device family, templates in turn."""
        return [task for family in DEVICE_FAMILIES for task in self._tasks.tasks(family, split, per_family, seed)]

    def suite(self, name: str) -> list[TaskSpec]:
        """The tasks of a fixed benchmark of this world; raises ConfigError where it has none of this name."""
        try:
            suites = importlib.import_module(f"{self.name}.suites")
        except ModuleNotFoundError as error:
            if error.name != f"{self.name}.suites":
                raise
            raise ConfigError(f"suite {name!r}: world {self.name} has no suites") from error
        return list(suites.load(name))

    def script(self, task: TaskSpec) -> Sequence[tuple[str, Action]]:
        """The moves of the scripted policy: (conclusion, action) pairs that solve the task."""
        return importlib.import_module(f"{self.name}.policies").plan(task)

    def phrase(self, family: DeviceFamily, element: ScreenElement) -> str:
        """How scripts say that they click an element: "Tap Mia."."""
        return importlib.import_module(f"{self.name}.hand").element_phrase(family, element)

    def pool(self, slots: int | None = None) -> EnvPool:
        """A pool of environments, each in its own process; to be closed (a context manager)."""
        return EnvPool(f"{self.name}.world:make", slots or self.slots, deadline_s=self.deadline_s)


def open_world(env: ConfigDict) -> World:
    """The world that config.env names; raises ConfigError when there is none."""
    try:
        importlib.import_module(f"{env.world}.world")
    except (ImportError, TypeError) as error:  # a TypeError for an empty name
        raise ConfigError(f"config.env.world: cannot import {env.world!r}: {error}") from error
    return World(env.world, env.slots, env.deadline_s)
