"""Running the mains as a user does."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

from data.flywheel.collect import collect
from data.store import write_trajectories
from envs.pool import LocalPool
from gui_owl_jax.agent.devices import DeviceFamily
from tests.launch.coin import policies, tasks

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TINY = "tests/launch/tiny.py"


class Main:
    """A running `python -m launch.MODULE FLAGS` on one CPU device. It prints into files, so that it never waits."""

    def __init__(self, module: str, *flags: str):
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        environment.pop("XLA_FLAGS", None)
        self._out, self._err = (tempfile.TemporaryFile("w+") for _ in range(2))
        command = [sys.executable, "-m", f"launch.{module}", *flags]
        self.process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=self._out, stderr=self._err)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> tuple[int, str, str]:
        """Waits for the end; returns exit code, stdout, stderr."""
        code = self.process.wait(timeout=900)
        for file in (self._out, self._err):
            file.seek(0)
        return code, self._out.read(), self._err.read()

    def succeed(self) -> str:
        """Waits for success; returns stdout."""
        code, out, err = self.end()
        assert code == 0, err[-4000:]
        return out


@pytest.fixture(scope="session")
def coin_folder(tmp_path_factory) -> pathlib.Path:
    """A folder with scripted trajectories of the coin world, `data`."""
    folder = tmp_path_factory.mktemp("coin")
    with LocalPool("tests.launch.coin.world:make", 4) as pool:
        todo = tasks.tasks(DeviceFamily.MOBILE, "train", 40, seed=1)
        write_trajectories(folder / "data", collect(pool, todo, policies.plan))
    return folder
