"""Each finding of the linter, at the edge where it begins."""

from __future__ import annotations

import pytest
from PIL import Image

from data.benchmarks.lint import lint
from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.evals.benchmark import ActionLabel, Box, Item, Polygon, Refusal

SIZE = (200, 100)


def item(target, image="", size=SIZE, item_id="a"):
    return Item(item_id, "press it", target, DeviceFamily.DESKTOP, image=image, size=size)


def kinds(*items, images=None):
    findings = lint(items, images)
    assert not any(problem.fatal for problem in findings)
    return [problem.kind for problem in findings]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Box(0, 0, 100, 100), []),  # exactly half
        (Box(0, 0, 200, 50), []),
        (Box(190, 90, 200, 100), []),  # on the edge
        (Box(0, 0, 101, 100), ["covers_image"]),
        (Box(190, 90, 200.1, 100), ["box_outside_image"]),
        (Box(-0.1, 5, 10, 10), ["box_outside_image"]),
        (Box(0, 5, 10, 101), ["box_outside_image"]),
        (Box(10, 10, 10, 20), ["empty_box"]),
        (Box(10, 10, 5, 20), ["empty_box"]),
        (Box(10, 20, 20, 10), ["empty_box"]),
        (Polygon(((0, 0), (50, 0), (50, 50))), []),
        (Polygon(((0, 0), (50, 0), (50, 50), (0, 0))), ["duplicate_vertex"]),
        (Polygon(((0, 0), (50, 50), (90, 90))), ["empty_box"]),
        (Polygon(((0, 0), (201, 0), (50, 50))), ["box_outside_image"]),
        (Refusal(), []),
        (ActionLabel(Action("wait", time=1.0), (Box(0, 0, 9, 9), Box(3, 3, 3, 3))), ["empty_box"]),
    ],
)
def test_labels(target, expected):
    assert kinds(item(target)) == expected


def test_without_a_size_only_the_label_itself_is_looked_at():
    assert kinds(item(Box(0, 0, 10_000, 10_000), size=None)) == []
    assert kinds(item(Box(10, 10, 10, 20), size=None)) == ["empty_box"]


def test_images(tmp_path):
    Image.new("RGB", SIZE).save(tmp_path / "good.png")
    Image.new("RGB", (100, 200)).save(tmp_path / "turned.png")
    (tmp_path / "damaged.png").write_bytes(b"\x89PNG but no more")
    box = Box(10, 10, 20, 20)
    names = ["good.png", "turned.png", "damaged.png", "nowhere.png", "nowhere.png", ""]
    items = [item(box, name, item_id=f"{number}") for number, name in enumerate(names)]
    findings = [(problem.where, problem.kind) for problem in lint(items, tmp_path)]
    assert findings == [
        ("1", "size_differs"),
        ("2", "unreadable_image"),
        ("3", "missing_image"),
        ("4", "missing_image"),
    ]
    assert lint(items) == []


def test_an_undeclared_size_is_that_of_the_image(tmp_path):
    Image.new("RGB", SIZE).save(tmp_path / "good.png")
    assert kinds(item(Box(0, 0, 300, 10), "good.png", size=None), images=tmp_path) == ["box_outside_image"]
