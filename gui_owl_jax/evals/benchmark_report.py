"""The report of a benchmark: one HTML file with the score, its tables, what went wrong, and the worst answers.

An answer is worse the farther its point is from the target, as a share of the screen's diagonal. All text that comes
from files or models is escaped. Where a screenshot is absent, its place tells why.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import html
import io
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gui_owl_jax.agent.actions import SCALE
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals import charts, filmstrip, report
from gui_owl_jax.evals.benchmark import ActionLabel, Answer, Benchmark, Box, Choice, Item, Polygon, Refusal
from gui_owl_jax.evals.charts import Bar
from gui_owl_jax.evals.score import UNPARSABLE, Score, Verdict, count_reasons
from gui_owl_jax.evals.statistics import Rate
from gui_owl_jax.evals.success import percent
from gui_owl_jax.evals.targets import bounds

MAX_SIDE = 720  # pixels of a screenshot on the page
MAX_TEXT = 2000  # characters of an answer that are shown
MAX_ROWS = 60  # of a table
PROBLEMS_SHOWN = 5  # of each kind
BARS = 8  # tables with more values have no chart


@dataclasses.dataclass(frozen=True, eq=False)
class BenchmarkReport:
    """What the page is made of.

    Attributes:
      benchmark: items and problems of the files.
      answers: all of them.
      score: under one rule.
      settings: what the answers depend on.
      images: opens the screenshot of an item, uint8 [H, W, 3]; raises DataError where it cannot.
      worst: how many wrong answers with a point to show, and as many without one.
    """

    benchmark: Benchmark
    answers: Sequence[Answer]
    score: Score
    settings: Mapping[str, Any]
    images: Callable[[str], np.ndarray]
    worst: int = 18


def write_report(path: str | os.PathLike, page: BenchmarkReport) -> Path:
    """Writes the page under a temporary name and renames it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(render(page).encode("utf-8", "replace"))  # models can write halves of surrogate pairs
    part.replace(path)
    return path


def render(page: BenchmarkReport) -> str:
    """The page as HTML."""
    sections = [
        ("result", "Result", _result(page)),
        ("tables", "Tables", _tables(page.score)),
        ("answers", "What the answers were", _reasons(page)),
        ("far", "Farthest from the target", _gallery(page, _farthest(page))),
        ("pointless", "Wrong without a point", _gallery(page, _pointless(page))),
        ("files", "Problems of the files", _problems(page.benchmark)),
        ("settings", "Settings", f"<pre>{html.escape(json.dumps(page.settings, indent=2))}</pre>"),
    ]
    sections = [section for section in sections if section[2]]
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title, _ in sections)
    body = "".join(f'<section id="{name}"><h2>{title}</h2>{content}</section>' for name, title, content in sections)
    title = html.escape(page.score.benchmark)
    facts = f"{len(page.benchmark.items)} items · scored by <code>{html.escape(page.score.rule)}</code>"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{title}</title><style>{report.CSS}{charts.CSS}{filmstrip.CSS}{CSS}</style></head><body>"
        f'<header><h1>{title}</h1><p class="facts">{facts}</p><nav aria-label="Sections">{links}</nav></header>'
        f"<main>{body}</main></body></html>\n"
    )


def distance(item: Item, point: tuple[float, float], size: tuple[int, int]) -> float | None:
    """How far a point is from an item's target (a polygon: from its bounds), as a share of the diagonal.

    Args:
      item: of a benchmark.
      point: in pixels of the image.
      size: (width, height) of the image.

    Returns:
      0 inside the target; None where the target is no place.
    """
    box = _place(item, size)
    if box is None:
        return None
    across = max(box.left - point[0], 0.0, point[0] - box.right)
    down = max(box.top - point[1], 0.0, point[1] - box.bottom)
    return math.hypot(across, down) / math.hypot(*size)


def _place(item: Item, size: tuple[int, int]) -> Box | None:
    match item.target:
        case Box() | Polygon():
            return bounds(item.target)
        case ActionLabel(action) if action.coordinate is not None:
            x, y = (value * side / SCALE for value, side in zip(action.coordinate, size))
            return Box(x, y, x, y)
    return None


