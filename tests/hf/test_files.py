from __future__ import annotations

import os

import pytest

from gui_owl_jax.agent.errors import CheckpointError
from gui_owl_jax.hf import files


def test_json_round_trip(tmp_path):
    content = {"a": [1, 2.5, None], "ü": "é\n"}
    files.write_json(tmp_path / "x.json", content)
    assert files.read_json(tmp_path / "x.json") == content
    assert os.listdir(tmp_path) == ["x.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.txt"
    files.write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        files.write_text(path, "new \ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x.txt"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "missing"), (b"{", "not readable"), (b"\xff\xfe", "not readable"), (b"[1]", "expected an object")],
)
def test_bad_json_is_named(tmp_path, content, message):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"x.json.*{message}"):
        files.read_json(path)


SECTION = files.Section(
    {"whole": 3, "number": 2.5, "list": [1, 2], "flag": True, "null": None, "in": {"x": "y"}}, "f.json"
)


def test_fields_that_are_sound():
    assert (SECTION.whole("whole"), SECTION.number("whole"), SECTION.number("number")) == (3, 3.0, 2.5)
    assert (SECTION.wholes("list"), SECTION.flag("flag", False)) == ((1, 2), True)
    assert (SECTION.whole("none", 7), SECTION.number("none", 0.5), SECTION.flag("none", True)) == (7, 0.5, True)
    SECTION.check({"whole": 3, "null": 5, "none": 1})


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda s: s.whole("number"), "f.json has a malformed field: number is 2.5, expected a whole number"),
        (lambda s: s.whole("flag"), "flag is True, expected a whole number"),
        (lambda s: s.whole("null", 3), "null is None, expected a whole number"),
        (lambda s: s.number("list"), r"list is \[1, 2\], expected a number"),
        (lambda s: s.wholes("whole"), "whole is 3, expected a list of whole numbers"),
        (lambda s: s.flag("whole", True), "whole is 3, expected true or false"),
        (lambda s: s.section("whole"), "whole is 3, expected an object"),
        (lambda s: s.whole("none"), "f.json lacks the field 'none'"),
        (lambda s: s.section("in").whole("none"), "f.json: in lacks the field 'none'"),
        (lambda s: s.section("in").check({"x": "z"}), "f.json: in: x is 'y'; only 'z' is implemented"),
    ],
)
def test_fields_that_are_not(read, message):
    with pytest.raises(CheckpointError, match=message):
        read(SECTION)
