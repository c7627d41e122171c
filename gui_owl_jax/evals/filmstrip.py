"""Trajectories as film strips: screenshots in a row, each with the action drawn where it happened.

Everything a model or an environment wrote is untrusted text and is escaped. Places come from the action alone: relative
coordinates are scaled to the screenshot, a drag starts where the cursor was, and a click by Set-of-Marks label is drawn
if the trajectory says where the marks were, in `metadata["marks"]`: one {label: [x, y, width, height]} per step, labels
as strings, boxes in pixels of the screenshot. Nothing is drawn where the place is not known.
"""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from PIL import Image

from gui_owl_jax.agent.actions import SCALE, TOOL_KIND, Action
from gui_owl_jax.agent.devices import DEVICE_FAMILIES, DeviceFamily
from gui_owl_jax.agent.trajectory import Step, Trajectory

MAX_SIDE = 320  # CSS pixels of a screenshot on the page: larger ones are scaled down, smaller ones up by whole numbers
MAX_TEXT = 4000  # characters of a response that are kept
RINGS = {"long_press": 2, "double_click": 2, "triple_click": 3}  # circles around the place of an action, others one
Point = tuple[float, float]
Marks = Mapping[str, Sequence[float]]  # label -> (x, y, width, height) in pixels


def choose(trajectories: Iterable[Trajectory], successes: int = 3, failures: int = 2) -> list[Trajectory]:
    """Picks what to show: successes, then failures of every device family.

    Templates that were not shown yet come first, then longer episodes, then the order given. Episodes whose environment
    failed are shown as well, at most one per family.
    """
    everything = list(trajectories)
    chosen: list[Trajectory] = []
    for family in DEVICE_FAMILIES:
        for outcome, count in ((1, successes), (0, failures), (None, 1)):
            left = [t for t in everything if t.family == family and t.outcome == outcome and t.steps]
            seen: set[object] = set()
            for _ in range(min(count, len(left))):
                best = max(left, key=lambda t: (t.metadata.get("template") not in seen, len(t.steps)))
                seen.add(best.metadata.get("template"))
                left.remove(best)
                chosen.append(best)
    return chosen


def strip(trajectory: Trajectory) -> str:
    """One trajectory as an HTML <article>: instruction, outcome, and one <figure> per step."""
    template = trajectory.metadata.get("template")
    facts = [str(trajectory.family), trajectory.app, str(template) if template else "", f"seed {trajectory.seed}"]
    if trajectory.subtasks:
        facts.append(f"{sum(trajectory.subtasks)} of {len(trajectory.subtasks)} subtasks")
    facts = [html.escape(fact) for fact in facts if fact]
    frames, cursor = [], None
    for index, step in enumerate(trajectory.steps):
        frames.append(_frame(trajectory, index, step, cursor))
        if step.action is not None and step.action.coordinate is not None:
            cursor = step.action.coordinate
    label = html.escape(f"Steps of: {trajectory.instruction}")
    return (
        f'<article class="strip">{_outcome(trajectory)}<h4>{html.escape(trajectory.instruction)}</h4>'
        f'<p class="facts">{" · ".join(facts)}</p>'
        f'<div class="frames" tabindex="0" role="group" aria-label="{label}">{"".join(frames)}</div></article>'
    )


def describe(action: Action) -> str:
    """An action in a few characters: `click (512, 384)`, `type "Lunch"`, `swipe (500, 800) to (500, 200)`."""
    if action.kind == TOOL_KIND:
        return f"tool {action.text}"
    words = [action.kind]
    if action.label is not None:
        words.append(f"mark {action.label}")
    words += [f"({p[0]:g}, {p[1]:g})" for p in (action.coordinate,) if p is not None]
    words += [f"to ({p[0]:g}, {p[1]:g})" for p in (action.coordinate2,) if p is not None]
    words += [f'"{text}"' for text in (action.text, action.option) if text is not None]
    words += [" + ".join(action.keys)] if action.keys else []
    words += [str(word) for word in (action.button, action.direction, action.status) if word is not None]
    words += [f"{action.pixels} px"] if action.pixels is not None else []
    words += [f"{action.time:g} s"] if action.time is not None else []
    return " ".join(words)


