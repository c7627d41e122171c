"""Trajectories and screens survive the disk bit for bit, and damage is named."""

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from data.records import RecordEncoder, RecordSource, shard_paths, write_records
from data.store import ScreenSource, TrajectorySource, write_screens, write_trajectories
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.agent.trajectory import Observation, Step, Trajectory

ROOT = Path(__file__).parents[2]


def sampled(trajectory: Trajectory) -> Trajectory:
    """The same episode as a policy would have left it: with ids, log-probabilities and a parse error."""
    steps = list(trajectory.steps)
    rng = np.random.default_rng(0)
    for i, step in enumerate(steps):
        count = 5 + i
        steps[i] = dataclasses.replace(
            step,
            thought="Hm, \u201ewo\u201c?",
            response="Action: …",
            token_ids=rng.integers(0, 1000, count).astype(np.int32),
            logps=rng.normal(size=count).astype(np.float32),
            sampler_logps=rng.normal(size=count).astype(np.float32),
            prompt_ids=rng.integers(0, 1000, 40).astype(np.int32),
            image_steps=tuple(range(i + 1)),
            state_hash=f"hash{i}",
        )
    steps.append(Step(Observation(steps[0].observation.image, "marks"), response="{", error="bad_json"))
    return dataclasses.replace(trajectory, steps=tuple(steps), outcome=0, source="policy")


def same(a, b) -> bool:
    """Deep equality of dataclasses, arrays bit for bit."""
    if dataclasses.is_dataclass(a):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("shards", [1, 3])
def test_round_trip_and_order(tmp_path, trajectories, shards):
    written = [*trajectories, sampled(trajectories[0]), dataclasses.replace(trajectories[1], outcome=None, steps=())]
    paths = write_trajectories(tmp_path / "deep" / "rpa", iter(written), shards)
    assert [path.name for path in paths] == [f"rpa-{i:05d}-of-{shards:05d}.arrayrecord" for i in range(shards)]
    source = TrajectorySource(tmp_path / "deep" / "rpa")
    assert len(source) == len(written)
    assert all(same(a, b) for a, b in zip(written, source, strict=True))
    assert same(source[-len(written) :][4], written[4])
    assert source.step_count(5) == len(written[5].steps)
    assert same(TrajectorySource(paths)[3], written[3])


def test_screens_round_trip(tmp_path, screens):
    write_screens(tmp_path / "screens", screens, 2)
    source = ScreenSource(tmp_path / "screens")
    assert all(same(a, b) for a, b in zip(screens, source, strict=True))
    with pytest.raises(DataError, match=r"screens-00000-of-00002.arrayrecord, record 0: .*'screen' record"):
        TrajectorySource(tmp_path / "screens")[0]


def test_source_travels_to_threads_and_processes(tmp_path, trajectories):
    write_trajectories(tmp_path / "t", trajectories, 2)
    source = pickle.loads(pickle.dumps(TrajectorySource(tmp_path / "t")))
    with ThreadPoolExecutor(4) as threads:
        read = list(threads.map(source.__getitem__, list(range(len(source))) * 3))
    assert all(same(a, b) for a, b in zip(trajectories * 3, read, strict=True))
    with pytest.raises(IndexError):
        source[len(source)]


def test_writing_again_replaces_a_set_of_another_size(tmp_path, trajectories):
    write_trajectories(tmp_path / "t", trajectories, 4)
    write_trajectories(tmp_path / "t-other", trajectories[:1], 1)
    write_trajectories(tmp_path / "t", trajectories[:5], 2)
    assert len(TrajectorySource(tmp_path / "t")) == 5
    assert len(list(tmp_path.iterdir())) == 3


def test_an_unwritable_trajectory_leaves_nothing(tmp_path, trajectories):
    bad = dataclasses.replace(trajectories[1], metadata={"array": np.zeros(3)})
    with pytest.raises(DataError, match="open:1"):
        write_trajectories(tmp_path / "t", [trajectories[0], bad], 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["half", "last_byte", "empty", "foreign", "appended"])
