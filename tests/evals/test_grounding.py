"""The rule by which a click counts, on edges, in the virtual world, and on recorded verdicts for real answers."""

from __future__ import annotations

import json

import pytest

from data.grounding import click_action, click_elements
from envs.virtual import tasks, world
from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.devices import DEVICE_FAMILIES, DeviceFamily
from gui_owl_jax.agent.elements import AnnotatedScreen, ScreenElement
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.grounding import GroundingTrial, accuracy, click_hits

BOX = ScreenElement("Send", "button", (32, 64, 64, 32))  # x 32..96, y 64..96 on a screen of 128x128


def click(x: float, y: float, kind: str = "click") -> Action:
    return Action(kind, coordinate=(x, y))


@pytest.mark.parametrize(
    ("x", "y", "hit"),
    [
        (250, 500, True),  # left upper corner: exactly 32, 64
        (750, 750, True),  # right lower corner: exactly 96, 96
        (250, 750, True),
        (750, 500, True),
        (500, 600, True),
        (249.9, 600, False),
        (750.1, 600, False),
        (500, 499.9, False),
        (500, 750.1, False),
        (600, 500, True),  # x and y not confused: as (500, 600) it would be inside too, so:
        (700, 505, True),
        (505, 450, False),
        (260, 700, True),
        (700, 260, False),
    ],
)
def test_point_in_box_with_all_edges(x, y, hit):
    assert click_hits(click(x, y), BOX, 128, 128) is hit


def test_axes_are_scaled_by_their_own_size():
    box = ScreenElement("Send", "button", (480, 0, 10, 10))
    assert click_hits(click(500, 50), box, 960, 100)
    assert not click_hits(click(500, 50), box, 100, 960)


@pytest.mark.parametrize("size", [7, 96, 100, 333, 1000, 1080, 2560])
def test_edges_are_exact_in_floating_point(size):
    for k in range(0, 1001):
        if k * size % 1000 == 0:  # the point falls on a whole pixel
            edge = k * size // 1000
            box = ScreenElement("", "button", (edge, edge, 0, 0))
            assert click_hits(click(k, k), box, size, size)


def test_labels_are_compared_on_the_web():
    element = ScreenElement("Cart", "button", (0, 0, 10, 10), label=3)
    assert click_hits(Action("click", label=3), element, 128, 128)
    assert not click_hits(Action("click", label=4), element, 128, 128)
    with pytest.raises(DataError, match="'Send' has no label"):
        click_hits(Action("click", label=3), BOX, 128, 128)


@pytest.mark.parametrize(
    "action",
    [
        None,
        Action("type", text="Send"),
        Action("left_click_drag", coordinate=(500, 600)),
        Action("mouse_move", coordinate=(500, 600)),
        Action("swipe", coordinate=(500, 600), coordinate2=(500, 100)),
        Action("click"),
        Action("scroll", label=3, direction="down"),
    ],
)
def test_what_is_no_click_misses(action):
    element = ScreenElement("Send", "button", BOX.box, label=3)
    assert not click_hits(action, element, 128, 128)


@pytest.mark.parametrize("kind", ["click", "left_click", "double_click", "right_click", "long_press"])
def test_the_kind_of_click_does_not_matter(kind):
    assert click_hits(click(500, 600, kind), BOX, 128, 128)


@pytest.mark.parametrize("family", DEVICE_FAMILIES)
def test_a_click_on_an_element_of_a_real_screen_hits_it_and_no_other(family):
    for task in tasks.tasks(family, "heldout", 6, seed=3):
        result = world.World().reset(task)
        height, width = result.observation.image.shape[:2]
        named = click_elements(AnnotatedScreen(result.observation.image, result.elements, family))
        assert named
        for element in named:
            action = click_action(family, element, width, height)
            hit = [other for other in named if click_hits(action, other, width, height)]
            assert hit == [element]


def test_accuracy_counts_by_family():
    web = ScreenElement("Cart", "button", (0, 0, 9, 9), label=1)
    trials = [
        GroundingTrial(DeviceFamily.MOBILE, click(500, 600), BOX, 128, 128),
        GroundingTrial(DeviceFamily.MOBILE, click(1, 1), BOX, 128, 128),
        GroundingTrial(DeviceFamily.MOBILE, None, BOX, 128, 128),
        GroundingTrial(DeviceFamily.WEB, Action("click", label=1), web, 128, 128),
    ]
    score = accuracy(trials)
    assert (score.hits, score.trials) == (2, 4)
    assert score.families == {"mobile": (1, 3), "web": (1, 1)}
    assert score.rate.mean == 0.5
    assert accuracy([]).to_json() == {"hits": 0, "trials": 0, "families": {}}


@pytest.mark.parametrize(
    ("name", "hits", "trials"), [("SSV2", 1207, 1272), ("SSPro", 1060, 1581), ("OS_G", 323, 470)]
)
def test_recorded_verdicts_on_real_answers(conformance, name, hits, trials):
    """Published answers of a grounding model on ScreenSpot-v2, ScreenSpot-Pro and the rectangles of OSWorld-G."""
    path = conformance / "grounding" / "answers" / f"{name}.jsonl"
    found, wrong, total = 0, [], 0
    for line in path.read_text().splitlines():
        answer = json.loads(line)
        if len(answer["bbox"]) != 4 or not any(answer["bbox"]):
            continue  # polygons, and questions that are to be refused
        left, top, right, bottom = answer["bbox"]
        action = None
        if answer["pred_norm"]:
            action = click(*(round(1000 * value, 6) for value in answer["pred_norm"]))
        element = ScreenElement("", "", (left, top, right - left, bottom - top))
        hit = click_hits(action, element, *answer["img_size"])
        total += 1
        found += hit
        if hit != (answer["correctness"] == "correct"):
            wrong.append(answer["id"])
    assert (found, total, wrong) == (hits, trials, [])
