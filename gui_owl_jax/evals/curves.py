"""Learning curves and collapse statistics of the report, from the lines of a stage's metrics.jsonl.

A panel whose metrics were not logged is left out; metrics that belong to no panel are drawn one by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from gui_owl_jax.agent.devices import DEVICE_FAMILIES
from gui_owl_jax.evals import charts
from gui_owl_jax.evals.charts import Series, Shade

Line = Mapping[str, object]


@dataclasses.dataclass(frozen=True)
class Panel:
    """A chart of one or more metrics over steps.

    Attributes:
      title: of the chart.
      lines: (metric, name in the legend, colour).
      style: how values are printed; `charts.PERCENT` also fixes the axis to 0..1 where values are shares of a whole.
      limits: of the y axis.
      log: logarithmic where the values span decades.
    """

    title: str
    lines: tuple[tuple[str, str, str], ...]
    style: str = charts.NUMBER
    limits: tuple[float, float] | None = None
    log: bool = False


_FAMILY_COLOURS = {str(family): f"c{index}" for index, family in enumerate(DEVICE_FAMILIES)}
_SUCCESS = tuple((f"success_{family}", family, colour) for family, colour in _FAMILY_COLOURS.items())

LEARNING = (
    Panel("Success of training rollouts", _SUCCESS, charts.PERCENT, (0.0, 1.0)),
    Panel("Loss", (("loss", "loss", "g3"),), log=True),
    Panel("Token accuracy", (("accuracy", "accuracy", "g3"),), charts.PERCENT, (0.0, 1.0)),
    Panel("KL to the reference (nats/token)", (("kl", "KL", "g3"),)),
    Panel("Entropy (nats/token)", (("entropy", "entropy", "g3"),)),
    Panel(
        "Clipped tokens",
        (("clip_fraction", "all", "c5"), ("clip_low_share", "below", "c3"), ("clip_high_share", "above", "c4")),
        charts.PERCENT,
    ),
    Panel("Gradient norm", (("grad_norm", "norm", "g3"),), log=True),
)
COLLAPSE = (
    Panel(
        "Groups of an update",
        (
            ("informative_share", "informative", "g3"),
            ("swap_share", "of these thanks to swap1", "c3"),
            ("empty_share", "empty", "c4"),
        ),
        charts.PERCENT,
        (0.0, 1.0),
    ),
    Panel("Rollouts per informative group", (("rollouts_per_informative_group", "rollouts", "g3"),)),
)
_NAMED = {metric for panel in (*LEARNING, *COLLAPSE) for metric, _, _ in panel.lines} | {"step"}


def learning_curves(lines: Sequence[Line]) -> tuple[list[str], list[str]]:
    """The panels of `LEARNING`, and one chart for every other number that was logged; charts are <figure>s.

    Backgrounds are explained by `charts.shade_key(shades(lines), ...)`.
    """
    others = {name for line in lines for name, value in line.items() if is_number(value)} - _NAMED
    further = [draw(lines, Panel(name, ((name, name, "g3"),))) for name in sorted(others)]
    return _drawn(lines, LEARNING), [chart for chart in further if chart]


def collapse_curves(lines: Sequence[Line]) -> list[str]:
    """The panels of `COLLAPSE`; none where the stage forms no groups."""
    return _drawn(lines, COLLAPSE)


def draw(lines: Sequence[Line], panel: Panel) -> str:
    """Draws a panel; "" where none of its metrics was logged.

    Updates whose rollouts came (mostly) from one device family get that family's colour as background.
    """
    lines = [line for line in lines if is_number(line.get("step"))]
    series = []
    for metric, name, colour in panel.lines:
        logged = [line for line in lines if is_number(line.get(metric))]
        steps, values = ([float(line[key]) for line in logged] for key in ("step", metric))  # type: ignore[arg-type]
        series.append(Series(name, steps, values, colour))
    return charts.line_chart(
        series,
        title=panel.title,
        x_label="update" if any("success" in line for line in lines) else "step",
        style=panel.style,
        limits=panel.limits,
        log=panel.log,
        shades=shades(lines),
    )


def shades(lines: Sequence[Line]) -> list[Shade]:
    """Stretches of updates on one device family; none where there is only one family, or always a mixture.

    Families m m m d d of steps 1 to 5 -> m [0.5, 3.5], d [3.5, 5.5]
    """
    found: list[Shade] = []
    for line in lines:
        family = _family(line)
        if family is None or not is_number(line.get("step")):
            continue
        low, high = float(line["step"]) - 0.5, float(line["step"]) + 0.5  # type: ignore[arg-type]
        if found and found[-1].name == family and low <= found[-1].high:
            found[-1] = dataclasses.replace(found[-1], high=high)
        else:
            found.append(Shade(low, high, _FAMILY_COLOURS[family], family))
    return found if len({shade.name for shade in found}) > 1 else []


def is_number(value: object) -> bool:
    """Whether a value of a line can be drawn (a number that was not finite is null in the file)."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _family(line: Line) -> str | None:
    """The device family that a line's update mostly trains on: named, or with a weight above a half."""
    if line.get("family") in _FAMILY_COLOURS:
        return str(line["family"])
    weights = {family: line.get(f"weight_{family}") for family in _FAMILY_COLOURS}
    return next((family for family, w in weights.items() if is_number(w) and w > 0.5), None)  # type: ignore[operator]


def _drawn(lines: Sequence[Line], panels: Sequence[Panel]) -> list[str]:
    return [chart for chart in (draw(lines, panel) for panel in panels) if chart]
