from __future__ import annotations

import collections
import json

import pytest

from data.benchmarks import read
from data.benchmarks.android_control import read_ui_s1
from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.benchmark import Box


@pytest.fixture(scope="module")
def ui_r1(conformance):
    return read("android_control_low_ui_r1", conformance / "android_control")


@pytest.fixture(scope="module")
def ui_s1(conformance):
    return {mode: read(f"android_control_{mode}_ui_s1", conformance / "android_control") for mode in ("high", "low")}


def kinds(benchmark):
    return dict(collections.Counter((problem.kind, problem.fatal) for problem in benchmark.problems))


def test_ui_r1_is_read_to_the_last_item(ui_r1):
    counts = collections.Counter(item.facets["action"] for item in ui_r1.items)
    assert len(ui_r1.items) == 7868
    assert counts == {"click": 5074, "scroll": 1211, "input_text": 632, "open_app": 608, "navigate_back": 343}
    assert len({item.image.split("-")[0] for item in ui_r1.items}) == 1543


def test_ui_r1_points_beyond_the_declared_screen_are_kept_and_reported(ui_r1):
    assert kinds(ui_r1) == {("label_outside_image", False): 33, ("empty_instruction", False): 10}
    reported = {problem.where for problem in ui_r1.problems if problem.kind == "label_outside_image"}
    outside = {
        item.item_id
        for item in ui_r1.items
        if item.facets["action"] == "click" and max(item.target.action.coordinate) > 1000
    }
    assert reported == outside
    (item,) = (item for item in ui_r1.items if item.item_id == "episode_19928-screenshot_5")
    x, y = item.target.action.coordinate
    assert (x * 1080 / 1000, y * 2400 / 1000) == pytest.approx((1293, 2847))


def test_ui_s1_has_whole_episodes_with_boxes_and_history(ui_s1):
    for benchmark in ui_s1.values():
        assert len(benchmark.items) == 8444
        assert len({item.facets["episode"] for item in benchmark.items}) == 1543
        assert not any(problem.fatal for problem in benchmark.problems)
        counts = collections.Counter(item.target.action.kind for item in benchmark.items)
        assert counts["click"], counts["long_press"] == (5074, 9)
    high, low = (ui_s1[mode].items[1] for mode in ("high", "low"))
    assert high.item_id == low.item_id == "8193_1"
    assert high.image == "8193_1.png"
    assert high.instruction == "I'd like to publish my sculpture art from the gallery."
    assert low.instruction == f"{high.instruction}\nNext step: click on create tab"
    assert high.history == ("go back",)
    assert high.target.boxes == (Box(456, 2211, 624, 2337), Box(0, 473, 1080, 2337))


def test_both_files_label_the_same_steps_alike(ui_r1, ui_s1):
    other = {item.item_id: item.target.action for item in ui_s1["high"].items}
    for item in ui_r1.items:
        step = item.item_id.removeprefix("episode_").replace("-screenshot_", "_")
        assert other[step] == item.target.action


def test_swipes_move_the_finger_against_the_view(ui_r1):
    """What the people were told bears the mapping out, on both axes."""
    agree: collections.Counter[tuple[str, bool]] = collections.Counter()
    words = {"swipe up": (0, -500), "swipe down": (0, 500), "swipe left": (-500, 0), "swipe right": (500, 0)}
    for item in ui_r1.items:
        told = [way for word, way in words.items() if word in item.instruction.lower()]
        if item.facets["action"] == "scroll" and len(told) == 1:
            start, end = item.target.action.coordinate, item.target.action.coordinate2
            axis = "across" if told[0][0] else "down"
            agree[axis, (end[0] - start[0], end[1] - start[1]) == told[0]] += 1
    assert agree["across", True] > 4 * agree["across", False] > 0
    assert agree["down", True] > 6 * agree["down", False] > 0


def test_the_training_form_of_ui_s1_is_labelled_by_its_content(conformance):
    path = conformance / "android_control" / "ui_s1_android_control_train_example.jsonl"
    benchmark = read_ui_s1(path, "high")
    assert len(benchmark.items) == 206
    click, last = benchmark.items[2], benchmark.items[3]
    assert click.target.boxes == (Box(360, 327, 695, 466),)
    assert click.target.action.coordinate[0] == 500
    assert last.target.action == Action("terminate", status="success")


UI_R1 = {"image": "e-1.png", "task": "Tap it", "gt": {"action_type": "click", "x": 540, "y": 600}}


def ui_r1_file(tmp_path, *entries):
    (tmp_path / "ac_test.json").write_text(json.dumps(entries))
    return read("android_control_low_ui_r1", tmp_path)


