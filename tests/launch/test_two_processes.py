"""SFT as two processes: the losses of one process, checkpoints written together, reports by process 0 alone."""

from __future__ import annotations

import json
import pathlib
import shutil
import socket

import numpy as np
import pytest

from data.flywheel.collect import collect
from data.store import write_trajectories
from envs.pool import LocalPool
from envs.virtual import tasks
from envs.virtual.policies import plan
from gui_owl_jax.agent.devices import DEVICE_FAMILIES
from tests.launch.conftest import Main

STEPS = 10
FLAGS = (
    "--config=configs/nano.py",
    "--config.stage=supervised",
    "--config.data.rows=4",
    "--config.data.lanes=2",
    "--config.optimizer.name=adamw",
    "--config.optimizer.learning_rate=1e-3",
    "--config.optimizer.schedule=constant",
    "--config.optimizer.warmup_steps=4",
    "--config.log_every=1",
    "--config.checkpoint_every=5",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """Scripted trajectories of all device families: examples and screens of several sizes."""
    folder = tmp_path_factory.mktemp("two")
    todo = [task for family in DEVICE_FAMILIES for task in tasks.tasks(family, "train", 8, seed=2)]
    with LocalPool("envs.virtual.world:make", 4) as pool:
        write_trajectories(folder / "data", collect(pool, todo, plan))
    return folder


def train_alone(folder: pathlib.Path, name: str, *flags: str) -> Main:
    return Main("train", *FLAGS, f"--config.data.path={folder / 'data'}", f"--workdir={folder / name}", *flags)


def train_together(folder: pathlib.Path, name: str, *flags: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    together = {"enabled": True, "coordinator_address": f"127.0.0.1:{port}", "num_processes": 2}
    flags = (*flags, "--config.mesh.data=2", *(f"--config.distributed.{k}={v}" for k, v in together.items()))
    mains = [train_alone(folder, name, *flags, f"--config.distributed.process_id={i}") for i in range(2)]
    try:
        for main in mains:
            main.succeed()
    finally:  # one that fails leaves the other waiting
        for main in mains:
            main.kill()


def metrics(folder: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_two_processes_train_as_one(folder):
    train_alone(folder, "one", "--config.steps=10").succeed()
    train_together(folder, "two", "--config.steps=5")
    shutil.copytree(folder / "two", folder / "fewer")
    train_together(folder, "two", "--config.steps=10")  # goes on from the checkpoint that both wrote

    one, two = metrics(folder / "one"), metrics(folder / "two")
    assert [line["step"] for line in one] == [line["step"] for line in two] == list(range(1, STEPS + 1))
    assert [line["tokens"] for line in one] == [line["tokens"] for line in two]
    losses = np.array([[line["loss"] for line in lines] for lines in (one, two)])
    assert losses[0, -1] < losses[0, 0] - 1
    np.testing.assert_allclose(losses[1], losses[0], rtol=0, atol=1e-5)

    written = {path.name for path in (folder / "two").iterdir()}
    reports = {name for name in written if not name.startswith("events")}
    assert reports == {"checkpoints", "metrics.jsonl", "model", "run.json"}
    assert len([name for name in written if name.startswith("events")]) == 2  # one per run, of process 0
    assert json.loads((folder / "two" / "run.json").read_text())["config"]["mesh"]["data"] == 2


def test_one_process_goes_on_where_two_stopped(folder):
    """The data come in the same order, whoever reads them."""
    train_alone(folder, "fewer", "--config.steps=10").succeed()
    one, fewer = metrics(folder / "one"), metrics(folder / "fewer")
    assert [line["step"] for line in fewer] == list(range(1, STEPS + 1))
    assert [line["tokens"] for line in fewer] == [line["tokens"] for line in one]
    losses = np.array([[line["loss"] for line in lines] for lines in (one, fewer)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=0, atol=1e-5)

    def position(name: str) -> list:
        """The last position in the data, lane by lane."""
        files = sorted((folder / name / "checkpoints" / "10" / "data").glob("process_*.json"))
        states = [json.loads(json.loads(file.read_text())["body"])["json"] for file in files]
        return [lane for state in states for lane in state["lanes"]]

    assert position("fewer") == position("one") == position("two")
    assert len(position("one")) == 2
