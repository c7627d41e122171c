"""`launch.evaluate --benchmark`: kills, bad images, other rules, endpoints, several processes."""

from __future__ import annotations

import hashlib
import json
import pathlib
import random
import socket
import threading
import time

import numpy as np
import pytest
from PIL import Image

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.evals.answers import read_answers
from gui_owl_jax.evals.zoom import ZoomConfig
from launch.benchmark import parse_zoom
from tests.evals.model_server import said, serving
from tests.launch.conftest import Main

ITEMS = 40
# An untrained nano model that draws its answers, in few shapes.
NANO = (
    "--config=configs/benchmark.py",
    "--config.model.preset=nano",
    "--config.tokenizer=small",
    "--config.compute.dtype=float32",
    "--config.sampler.temperature=1.0",
    "--config.sampler.max_new_tokens=6",
    "--config.sampler.row_buckets=(2,)",
    "--config.sampler.length_buckets=(2048,)",
    "--config.sampler.patch_buckets=(64,)",
    "--config.image.max_pixels=4096",
    "--config.benchmark.batch=2",
    "--policy=random",
)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # a commit made while the tests run would be another setting


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """A benchmark in the files of ScreenSpot-Pro: 40 items, and an entry that is none.

    Of their five screenshots one is damaged and one is missing.
    """
    folder = tmp_path_factory.mktemp("benchmark")
    rng = np.random.default_rng(0)
    (folder / "images").mkdir()
    for name in "abc":
        Image.fromarray(rng.integers(0, 256, (48, 96, 3), np.uint8)).save(folder / "images" / f"{name}.png")
    (folder / "images" / "damaged.png").write_bytes((folder / "images" / "a.png").read_bytes()[:500])
    names = ["a", "b", "c", "damaged", "missing"]
    entries = [
        {
            "id": f"item-{i}",
            "instruction": f"Press button {i}",
            "bbox": [10, 10, 50, 40],
            "img_filename": f"{names[i % 5]}.png",
            "img_size": [96, 48],
            "application": "word",
            "platform": "windows",
            "ui_type": "text" if i % 2 else "icon",
            "group": "Office",
        }
        for i in range(ITEMS)
    ]
    (folder / "annotations").mkdir()
    (folder / "annotations" / "word.json").write_text(json.dumps([*entries, {"id": "no item"}]))
    return folder


def evaluate(folder: pathlib.Path, out: pathlib.Path, *flags: str) -> Main:
    where = (f"--data={folder / 'annotations'}", f"--images={folder / 'images'}", f"--out={out}")
    return Main("evaluate", "--benchmark=screenspot_pro", "--dialect=gui_owl_eval", *where, *flags)


def result(out: pathlib.Path) -> dict:
    return json.loads((out / "result.json").read_text())


def point(body: dict, headers: dict) -> tuple[int, dict, dict]:
    """A model that points at a place which only its prompt decides."""
    digest = hashlib.sha256(json.dumps(body["messages"]).encode()).digest()
    return said(f"Somewhere around ({digest[0] * 4 % 1000}, {digest[1] * 4 % 1000})")


def slowly(body: dict, headers: dict) -> tuple[int, dict, dict]:
    time.sleep(0.1)
    return point(body, headers)


def lines(out: pathlib.Path) -> int:
    path = out / "answers.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def check_kills(folder: pathlib.Path, out: pathlib.Path, expected: pathlib.Path, flags: tuple[str, ...], kills: int):
    """Kills an evaluation at random moments; in the end all files are those of an undisturbed one."""
    rng = random.Random(0)
    for moment in sorted(rng.sample(range(1, ITEMS - 4), kills)):
        main = evaluate(folder, out, *flags)
        while lines(out) <= moment and main.running:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.1))
        assert main.running, main.end()
        main.kill()
        assert 0 < lines(out) <= ITEMS
    evaluate(folder, out, *flags).succeed()
    for name in ("result.json", "answers.jsonl", "report.html"):
        assert (out / name).read_bytes() == (expected / name).read_bytes(), name
    answers = read_answers(out / "answers.jsonl")[1]
    assert [answer.item_id for answer in answers] == [f"item-{i}" for i in range(ITEMS)]


def test_a_killed_evaluation_of_an_endpoint_ends_the_same(folder, tmp_path):
    with serving(slowly) as url:
        flags = (f"--endpoint={url}", "--model=owl", "--config=configs/benchmark.py", "--config.benchmark.batch=3")
        evaluate(folder, tmp_path / "undisturbed", *flags).succeed()
        check_kills(folder, tmp_path / "killed", tmp_path / "undisturbed", flags, kills=3)
    found = result(tmp_path / "killed")
    assert found["reasons"]["failed"] == 16 and found["counted"] == ITEMS and found["calls"] == 24
    assert found["problems"]["missing_field"] == 1
    assert sum("damaged.png" in why for why in found["failures"]) == 1
    assert found["failures"]["image missing.png is missing"] == 8
    assert found["averages"]["micro"]["trials"] == ITEMS
    page = (tmp_path / "killed" / "report.html").read_text()
    assert "missing.png is missing" in page and "data:image/jpeg" in page


