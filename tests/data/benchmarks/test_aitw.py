from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from data.benchmarks import read
from data.benchmarks.aitw import extract_screenshots
from gui_owl_jax.agent.actions import Action
from gui_owl_jax.evals.benchmark import Box

WIDTH, HEIGHT = 5, 8


def step(number=0, **changes):
    return {
        "episode_id": ["77"],
        "step_id": [number],
        "goal_info": ["Turn it on"],
        "image/width": [WIDTH],
        "image/height": [HEIGHT],
        "image/channels": [3],
        "image/encoded": [bytes((number * 50 + index) % 256 for index in range(WIDTH * HEIGHT * 3))],
        "image/ui_annotations_positions": [0.25, 0.2, 0.5, 0.4],
        "results/action_type": [4],
        "results/type_action": [""],
        "results/yx_touch": [0.5, 0.25],
        "results/yx_lift": [0.5, 0.25],
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "action", "name"),
    [
        ({}, Action("click", coordinate=(250, 500)), "gesture"),
        ({"results/yx_lift": [0.5, 0.28125]}, Action("click", coordinate=(250, 500)), "gesture"),
        ({"results/yx_lift": [0.5, 0.3125]}, Action("swipe", (250, 500), (312.5, 500)), "gesture"),
        ({"results/action_type": [3], "results/type_action": ["tea"]}, Action("type", text="tea"), "type"),
        ({"results/action_type": [5]}, Action("system_button", button="Back"), "press_back"),
        ({"results/action_type": [6]}, Action("system_button", button="Home"), "press_home"),
        ({"results/action_type": [7]}, Action("system_button", button="Enter"), "press_enter"),
        ({"results/action_type": [10]}, Action("terminate", status="success"), "task_complete"),
        ({"results/action_type": [11]}, Action("terminate", status="failure"), "task_impossible"),
    ],
)
def test_recorded_actions(tmp_path, write_records, changes, action, name):
    write_records(tmp_path / "general-0", [step(**changes)])
    (item,) = read("aitw", tmp_path).items
    assert item.target.action == action
    assert item.facets == {"action": name, "episode": "77"}
    assert (item.item_id, item.size, item.instruction) == ("77_0", (WIDTH, HEIGHT), "Turn it on")
    (box,) = item.target.boxes
    assert (box.left, box.top, box.right, box.bottom) == pytest.approx((1, 2, 3, 6))
    assert isinstance(box, Box)


def test_screenshots_are_extracted_pixel_for_pixel(tmp_path, write_records):
    (tmp_path / "records").mkdir()
    steps = [step(0), step(1), step(2, **{"image/encoded": [b"short"]})]
    write_records(tmp_path / "records" / "general-0", steps)
    assert extract_screenshots(tmp_path / "records", tmp_path / "images") == 2
    for item, raw in zip(read("aitw", tmp_path / "records").items, steps[:2]):
        with Image.open(tmp_path / "images" / item.image) as image:
            assert np.asarray(image).tobytes() == raw["image/encoded"][0]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"results/action_type": [8]}, "unknown_action"),
        ({"results/yx_touch": [0.5]}, "bad_field"),
        ({"image/ui_annotations_positions": [0.5, 0.5]}, "bad_box"),
        ({"goal_info": []}, "bad_field"),
        ({"image/width": [0]}, "bad_field"),
        ({"step_id": [0]}, "duplicate_id"),
    ],
)
def test_a_malformed_step_is_one_problem(tmp_path, write_records, changes, kind):
    write_records(tmp_path / "general-0", [step(0), step(1, **changes)])
    benchmark = read("aitw", tmp_path)
    assert [item.item_id for item in benchmark.items] == ["77_0"]
    assert [(problem.kind, problem.where) for problem in benchmark.problems] == [(kind, "general-0[1]")]