def data_uri(image: np.ndarray) -> tuple[str, tuple[int, int]]:
    """A screenshot as a PNG inside a URI.

    Args:
      image: uint8 [H, W, 3].

    Returns:
      The URI, and (width, height) on the page in CSS pixels. Images of at most 256 colours are stored with a palette,
      without loss; images beyond `MAX_SIDE` are scaled down.
    """
    height, width = image.shape[:2]
    factor = MAX_SIDE / max(width, height)
    scale = math.floor(factor) if factor >= 1 else factor
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    picture = Image.fromarray(image)
    if scale < 1:
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    else:
        packed = image.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
        colours, index = np.unique(packed, return_inverse=True)
        if len(colours) <= 256:
            picture = Image.fromarray(index.reshape(height, width).astype(np.uint8))
            picture.putpalette(np.stack([colours >> 16, colours >> 8, colours], 1).astype(np.uint8).tobytes())
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii"), size


def overlay(action: Action, width: int, height: int, cursor: Point | None = None, marks: Marks | None = None) -> str:
    """The marks of an action as SVG shapes in pixels of the screenshot; "" where it has no known place.

    Args:
      action: what was done.
      width: of the screenshot.
      height: of the screenshot.
      cursor: relative coordinate of the cursor before the action, where a `left_click_drag` starts.
      marks: boxes of the elements that have a Set-of-Marks label.
    """
    unit = min(width, height) / 96  # marks are as large relative to the screen on every device
    if action.label is not None:
        box = (marks or {}).get(str(action.label))
        if box is None:
            return ""
        x, y, w, h = box
        frame = f'x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{2 * unit:g}"'
        return f'<rect class="halo" {frame}/><rect class="mark" {frame}/>'
    if action.coordinate is None:
        return ""
    place = _scaled(action.coordinate, width, height)
    if action.coordinate2 is not None:
        return _arrow(place, _scaled(action.coordinate2, width, height), unit)
    if action.kind == "left_click_drag" and cursor is not None:
        return _arrow(_scaled(cursor, width, height), place, unit)
    return _point(*place, RINGS.get(action.kind, 1), unit)


def _scaled(point: Point, width: int, height: int) -> Point:
    return point[0] * width / SCALE, point[1] * height / SCALE


def _point(x: float, y: float, rings: int, unit: float) -> str:
    shapes = []
    for ring in range(rings):
        radius = (6 + 3.5 * ring) * unit
        circle = f'cx="{x:g}" cy="{y:g}" r="{radius:g}"'
        shapes += [f'<circle class="halo" {circle}/>', f'<circle class="mark" {circle}/>']
    return "".join(shapes) + f'<circle class="dot" cx="{x:g}" cy="{y:g}" r="{1.2 * unit:g}"/>'


def _arrow(start: Point, end: Point, unit: float) -> str:
    """A line from a dot at `start` to a head whose tip is at `end`."""
    length = math.dist(start, end)
    if length == 0:
        return _point(*end, 1, unit)
    ahead = ((end[0] - start[0]) / length, (end[1] - start[1]) / length)
    size = min(9 * unit, length)
    base = (end[0] - size * ahead[0], end[1] - size * ahead[1])
    aside = (-ahead[1] * size / 2, ahead[0] * size / 2)
    corners = (end, (base[0] + aside[0], base[1] + aside[1]), (base[0] - aside[0], base[1] - aside[1]))
    head = " ".join(f"{x:g},{y:g}" for x, y in corners)
    line = f'd="M{start[0]:g} {start[1]:g}L{base[0]:g} {base[1]:g}"'
    return (
        f'<path class="halo" {line}/><polygon class="halo" points="{head}"/>'
        f'<path class="mark" {line}/><polygon class="dot" points="{head}"/>'
        f'<circle class="dot" cx="{start[0]:g}" cy="{start[1]:g}" r="{2.5 * unit:g}"/>'
    )


