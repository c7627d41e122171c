from __future__ import annotations

import copy
import dataclasses
import json

import numpy as np
import pytest

from gui_owl_jax.agent.actions import TOOL_KIND, Action
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.agent.trajectory import (
    STEP_ARRAYS,
    Observation,
    Step,
    Trajectory,
    trajectory_arrays,
    trajectory_from_json,
    trajectory_to_json,
)

IMAGE = np.zeros((4, 6, 3), np.uint8)
IDS = np.array([5, 6, 7], np.int32)
LOGPS = np.array([-0.1, -0.2, -0.3], np.float32)
TAP = Action("click", coordinate=(1.0, 2.0))


def step(**changes) -> Step:
    return Step(**{"observation": Observation(IMAGE), "action": TAP, **changes})


def trajectory(**changes) -> Trajectory:
    values = {
        "task_id": "demo/1",
        "app": "demo",
        "family": DeviceFamily.MOBILE,
        "instruction": "Tap Send.",
        "steps": (step(), step()),
        "outcome": 1,
        "source": "rpa",
    }
    return Trajectory(**{**values, **changes})


def assert_same(left: Trajectory, right: Trajectory) -> None:
    for field in dataclasses.fields(Trajectory):
        if field.name != "steps":
            assert getattr(left, field.name) == getattr(right, field.name)
    assert len(left.steps) == len(right.steps)
    for one, other in zip(left.steps, right.steps):
        np.testing.assert_array_equal(one.observation.image, other.observation.image)
        assert one.observation.text == other.observation.text
        for field in dataclasses.fields(Step):
            if field.name in STEP_ARRAYS:
                np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))
                assert (getattr(one, field.name) is None) == (getattr(other, field.name) is None)
            elif field.name != "observation":
                assert getattr(one, field.name) == getattr(other, field.name)


def test_json_round_trip(trajectories):
    for original in trajectories:
        header = json.loads(json.dumps(trajectory_to_json(original)))
        images = [one.observation.image for one in original.steps]
        arrays = trajectory_arrays(original)
        assert_same(trajectory_from_json(header, images, arrays), original)
        assert len(arrays) == sum(array is not None for one in original.steps for array in _arrays(one))


def test_json_holds_no_pixels_and_no_arrays():
    text = json.dumps(trajectory_to_json(trajectory(steps=(step(token_ids=IDS, logps=LOGPS),))))
    assert '"arrays": ["token_ids", "logps"]' in text and len(text) < 700


def test_size_of_an_observation_is_width_and_height():
    observation = Observation(IMAGE)
    assert (observation.width, observation.height, observation.text) == (6, 4, "")


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (IMAGE.astype(np.float32), "float32"),
        (IMAGE[..., 0], r"\[4, 6\]"),
        (np.zeros((4, 6, 4), np.uint8), r"\[4, 6, 4\]"),
        (np.zeros((0, 6, 3), np.uint8), r"\[0, 6, 3\]"),
        ([[0]], "list"),
    ],
)
def test_a_malformed_image_is_refused(image, message):
    with pytest.raises(DataError, match=message):
        Observation(image)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observation": IMAGE}, "observation is ndarray"),
        ({"conclusion": None}, "conclusion is NoneType"),
        ({"action": {"kind": "click"}}, "action is dict"),
        ({"error": "bad_json"}, "although there is an action"),
        ({"token_ids": IDS.astype(np.int64)}, "token_ids is int64"),
        ({"token_ids": [1, 2]}, "token_ids is list"),
        ({"token_ids": IDS[None]}, r"token_ids is int32 \[1, 3\]"),
        ({"token_ids": -IDS}, "negative ids"),
        ({"logps": LOGPS}, "3 entries for no token_ids"),
        ({"token_ids": IDS, "logps": LOGPS[:2]}, "2 entries for 3 token_ids"),
        ({"token_ids": IDS, "logps": LOGPS.astype(np.float64)}, "logps is float64"),
        ({"token_ids": IDS, "sampler_logps": LOGPS * np.inf}, "not finite"),
        ({"prompt_ids": IDS.astype(np.uint32)}, "prompt_ids is uint32"),
        ({"image_steps": [0]}, "must be a tuple"),
        ({"image_steps": (1, 0)}, "must rise"),
        ({"image_steps": (0, 0)}, "must rise"),
        ({"image_steps": (-1,)}, "step indices"),
    ],
)
def test_a_malformed_step_is_refused(changes, message):
    with pytest.raises(DataError, match=message):
        step(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task_id": ""}, "task_id is empty"),
        ({"app": None}, "app is NoneType"),
        ({"family": "mobile"}, "family is str"),
        ({"steps": [step()]}, "steps is list"),
        ({"steps": (IMAGE,)}, r"steps\[0\] is ndarray"),
        ({"outcome": True}, "outcome is True"),
        ({"outcome": 0.5}, "outcome is 0.5"),
        ({"outcome": 2}, "outcome is 2"),
        ({"outcome": 0, "failure": "timeout"}, r"infrastructure failed \(timeout\)"),
        ({"source": "robot"}, "source is 'robot', must be one of rpa, policy, human"),
        ({"seed": 1.0}, "seed is 1.0"),
        ({"subtasks": (1, 0)}, "tuple of bool"),
        ({"metadata": [1]}, "metadata is list"),
        ({"steps": (step(image_steps=(0, 1)), step())}, r"steps\[0\].image_steps .* later screen"),
        ({"family": DeviceFamily.DESKTOP}, r"steps\[0\].action does not fit desktop: unknown_action"),
        ({"steps": (step(), step(action=Action("click")))}, r"steps\[1\].action does not fit mobile: missing_argument"),
    ],
)
def test_a_malformed_trajectory_is_refused_and_named(changes, message):
    with pytest.raises(DataError, match=f"trajectory of task .*{message}"):
        trajectory(**changes)


