"""Rules by which a grounding answer counts. Published numbers differ by rule: its name has all its settings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from gui_owl_jax.agent.actions import SCALE
from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.evals.benchmark import Box, Polygon
from gui_owl_jax.evals.rules import check_settings, parse_rule, rule_name
from gui_owl_jax.evals.targets import RESOLUTION, Point, in_box, in_polygon

POINTS = {
    "exact": "the point in real numbers of pixels against the target as annotated",
    "grid": "both on the 0-1000 grid, edges of boxes rounded outwards (evaluation script of GUI-Owl-1.5)",
    "truncated": "the point cut to whole pixels",
}
POLYGONS = {
    "outline": "inside the polygon",
    "mai_ui_box": "inside the box that MAI-UI's scorer makes of the first two vertices (see `mai_ui_box`)",
}
REFUSALS = {
    "counted": "an item without a target is right where the agent refuses",
    "excluded": "items without a target are left out",
    "origin": "an item without a target is the box [0, 0, 0, 0]: right is the point (0, 0), as in MAI-UI's scorer",
}
AVERAGES = ("micro", "official")
MACRO = "macro:"


@dataclasses.dataclass(frozen=True)
class GroundingRule:
    """How answers are judged and averaged. Edges always belong to the target; an unparsable answer is always wrong.

    Attributes:
      points: a key of `POINTS`.
      polygons: a key of `POLYGONS`.
      refusals: a key of `REFUSALS`.
      average: of the headline: "micro" (over items), "macro:<facet>" (mean of the facet's values), or "official" (the
        benchmark's own, where it is not micro).
    """

    points: str = "exact"
    polygons: str = "outline"
    refusals: str = "counted"
    average: str = "micro"

    def __post_init__(self):
        check_settings(self, points=POINTS, polygons=POLYGONS, refusals=REFUSALS)
        kind, _, facet = self.average.partition(MACRO)
        if self.average not in AVERAGES and (kind or not facet.isidentifier()):
            raise ConfigError(f"rule: average is {self.average!r}, must be micro, official or {MACRO}<facet>")

    @property
    def name(self) -> str:
        """The full name, which `parse` reads: "points=exact,polygons=outline,refusals=counted,average=micro"."""
        return rule_name(self)

    @staticmethod
    def parse(name: str) -> GroundingRule:
        """Reads "points=grid,refusals=excluded", or a key of `RULES` with settings behind it ("gui_owl,average=micro").

        Settings that are not named keep their defaults.

        Raises:
          ConfigError: an unknown name, setting or value.
        """
        return parse_rule(GroundingRule(), RULES, name)


RULES: Mapping[str, GroundingRule] = {
    "exact": GroundingRule(),
    "gui_owl": GroundingRule(points="grid"),
    "truncated": GroundingRule(points="truncated"),
    "mai_ui": GroundingRule(polygons="mai_ui_box", refusals="origin"),
}


def hits(rule: GroundingRule, point: Point, target: Box | Polygon, size: tuple[int, int]) -> bool:
    """Whether a point hits a target.

    Args:
      rule: of `GroundingRule`, `points` and `polygons` matter.
      point: (x, y) in pixels of the image.
      target: in the same pixels.
      size: (width, height) of the image.
    """
    if isinstance(target, Polygon) and rule.polygons == "mai_ui_box":
        target = mai_ui_box(target)
    if rule.points == "truncated":
        point = math.floor(point[0] + RESOLUTION), math.floor(point[1] + RESOLUTION)
    elif rule.points == "grid":
        point = point[0] * SCALE / size[0], point[1] * SCALE / size[1]
        target = _on_grid(target, size)
    return in_box(point, target) if isinstance(target, Box) else in_polygon(point, target)


def mai_ui_box(polygon: Polygon) -> Box:
    """What MAI-UI's scorer reads where a polygon stands: its first vertex, and the sum of the first two."""
    (x1, y1), (x2, y2) = polygon.vertices[:2]
    return Box(x1, y1, x1 + x2, y1 + y2)


def _on_grid(target: Box | Polygon, size: tuple[int, int]) -> Box | Polygon:
    across, down = SCALE / size[0], SCALE / size[1]
    if isinstance(target, Polygon):
        return Polygon(tuple((x * across, y * down) for x, y in target.vertices))
    # An edge on a grid line stays there, whatever the division leaves behind it.
    return Box(
        math.floor(target.left * across + RESOLUTION),
        math.floor(target.top * down + RESOLUTION),
        math.ceil(target.right * across - RESOLUTION),
        math.ceil(target.bottom * down - RESOLUTION),
    )
