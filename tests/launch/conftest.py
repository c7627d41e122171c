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
from envs.virtual import corpus
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.hf.tokenizer import small_tokenizer
from gui_owl_jax.models.config import get_preset
from tests.launch.coin import policies, tasks

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TINY = "tests/launch/tiny.py"


class Main:
    """A running `python -m launch.MODULE FLAGS` on some (virtual) CPU devices.

    It prints into files, so that it never waits.
    """

    def __init__(self, module: str, *flags: str, devices: int = 1):
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        environment.pop("XLA_FLAGS", None)
        if devices > 1:
            environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
            environment["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # as the fixture nothing_stored
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
    """A folder with scripted trajectories of the coin world (`data`), a tokenizer, and a finished SFT run (`sft`)."""
    folder = tmp_path_factory.mktemp("coin")
    with LocalPool("tests.launch.coin.world:make", 4) as pool:
        todo = tasks.tasks(DeviceFamily.MOBILE, "train", 40, seed=1)
        write_trajectories(folder / "data", collect(pool, todo, policies.plan))
    model = get_preset("nano")
    places = {"image_pad": model.image_token_id, "video_pad": model.video_token_id}
    places |= {"vision_start": model.vision_start_token_id, "vision_end": model.vision_end_token_id}
    small_tokenizer(corpus.lines(), model.text.vocab_size, places).save(folder / "tokenizer")
    Main("train", f"--config={TINY}:supervised,{folder}", f"--workdir={folder / 'sft'}").succeed()
    return folder
