"""Charts of the report as inline SVG: lines and bars with whiskers. No script, no external resource.

A chart is an HTML <figure>: title, legend, drawing. Colours are CSS variables (`--c0`... for device families and other
kinds, `--g0`... for stages, which have an order), so that one drawing serves light and dark mode; `CSS` defines them.
Every mark carries a <title>, which browsers show on hover; the drawing as a whole carries its content as a label.
"""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Sequence

import numpy as np

WIDTH, HEIGHT = 400, 210
LEFT, RIGHT, TOP, BOTTOM = 48, 8, 10, 40  # margins around the plot
MAX_POINTS = 240  # of a line; more are averaged in bins
PERCENT, NUMBER = "percent", "number"


@dataclasses.dataclass(frozen=True, eq=False)
class Series:
    """A line.

    Attributes:
      name: in the legend.
      x: rising numbers, [n].
      y: a number each, [n]; points that are not finite are left out.
      colour: name of a CSS variable, "c0" say.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = "c0"


@dataclasses.dataclass(frozen=True)
class Shade:
    """A stretch of the x axis with a coloured background."""

    low: float
    high: float
    colour: str
    name: str


@dataclasses.dataclass(frozen=True)
class Bar:
    """A bar with a whisker.

    Attributes:
      name: in the legend; bars of one name share a colour.
      value: height; NaN draws nothing.
      low: lower end of the whisker.
      high: upper end.
      colour: name of a CSS variable.
      note: shown on hover, "52 of 60" say.
    """

    name: str
    value: float
    low: float
    high: float
    colour: str
    note: str = ""


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    style: str = NUMBER,
    limits: tuple[float, float] | None = None,
    log: bool = False,
    shades: Sequence[Shade] = (),
) -> str:
    """Draws lines over a common x axis.

    Long lines are drawn twice: faintly as they are, boldly as a centred moving average over about a twelfth of them. A
    gap in x (several times the usual distance) interrupts a line.

    Args:
      series: the lines; empty ones are dropped.
      title: of the figure.
      x_label: of the x axis.
      style: how y is printed, `PERCENT` (of fractions) or `NUMBER`.
      limits: of the y axis; by default those of the data, and 0 where it is near.
      log: logarithmic y axis, used where all values are positive and span more than a factor of 10.
      shades: coloured stretches of the background; `shade_key` explains them.

    Returns:
      A <figure>, or "" where there is nothing to draw.
    """
    lines = [line for line in map(_finite, series) if len(line.x)]
    if not lines:
        return ""
    values = np.concatenate([np.asarray(line.y, float) for line in lines])
    log = log and limits is None and values.min() > 0 and values.max() > 10 * values.min()
    low, high = limits or _limits(values, log)
    first, last = min(line.x[0] for line in lines), max(line.x[-1] for line in lines)
    x_axis = _Axis(first, max(last, first + 1e-9), LEFT, WIDTH - RIGHT)
    y_axis = _Axis(low, high, HEIGHT - BOTTOM, TOP, log)

    parts = [_shade(shade, x_axis) for shade in shades]
    parts += [_frame(y_axis, _log_ticks(low, high) if log else ticks(low, high, 4), style)]
    for tick in ticks(first, last, 5):
        parts.append(_text(x_axis(tick), HEIGHT - BOTTOM + 16, _short(tick), "tick"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5, x_label, "tick"))
    parts += [_line(line, x_axis, y_axis, style) for line in lines]
    spoken = "; ".join(f"{s.name} from {_show(s.y[0], style)} to {_show(s.y[-1], style)}" for s in lines)
    legend = [(line.name, line.colour, "stroke") for line in lines]
    return _figure(title, f"Line chart over {x_label} {_short(first)} to {_short(last)}: {spoken}.", legend, parts)


def bar_chart(groups: Sequence[tuple[str, Sequence[Bar]]], *, title: str) -> str:
    """Draws groups of bars from 0 to 100 % with whiskers.

    Args:
      groups: (label below, its bars).
      title: of the figure.

    Returns:
      A <figure>, or "" where no bar has a value.
    """
    groups = [(label, bars) for label, bars in groups if bars]
    if not any(math.isfinite(bar.value) for _, bars in groups for bar in bars):
        return ""
    y_axis = _Axis(0, 1, HEIGHT - BOTTOM, TOP + 8)
    span = (WIDTH - LEFT - RIGHT) / len(groups)
    parts = [_frame(y_axis, [0, 0.25, 0.5, 0.75, 1], PERCENT)]
    spoken = []
    for index, (label, bars) in enumerate(groups):
        centre = LEFT + span * (index + 0.5)
        slot = min(34.0, span * 0.84 / len(bars))
        for number, bar in enumerate(bars):
            place = centre + (number - (len(bars) - 1) / 2) * slot
            parts.append(_bar(bar, label, place, slot * 0.78, y_axis))
        parts.append(_text(centre, HEIGHT - BOTTOM + 17, label, "name"))
        shown = [f"{bar.name} {_show(bar.value, PERCENT)}" for bar in bars if math.isfinite(bar.value)]
        spoken.append(f"{label}: {', '.join(shown) or 'no value'}")
    legend = {bar.name: (bar.name, bar.colour, "fill") for _, bars in groups for bar in bars}
    return _figure(title, f"Bar chart. {'; '.join(spoken)}.", list(legend.values()), parts, height=HEIGHT - 14)


def shade_key(shades: Sequence[Shade], text: str) -> str:
    """The legend of shades that several charts share, as a paragraph that begins with `text`; "" without shades."""
    names = {shade.name: shade.colour for shade in shades}
    keys = "".join(f'<i class="shade" style="--c:var(--{colour})"></i>{html.escape(n)}' for n, colour in names.items())
    return f'<p class="key">{html.escape(text)} {keys}</p>' if names else ""


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten) from low to high."""
    if not high > low:
        return [low]
    raw = (high - low) / max(count, 1)
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= raw * (1 - 1e-9))
    return [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """A centred moving average over an odd window, which shrinks towards both ends: [n] -> [n].

    [0, 3, 6, 0] with window 3 -> [0, 3, 3, 0]
    """
    half = window // 2
    count = len(values)
    reach = np.minimum(half, np.minimum(np.arange(count), np.arange(count)[::-1]))
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=float)])
    where = np.arange(count)
    return (sums[where + reach + 1] - sums[where - reach]) / (2 * reach + 1)


