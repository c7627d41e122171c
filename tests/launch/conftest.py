"""Running the mains as a user does."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable

import pytest

from data.flywheel.collect import collect
from data.store import write_trajectories
from envs.pool import LocalPool
from gui_owl_jax.agent.devices import DeviceFamily
from tests.launch.coin import policies, tasks

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TINY = "tests/launch/tiny.py"


def start(module: str, *flags: str, **more: str) -> subprocess.Popen:
    """Starts `python -m launch.MODULE FLAGS` on one CPU device."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **more}
    environment.pop("XLA_FLAGS", None)
    command = [sys.executable, "-m", f"launch.{module}", *flags]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen) -> tuple[str, str]:
    """Waits for success; returns stdout and stderr."""
    stdout, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, stderr[-4000:]
    return stdout, stderr


@pytest.fixture(scope="session")
def run() -> Callable[..., str]:
    """run("evaluate", "--config=...") runs a main to its end and returns its stdout."""
    return lambda module, *flags: finish(start(module, *flags))[0]


@pytest.fixture(scope="session")
def coin_folder(tmp_path_factory) -> pathlib.Path:
    """A folder with scripted trajectories of the coin world, `data`."""
    folder = tmp_path_factory.mktemp("coin")
    with LocalPool("tests.launch.coin.world:make", 4) as pool:
        todo = tasks.tasks(DeviceFamily.MOBILE, "train", 40, seed=1)
        write_trajectories(folder / "data", collect(pool, todo, policies.plan))
    return folder