def test_damaged_files_are_named(tmp_path, trajectories, damage):
    (path,) = write_trajectories(tmp_path / "t", trajectories)
    whole = path.read_bytes()
    path.write_bytes(
        {
            "half": whole[: len(whole) // 2],
            "last_byte": whole[:-1],
            "empty": b"",
            "foreign": b"PK\x03\x04 not ours " * 10_000,
            "appended": whole + b"more",
        }[damage]
    )
    with pytest.raises(DataError, match=path.name):
        TrajectorySource(tmp_path / "t")


def test_a_flipped_bit_damages_its_record_only(tmp_path, trajectories):
    (path,) = write_trajectories(tmp_path / "t", trajectories)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    source = TrajectorySource(tmp_path / "t")
    failures = []
    for i in range(len(source)):
        try:
            assert same(source[i], trajectories[i])
        except DataError as error:
            failures.append(str(error))
    assert len(failures) == 1 and path.name in failures[0] and "record " in failures[0]


def test_missing_fields_are_named(tmp_path, trajectories):
    (path,) = write_trajectories(tmp_path / "t", trajectories[:1])
    record = RecordSource([path])[0]
    for old, new, complaint in [
        (b'"outcome"', b'"outkome"', "outcome"),
        (b'"images"', b'"imagez"', "images"),
        (b'"mobile"', b'"nobile"', "nobile"),
        (b'"version":1', b'"version":7', "version 7"),
        (b"GOWL", b"LWOG", "first bytes"),
        (b'"kind":"click"', b'"kind":"clock"', "clock"),
    ]:
        assert old in record
        write_records(tmp_path / "broken", [record, record.replace(old, new)])
        source = TrajectorySource(tmp_path / "broken")
        assert same(source[0], trajectories[0])
        with pytest.raises(DataError, match=rf"broken-00000-of-00001.arrayrecord, record 1: .*{complaint}"):
            source[1]
    for broken in (record[:-10], record[:20], b"", RecordEncoder().record("trajectory", [])):
        write_records(tmp_path / "broken", [broken])
        with pytest.raises(DataError, match="record 0"):
            TrajectorySource(tmp_path / "broken")[0]


def test_incomplete_sets_are_refused(tmp_path, trajectories):
    paths = write_trajectories(tmp_path / "t", trajectories[:23], 3)
    with pytest.raises(DataError, match="no files"):
        TrajectorySource(tmp_path / "other")
    with pytest.raises(DataError, match="no such file"):
        TrajectorySource([tmp_path / "other"])
    with pytest.raises(DataError, match="a whole set would"):
        TrajectorySource([paths[2], paths[0]])  # 7 and 8 records: the wrong order
    saved = paths[1].read_bytes()
    paths[1].unlink()
    with pytest.raises(DataError, match=r"shards \[1\]"):
        TrajectorySource(tmp_path / "t")
    paths[1].write_bytes(saved)
    paths[0].with_name("t-00000-of-00009.arrayrecord").write_bytes(saved)
    with pytest.raises(DataError, match="several sets"):
        TrajectorySource(tmp_path / "t")
    with pytest.raises(DataError, match="shards is 0"):
        write_trajectories(tmp_path / "t", trajectories, 0)


WRITER = """
import sys, time
from data.records import write_records
def records():
    for i in range(10**9):
        if i == 2000:
            print("writing", flush=True)
        yield bytes(1000)
write_records(sys.argv[1], records(), 2)
"""


def test_a_killed_writer_leaves_only_whole_files(tmp_path, trajectories):
    before = write_trajectories(tmp_path / "t", trajectories, 2)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "t")], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout.readline() == "writing\n"
    time.sleep(0.05)
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    assert shard_paths(tmp_path / "t") == before
    assert all(same(a, b) for a, b in zip(trajectories, TrajectorySource(tmp_path / "t"), strict=True))
    write_trajectories(tmp_path / "t", trajectories[:3], 2)  # the next writer clears what the killed one left
    assert sorted(tmp_path.iterdir()) == before
