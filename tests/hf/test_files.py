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
