"""Readers of the task files of interactive benchmarks, by name: from a file or folder to `OnlineTask`s."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from data.benchmarks.online_tasks_android import read_androidworld
from data.benchmarks.online_tasks_osworld import read_osworld
from data.benchmarks.online_tasks_webarena import read_webarena
from gui_owl_jax.agent.errors import ConfigError, DataError
from gui_owl_jax.evals.online.task import OnlineTask

ONLINE_READERS: Mapping[str, Callable[[Path], tuple[OnlineTask, ...]]] = {
    "osworld": read_osworld,
    "androidworld": read_androidworld,
    "webarena": read_webarena,
}


def read_online_tasks(name: str, path: str | Path) -> tuple[OnlineTask, ...]:
    """Reads the tasks of an interactive benchmark; `evaluators.coverage` tells which of them can be judged.

    Args:
      name: a key of `ONLINE_READERS`.
      path: its published task file, or the folder with these.

    Raises:
      ConfigError: the name is unknown.
      DataError: there is nothing at `path`, or a file has a missing, unknown or malformed field; names both.
    """
    if name not in ONLINE_READERS:
        raise ConfigError(f"interactive benchmark {name!r} is none of {', '.join(ONLINE_READERS)}")
    if not Path(path).exists():
        raise DataError(f"{path} is not there; it must hold the task files of {name}")
    return ONLINE_READERS[name](Path(path))