def test_a_killed_evaluation_of_a_checkpoint_ends_the_same(folder, tmp_path):
    flags = (*NANO, "--dialect=gui_owl_1_5")
    evaluate(folder, tmp_path / "undisturbed", *flags).succeed()
    answers = read_answers(tmp_path / "undisturbed" / "answers.jsonl")[1]
    said = {answer.looks[0].response for answer in answers if answer.looks}
    assert len(said) > 20  # there is something to be equal in
    check_kills(folder, tmp_path / "killed", tmp_path / "undisturbed", flags, kills=1)


def test_stored_answers_are_scored_again_by_another_rule(folder, tmp_path):
    with serving(point) as url:
        evaluate(folder, tmp_path, f"--endpoint={url}", "--model=owl").succeed()
        before = result(tmp_path)
        code, _, err = evaluate(folder, tmp_path, f"--endpoint={url}", "--model=other").end()
        assert code == 1 and "answers with model = 'owl', now it is 'other'" in err
    evaluate(folder, tmp_path / "again", f"--answers={tmp_path / 'answers.jsonl'}", "--rule=gui_owl").succeed()
    evaluate(folder, tmp_path, "--score_only", "--scale=999").succeed()
    grid, scaled = result(tmp_path / "again"), result(tmp_path)
    assert "points=exact" in before["rule"] and "points=grid" in grid["rule"] and "scale=999.0" in scaled["rule"]
    assert 0 < before["averages"]["micro"]["successes"] <= grid["averages"]["micro"]["successes"] < ITEMS
    assert [v["point"] for v in before["verdicts"]] != [v["point"] for v in scaled["verdicts"]]


def test_items_that_an_endpoint_gave_up_on_are_asked_again(folder, tmp_path):
    broken = threading.Event()
    broken.set()

    def answer(body, headers):
        return (500, {}, {}) if broken.is_set() and "button 1" in json.dumps(body) else point(body, headers)

    flags = ("--model=owl", "--config=configs/benchmark.py", "--config.endpoint.retries=0")
    with serving(answer) as url:
        evaluate(folder, tmp_path, f"--endpoint={url}", *flags).succeed()
        first = result(tmp_path)
        broken.clear()
        evaluate(folder, tmp_path, f"--endpoint={url}", *flags).succeed()
        assert result(tmp_path) == first and first["reasons"]["failed"] == 16 + 7
        evaluate(folder, tmp_path, f"--endpoint={url}", *flags, "--retry_failed").succeed()
    assert result(tmp_path)["reasons"]["failed"] == 16


def test_two_processes_share_the_items(folder, tmp_path):
    with serving(point) as url:
        flags = (f"--endpoint={url}", "--model=owl", "--config=configs/benchmark.py")
        evaluate(folder, tmp_path / "one", *flags).succeed()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        together = {"enabled": True, "coordinator_address": f"127.0.0.1:{port}", "num_processes": 2}
        flags = (*flags, *(f"--config.distributed.{name}={value}" for name, value in together.items()))
        mains = [evaluate(folder, tmp_path / "two", *flags, f"--config.distributed.process_id={i}") for i in range(2)]
        try:
            for main in mains:
                main.succeed()
        finally:  # one that fails leaves the other waiting
            for main in mains:
                main.kill()
    assert (tmp_path / "one" / "result.json").read_bytes() == (tmp_path / "two" / "result.json").read_bytes()
    shares = [read_answers(tmp_path / "two" / f"answers-{i}.jsonl")[1] for i in range(2)]
    assert [len(share) for share in shares] == [ITEMS // 2] * 2


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ((), "state one of --policy and --endpoint"),
        (("--policy=random", "--endpoint=http://localhost/v1"), "state one of"),
        (("--endpoint=localhost", "--model=owl"), "endpoint url"),
        (("--endpoint=http://127.0.0.1:9/v1", "--model="), "name of the model"),
        (("--score_only",), "answers.jsonl"),
        (("--score_only", "--rule=best"), "'best'"),
        (("--score_only", "--dialect=klingon"), "klingon"),
        (("--benchmark=nothing",), "'nothing'"),
    ],
)
def test_bad_flags_are_named(folder, tmp_path, flags, named):
    code, _, err = evaluate(folder, tmp_path, *flags).end()
    assert code == 1 and named in err and "Traceback" not in err


def test_zoom_is_read():
    assert parse_zoom("") is None
    assert parse_zoom("ratio=0.25,enlarged=1920x1080") == ZoomConfig(0.25, None, (1920, 1080))
    assert parse_zoom("size=1024x1024") == ZoomConfig(None, (1024, 1024))
    for wrong in ("0.5", "ratio=half", "size=1024", "ratio=0.5,size=1x1", "enlarged=2x2"):
        with pytest.raises(ConfigError):
            parse_zoom(wrong)
