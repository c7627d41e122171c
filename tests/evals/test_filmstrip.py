"""Film strips: pixels, places of marks, escaping, and the choice of episodes."""

from __future__ import annotations

import base64
import dataclasses
import io
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image

from gui_owl_jax.agent.actions import TOOL_KIND, Action
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.trajectory import Observation, Step, Trajectory
from gui_owl_jax.evals import filmstrip


def screen(width: int = 96, height: int = 160, seed: int = 0) -> np.ndarray:
    """A few flat colours, as user interfaces have."""
    blocks = np.random.default_rng(seed).integers(0, 256, (height // 16, width // 16, 3))
    return np.repeat(np.repeat(blocks, 16, 0), 16, 1).astype(np.uint8)


def episode(*actions: Action | None, family=DeviceFamily.MOBILE, image=None, **fields) -> Trajectory:
    image = screen() if image is None else image
    steps = tuple(
        Step(Observation(image), conclusion="Do it.", action=action, error="" if action else "bad_json")
        for action in actions
    )
    values = dict(task_id="t", app="app", family=family, instruction="Open Mia.", outcome=1, source="policy")
    return Trajectory(steps=steps, **{**values, **fields})


def parse(strip: str) -> ElementTree.Element:
    """Reads a strip as XML: only images have no end tag."""
    head, *rest = strip.split("<img")
    return ElementTree.fromstring(head + "".join("<img" + part.replace(">", "/>", 1) for part in rest))


def shapes(strip: str, kind: str, mark: str = "mark") -> list[ElementTree.Element]:
    return [shape for shape in parse(strip).iter(kind) if shape.get("class") == mark]


def decoded(uri: str) -> np.ndarray:
    assert uri.startswith("data:image/png;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))).convert("RGB"))


def test_small_screens_are_kept_exactly_and_shown_larger():
    uri, size = filmstrip.data_uri(screen())
    np.testing.assert_array_equal(decoded(uri), screen())
    assert size == (192, 320)
    assert filmstrip.data_uri(screen(160, 96))[1] == (320, 192)
    assert filmstrip.data_uri(screen(128, 128))[1] == (256, 256)


def test_many_colours_are_kept_exactly():
    image = np.random.default_rng(0).integers(0, 256, (64, 48, 3)).astype(np.uint8)
    np.testing.assert_array_equal(decoded(filmstrip.data_uri(image)[0]), image)


def test_large_screens_are_scaled_down():
    uri, size = filmstrip.data_uri(screen(1920, 1088))
    assert size == (320, 181)
    assert decoded(uri).shape == (181, 320, 3)
    strip = filmstrip.strip(episode(Action("click", coordinate=(500, 250)), image=screen(1920, 1088)))
    (ring,) = shapes(strip, "circle")
    assert (float(ring.get("cx")), float(ring.get("cy"))) == (960, 272)  # in pixels of the original, as the viewBox is
    assert 'viewBox="0 0 1920 1088"' in strip
    assert "crisp" not in strip


@pytest.mark.parametrize(("kind", "rings"), [("click", 1), ("long_press", 2), ("double_click", 2), ("triple_click", 3)])
def test_rings_stand_at_the_place_of_the_action(kind, rings):
    drawing = ElementTree.fromstring(f"<svg>{filmstrip.overlay(Action(kind, coordinate=(500, 900)), 96, 160)}</svg>")
    found = [shape for shape in drawing if shape.get("class") == "mark"]
    assert len(found) == rings
    assert {(shape.get("cx"), shape.get("cy")) for shape in drawing} == {("48", "144")}


def test_a_swipe_is_an_arrow_from_start_to_end():
    strip = filmstrip.strip(episode(Action("swipe", coordinate=(500, 900), coordinate2=(500, 100))))
    (line,) = shapes(strip, "path")
    assert line.get("d").startswith("M48 144L48 ")
    (head,) = shapes(strip, "polygon", "dot")
    assert head.get("points").split()[0] == "48,16"


def test_a_drag_starts_where_the_cursor_was():
    moves = (Action("mouse_move", coordinate=(100, 500)), Action("left_click_drag", coordinate=(900, 500)))
    strip = filmstrip.strip(episode(*moves, family=DeviceFamily.DESKTOP, image=screen(160, 96)))
    (line,) = shapes(strip, "path")
    assert line.get("d").startswith("M16 48L")
    (head,) = shapes(strip, "polygon", "dot")
    assert head.get("points").split()[0] == "144,48"
    # The place where an unseen drag began is not made up.
    alone = filmstrip.strip(episode(moves[1], family=DeviceFamily.DESKTOP, image=screen(160, 96)))
    assert shapes(alone, "path") == [] and len(shapes(alone, "circle")) == 1


def test_a_mark_is_framed_where_the_trajectory_says_it_was():
    actions = (
        Action("click", label=2),
        Action("type", label=7, text="Mia"),
        Action("scroll", label="WINDOW", direction="up"),
    )
    marks = [{"1": [0, 0, 64, 32], "2": [64, 32, 64, 32]}, {"7": [0, 96, 128, 32]}, {}]
    web = dict(family=DeviceFamily.WEB, image=screen(128, 128))
    frames = shapes(filmstrip.strip(episode(*actions, metadata={"marks": marks}, **web)), "rect")
    boxes = [tuple(float(frame.get(name)) for name in ("x", "y", "width", "height")) for frame in frames]
    assert boxes == [(64, 32, 64, 32), (0, 96, 128, 32)]


@pytest.mark.parametrize("marks", [None, [], "words", [[1]], [{"2": [1, 2]}], [{"2": "abcd"}], [{"1": [0, 0, 9, 9]}]])
def test_without_the_place_of_a_mark_nothing_is_drawn(marks):
    strip = filmstrip.strip(
        episode(Action("click", label=2), family=DeviceFamily.WEB, image=screen(128, 128), metadata={"marks": marks})
    )
    assert "<svg" not in strip and "click mark 2" in strip


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (Action("click", coordinate=(512, 384.5)), "click (512, 384.5)"),
        (Action("type", text="Lunch"), 'type "Lunch"'),
        (Action("key", keys=("ctrl", "s")), "key ctrl + s"),
        (Action("swipe", coordinate=(1, 2), coordinate2=(3, 4)), "swipe (1, 2) to (3, 4)"),
        (Action("scroll", pixels=-96), "scroll -96 px"),
        (Action("scroll", label="WINDOW", direction="down"), "scroll mark WINDOW down"),
        (Action("select", label=3, option="Red"), 'select mark 3 "Red"'),
        (Action("long_press", coordinate=(1, 2), time=2.0), "long_press (1, 2) 2 s"),
        (Action("system_button", button="Back"), "system_button Back"),
        (Action("terminate", status="failure"), "terminate failure"),
        (Action(TOOL_KIND, text="search"), "tool search"),
    ],
)
def test_actions_in_words(action, text):
    assert filmstrip.describe(action) == text


def test_everything_that_a_model_wrote_is_escaped():
    attack = "<script>alert(1)</script>\"'&</pre>"
    steps = tuple(
        dataclasses.replace(step, thought=attack, conclusion=attack, response=attack)
        for step in episode(Action("type", text=attack), Action("click", coordinate=(1, 1))).steps
    )
    lost = Step(Observation(screen()), response=attack, error=attack)
    trajectory = dataclasses.replace(
        episode(instruction=attack, app=attack, outcome=None, failure=attack, metadata={"template": attack}),
        steps=(*steps, lost),
    )
    strip = filmstrip.strip(trajectory)
    assert "<script" not in strip and "alert(1)" in strip
    article = parse(strip)
    assert article.find("h4").text == attack
    assert [pre.text for pre in article.iter("pre")] == [attack] * 3
    assert [code.text for code in article.iter("code")] == [
        f'type "{attack}"',
        "click (1, 1)",
        f"no action: {attack}",
    ]


def test_long_responses_are_cut():
    step = dataclasses.replace(episode(None).steps[0], response="x" * 100_000)
    strip = filmstrip.strip(dataclasses.replace(episode(), steps=(step,)))
    assert len(strip) < 10_000 and "96000 more characters" in strip


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"outcome": 1}, "success"),
        ({"outcome": 0}, "failure"),
        ({"outcome": None, "failure": "timeout"}, "environment failed: timeout"),
    ],
)
def test_the_outcome_is_written_out(fields, text):
    article = parse(filmstrip.strip(episode(Action("wait", time=1.0), subtasks=(True, False), **fields)))
    (outcome,) = [p for p in article.iter("p") if p.get("class").startswith("outcome")]
    assert outcome.text == text
    assert "1 of 2 subtasks" in article.find("p[@class='facts']").text