def test_what_must_be_possible():
    assert trajectory(steps=(), outcome=None, failure="died: the process ended").steps == ()
    assert trajectory(steps=(step(action=Action(TOOL_KIND, text="search")),)).outcome == 1
    assert trajectory(steps=(step(action=None, error="bad_json", response="?"),), outcome=0).outcome == 0


def _edit(path, value):
    def edit(header):
        target = header
        for key in path[:-1]:
            target = target[key]
        if value is _DELETE:
            del target[path[-1]]
        else:
            target[path[-1]] = value

    return edit


_DELETE = object()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_edit(["seed"], _DELETE), r"missing fields \['seed'\]"),
        (_edit(["reward"], 1), r"unknown fields \['reward'\]"),
        (_edit(["family"], "phone"), "family is 'phone'"),
        (_edit(["outcome"], "1"), "outcome is '1'"),
        (_edit(["steps"], None), "steps is NoneType"),
        (_edit(["steps"], []), "2 images for 0 steps"),
        (_edit(["steps", 1, "thought"], _DELETE), r"steps\[1\]: missing fields \['thought'\]"),
        (_edit(["steps", 1, "reward"], 1), r"steps\[1\]: missing fields \[\], unknown fields \['reward'\]"),
        (_edit(["steps", 1], "x"), r"steps\[1\] is str"),
        (_edit(["steps", 0, "thought"], 3), r"steps\[0\]: thought is int"),
        (_edit(["steps", 0, "observation_text"], None), r"steps\[0\]: observation text is NoneType"),
        (_edit(["steps", 0, "arrays"], ["token_ids", "logps", "rewards"]), r"steps\[0\].arrays names 'rewards'"),
        (_edit(["steps", 0, "arrays"], ["token_ids", "logps", "prompt_ids"]), "array '0.prompt_ids' is missing"),
        (_edit(["steps", 0, "arrays"], ["token_ids"]), r"no step names: \['0.logps'\]"),
        (_edit(["steps", 0, "action", "speed"], 1), r"steps\[0\]: action has unknown fields \['speed'\]"),
        (_edit(["steps", 0, "action", "kind"], _DELETE), "must be an object with a kind"),
        (_edit(["steps", 0, "action", "coordinate"], [1]), r"steps\[0\].action does not fit mobile: bad_argument"),
        (_edit(["steps", 0, "action"], "click"), "must be an object with a kind"),
        (_edit(["subtasks"], [1]), "tuple of bool"),
    ],
)
def test_a_damaged_header_is_refused_and_named(edit, message):
    original = trajectory(steps=(step(token_ids=IDS, logps=LOGPS), step()))
    header = copy.deepcopy(trajectory_to_json(original))
    edit(header)
    with pytest.raises(DataError, match=message):
        trajectory_from_json(header, [IMAGE, IMAGE], trajectory_arrays(original))


@pytest.mark.parametrize("value", [{"a": (1, 2)}, {"a": np.float32(1)}, {"a": float("nan")}, {1: "a"}, {"a": IMAGE}])
def test_metadata_that_would_change_on_disk_is_refused(value):
    with pytest.raises(DataError, match="demo/1.*metadata"):
        trajectory_to_json(trajectory(metadata=value))


def _arrays(one: Step) -> list:
    return [getattr(one, name) for name in STEP_ARRAYS]
