from __future__ import annotations

import numpy as np
import pytest

from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.gestures import GestureType, actions_match, grown, inside, is_tap, swipes_match, taps_match

NONE = np.full((1, 4), np.nan)
NOWHERE = (-1.0, -1.0)
GESTURE = GestureType.GESTURE


def test_a_gesture_is_a_tap_up_to_its_length():
    touch = np.zeros((3, 2))
    assert is_tap(touch, [(0, 0), (0.04, 0), (0.0241, 0.0321)]).tolist() == [True, True, False]


def test_taps_match_up_to_their_distance():
    second = [(0.5 + 0.1399, 0.5), (0.5, 0.5 - 0.1401), (0.5 + 0.0999, 0.5 + 0.0999), (0.5 + 0.098, 0.5 - 0.098)]
    assert taps_match((0.5, 0.5), second, NONE).tolist() == [True, False, False, True]


def test_boxes_grow_to_240_percent_around_their_middle():
    np.testing.assert_allclose(grown((0.4, 0.4, 0.1, 0.2)), (0.33, 0.26, 0.24, 0.48))
    np.testing.assert_allclose(grown((0.4, 0.4, 0.1, 0.2), growth=0.4), (0.38, 0.36, 0.14, 0.28))


def test_a_box_at_the_edge_grows_by_its_full_length_on_the_far_side():
    np.testing.assert_allclose(grown((0.0, 0.0, 0.1, 0.5)), (0, 0, 0.24, 1.0))


def test_taps_match_within_one_enlarged_box_only_if_both_are_in_it():
    box = np.array([[0.4, 0.1, 0.1, 0.2]])  # grown: y 0.33..0.57, x 0..0.48
    assert taps_match((0.45, 0.01), (0.45, 0.479), box)
    assert not taps_match((0.45, 0.01), (0.45, 0.481), box)
    assert not taps_match((0.45, 0.01), (0.45, 0.479), NONE)
    two = np.array([[0.1, 0.1, 0.1, 0.1], [0.7, 0.7, 0.1, 0.1]])
    assert not taps_match((0.15, 0.15), (0.75, 0.75), two)
    with pytest.raises(DataError, match="boxes"):
        taps_match((0, 0), (0, 0), np.zeros(4))


def test_edges_belong_to_a_box():
    box = (0.25, 0.25, 0.5, 0.25)
    assert inside([(0.25, 0.25), (0.75, 0.5), (0.7501, 0.5), (0.5, 0.2499)], box).tolist() == [True, True, False, False]


def test_swipes_match_by_their_axis_and_not_by_their_direction():
    up, down = ((0.8, 0.5), (0.2, 0.5)), ((0.2, 0.5), (0.8, 0.6))
    left = ((0.5, 0.8), (0.5, 0.2))
    assert swipes_match(*up, *down)
    assert not swipes_match(*up, *left)


@pytest.mark.parametrize(
    ("first", "second", "match"),
    [
        ((GESTURE, (0.5, 0.5), (0.5, 0.5)), (GESTURE, (0.55, 0.5), (0.55, 0.51)), True),
        ((GESTURE, (0.5, 0.5), (0.5, 0.5)), (GESTURE, (0.7, 0.5), (0.7, 0.5)), False),
        ((GESTURE, (0.8, 0.5), (0.2, 0.5)), (GESTURE, (0.7, 0.1), (0.3, 0.1)), True),
        ((GESTURE, (0.8, 0.5), (0.2, 0.5)), (GESTURE, (0.5, 0.1), (0.5, 0.9)), False),
        ((GESTURE, (0.5, 0.5), (0.5, 0.5)), (GESTURE, (0.5, 0.5), (0.2, 0.5)), False),  # tap and swipe
        ((GESTURE, (0.5, 0.5), (0.5, 0.5)), (GestureType.TYPE, NOWHERE, NOWHERE), False),
        ((GestureType.TYPE, NOWHERE, NOWHERE), (GestureType.TYPE, NOWHERE, NOWHERE), True),
        ((GestureType.PRESS_BACK, NOWHERE, NOWHERE), (GestureType.PRESS_HOME, NOWHERE, NOWHERE), False),
        ((GestureType.PRESS_BACK, NOWHERE, NOWHERE), (GestureType.PRESS_BACK, (0.5, 0.5), (0.1, 0.1)), True),
    ],
)
def test_actions(first, second, match):
    assert actions_match(*first, *second, NONE) == match
    assert actions_match(*second, *first, NONE) == match


def test_a_batch_is_matched_one_by_one():
    generator = np.random.default_rng(0)
    types = generator.choice([int(kind) for kind in GestureType], (2, 500), p=[0.1, 0.4, 0.1, 0.1, 0.1, 0.1, 0.1])
    touch = generator.random((2, 500, 2))
    lift = np.where(generator.random((2, 500, 1)) < 0.5, touch, generator.random((2, 500, 2)))
    touch[1, ::3] = touch[0, ::3]
    boxes = generator.random((500, 3, 4)) * 0.3
    both = actions_match(types[0], touch[0], lift[0], types[1], touch[1], lift[1], boxes)
    single = [
        bool(actions_match(types[0, n], touch[0, n], lift[0, n], types[1, n], touch[1, n], lift[1, n], boxes[n]))
        for n in range(500)
    ]
    assert both.tolist() == single
    assert 0 < both.sum() < 500