def _result(page: BenchmarkReport) -> str:
    tiles = [
        (f"{percent(rate.mean)} %", f"{html.escape(name)} average", _interval(rate))
        for name, rate in page.score.averages.items()
    ]
    unparsable = count_reasons(page.score.verdicts).get(UNPARSABLE, 0)
    tiles.append((str(unparsable), "unparsable answers", "they count as wrong"))
    failed = sum(bool(answer.failure) for answer in page.answers)
    tiles.append((str(failed), "items that could not be asked", "they count as wrong"))
    if page.score.left_out:
        tiles.append((str(page.score.left_out), "items left out", "by the rule"))
    calls = sum(len(answer.looks) for answer in page.answers)
    tiles.append((str(calls), "calls of the model", f"for {len(page.answers)} answers"))
    shown = "".join(f"<li><b>{value}</b><span>{what}</span><small>{note}</small></li>" for value, what, note in tiles)
    return f'<ul class="tiles">{shown}</ul>'


def _tables(score: Score) -> str:
    parts = []
    for facet, rates in score.tables.items():
        if not rates:
            continue
        rows = "".join(
            f'<tr><th scope="row">{html.escape(value) or "(none)"}</th><td><b>{percent(rate.mean)}</b></td>'
            f"<td>{percent(rate.interval.low)} – {percent(rate.interval.high)}</td>"
            f"<td>{rate.successes}</td><td>{rate.trials}</td></tr>"
            for value, rate in list(rates.items())[:MAX_ROWS]
        )
        more = f'<p class="note">{len(rates) - MAX_ROWS} more rows are left out.</p>' if len(rates) > MAX_ROWS else ""
        table = (
            f'<div class="scroll" tabindex="0"><table><caption>By {html.escape(facet)}, in %</caption><thead><tr>'
            '<th scope="col">value</th><th scope="col">right</th><th scope="col">95 % interval</th>'
            f'<th scope="col">hits</th><th scope="col">items</th></tr></thead><tbody>{rows}</tbody></table></div>{more}'
        )
        parts.append(f'<div class="columns wide"><div>{table}</div>{_chart(facet, rates)}</div>')
    return "".join(parts)


def _chart(facet: str, rates: Mapping[str, Rate]) -> str:
    if not 2 <= len(rates) <= BARS:
        return ""
    groups = [
        (value, [Bar("right", r.mean, r.interval.low, r.interval.high, "g3", f"{r.successes} of {r.trials}")])
        for value, r in rates.items()
        if r.trials
    ]
    return charts.bar_chart(groups, title=f"By {facet}")


