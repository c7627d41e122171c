"""A fixed benchmark of the coin world: what a world needs for `launch.evaluate --suite`."""

from __future__ import annotations

from envs.interface import TaskSpec
from gui_owl_jax.agent.errors import ConfigError
from tests.launch.coin.tasks import sample_task


def names() -> tuple[str, ...]:
    return ("coin_v1",)


def load(name: str) -> tuple[TaskSpec, ...]:
    if name not in names():
        raise ConfigError(f"suite {name!r} is none of {', '.join(names())}")
    return tuple(sample_task("press", seed, "heldout") for seed in (5, 6, 8))
