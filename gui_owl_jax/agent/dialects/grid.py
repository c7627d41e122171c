"""The numbers of a dialect: points on its own grid to the 0-1000 grid and back, and directions to distances.

Formats that scroll by direction alone do not say how far. The distances here are this project's, stated once:
- a scroll with the wheel is `WHEEL_CLICKS` clicks (UI-TARS sends 5) of `CLICK_PIXELS` pixels;
- a finger swipes `SWIPE` of the 1000 units: from the point that is given, no further than the edge, and without one
  across the middle of the screen, half before it and half behind. "scroll down" shows what is below, so the finger
  moves up; "swipe up" names the finger's way.
"""

from __future__ import annotations

import dataclasses
import math
import re

from gui_owl_jax.agent.actions import SCALE
from gui_owl_jax.agent.errors import ConfigError, DataError, ParseError, ParseReason

RESIZED = "resized"  # scale of the dialects that write pixels of the picture the image processor made
SWIPE = 500.0
WHEEL_CLICKS, CLICK_PIXELS = 5, 100
LONG_PRESS_SECONDS = 0.8  # the phone runner of Mobile-Agent-v3.5
WAIT_SECONDS = 5.0  # UI-TARS's prompt, and the default of browser_use

OPPOSITE = {"up": "down", "down": "up", "left": "right", "right": "left"}
_WAY = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(\.[0-9]{1,40})?")

Point = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Grid:
    """What a dialect's numbers mean.

    Attributes:
      scale: the number of the right and lower edge, or `RESIZED`.
      shown: (width, height) in pixels of the picture that the model saw; needed with `RESIZED` only.
    """

    scale: float | str
    shown: tuple[int, int] | None = None

    def read(self, x: object, y: object) -> Point:
        """The point on the 0-1000 grid: value / scale * 1000, not rounded.

        Raises:
          ParseError: BAD_ARGUMENT, not two numbers; OUT_OF_RANGE, outside of the picture.
          DataError: see `edges`.
        """
        values = number("x", x), number("y", y)
        edges = self.edges()
        if not all(0 <= value <= edge for value, edge in zip(values, edges)):
            where = f"0..{edges[0]:g}, 0..{edges[1]:g}"
            raise ParseError(ParseReason.OUT_OF_RANGE, f"({values[0]:g}, {values[1]:g}) lies outside {where}")
        if self.scale == SCALE:  # exactly what was written
            return values
        return values[0] * SCALE / edges[0], values[1] * SCALE / edges[1]

    def write(self, point: Point) -> Point:
        """The numbers of a point. On grids other than ours they are whole, as the models write them.

        Raises:
          DataError: see `edges`.
        """
        if self.scale == SCALE:
            return point
        x, y = (float(round(value * edge / SCALE)) for value, edge in zip(point, self.edges()))
        return x, y

    def near(self, one: Point | None, other: Point | None) -> bool:
        """Whether `write` may have made one point of the other."""
        if one is None or other is None:
            return one is other
        steps = (0.0, 0.0) if self.scale == SCALE else tuple(SCALE / edge for edge in self.edges())
        return all(abs(a - b) <= 0.5 * step + 1e-6 for a, b, step in zip(one, other, steps))

    def edges(self) -> Point:
        """The numbers of the right and of the lower edge.

        Raises:
          DataError: the scale is `RESIZED` and the size of the picture is not known.
        """
        if self.scale != RESIZED:
            return float(self.scale), float(self.scale)
        if not self.shown or min(self.shown) < 1:
            raise DataError(f"the points are pixels of the resized picture: its size is needed, got shown={self.shown}")
        return float(self.shown[0]), float(self.shown[1])


def check_scale(scale: float | str) -> float | str:
    """The scale, a number as float.

    Raises:
      ConfigError: it is neither `RESIZED` nor a positive number.
    """
    if scale == RESIZED:
        return RESIZED
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < math.inf:
        raise ConfigError(f"scale is {scale!r}, must be a positive number or {RESIZED!r}")
    return float(scale)


def number(where: str, value: object) -> float:
    """A finite number, which may be written as a string.

    Raises:
      ParseError: BAD_ARGUMENT, it is none; OUT_OF_RANGE, it is not finite.
    """
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ParseError(ParseReason.BAD_ARGUMENT, f"{where} is {value!r:.80}, must be a number")
    if isinstance(value, int) and abs(value) > 2**53 or not math.isfinite(value):
        raise ParseError(ParseReason.OUT_OF_RANGE, f"{where} is {value!r:.80}, must be finite")
    return float(value)


def pair(value: object) -> tuple[object, object]:
    """The two members of a list or tuple.

    Raises:
      ParseError: BAD_ARGUMENT, it is something else; a box of four numbers is no point.
    """
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ParseError(ParseReason.BAD_ARGUMENT, f"the point is {value!r:.80}, must be two numbers x, y")
    return value[0], value[1]


def swiped(start: Point | None, direction: str) -> tuple[Point, Point]:
    """Where a finger starts and ends that moves in a direction ("up", "down", "left", "right"), on the 0-1000 grid.

    Args:
      start: where it starts, None for a way across the middle.
      direction: a key of `OPPOSITE`.
    """
    if start is None:
        start = _moved((SCALE / 2, SCALE / 2), OPPOSITE[direction], SWIPE / 2)
    return start, _moved(start, direction, SWIPE)


def _moved(point: Point, direction: str, distance: float) -> Point:
    x, y = (min(max(value + way * distance, 0.0), float(SCALE)) for value, way in zip(point, _WAY[direction]))
    return x, y
