"""Two looks: windows and mapping, exact to half a pixel; calls and failures; an oracle on a grid against geometry."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import ConfigError, DataError
from gui_owl_jax.agent.prompts import ImageRef, Message
from gui_owl_jax.evals.benchmark import Answer, Box, Item, Reply, Request
from gui_owl_jax.evals.grounding_rules import RULES
from gui_owl_jax.evals.grounding_score import judge
from gui_owl_jax.evals.targets import point_in_image, point_in_window
from gui_owl_jax.evals.zoom import ZoomConfig, cut, look_once, look_twice, window_around
from tests.evals.plain import Plain

DESKTOP = DeviceFamily.DESKTOP


def request(image, *seed):
    return Request((Message("user", ("press it", ImageRef(7))),), {7: image}, seed)


class Recorded:
    """An answerer that says its replies in turn and keeps what it was asked."""

    def __init__(self, *batches):
        self.batches = list(batches)
        self.asked = []

    def __call__(self, requests):
        self.asked.append(list(requests))
        replies = self.batches.pop(0)
        return [reply if isinstance(reply, Reply) else Reply(reply, (32, 16)) for reply in replies]


SCREEN = np.zeros((100, 200, 3), np.uint8)


# Geometry.


def test_ten_thousand_crops_map_back_to_half_a_pixel():
    draw = random.Random(0)
    clamped = 0
    for _ in range(10_000):
        width, height = draw.randint(1, 5000), draw.randint(1, 5000)
        crop = draw.randint(1, width), draw.randint(1, height)
        coarse = draw.uniform(0, width), draw.uniform(0, height)
        window = window_around(coarse, crop, width, height)
        left, top, right, bottom = window
        assert (right - left, bottom - top) == crop
        assert all(edge.is_integer() for edge in window)
        assert 0 <= left and right <= width and 0 <= top and bottom <= height
        assert left <= coarse[0] <= right and top <= coarse[1] <= bottom
        for low, high, at, extent in ((left, right, coarse[0], width), (top, bottom, coarse[1], height)):
            if low > 0 and high < extent:
                assert abs((low + high) / 2 - at) <= 0.5
            else:
                clamped += 1
        # A pixel of the crop, found by exact arithmetic in the enlarged picture, and pointed at in its whole pixels.
        pixel = draw.randrange(int(left), int(right)), draw.randrange(int(top), int(bottom))
        enlarged = crop[0] * draw.uniform(1, 4), crop[1] * draw.uniform(1, 4)
        enlarged = round(enlarged[0]), round(enlarged[1])
        where = [
            (Fraction(pixel[axis]) + Fraction(1, 2) - int(window[axis])) * enlarged[axis] / crop[axis]
            for axis in (0, 1)
        ]
        exact = tuple(float(where[axis] * 1000 / enlarged[axis]) for axis in (0, 1))
        whole = tuple(round(where[axis]) * 1000 / enlarged[axis] for axis in (0, 1))
        for relative, error in ((exact, 1e-6), (whole, 0.5 + 1e-6)):
            point = point_in_image(relative, window)
            assert abs(point[0] - pixel[0] - 0.5) <= error and abs(point[1] - pixel[1] - 0.5) <= error
            back = point_in_window(point, window)
            assert abs(back[0] - relative[0]) <= 1e-6 and abs(back[1] - relative[1]) <= 1e-6
    assert 1000 < clamped < 19_000


def test_pixels_lie_where_the_mapping_says():
    # Every pixel holds its own place, four grey levels apart: resampling must keep both together.
    draw = random.Random(1)
    size = 60
    ramp = np.zeros((size, size, 3), np.uint8)
    ramp[..., 0], ramp[..., 1] = 4 * np.arange(size)[None, :], 4 * np.arange(size)[:, None]
    for _ in range(300):
        crop = draw.randint(2, size), draw.randint(2, size)
        window = window_around((draw.uniform(0, size), draw.uniform(0, size)), crop, size, size)
        enlarged = crop[0] * draw.randint(1, 3) + draw.randint(0, 2), crop[1] * draw.randint(1, 3)
        picture = cut(ramp, window, enlarged)
        assert picture.shape == (enlarged[1], enlarged[0], 3)
        column, row = draw.randrange(enlarged[0]), draw.randrange(enlarged[1])
        relative = (column + 0.5) * 1000 / enlarged[0], (row + 0.5) * 1000 / enlarged[1]
        point = point_in_image(relative, window)
        seen = picture[row, column] / 4 + 0.5
        assert abs(seen[0] - point[0]) <= 0.5 and abs(seen[1] - point[1]) <= 0.5


def test_a_crop_that_is_not_enlarged_keeps_its_pixels():
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    np.testing.assert_array_equal(cut(image, (3.0, 4.0, 13.0, 9.0)), image[4:9, 3:13])


def test_a_crop_larger_than_the_image_is_refused():
    with pytest.raises(DataError, match="does not fit"):
        window_around((5, 5), (11, 5), 10, 10)


def test_crop_sizes():
    assert ZoomConfig(ratio=0.25).crop_size(1920, 1080) == (480, 270)
    assert ZoomConfig(ratio=0.001).crop_size(100, 100) == (1, 1)
    assert ZoomConfig(ratio=1).crop_size(101, 99) == (101, 99)
    fixed = ZoomConfig(ratio=None, size=(1024, 1024))
    assert fixed.crop_size(3840, 2160) == (1024, 1024)
    assert fixed.crop_size(1920, 1000) == (1024, 1000)


@pytest.mark.parametrize(
    "settings",
    [
        {"ratio": 0.0},
        {"ratio": 1.1},
        {"ratio": float("nan")},
        {"ratio": None},
        {"ratio": 0.5, "size": (10, 10)},
        {"ratio": None, "size": (0, 10)},
        {"enlarged": (10, 0)},
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ConfigError, match="zoom"):
        ZoomConfig(**settings)


# Calls.


def test_the_second_look_shows_the_crop_around_the_first_point():
    image = np.random.default_rng(0).integers(0, 256, SCREEN.shape, np.uint8)
    answerer = Recorded(["500 500"], ["250 750"])
    looker = look_twice(answerer, Plain(), ZoomConfig(ratio=0.5, enlarged=(300, 150)))
    (result,) = looker([request(image, 3, 4)], [DESKTOP])
    first, second = result.looks
    assert (first.response, first.window) == ("500 500", (0, 0, 200, 100))
    assert (second.response, second.window, second.shown) == ("250 750", (50, 25, 150, 75), (32, 16))
    ((one,), (two,)) = answerer.asked
    assert two.messages == one.messages
    assert two.images[7].shape == (150, 300, 3)
    np.testing.assert_array_equal(two.images[7], cut(image, second.window, (300, 150)))
    assert (one.seed, two.seed) == ((3, 4), (3, 4, 1))  # not the same draws again
    item = Item("a", "press it", Box(75, 62.5, 75, 62.5), DESKTOP, size=(200, 100))
    assert judge(item, Answer("a", result.looks, (200, 100)), RULES["exact"], Plain()).right


def test_an_answer_without_a_point_stands_and_costs_one_call():
    answerer = Recorded(["none", "500 500", "er", "0 0"], ["900 900", "er"])
    looker = look_twice(answerer, Plain(), ZoomConfig())
    results = looker([request(SCREEN)] * 4, [DESKTOP] * 4)
    assert [[look.response for look in result.looks] for result in results] == [
        ["none"],
        ["500 500", "900 900"],
        ["er"],
        ["0 0", "er"],  # the second answer stands too
    ]
    assert [len(batch) for batch in answerer.asked] == [4, 2]
    assert results[3].looks[1].window == (0, 0, 100, 50)


def test_no_second_batch_where_nothing_was_pointed_at():
    answerer = Recorded(["none", "er"])
    assert [
        len(result.looks)
        for result in look_twice(answerer, Plain(), ZoomConfig())([request(SCREEN)] * 2, [DESKTOP] * 2)
    ]
    assert len(answerer.asked) == 1


def test_a_call_that_fails_does_not_stop_the_others():
    answerer = Recorded(
        [Reply("", failure="timeout"), "500 500", "500 500"],
        [Reply("", failure="gone"), "1 1"],
    )
    results = look_twice(answerer, Plain(), ZoomConfig())([request(SCREEN)] * 3, [DESKTOP] * 3)
    assert [(len(result.looks), result.failure) for result in results] == [
        (0, "look 1: timeout"),
        (0, "look 2: gone"),
        (2, ""),
    ]


def test_looking_once():
    answerer = Recorded(["500 500", Reply("", failure="timeout")])
    results = look_once(answerer)([request(SCREEN)] * 2, [DESKTOP] * 2)
    assert [len(result.looks) for result in results] == [1, 0]
    assert results[0].looks[0].window == (0, 0, 200, 100)
    assert results[1].failure == "look 1: timeout"
    assert look_once(answerer)([], []) == []


def test_a_question_has_one_image():
    two = Request((), {0: SCREEN, 1: SCREEN})
    with pytest.raises(DataError, match="2"):
        look_once(Recorded(["1 1"]))([two], [DESKTOP])


# Accuracy on synthetic 4K screens.

WIDTH, HEIGHT = 3840, 2160
TARGET = 255


class Oracle:
    """Sees where the target is, to the pixel, and can say so in whole numbers of the 0-1000 grid only."""

    def __init__(self):
        self.calls = 0

    def __call__(self, requests):
        self.calls += len(requests)
        return [self.answer(next(iter(each.images.values()))) for each in requests]

    def answer(self, image):
        bright = image[..., 0] > (TARGET + 90) // 2
        columns, rows = np.flatnonzero(bright.any(axis=0)), np.flatnonzero(bright.any(axis=1))
        said = [
            round((hit[0] + hit[-1] + 1) / 2 * 1000 / extent)
            for hit, extent in zip((columns, rows), bright.shape[::-1])
        ]
        return Reply(f"{said[0]} {said[1]}", bright.shape[::-1])


def reachable(low, extent, start, length):
    """Whether a line of the 0-1000 grid over [start, start + length] crosses [low, low + extent]; in integers."""
    first = -((start - low) * 1000 // length)  # the first line at or behind `low`
    return first <= 1000 and first * length <= (low + extent - start) * 1000


def in_theory(box, ratio=None):
    """Whether the grid can hit a box (left, top, width, height), from geometry alone; None: looking once."""
    right = True
    for low, extent, whole in ((box[0], box[2], WIDTH), (box[1], box[3], HEIGHT)):
        start, length = 0, whole
        if ratio is not None:
            length = whole * ratio.numerator // ratio.denominator
            line = round(Fraction((2 * low + extent) * 1000, 2 * whole))  # nearest to the middle of the box
            start = min(max(round(Fraction(line * whole, 1000) - Fraction(length, 2)), 0), whole - length)
        right &= reachable(low, extent, start, length)
    return right


def screens(number, seed):
    """Boxes of one to three pixels: anywhere, and in the corners."""
    draw = random.Random(seed)
    boxes = [(0, 0, 1, 1), (WIDTH - 1, HEIGHT - 1, 1, 1), (0, HEIGHT - 2, 2, 2)]
    while len(boxes) < number:
        width, height = draw.randint(1, 3), draw.randint(1, 3)
        boxes.append((draw.randint(0, WIDTH - width), draw.randint(0, HEIGHT - height), width, height))
    return boxes


def measured(boxes, make_looker):
    """(whether each box is hit, calls)."""
    oracle = Oracle()
    looker = make_looker(oracle)
    screen = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
    hits = []
    for left, top, width, height in boxes:
        place = (slice(top, top + height), slice(left, left + width))
        screen[place] = TARGET
        (result,) = looker([request(screen)], [DESKTOP])
        screen[place] = 90
        item = Item("a", "", Box(left, top, left + width, top + height), DESKTOP, size=(WIDTH, HEIGHT))
        answer = Answer("a", result.looks, (WIDTH, HEIGHT))
        hits.append(judge(item, answer, RULES["exact"], Plain()).right)
    return hits, oracle.calls


def test_theory_against_all_lines_of_the_grid():
    for low in (*range(40), 1000, 3838):
        for extent in (1, 2, 3):
            lines = [line * WIDTH / 1000 for line in range(1001)]
            expected = any(low - 1e-9 <= line <= low + extent + 1e-9 for line in lines)
            assert reachable(low, extent, 0, WIDTH) is expected


@pytest.mark.parametrize("ratio", [Fraction(1, 2), Fraction(1, 4)])
def test_an_oracle_on_the_grid_reaches_what_the_grid_can_reach(ratio):
    boxes = screens(60, seed=int(1 / ratio))
    once, calls = measured(boxes, look_once)
    assert once == [in_theory(box) for box in boxes]
    assert calls == len(boxes)
    twice, calls = measured(boxes, lambda oracle: look_twice(oracle, Plain(), ZoomConfig(ratio=float(ratio))))
    assert twice == [in_theory(box, ratio) for box in boxes]
    assert calls == 2 * len(boxes)
    assert sum(twice) > sum(once) + len(boxes) // 4
    assert sum(twice) < len(boxes) if ratio == Fraction(1, 2) else sum(twice) == len(boxes)


def test_enlarging_the_crop_loses_nothing():
    boxes = screens(8, seed=5)
    zoom = ZoomConfig(ratio=0.25, enlarged=(1920, 1080))
    twice, _ = measured(boxes, lambda oracle: look_twice(oracle, Plain(), zoom))
    assert twice == [in_theory(box, Fraction(1, 4)) for box in boxes]
