"""Action matching of Android in the Wild (arXiv 2307.10088, section 5; its release: `action_matching.py`).

Two actions match if their types are equal, and for gestures if both are taps that land together or both are swipes
along the same axis; the direction of a swipe and the text that is typed are not compared. All points are (y, x) and all
boxes (top, left, height, width), as shares of the screen's height and width. Host code in numpy.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import ArrayLike

from gui_owl_jax.agent.errors import DataError

TAP_LENGTH = 0.04  # a gesture is a tap if touch and lift lie no further apart
TAP_DISTANCE = 0.14  # taps match if they lie no further apart
# A box is made longer by 1.4 of its height and width, half on each side: it ends with 240 % of its size.
BOX_GROWTH = 1.4


class GestureType(enum.IntEnum):
    """The numbers of the recorded action types."""

    TYPE = 3
    GESTURE = 4
    PRESS_BACK = 5
    PRESS_HOME = 6
    PRESS_ENTER = 7
    TASK_COMPLETE = 10
    TASK_IMPOSSIBLE = 11


def is_tap(touch: ArrayLike, lift: ArrayLike) -> np.ndarray:
    """Whether gestures are taps: [..., 2] and [..., 2] -> bool [...]."""
    return np.linalg.norm(np.asarray(touch, float) - np.asarray(lift, float), axis=-1) <= TAP_LENGTH


def grown(boxes: ArrayLike, growth: float = BOX_GROWTH) -> np.ndarray:
    """Boxes enlarged as the release does it: [..., 4] -> [..., 4].

    Top and left are kept on the screen, and so is the size, but not their sum: a box at the top or left edge grows by
    its full length on the far side.
    """
    top, left, height, width = np.moveaxis(np.asarray(boxes, float), -1, 0)
    return np.stack(
        [
            np.maximum(0, top - growth * height / 2),
            np.maximum(0, left - growth * width / 2),
            np.minimum(1, height + growth * height),
            np.minimum(1, width + growth * width),
        ],
        axis=-1,
    )


def inside(points: ArrayLike, boxes: ArrayLike) -> np.ndarray:
    """Whether points lie in boxes, edges included: [..., 2] and [..., 4] -> bool [...]."""
    y, x = np.moveaxis(np.asarray(points, float), -1, 0)
    top, left, height, width = np.moveaxis(np.asarray(boxes, float), -1, 0)
    return (y >= top) & (y <= top + height) & (x >= left) & (x <= left + width)


def taps_match(
    first: ArrayLike, second: ArrayLike, boxes: ArrayLike, *, distance: float = TAP_DISTANCE, growth: float = BOX_GROWTH
) -> np.ndarray:
    """Whether taps land together: close to each other, or in one enlarged box.

    Args:
      first: points, [..., 2].
      second: points, [..., 2].
      boxes: of the screen, [..., M, 4]; rows of NaN are none.
      distance: how far apart they may lie, as a share of the screen.
      growth: by how much of their size boxes are enlarged.

    Returns:
      bool, [...].
    """
    first, second, boxes = (np.asarray(value, float) for value in (first, second, boxes))
    if boxes.ndim < 2 or boxes.shape[-1] != 4:
        raise DataError(f"boxes must be [..., M, 4], got shape {boxes.shape}")
    near = np.linalg.norm(first - second, axis=-1) <= distance
    enlarged = grown(boxes, growth)
    together = inside(first[..., None, :], enlarged) & inside(second[..., None, :], enlarged)
    return near | together.any(axis=-1)


def swipes_match(
    first_touch: ArrayLike, first_lift: ArrayLike, second_touch: ArrayLike, second_lift: ArrayLike
) -> np.ndarray:
    """Whether swipes go along the same axis, that of the longer way: four times [..., 2] -> bool [...]."""
    first = np.abs(np.asarray(first_lift, float) - np.asarray(first_touch, float))
    second = np.abs(np.asarray(second_lift, float) - np.asarray(second_touch, float))
    return first.argmax(axis=-1) == second.argmax(axis=-1)


def actions_match(
    first_type: ArrayLike,
    first_touch: ArrayLike,
    first_lift: ArrayLike,
    second_type: ArrayLike,
    second_touch: ArrayLike,
    second_lift: ArrayLike,
    boxes: ArrayLike,
    *,
    distance: float = TAP_DISTANCE,
    growth: float = BOX_GROWTH,
) -> np.ndarray:
    """Whether actions match, one by one.

    Args:
      first_type: `GestureType`s, [...].
      first_touch: where gestures start, [..., 2]; of other actions anything, (-1, -1) in the records.
      first_lift: where they end, [..., 2].
      second_type: of the other side, [...].
      second_touch: likewise, [..., 2].
      second_lift: likewise, [..., 2].
      boxes: elements of the screen, [..., M, 4]; rows of NaN are none.
      distance: of taps, as a share of the screen.
      growth: by how much of their size boxes are enlarged.

    Returns:
      bool, [...].

    Raises:
      DataError: boxes of another shape.
    """
    first_type, second_type = np.asarray(first_type), np.asarray(second_type)
    tap, other_tap = is_tap(first_touch, first_lift), is_tap(second_touch, second_lift)
    taps = tap & other_tap & taps_match(first_touch, second_touch, boxes, distance=distance, growth=growth)
    swipes = ~tap & ~other_tap & swipes_match(first_touch, first_lift, second_touch, second_lift)
    gestures = (first_type == GestureType.GESTURE) & (second_type == GestureType.GESTURE)
    return np.where(gestures, taps | swipes, first_type == second_type)