@dataclasses.dataclass(frozen=True)
class _Axis:
    """Maps [low, high] to the drawing's [start, end], linearly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def _finite(series: Series) -> Series:
    """Drops points that are not finite and averages neighbours where there are too many points."""
    x, y = np.asarray(series.x, float), np.asarray(series.y, float)
    kept = np.isfinite(x) & np.isfinite(y)
    x, y = x[kept], y[kept]
    size = -(-len(x) // MAX_POINTS)
    if size > 1:
        starts = np.arange(0, len(x), size)
        counts = np.diff([*starts, len(x)])
        x, y = np.add.reduceat(x, starts) / counts, np.add.reduceat(y, starts) / counts
    return dataclasses.replace(series, x=x.tolist(), y=y.tolist())


def _limits(values: np.ndarray, log: bool) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    if log:
        return low / 1.15, high * 1.15
    if 0 < low < 0.4 * high:
        low = 0.0
    if high == low:
        return (low - 0.5, high + 0.5) if low else (0.0, 1.0)
    pad = 0.06 * (high - low)
    return low - (pad if low else 0), high + pad


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1,) if len(powers) > 4 else (1, 3)
    return [f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high]


def _frame(axis: _Axis, places: Sequence[float], style: str) -> str:
    parts = []
    for value in places:
        y = axis(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 6, y + 4, _show(value, style), "tick", anchor="end"))
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{axis.start:.1f}" y2="{axis.start:.1f}"/>')
    return "".join(parts)


def _line(line: Series, x_axis: _Axis, y_axis: _Axis, style: str) -> str:
    x, y = np.asarray(line.x), np.asarray(line.y)
    window = max(1, len(x) // 12) | 1
    raw, bold, dots = [], [], []
    for run in _runs(x):
        raw.append(_path([(x_axis(a), y_axis(b)) for a, b in zip(x[run], y[run])]))
        means = smooth(y[run], window) if window > 1 else y[run]
        bold.append(_path([(x_axis(a), y_axis(b)) for a, b in zip(x[run], means)]))
        if len(x[run]) == 1:
            dots.append(f'<circle cx="{x_axis(x[run][0]):.1f}" cy="{y_axis(y[run][0]):.1f}" r="2.5"/>')
    name = html.escape(f"{line.name}: {_show(line.y[-1], style)} at {_short(line.x[-1])}")
    faint = f'<path class="raw" d="{"".join(raw)}"/>' if window > 1 else ""
    return (
        f'<g class="series" style="--c:var(--{line.colour})"><title>{name}</title>{faint}'
        f'<path class="line" d="{"".join(bold)}"/>{"".join(dots)}</g>'
    )


def _runs(x: np.ndarray) -> list[slice]:
    """Stretches without gaps: x [1 2 3 9 10] -> [0:3], [3:5]."""
    if len(x) < 3:
        return [slice(0, len(x))]
    steps = np.diff(x)
    starts = [0, *(np.flatnonzero(steps > 2.5 * np.median(steps)) + 1).tolist(), len(x)]
    return [slice(a, b) for a, b in zip(starts, starts[1:])]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "".join(f"{'L' if index else 'M'}{x:.1f} {y:.1f}" for index, (x, y) in enumerate(points))


def _shade(shade: Shade, axis: _Axis) -> str:
    left, right = axis(shade.low), axis(shade.high)
    if right <= left:
        return ""
    return (
        f'<rect class="shade" style="--c:var(--{shade.colour})" x="{left:.1f}" y="{TOP}" '
        f'width="{right - left:.1f}" height="{HEIGHT - BOTTOM - TOP}"/>'
    )


def _bar(bar: Bar, label: str, centre: float, width: float, axis: _Axis) -> str:
    if not math.isfinite(bar.value):
        return ""
    top, low, high = axis(bar.value), axis(bar.low), axis(bar.high)
    note = f" ({bar.note})" if bar.note else ""
    interval = f"95 % interval {_show(bar.low, PERCENT)} to {_show(bar.high, PERCENT)}"
    title = html.escape(f"{label}, {bar.name}: {_show(bar.value, PERCENT)}{note}, {interval}")
    ends = "".join(f"M{centre - width * 0.22:.1f} {end:.1f}h{width * 0.44:.1f}" for end in (low, high))
    whisker = f"M{centre:.1f} {low:.1f}V{high:.1f}{ends}"
    return (
        f'<g style="--c:var(--{bar.colour})"><title>{title}</title>'
        f'<rect class="bar" x="{centre - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" '
        f'height="{axis.start - top:.1f}"/>'
        f'<path class="halo" d="{whisker}"/><path class="whisker" d="{whisker}"/>'
        f"{_text(centre, high - 4, f'{100 * bar.value:.0f}', 'value')}</g>"
    )


def _figure(
    title: str, spoken: str, legend: Sequence[tuple[str, str, str]], parts: Sequence[str], height: int = HEIGHT
) -> str:
    entries = "".join(
        f'<li><i class="{mark}" style="--c:var(--{colour})"></i>{html.escape(name)}</li>'
        for name, colour, mark in legend
    )
    key = f"<ul>{entries}</ul>" if len(legend) > 1 else ""
    return (
        f'<figure class="chart"><figcaption>{html.escape(title)}</figcaption>{key}'
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(f"{title}. {spoken}")}">'
        f"{''.join(parts)}</svg></figure>"
    )


def _text(x: float, y: float, text: str, kind: str, anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _show(value: float, style: str) -> str:
    if style == PERCENT:
        return f"{100 * value:.3g} %"
    return _short(value)


def _short(value: float) -> str:
    """At most three digits where that suffices: 0.00123 -> "0.00123", 1200 -> "1200", 45000 -> "45k"."""
    if value and abs(value) < 1e-3:
        return f"{value:.2g}".replace("e-0", "e-")
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.3g}k"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


CSS = """
:root { --c0: #0072b2; --c1: #d55e00; --c2: #00936b; --c3: #9a5b9f; --c4: #7a6a00; --c5: #5b6470;
  --g0: #b4b8c2; --g1: #b9b0ea; --g2: #7f70dc; --g3: #41309f; }
@media (prefers-color-scheme: dark) {
  :root { --c0: #56b4e9; --c1: #f08c3a; --c2: #35c796; --c3: #d79adb; --c4: #d8c546; --c5: #a3adba;
    --g0: #5d6371; --g1: #5748b4; --g2: #8d7df0; --g3: #cfc8ff; } }
.chart { display: flex; flex-direction: column; margin: 0; min-width: 0; }
.chart figcaption { font-weight: 600; margin-bottom: .3rem; }
.chart ul { display: flex; flex-wrap: wrap; gap: .15rem 1rem; margin: 0 0 .3rem; padding: 0; list-style: none;
  font-size: .8rem; color: var(--muted); }
.chart li { display: flex; align-items: center; gap: .4rem; }
.chart i, .key i { display: inline-block; width: .75rem; height: .75rem; border-radius: 2px; background: var(--c); }
.chart i.stroke { height: 3px; }
.key { margin: 0 0 .6rem; font-size: .85rem; color: var(--muted); }
.key i { margin: 0 .3rem 0 .8rem; vertical-align: -1px; }
.key i.shade { opacity: .3; }
.chart svg { width: 100%; max-width: 520px; height: auto; margin-top: auto; overflow: visible; }
.chart text { font: 11.5px system-ui, sans-serif; font-variant-numeric: tabular-nums; fill: var(--muted); }
.chart text.name { font-size: 12px; fill: var(--ink); }
.chart text.value { font-size: 11px; fill: var(--ink); }
.chart .grid { stroke: var(--line); stroke-width: 1; }
.chart .axis { stroke: var(--muted); stroke-width: 1; }
.chart .line { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.chart .raw { fill: none; stroke: var(--c); stroke-width: 1; opacity: .3; }
.chart circle { fill: var(--c); }
.chart .shade { fill: var(--c); opacity: .1; }
.chart .bar { fill: var(--c); }
.chart .halo { fill: none; stroke: var(--card); stroke-width: 3; opacity: .6; }
.chart .whisker { fill: none; stroke: var(--ink); stroke-width: 1.2; }
"""
