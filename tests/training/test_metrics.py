"""Metrics files: deterministic, truncated on resume, repaired after a kill."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.training.metrics import MetricsWriter, read_metrics


def _row(step: int) -> dict:
    rng = np.random.default_rng(step)
    return {"loss": np.float32(rng.random()), "lr": jnp.float32(0.1), "finite": np.bool_(True), "tokens": 7}


def _events(folder) -> list[event_pb2.Event]:
    """The events of all files, oldest file first; a record is length, checksum, bytes, checksum."""
    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            size = int.from_bytes(data[:8], "little")
            found.append(event_pb2.Event.FromString(data[12 : 12 + size]))
            data = data[12 + size + 4 :]
    return found


def _scalars(folder) -> list[tuple[int, str, float]]:
    return [(event.step, value.tag, value.simple_value) for event in _events(folder) for value in event.summary.value]


def test_lines_are_deterministic_and_readable(tmp_path):
    for folder in (tmp_path / "a", tmp_path / "b"):
        with MetricsWriter(folder) as writer:
            for step in range(3):
                writer.write(step, _row(step), timings={"step_seconds": np.random.random()})
    first, second = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in "ab")
    assert first == second
    lines = [json.loads(line) for line in first.decode().splitlines()]
    assert list(lines[1]) == ["step", "finite", "loss", "lr", "tokens"]
    assert lines[1]["lr"] == 0.1 and lines[1]["finite"] is True and lines[1]["tokens"] == 7
    assert np.float32(lines[1]["loss"]) == _row(1)["loss"]  # nothing lost
    assert list(read_metrics(tmp_path / "a")) == lines
    scalars = _scalars(tmp_path / "a")
    assert {tag for _, tag, _ in scalars} == {"loss", "lr", "finite", "tokens", "step_seconds"}
    assert (2, "tokens", 7.0) in scalars


def test_a_resumed_run_ends_with_the_same_bytes(tmp_path):
    with MetricsWriter(tmp_path / "whole") as writer:
        for step in range(10):
            writer.write(step, _row(step))
    with MetricsWriter(tmp_path / "killed") as writer:
        for step in range(8):
            writer.write(step, _row(step))
    path = tmp_path / "killed" / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-20])  # the kill tore the last line
    with MetricsWriter(tmp_path / "killed") as writer:
        assert [line["step"] for line in read_metrics(writer.folder)] == list(range(7))
        writer.truncate_after(4)
        for step in range(5, 10):
            writer.write(step, _row(step))
    assert path.read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


def test_a_torn_line_is_cut_before_anything_is_appended(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
    assert list(read_metrics(tmp_path)) == [{"step": 1, "loss": 0.5}]
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        writer.write(2, {"loss": 0.25})
    assert path.read_text() == '{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n'


def test_truncation_keeps_several_lines_of_a_step_and_purges_tensorboard(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        for step in range(4):
            writer.write(step, {"loss": step})
            writer.write(step, {"eval/success": step / 4})
        writer.truncate_after(1)
        writer.write(2, {"loss": 20})
    kept = [(line["step"], line.get("loss"), line.get("eval/success")) for line in read_metrics(tmp_path)]
    assert kept == [(0, 0, None), (0, None, 0.0), (1, 1, None), (1, None, 0.25), (2, 20, None)]
    assert _scalars(tmp_path)[-1] == (2, "loss", 20.0)
    # TensorBoard drops what came before from the step of a session start on.
    starts = [event.step for event in _events(tmp_path) if event.session_log.status == event_pb2.SessionLog.START]
    assert starts == [2]


def test_numbers_that_are_not_finite_are_null_in_the_file(tmp_path):
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        writer.write(3, {"loss": float("nan"), "grad_norm": np.float32(np.inf), "stage": "sft"})
    assert list(read_metrics(tmp_path)) == [{"step": 3, "grad_norm": None, "loss": None, "stage": "sft"}]


def test_what_is_no_line_of_metrics_is_named(tmp_path):
    with pytest.raises(DataError, match="metrics.jsonl does not exist"):
        list(read_metrics(tmp_path))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\nhello\n{"step": 3}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2: .*hello"):
        list(read_metrics(tmp_path))
    with MetricsWriter(tmp_path / "other") as writer, pytest.raises(DataError, match="metric loss: wanted a scalar"):
        writer.write(1, {"loss": np.zeros(2)})