def test_images_have_a_text_for_those_who_do_not_see_them():
    article = parse(filmstrip.strip(episode(Action("type", text="Mia"), None)))
    assert [image.get("alt") for image in article.iter("img")] == [
        'Screenshot 1 of 2, mobile. Action: type "Mia"',
        "Screenshot 2 of 2, mobile. Action: no action: bad_json",
    ]


def test_choice_has_both_outcomes_of_every_family_and_different_templates():
    wait = Action("wait", time=1.0)
    pool = []
    for family in (DeviceFamily.MOBILE, DeviceFamily.WEB):
        for number in range(12):
            pool.append(
                episode(
                    *[wait] * (1 + number % 3),
                    family=family,
                    outcome=number % 2,
                    task_id=f"{family}{number}",
                    metadata={"template": f"t{number // 4}"},
                )
            )
    pool.append(episode(wait, outcome=None, failure="died", task_id="lost"))
    pool.append(episode(outcome=1, task_id="empty"))
    chosen = filmstrip.choose(pool, successes=3, failures=2)
    assert [(str(t.family), t.outcome) for t in chosen] == [
        *[("mobile", 1)] * 3,
        *[("mobile", 0)] * 2,
        ("mobile", None),
        *[("web", 1)] * 3,
        *[("web", 0)] * 2,
    ]
    assert {t.metadata["template"] for t in chosen[:3]} == {"t0", "t1", "t2"}
    assert len({t.task_id for t in chosen}) == len(chosen)
    assert filmstrip.choose([]) == []
