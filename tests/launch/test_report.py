"""The main: a folder as launch.train and launch.evaluate leave it becomes a report and a table."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import numpy as np

from data.store import write_trajectories
from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.devices import DEVICE_FAMILIES, DeviceFamily
from gui_owl_jax.agent.trajectory import Observation, Step, Trajectory
from gui_owl_jax.training.metrics import MetricsWriter

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def report(run: pathlib.Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "launch.report", f"--run={run}"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300)


def write_stage(run: pathlib.Path, stage: str, successes: int) -> None:
    rows = [
        {
            "task_id": f"{family}/{index}",
            "family": str(family),
            "app": "messages",
            "template": "open_chat",
            "outcome": int(index < successes),
            "failure": "",
            "steps": 1,
            "parse_errors": 0,
        }
        for family in DEVICE_FAMILIES
        for index in range(10)
    ]
    data = {
        "stage": stage,
        "policy": stage,
        "tasks": rows,
        "grounding": None,
        "scrambled": None,
        "model": {"parameters": 1000},
        "commit": "c0ffee",
        "seconds": 1.0,
    }
    folder = run / "evaluate"
    folder.mkdir(exist_ok=True)
    (folder / f"{stage}.json").write_text(json.dumps(data))


def test_a_run_becomes_a_report_and_a_table(tmp_path):
    write_stage(tmp_path, "sft", 4)
    write_stage(tmp_path, "mrpo", 8)
    image = np.full((160, 96, 3), 200, np.uint8)
    step = Step(Observation(image), conclusion="Tap Mia.", action=Action("click", coordinate=(500, 250)))
    trajectory = Trajectory("mobile/0", "messages", DeviceFamily.MOBILE, "Open Mia.", (step,), 1, "policy")
    write_trajectories(tmp_path / "evaluate" / "mrpo", [trajectory])
    with MetricsWriter(tmp_path / "mrpo", tensorboard=False) as writer:
        for update in range(1, 4):
            writer.write(update, {"loss": 1.0 / update, "informative_share": 0.5})
    (tmp_path / "mrpo" / "run.json").write_text(json.dumps({"config": {"seed": 11}, "commit": "c0ffee"}))

    done = report(tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.startswith("sft ") and " 40.0 [" in line for line in lines)
    assert any(line.startswith("mrpo ") and " 80.0 [" in line for line in lines)
    assert any(line.startswith("mrpo - sft: +40.0 [") for line in lines)
    text = (tmp_path / "report.html").read_text("utf-8")
    for part in ("Open Mia.", "click (500, 250)", "Loss", "Groups of an update", "&quot;seed&quot;: 11"):
        assert part in text


def test_bad_results_end_with_one_line(tmp_path):
    write_stage(tmp_path, "sft", 4)
    (tmp_path / "evaluate" / "mrpo.json").write_text('{"stage": "mrpo"')
    done = report(tmp_path)
    assert done.returncode == 1
    assert "mrpo.json" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "report.html").exists()