@pytest.mark.parametrize(
    ("label", "action"),
    [
        ({"action_type": "click", "x": 540, "y": 600}, Action("click", coordinate=(500, 250))),
        ({"action_type": "long_press", "x": 540, "y": 600}, Action("long_press", coordinate=(500, 250), time=2.0)),
        ({"action_type": "scroll", "direction": "down"}, Action("swipe", (500, 750), (500, 250))),
        ({"action_type": "scroll", "direction": "up"}, Action("swipe", (500, 250), (500, 750))),
        ({"action_type": "scroll", "direction": "right"}, Action("swipe", (750, 500), (250, 500))),
        ({"action_type": "scroll", "direction": "left"}, Action("swipe", (250, 500), (750, 500))),
        ({"action_type": "open_app", "app_name": "Maps"}, Action("open", text="Maps")),
        ({"action_type": "input_text", "text": "hi"}, Action("type", text="hi")),
        ({"action_type": "navigate_back"}, Action("system_button", button="Back")),
        ({"action_type": "navigate_home"}, Action("system_button", button="Home")),
        ({"action_type": "wait"}, Action("wait", time=2.0)),
    ],
)
def test_recorded_actions(tmp_path, label, action):
    (item,) = ui_r1_file(tmp_path, {**UI_R1, "gt": label}).items
    assert item.target.action == action
    assert item.facets == {"action": label["action_type"]}
    assert item.size == (1080, 2400)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"gt": {"action_type": "click", "x": 1}}, "bad_field"),
        ({"gt": {"action_type": "click", "x": "1", "y": 2}}, "bad_field"),
        ({"gt": {"action_type": "scroll", "direction": "in"}}, "bad_field"),
        ({"gt": {"action_type": "fly"}}, "unknown_action"),
        ({"gt": {"action_type": "open_app"}}, "missing_field"),
        ({"gt": None}, "missing_field"),
        ({"task": None}, "bad_field"),
        ({"image": "e-0.png"}, "duplicate_id"),
    ],
)
def test_a_malformed_entry_is_one_fatal_problem(tmp_path, change, kind):
    benchmark = ui_r1_file(tmp_path, {**UI_R1, "image": "e-0.png"}, {**UI_R1, **change})
    assert [item.item_id for item in benchmark.items] == ["e-0"]
    assert [(problem.where, problem.kind, problem.fatal) for problem in benchmark.problems] == [
        ("ac_test.json[1]", kind, True)
    ]


STEP = {
    "screenshot": "/somewhere/7_0.png",
    "step_instruction": "do it",
    "check_options": {"action": "click", "coordinate": [540, 600], "candidate_bbox": [[500, 500, 600, 700]]},
}


def ui_s1_file(tmp_path, *steps, **episode):
    path = tmp_path / "android_control_evaluation_std.jsonl"
    path.write_text(json.dumps({"goal": "Go", "episode_id": 7, "steps": steps, **episode}) + "\n\n")
    return read_ui_s1(tmp_path, "low")


def test_ui_s1_swipes_go_by_direction_not_by_the_coordinates_beside_it(tmp_path):
    step = {
        **STEP,
        "action_content": {"action": "swipe", "coordinate": [270, 1200], "coordinate2": [810, 1200]},
        "check_options": {"action": "swipe", "direction": "right"},
    }
    (item,) = ui_s1_file(tmp_path, step).items
    assert item.target.action == Action("swipe", (750, 500), (250, 500))


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        ({**STEP, "check_options": {"action": "click", "coordinate": [1, 2, 3]}}, "bad_field"),
        ({**STEP, "check_options": {"action": "fly"}}, "bad_action"),
        ({**STEP, "check_options": {**STEP["check_options"], "candidate_bbox": [[1, 2, 3]]}}, "bad_box"),
        ({"screenshot": "x.png"}, "missing_field"),
        ({"check_options": STEP["check_options"]}, "missing_field"),
        (3, "bad_entry"),
    ],
)
def test_a_malformed_step_does_not_hide_the_others(tmp_path, step, kind):
    benchmark = ui_s1_file(tmp_path, STEP, step)
    assert [item.item_id for item in benchmark.items] == ["7_0"]
    (problem,) = (problem for problem in benchmark.problems if problem.fatal)
    assert (problem.kind, problem.where) == (kind, "android_control_evaluation_std.jsonl[0].steps[1]")


def test_a_broken_file_is_refused_by_name(tmp_path):
    with pytest.raises(DataError, match="ac_test.json"):
        read("android_control_low_ui_r1", tmp_path)
    path = tmp_path / "android_control_evaluation_std.jsonl"
    path.write_text('{"goal": "x", "steps": []}\n{')
    with pytest.raises(DataError, match="line 2"):
        read_ui_s1(tmp_path, "high")
