from __future__ import annotations

import json

import pytest

from data.benchmarks import published_answers
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import ConfigError, DataError
from gui_owl_jax.evals.answers import write_answers
from gui_owl_jax.evals.benchmark import Answer, Benchmark, Box, Item, Look

BOX = Box(0, 0, 9, 9)
BENCHMARK = Benchmark(
    "small",
    (
        Item("a", "Press a", BOX, DeviceFamily.DESKTOP, "a.png", (96, 48)),
        Item("b", "Press b", BOX, DeviceFamily.DESKTOP, "b.png"),
    ),
)


def test_mai_ui_rows_become_answers_about_the_whole_image(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps({"id": "a", "raw_response": "<answer>\u2028</answer>", "pred": [1, 2]}) + "\n\n")
    (answer,) = published_answers.read("mai_ui", path, BENCHMARK)
    assert answer == Answer("a", (Look("<answer>\u2028</answer>", (0.0, 0.0, 96.0, 48.0), (96, 48)),))


def test_own_answers_are_read_without_their_settings(tmp_path):
    write_answers(tmp_path / "own.jsonl", {"policy": "x"}, [Answer("a", failure="busy")])
    assert published_answers.read("own", tmp_path / "own.jsonl", BENCHMARK) == [Answer("a", failure="busy")]


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("{", "line 1"),
        ("[]", "line 1: no row"),
        ('{"id": "a"}', "raw_response"),
        ('{"id": "a", "raw_response": 3}', "int, must be a string"),
        ('{"id": "z", "raw_response": ""}', "'z' is no item"),
        ('{"id": ["a"], "raw_response": ""}', "is no item"),
        ('{"id": "b", "raw_response": ""}', "does not declare the size of 'b.png'"),
    ],
)
def test_bad_rows_are_named(tmp_path, row, named):
    (tmp_path / "answers.jsonl").write_text(row)
    with pytest.raises(DataError, match=named):
        published_answers.read("mai_ui", tmp_path / "answers.jsonl", BENCHMARK)


def test_formats_and_files_that_are_not_there_are_named(tmp_path):
    with pytest.raises(ConfigError, match="'jedi', must be one of own, mai_ui"):
        published_answers.read("jedi", tmp_path / "x", BENCHMARK)
    for form in published_answers.FORMATS:
        with pytest.raises(DataError, match="absent.jsonl"):
            published_answers.read(form, tmp_path / "absent.jsonl", BENCHMARK)
