from __future__ import annotations

import json

import pytest

from data.benchmarks import read
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.benchmark import Choice

QUESTION = {
    "question_id": "q1",
    "question_type": "multiple_choice",
    "question_text": "What does the gear open?",
    "question_image_dir_list": ["a.png"],
    "option_text": ["Settings", "Mail", "Camera"],
    "groundtruth": "b",
    "knowledge": {"knowledge_type": "InterfacePerception", "knowledge_sub_type": "Icon"},
    "os_type": "Android",
    "app_type": "Office",
}


def folder(tmp_path, *questions):
    for index, question in enumerate(questions):
        path = tmp_path / "KnowledgeBench" / "part" / f"{index}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(question if isinstance(question, str) else json.dumps(question))
    return read("gui_knowledge_bench", tmp_path)


def test_multiple_choice(tmp_path):
    benchmark = folder(tmp_path, QUESTION)
    (item,) = benchmark.items
    assert benchmark.problems == ()
    assert item.target == Choice("B", ("A", "B", "C"))
    assert item.instruction == "What does the gear open?\nA. Settings\nB. Mail\nC. Camera"
    assert item.family is DeviceFamily.MOBILE
    assert item.image == "a.png"
    assert item.facets == {
        "category": "InterfacePerception",
        "subcategory": "Icon",
        "platform": "Android",
        "application": "Office",
    }


def test_yes_or_no_and_the_augmented_question(tmp_path):
    changes = {"question_type": ["yes_or_no"], "groundtruth": "No", "augmented_question": "Is it done?"}
    (item,) = folder(tmp_path, {**QUESTION, **changes, "os_type": "Windows"}).items
    assert item.target == Choice("no", ("yes", "no", "unknown"))
    assert item.instruction == "Is it done?"
    assert item.family is DeviceFamily.DESKTOP


def test_options_that_are_images_follow_those_of_the_question(tmp_path):
    pictures = {"option_text": [], "option_image_dir_list": ["x.png", "y.png"], "question_id": "q2"}
    both = {"option_text": ["left", "right"], "option_image_dir_list": ["x.png", "y.png"], "question_id": "q3"}
    screens = {"question_image_dir_list": ["a.png", "b.png"], "question_id": "q4"}
    changes = (pictures, both, {**pictures, **screens})
    benchmark = folder(tmp_path, QUESTION, *({**QUESTION, **change} for change in changes))
    assert not benchmark.problems
    one, two, three, four = benchmark.items
    assert one.images == (one.image,) and two.images == (one.image, "x.png", "y.png")
    assert two.target == Choice("B", ("A", "B"))
    assert two.instruction.splitlines()[1:] == ["A. (image 2)", "B. (image 3)"]
    assert three.instruction.splitlines()[1:] == ["A. left (image 2)", "B. right (image 3)"]
    assert four.images == ("a.png", "b.png", "x.png", "y.png")
    assert four.instruction.splitlines()[1:] == ["A. (image 3)", "B. (image 4)"]
    (problem,) = folder(tmp_path / "wrong", {**QUESTION, **both, "option_text": ["one"]}).problems
    assert problem.kind == "bad_field" and problem.fatal


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("{", "bad_entry"),
        ("[]", "bad_entry"),
        ({**QUESTION, "groundtruth": "D"}, "bad_field"),
        ({**QUESTION, "groundtruth": ""}, "bad_field"),
        ({**QUESTION, "question_type": "essay"}, "bad_field"),
        ({**QUESTION, "option_text": ["one"]}, "bad_field"),
        ({**QUESTION, "option_text": list("abcdefghi")}, "bad_field"),
        ({**QUESTION, "knowledge": None}, "missing_field"),
        (QUESTION, "duplicate_id"),
    ],
)
def test_a_malformed_question_is_one_problem(tmp_path, question, kind):
    benchmark = folder(tmp_path, QUESTION, question)
    assert len(benchmark.items) == 1
    assert [(problem.where, problem.kind, problem.fatal) for problem in benchmark.problems] == [
        ("part/1.json", kind, True)
    ]


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match="no question"):
        read("gui_knowledge_bench", tmp_path)
