from __future__ import annotations

import json

import pytest

from gui_owl_jax.agent.errors import ConfigError, DataError
from gui_owl_jax.evals.answers import (
    AnswerStore,
    answer_from_json,
    answer_to_json,
    read_answers,
    write_answers,
)
from gui_owl_jax.evals.benchmark import Answer, Look

SETTINGS = {"benchmark": "small", "sampler": {"temperature": 0.0}, "sizes": (1, 2)}
# What models write: halves of surrogate pairs, newlines, other scripts.
ODD = 'Tap "Speichern"\n\ud83d \u4e2d\u2028\\'


def answer(name: str, words: str = ODD) -> Answer:
    window = (0.0, 0.5, 100.0, 50.25)
    return Answer(name, (Look(words, window, (96, 64)), Look("again", window, (32, 32))), (100, 50))


def stored(path, **options) -> list[Answer]:
    with AnswerStore(path, SETTINGS, **options) as store:
        return list(store.answers.values())


def fill(path, *answers: Answer) -> None:
    with AnswerStore(path, SETTINGS) as store:
        store.append(answers)


def test_answers_come_back_as_they_were(tmp_path):
    path = tmp_path / "folder" / "answers.jsonl"
    fill(path, answer("a"), Answer("b", failure="image b.png is missing"))
    fill(path, answer("c"))
    settings, answers = read_answers(path)
    assert settings == json.loads(json.dumps(SETTINGS))
    assert answers == [answer("a"), Answer("b", failure="image b.png is missing"), answer("c")]


def test_every_prefix_of_a_file_can_be_gone_on_with(tmp_path):
    """A kill may leave any number of bytes behind; whole lines stay, and the file ends as if nothing had happened."""
    path, names = tmp_path / "answers.jsonl", "abc"
    fill(path, *(answer(name, "words") for name in names))
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with AnswerStore(path, SETTINGS) as store:
            assert len(store.answers) == max(0, whole[:length].count(b"\n") - 1)
            store.append([answer(name, "words") for name in names if name not in store])
        assert path.read_bytes() == whole


def test_other_settings_are_an_error_that_names_them(tmp_path):
    path = tmp_path / "answers.jsonl"
    fill(path, answer("a"))
    with pytest.raises(ConfigError, match=r"sampler = \{'temperature': 0.0\}, now it is \{'temperature': 1.0\}"):
        AnswerStore(path, {**SETTINGS, "sampler": {"temperature": 1.0}})
    with pytest.raises(ConfigError, match="zoom = None, now it is 2"):
        AnswerStore(path, {**SETTINGS, "zoom": 2})
    assert stored(path) == [answer("a")]


def test_no_item_is_answered_twice(tmp_path):
    path = tmp_path / "answers.jsonl"
    fill(path, answer("a"))
    before = path.read_bytes()
    with AnswerStore(path, SETTINGS) as store:
        for twice in ([answer("a")], [answer("b"), answer("b")]):
            with pytest.raises(DataError, match="has an answer already"):
                store.append(twice)
    assert path.read_bytes() == before


def test_failures_are_asked_again_only_when_told_to(tmp_path):
    path = tmp_path / "answers.jsonl"
    fill(path, Answer("a", failure="busy"), answer("b"))
    assert [a.item_id for a in stored(path)] == ["a", "b"]
    with AnswerStore(path, SETTINGS, retry_failed=True) as store:
        assert "a" not in store and "b" in store
        store.append([answer("a")])
    assert sorted(stored(path), key=lambda a: a.item_id) == [answer("a"), answer("b")]


def test_processes_know_what_others_answered(tmp_path):
    fill(tmp_path / "answers-1.jsonl", answer("b"))
    with open(tmp_path / "answers-1.jsonl", "a") as file:
        file.write('{"item_id": "c", "lo')  # its process may be writing
    fill(tmp_path / "answers.jsonl", answer("b"))
    others = [tmp_path / "answers-1.jsonl", tmp_path / "answers.jsonl"]
    assert stored(tmp_path / "answers-0.jsonl", others=others) == [answer("b")]
    assert (tmp_path / "answers-1.jsonl").read_text().endswith('"lo')
    fill(tmp_path / "answers-2.jsonl", answer("b", "something else"))
    with pytest.raises(DataError, match="'b' has two answers"):
        stored(tmp_path / "answers-0.jsonl", others=[*others, tmp_path / "answers-2.jsonl"])


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "line 3 is not JSON"),
        ("[]", "line 3: no answer"),
        ('{"item_id": "x"}', "looks"),
        ('{"item_id": 3, "looks": [], "size": null, "failure": ""}', "3 must be a string"),
        ('{"item_id": "x", "looks": [], "size": [1], "failure": ""}', "list of 2 numbers"),
    ],
)
def test_damaged_lines_are_named(tmp_path, line, named):
    path = tmp_path / "answers.jsonl"
    fill(path, answer("a"))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError, match=named):
        read_answers(path)
    with pytest.raises(DataError, match=str(path)):
        AnswerStore(path, SETTINGS)


@pytest.mark.parametrize("content", ["", '{"item_id": "a"}\n', "[1]\n"])
def test_files_of_another_kind_are_named(tmp_path, content):
    path = tmp_path / "other.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match="settings of the answers"):
        read_answers(path)
    with pytest.raises(DataError, match="absent.jsonl"):
        read_answers(tmp_path / "absent.jsonl")


def test_whole_files_are_written_at_once(tmp_path):
    path = tmp_path / "answers.jsonl"
    (tmp_path / "answers.jsonl.part").write_text("left behind")
    write_answers(path, SETTINGS, [answer("a"), answer("b")])
    assert [a.item_id for a in read_answers(path)[1]] == ["a", "b"] and len(list(tmp_path.iterdir())) == 1


def test_json_keeps_all_fields():
    assert answer_from_json(json.loads(json.dumps(answer_to_json(answer("a")))), "here") == answer("a")