def _frame(trajectory: Trajectory, index: int, step: Step, cursor: Point | None) -> str:
    screen = step.observation
    uri, (shown_width, shown_height) = data_uri(screen.image)
    crisp = ' class="crisp"' if shown_width >= screen.width else ""
    shapes = ""
    if step.action is not None:
        start = cursor if trajectory.family == DeviceFamily.DESKTOP else None
        shapes = overlay(step.action, screen.width, screen.height, start, _marks(trajectory, index))
    done = f"no action: {step.error}" if step.action is None else describe(step.action)
    alt = html.escape(f"Screenshot {index + 1} of {len(trajectory.steps)}, {trajectory.family}. Action: {done}")
    drawing = f'<svg viewBox="0 0 {screen.width} {screen.height}" aria-hidden="true">{shapes}</svg>' if shapes else ""
    lines = [f'<code class="{"bad" if step.action is None else "done"}">{html.escape(done)}</code>']
    if step.conclusion:
        lines.insert(0, f"<b>{html.escape(step.conclusion)}</b>")
    if step.thought:
        lines.append(f'<p class="thought">{html.escape(_cut(step.thought))}</p>')
    if step.response:
        lines.append(f"<details><summary>response</summary><pre>{html.escape(_cut(step.response))}</pre></details>")
    return (
        f'<figure style="width:{shown_width}px"><div class="screen">'
        f'<img{crisp} src="{uri}" width="{shown_width}" height="{shown_height}" alt="{alt}">{drawing}</div>'
        f'<figcaption><span class="turn">{index + 1}</span>{"".join(lines)}</figcaption></figure>'
    )


def _marks(trajectory: Trajectory, index: int) -> Marks | None:
    """Where the marks of a step's screen were, if the trajectory says so in the form that this module asks for."""
    marks = trajectory.metadata.get("marks")
    if not isinstance(marks, Sequence) or index >= len(marks) or not isinstance(marks[index], Mapping):
        return None
    return {
        str(label): box
        for label, box in marks[index].items()
        if isinstance(box, Sequence) and len(box) == 4 and all(isinstance(v, int | float) for v in box)
    }


def _outcome(trajectory: Trajectory) -> str:
    if trajectory.outcome is None:
        reason = f": {html.escape(trajectory.failure)}" if trajectory.failure else ""
        return f'<p class="outcome lost">environment failed{reason}</p>'
    kind, word = ("good", "success") if trajectory.outcome else ("bad", "failure")
    return f'<p class="outcome {kind}">{word}</p>'


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text) - MAX_TEXT} more characters)"


CSS = """
.gallery { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; }
.strip { position: relative; max-width: 100%; min-width: 0; padding: .8rem .9rem; border: 1px solid var(--line);
  border-radius: 10px; background: var(--card); box-sizing: border-box; }
.strip h4 { margin: 0 6rem 0 0; font-size: 1rem; overflow-wrap: anywhere; }
.facts { margin: .1rem 0 .7rem; font-size: .8rem; color: var(--muted); }
.outcome { float: right; margin: 0 0 .3rem .8rem; padding: .1rem .6rem; border-radius: 99px; font-size: .78rem;
  font-weight: 600; color: var(--tint); border: 1px solid currentColor; }
.outcome.good { --tint: var(--good); }
.outcome.bad { --tint: var(--bad); }
.outcome.lost { --tint: var(--muted); }
.frames { display: flex; gap: .7rem; overflow-x: auto; padding-bottom: .2rem; }
.frames figure { flex: none; margin: 0; }
.screen { position: relative; line-height: 0; border-radius: 6px; overflow: hidden; outline: 1px solid var(--line); }
.screen img { display: block; }
.screen img.crisp { image-rendering: pixelated; }
.screen svg { position: absolute; inset: 0; width: 100%; height: 100%; }
.screen .halo, .screen .mark { fill: none; vector-effect: non-scaling-stroke; }
.screen .halo { stroke: #fff; stroke-width: 5.5; stroke-opacity: .85; }
.screen .mark { stroke: #e5007d; stroke-width: 2.5; }
.screen .dot { fill: #e5007d; }
.frames figcaption { position: relative; padding: .45rem 0 0 1.7rem; font-size: .85rem; overflow-wrap: anywhere; }
.frames figcaption > * { display: block; }
.frames .turn { position: absolute; left: 0; top: .5rem; width: 1.25rem; height: 1.25rem; border-radius: 50%;
  background: var(--line); text-align: center; font-size: .75rem; line-height: 1.25rem; }
.frames code { font-size: .8rem; color: var(--muted); }
.frames code.bad { color: var(--bad); }
.thought { margin: .2rem 0 0; font-style: italic; color: var(--muted); max-height: 8rem; overflow-y: auto; }
.frames details { margin-top: .2rem; font-size: .78rem; color: var(--muted); }
.frames pre { white-space: pre-wrap; margin: .2rem 0 0; padding: .4rem; background: var(--page); border-radius: 4px;
  max-height: 14rem; overflow: auto; }
"""
