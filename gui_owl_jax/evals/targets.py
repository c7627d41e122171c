"""Geometry of grounding: where an answer points, and whether a point lies in a box or a polygon.

Points are real numbers in pixels: the middle of the first pixel is (0.5, 0.5). A window is (left, top, right, bottom)
in pixels of the original image. Relative points run from 0 to 1000 over a window, as in `Action.coordinate`.
"""

from __future__ import annotations

from collections.abc import Sequence

from gui_owl_jax.agent.actions import SCALE, Action
from gui_owl_jax.evals.benchmark import Box, Polygon
from gui_owl_jax.evals.grounding import CLICKS

Point = tuple[float, float]
Window = tuple[float, float, float, float]

# Actions that point at one place of the screen. The grounding evaluation of GUI-Owl-1.5 offers moving and clicking.
POINTING = CLICKS | {"mouse_move"}
# Annotations have two decimals and coordinates are quotients: what differs by less than this is meant to be equal.
RESOLUTION = 1e-6


def pointed_at(action: Action) -> Point | None:
    """The relative point (0-1000) that an action points at; None for an action that points at nothing."""
    return action.coordinate if action.kind in POINTING else None


def is_refusal(action: Action) -> bool:
    """Whether an action says that nothing on the screen answers the instruction."""
    return action.kind == "terminate" and action.status == "failure"


def point_in_image(relative: Point, window: Window) -> Point:
    """The point of the original image, in pixels, that a relative point of a window means."""
    left, top, right, bottom = window
    # Multiplied before it is divided: exact wherever the result is a whole pixel.
    return left + relative[0] * (right - left) / SCALE, top + relative[1] * (bottom - top) / SCALE


def point_in_window(point: Point, window: Window) -> Point:
    """The relative point of a window that a point of the original image has; the inverse of `point_in_image`."""
    left, top, right, bottom = window
    return (point[0] - left) * SCALE / (right - left), (point[1] - top) * SCALE / (bottom - top)


def in_box(point: Point, box: Box) -> bool:
    """Whether a point lies in a box, all four edges included (up to `RESOLUTION`)."""
    x, y = point
    return box.left - RESOLUTION <= x <= box.right + RESOLUTION and box.top - RESOLUTION <= y <= box.bottom + RESOLUTION


def in_polygon(point: Point, polygon: Polygon) -> bool:
    """Whether a point lies in a polygon, by ray casting; its edges are included (up to `RESOLUTION`)."""
    x, y = point
    inside = False
    for (x1, y1), (x2, y2) in edges(polygon.vertices):
        if _distance(point, (x1, y1), (x2, y2)) <= RESOLUTION:
            return True
        # A ray to the right; an edge holds its upper end but not its lower one, so a vertex is crossed once.
        if (y1 > y) != (y2 > y) and x < x1 + (y - y1) * (x2 - x1) / (y2 - y1):
            inside = not inside
    return inside


def edges(vertices: Sequence[Point]) -> list[tuple[Point, Point]]:
    """The edges of a polygon, the one from the last vertex to the first included."""
    return list(zip(vertices, (*vertices[1:], vertices[0])))


def area(target: Box | Polygon) -> float:
    """Area in square pixels, 0 for a box whose edges are the wrong way round."""
    if isinstance(target, Box):
        return max(0.0, target.right - target.left) * max(0.0, target.bottom - target.top)
    return abs(sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in edges(target.vertices))) / 2


def bounds(target: Box | Polygon) -> Box:
    """The smallest box around a target."""
    if isinstance(target, Box):
        return target
    xs, ys = zip(*target.vertices)
    return Box(min(xs), min(ys), max(xs), max(ys))


def _distance(point: Point, start: Point, end: Point) -> float:
    """From a point to a segment."""
    run, rise = end[0] - start[0], end[1] - start[1]
    length = run * run + rise * rise
    along = ((point[0] - start[0]) * run + (point[1] - start[1]) * rise) / length if length else 0.0
    share = min(1.0, max(0.0, along))
    dx, dy = point[0] - start[0] - share * run, point[1] - start[1] - share * rise
    return (dx * dx + dy * dy) ** 0.5