def _reasons(page: BenchmarkReport) -> str:
    total = len(page.score.verdicts)
    right = collections.Counter(verdict.reason for verdict in page.score.verdicts if verdict.right)
    rows = "".join(
        f'<tr><th scope="row">{html.escape(reason)}</th><td>{count}</td><td>{percent(count / total)}</td>'
        f"<td>{right[reason]}</td></tr>"
        for reason, count in count_reasons(page.score.verdicts).items()
    )
    table = (
        '<table><caption>Verdicts by reason</caption><thead><tr><th scope="col">reason</th>'
        '<th scope="col">items</th><th scope="col">%</th><th scope="col">of them right</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )
    failures = collections.Counter(answer.failure for answer in page.answers if answer.failure)
    listed = "".join(f"<li>{count} × {html.escape(_cut(why, 300))}</li>" for why, count in failures.most_common(10))
    return table + (f"<h3>Why items could not be asked</h3><ul>{listed}</ul>" if listed else "")


def _problems(benchmark: Benchmark) -> str:
    kinds: dict[str, list[str]] = {}
    for problem in benchmark.problems:
        kind = problem.kind + (" (entry left out)" if problem.fatal else "")
        kinds.setdefault(kind, []).append(f"{problem.where}: {problem.detail}")
    parts = []
    for kind, found in sorted(kinds.items(), key=lambda pair: -len(pair[1])):
        listed = "".join(f"<li>{html.escape(_cut(text, 300))}</li>" for text in found[:PROBLEMS_SHOWN])
        more = f"<li>and {len(found) - PROBLEMS_SHOWN} more</li>" if len(found) > PROBLEMS_SHOWN else ""
        summary = f"<summary>{html.escape(kind)} <small>{len(found)}</small></summary>"
        parts.append(f"<details>{summary}<ul>{listed}{more}</ul></details>")
    return "".join(parts)


_Case = tuple[float, Item, Answer, Verdict]


def _wrong(page: BenchmarkReport) -> list[_Case]:
    """Wrong answers in the order of the benchmark, each with its distance from the target; -1 for none."""
    items = {item.item_id: item for item in page.benchmark.items}
    answers = {answer.item_id: answer for answer in page.answers}
    found = []
    for verdict in page.score.verdicts:
        if not verdict.right:
            item, answer = items[verdict.item_id], answers.get(verdict.item_id, Answer(verdict.item_id))
            size = _size(item, answer)
            far = distance(item, verdict.point, size) if verdict.point is not None and size else None
            found.append((-1.0 if far is None else far, item, answer, verdict))
    return found


def _farthest(page: BenchmarkReport) -> list[_Case]:
    return sorted((case for case in _wrong(page) if case[0] >= 0), key=lambda case: -case[0])[: page.worst]


def _pointless(page: BenchmarkReport) -> list[_Case]:
    """Wrong answers without a distance, reasons in turn, so that a frequent one does not hide the others."""
    by_reason: dict[str, list[_Case]] = {}
    for case in _wrong(page):
        if case[0] < 0:
            by_reason.setdefault(case[3].reason, []).append(case)
    turns = [case for i in range(page.worst) for cases in by_reason.values() for case in cases[i : i + 1]]
    return turns[: page.worst]


def _gallery(page: BenchmarkReport, cases: Sequence[_Case]) -> str:
    return f'<div class="cases">{"".join(_case(page, *case) for case in cases)}</div>' if cases else ""


def _case(page: BenchmarkReport, far: float, item: Item, answer: Answer, verdict: Verdict) -> str:
    facts = [item.item_id, *item.facets.values(), verdict.reason]
    facts += [f"{100 * far:.1f} % of the diagonal away"] if far >= 0 else []
    lines = [f"<h4>{html.escape(_cut(item.instruction, 300))}</h4>"]
    lines.append(f'<p class="facts">{html.escape(" · ".join(fact for fact in facts if fact))}</p>')
    if verdict.detail:
        lines.append(f'<p class="note">{html.escape(_cut(verdict.detail, 300))}</p>')
    for number, look in enumerate(answer.looks, 1):
        name = "answer" if len(answer.looks) == 1 else f"look {number}"
        lines.append(f"<details><summary>{name}</summary><pre>{html.escape(_cut(look.response))}</pre></details>")
    return f'<article class="case">{_screen(page, item, answer, verdict)}{"".join(lines)}</article>'


def _screen(page: BenchmarkReport, item: Item, answer: Answer, verdict: Verdict) -> str:
    if not item.image:
        return ""
    try:
        image = page.images(item.image)
    except DataError as error:
        return f'<p class="absent">{html.escape(str(error))}</p>'
    uri, (width, height) = picture(image)
    size = _size(item, answer) or (image.shape[1], image.shape[0])
    unit = min(size) / 96
    shapes = _target(item, size)
    if len(answer.looks) > 1:
        left, top, right, bottom = answer.looks[-1].window
        shapes += f'<rect class="window" x="{left:g}" y="{top:g}" width="{right - left:g}" height="{bottom - top:g}"/>'
    if verdict.point is not None:
        x, y = verdict.point
        circle = f'cx="{x:g}" cy="{y:g}" r="{3 * unit:g}"'
        shapes += f'<circle class="halo" {circle}/><circle class="mark" {circle}/>'
        shapes += f'<circle class="dot" cx="{x:g}" cy="{y:g}" r="{0.6 * unit:g}"/>'
    alt = html.escape(f"Screenshot {item.image}: {_spoken(item, verdict)}")
    return (
        f'<div class="screen"><img src="{uri}" width="{width}" height="{height}" alt="{alt}">'
        f'<svg viewBox="0 0 {size[0]} {size[1]}" preserveAspectRatio="none" aria-hidden="true">{shapes}</svg></div>'
    )


def _target(item: Item, size: tuple[int, int]) -> str:
    match item.target:
        case Polygon(vertices):
            points = " ".join(f"{x:g},{y:g}" for x, y in vertices)
            return f'<polygon class="halo" points="{points}"/><polygon class="target" points="{points}"/>'
        case ActionLabel(_, boxes):
            drawn = "".join(_rectangle(box) for box in boxes)
            place = _place(item, size)
            if place is None:
                return drawn
            circle = f'cx="{place.left:g}" cy="{place.top:g}" r="{min(size) / 40:g}"'
            return f'{drawn}<circle class="halo" {circle}/><circle class="target" {circle}/>'
        case Box():
            return _rectangle(item.target)
    return ""


def _rectangle(box: Box) -> str:
    width, height = max(0.0, box.right - box.left), max(0.0, box.bottom - box.top)
    frame = f'x="{box.left:g}" y="{box.top:g}" width="{width:g}" height="{height:g}"'
    return f'<rect class="halo" {frame}/><rect class="target" {frame}/>'


def _spoken(item: Item, verdict: Verdict) -> str:
    match item.target:
        case Box(left, top, right, bottom):
            target = f"the target is the box {left:g}, {top:g}, {right:g}, {bottom:g}"
        case Refusal():
            target = "nothing is meant"
        case Choice(answer):
            target = f"the right choice is {answer}"
        case ActionLabel(action):
            target = f"the recorded action is {filmstrip.describe(action)}"
        case _:
            target = "the target is a polygon"
    point = "" if verdict.point is None else f"; the answer points at {verdict.point[0]:.1f}, {verdict.point[1]:.1f}"
    return target + point


def picture(image: np.ndarray) -> tuple[str, tuple[int, int]]:
    """A screenshot uint8 [H, W, 3] as a JPEG inside a URI, scaled down to `MAX_SIDE`; and its (width, height)."""
    height, width = image.shape[:2]
    factor = min(1.0, MAX_SIDE / max(width, height))
    size = max(1, round(width * factor)), max(1, round(height * factor))
    buffer = io.BytesIO()
    Image.fromarray(image).resize(size, Image.Resampling.LANCZOS).save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii"), size


def _size(item: Item, answer: Answer) -> tuple[int, int] | None:
    """The size in whose pixels target and point are; points of actions are those of the opened image."""
    return answer.size or item.size if isinstance(item.target, ActionLabel) else item.size or answer.size


def _interval(rate: Rate) -> str:
    return f"[{percent(rate.interval.low)}, {percent(rate.interval.high)}], {rate.successes} of {rate.trials}"


def _cut(text: str, length: int = MAX_TEXT) -> str:
    return text if len(text) <= length else f"{text[:length]}… ({len(text) - length} more characters)"


CSS = """
.cases { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 420px), 1fr)); }
.case { min-width: 0; padding: .8rem; border: 1px solid var(--line); border-radius: 10px; }
.case h4 { margin: .6rem 0 .2rem; font-size: .95rem; overflow-wrap: anywhere; }
.case .facts { overflow-wrap: anywhere; }
.case .screen { width: fit-content; max-width: 100%; }
.case .screen img { max-width: 100%; height: auto; }
.case pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.screen .target { fill: none; stroke: #0a8f4f; stroke-width: 2.5; vector-effect: non-scaling-stroke; }
.screen .window { fill: none; stroke: #2b6fd6; stroke-width: 1.5; stroke-dasharray: 5 4;
  vector-effect: non-scaling-stroke; }
.absent { padding: 2rem 1rem; border: 1px dashed var(--line); border-radius: 6px; color: var(--muted);
  overflow-wrap: anywhere; }
"""
