"""The report of a run: one HTML file with tables, charts and film strips that needs nothing beside itself.

It shows what is there: where a stage was not run, a metric not logged or a control not asked for, that part is left
out. All text that comes from files or models is escaped.
"""

from __future__ import annotations

import dataclasses
import html
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gui_owl_jax.agent.devices import DEVICE_FAMILIES
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.agent.trajectory import Trajectory
from gui_owl_jax.evals import charts, curves, filmstrip
from gui_owl_jax.evals import success as scores
from gui_owl_jax.evals.charts import Bar
from gui_owl_jax.evals.statistics import Rate
from gui_owl_jax.evals.success import STAGES, StageResult

MAX_BYTES = 5_000_000
STAGE_NAMES = {"random": "random weights", "pretrain": "pre-training", "sft": "SFT", "mrpo": "MRPO"}


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
    """What a report is made of; everything but the stages may be left out.

    Attributes:
      stages: the evaluations.
      curves: stage -> lines of its metrics.jsonl, each with a "step".
      trajectories: stage -> episodes to choose film strips from.
      commands: shell commands that reproduce the run, in order.
      commit: of the code.
      configs: stage -> its resolved config.
      title: of the page.
    """

    stages: Sequence[StageResult]
    curves: Mapping[str, Sequence[curves.Line]] = dataclasses.field(default_factory=dict)
    trajectories: Mapping[str, Sequence[Trajectory]] = dataclasses.field(default_factory=dict)
    commands: Sequence[str] = ()
    commit: str = ""
    configs: Mapping[str, object] = dataclasses.field(default_factory=dict)
    title: str = "Training a GUI agent"


COLLAPSE_TEXT = (
    "A group whose outcomes are all equal has collapsed: it teaches nothing. From a pool of oversampled rollouts, "
    "swap1 exchanges one member of a collapsed group for one of the other outcome. Where the whole pool is uniform, "
    "the group is empty and the task is skipped."
)
CONTROL_TEXT = (
    "The same policies on the same tasks, but with screenshots passed on between tasks of a device family. An agent "
    "that reads its screen must fall back to the level of random weights."
)


def write_report(path: str | Path, report: Report) -> Path:
    """Writes the page under a temporary name and renames it, so that the file is whole or the earlier one.

    Raises:
      DataError: there is no stage to report.
    """
    path = Path(path)
    text = render(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_bytes(_encode(text))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def render(report: Report, max_bytes: int = MAX_BYTES) -> str:
    """The page as HTML.

    Args:
      report: what to show.
      max_bytes: of the page; film strips are left out, and counted, once it is reached.

    Raises:
      DataError: there is no stage to report.
    """
    if not report.stages:
        raise DataError("there is nothing to report: no stage was evaluated")
    stages = scores.in_order(report.stages)
    sections = [
        ("results", "Results", _results(stages)),
        ("control", "Control: scrambled screens", _control(stages)),
        ("learning", "Learning curves", _learning(report.curves)),
        ("collapse", "Group collapse", _collapse(report.curves)),
        ("apps", "Success by app and task", _apps(stages)),
    ]
    tail = [("reproduce", "How to reproduce", _reproduce(report, stages))]
    style = CSS + charts.CSS + filmstrip.CSS
    spent = len(style) + sum(_size(body) for _, _, body in sections + tail)
    sections += [("episodes", "Episodes", _episodes(report.trajectories, max_bytes - spent)), *tail]
    sections = [section for section in sections if section[2]]
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title, _ in sections)
    body = "".join(f'<section id="{name}"><h2>{title}</h2>{content}</section>' for name, title, content in sections)
    title = html.escape(report.title)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{title}</title><style>{style}</style></head><body>"
        f'<header><h1>{title}</h1>{_facts(report, stages)}<nav aria-label="Sections">{links}</nav></header>'
        f"<main>{body}</main></body></html>\n"
    )


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # models can write halves of surrogate pairs


def _size(text: str) -> int:
    return len(_encode(text))


def _facts(report: Report, stages: Sequence[StageResult]) -> str:
    last = stages[-1]
    facts = [f"{last.parameters:,} parameters", f"{len(last.tasks)} held-out tasks per stage"]
    if commit := report.commit or last.commit:
        facts.append(f"commit <code>{html.escape(commit[:12])}</code>")
    return f'<p class="facts">{" · ".join(facts)}</p>'


def _results(stages: Sequence[StageResult]) -> str:
    groups = []
    for name in scores.COLUMNS[:4]:
        bars = [_bar(stage, cells[name], _stage_colour(stage)) for stage, cells in scores.headline(stages)]
        groups.append((name, [bar for bar in bars if bar]))
    chart = charts.bar_chart(groups, title="Success on held-out tasks")
    table, differences = _scrolled(scores.html_table(stages)), _scrolled(_differences(stages))
    return f'{_tiles(stages)}{table}<div class="columns wide">{chart}{differences}</div>{_left_out(stages)}'


def _tiles(stages: Sequence[StageResult]) -> str:
    """The three or four numbers that a reader looks for first."""
    stage, cells = scores.headline(stages)[-1]
    name = html.escape(_stage_name(stage))
    tiles = []
    if rate := cells["average"]:
        tiles.append((f"{scores.percent(rate.mean)} %", f"average success after {name}", _interval(rate)))
    for after, before, found in scores.differences(stages)[-1:]:
        what = f"points from {html.escape(_stage_name(before))} to {html.escape(_stage_name(after))}"
        tiles.append((scores.points(found.mean), what, f"{scores.points(found.t)}, {found.pairs} paired tasks"))
    if rate := cells["grounding"]:
        tiles.append((f"{scores.percent(rate.mean)} %", "of grounding clicks hit", _interval(rate)))
    if rate := cells["scrambled"]:
        tiles.append((f"{scores.percent(rate.mean)} %", "with scrambled screens", _interval(rate)))
    shown = "".join(f"<li><b>{value}</b><span>{what}</span><small>{note}</small></li>" for value, what, note in tiles)
    return f'<ul class="tiles">{shown}</ul>' if tiles else ""


def _differences(stages: Sequence[StageResult]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{html.escape(after)} − {html.escape(before)}</th>'
        f"<td><b>{scores.points(found.mean)}</b></td><td>{scores.points(found.t)}</td><td>{found.better}</td><td>{found.worse}</td><td>{found.pairs}</td></tr>"
        for after, before, found in scores.differences(stages)
    )
    if not rows:
        return ""
    return (
        "<table><caption>Difference on the same tasks, averaged over device families, in points</caption>"
        '<thead><tr><th scope="col">stages</th><th scope="col">difference</th><th scope="col">95 % interval</th>'
        '<th scope="col">solved</th><th scope="col">lost</th><th scope="col">tasks</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _left_out(stages: Sequence[StageResult]) -> str:
    counts = [(stage.stage, scores.environment_failures(stage.tasks)) for stage in stages]
    shown = ", ".join(f"{html.escape(stage)} {count}" for stage, count in counts if count)
    return f'<p class="note">Episodes left out because their environment failed: {shown}.</p>' if shown else ""


def _control(stages: Sequence[StageResult]) -> str:
    groups = []
    for stage, cells in scores.headline(stages):
        if cells["scrambled"]:
            bars = [("own screens", cells["average"], "g3"), ("scrambled screens", cells["scrambled"], "c1")]
            groups.append((stage, [bar for bar in (_bar(name, rate, colour) for name, rate, colour in bars) if bar]))
    if not groups:
        return ""
    baseline = [cells["average"] for stage, cells in scores.headline(stages) if stage == "random" and cells["average"]]
    text = f"{CONTROL_TEXT} Random weights: {scores.percent(baseline[0].mean)} %." if baseline else CONTROL_TEXT
    chart = charts.bar_chart(groups, title="Average success with own and with scrambled screens")
    table = _scrolled(_control_table(stages))
    return f'<div class="columns wide"><div><p>{text}</p>{table}</div>{chart}</div>'


def _control_table(stages: Sequence[StageResult]) -> str:
    names = [str(family) for family in DEVICE_FAMILIES]
    rows = []
    for result in stages:
        if result.scrambled is not None:
            rates = scores.success_by(result.scrambled, "family")
            cells = "".join(f"<td>{_meter(rates.get(name))}</td>" for name in names)
            rows.append(f'<tr><th scope="row">{html.escape(result.stage)}</th>{cells}</tr>')
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    return (
        "<table><caption>Success with scrambled screens in %, with its 95 % interval</caption>"
        f'<thead><tr><th scope="col">stage</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


def _learning(metrics: Mapping[str, Sequence[curves.Line]]) -> str:
    parts = []
    for stage in _stage_order(metrics):
        drawn, further = curves.learning_curves(metrics[stage])
        if not drawn and not further:
            continue
        key = charts.shade_key(curves.shades(metrics[stage]), "Background: the device family of the update.")
        parts.append(f"<h3>{html.escape(_stage_name(stage))}</h3>{key}{_grid(drawn)}")
        if further:
            parts.append(f"<details><summary>Further metrics ({len(further)})</summary>{_grid(further)}</details>")
    return "".join(parts)


def _collapse(metrics: Mapping[str, Sequence[curves.Line]]) -> str:
    drawn = [chart for stage in _stage_order(metrics) for chart in curves.collapse_curves(metrics[stage])]
    return f"<p>{COLLAPSE_TEXT}</p>{_grid(drawn)}" if drawn else ""


def _apps(stages: Sequence[StageResult]) -> str:
    drawn = []
    for family in DEVICE_FAMILIES:
        groups: dict[str, list[Bar]] = {}
        for result in stages:
            rows = [row for row in result.tasks if row.family == family]
            for app, rate in scores.success_by(rows, "app").items():
                if bar := _bar(result.stage, rate, _stage_colour(result.stage)):
                    groups.setdefault(app, []).append(bar)
        drawn.append(charts.bar_chart(list(groups.items()), title=str(family).capitalize()))
    return f"{_grid(drawn)}{_scrolled(_templates(stages))}"


def _templates(stages: Sequence[StageResult]) -> str:
    """A table: one row per task template, one column per stage."""
    names = {(row.family, row.app, row.template): None for result in stages for row in result.tasks}
    order = sorted(names, key=lambda name: (list(DEVICE_FAMILIES).index(name[0]), *name[1:]))
    columns = [
        {
            name: scores.success([row for row in result.tasks if (row.family, row.app, row.template) == name])
            for name in order
        }
        for result in stages
    ]
    head = "".join(f'<th scope="col">{html.escape(result.stage)}</th>' for result in stages)
    rows = []
    for name in order:
        cells = "".join(f"<td>{_meter(column[name])}</td>" for column in columns)
        trials = max(column[name].trials for column in columns)
        app = f"<small>{name[0]} / {html.escape(name[1])}</small>"
        rows.append(f'<tr><th scope="row">{html.escape(name[2])} {app}</th>{cells}<td>{trials}</td></tr>')
    if not rows:
        return ""
    return (
        '<table class="templates"><caption>Success by task template in %, with its 95 % interval</caption>'
        f'<thead><tr><th scope="col">template</th>{head}<th scope="col">tasks</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _meter(rate: Rate | None) -> str:
    if rate is None or not rate.trials:
        return '<span class="none">–</span>'
    title = f"{rate.successes} of {rate.trials}"
    return (
        f'<span class="meter" style="--v:{100 * rate.mean:.0f}%" title="{title}">{100 * rate.mean:.0f}</span>'
        f"<small>{100 * rate.interval.low:.0f} – {100 * rate.interval.high:.0f}</small>"
    )


def _episodes(trajectories: Mapping[str, Sequence[Trajectory]], budget: int) -> str:
    """Film strips of every stage, the last one open; strips beyond the budget of bytes are counted only."""
    order = _stage_order(trajectories)
    parts: list[str] = []
    for stage in reversed(order):
        strips, left_out = [], 0
        for trajectory in filmstrip.choose(trajectories[stage]):
            strip = filmstrip.strip(trajectory)
            if _size(strip) > budget:
                left_out += 1
                continue
            budget -= _size(strip)
            strips.append(strip)
        if not strips and not left_out:
            continue
        note = f'<p class="note">{left_out} more left out to keep the file small.</p>' if left_out else ""
        state = " open" if not parts else ""
        name = html.escape(_stage_name(stage))
        parts.append(
            f'<details class="stage"{state}><summary>After {name} <small>{len(strips)} of {len(trajectories[stage])} '
            f'recorded episodes</small></summary><div class="gallery">{"".join(strips)}</div>{note}</details>'
        )
    return "".join(parts)


def _reproduce(report: Report, stages: Sequence[StageResult]) -> str:
    parts = []
    if report.commands:
        parts.append(f"<pre>{html.escape(chr(10).join(report.commands))}</pre>")
    rows = "".join(
        f'<tr><th scope="row">{html.escape(stage.stage)}</th><td class="text">{html.escape(stage.policy)}</td>'
        f'<td class="text"><code>{html.escape(stage.commit)}</code></td><td>{len(stage.tasks)}</td>'
        f"<td>{stage.seconds:.0f} s</td></tr>"
        for stage in stages
    )
    table = (
        '<table><caption>Evaluations</caption><thead><tr><th scope="col">stage</th>'
        '<th scope="col" class="text">policy</th><th scope="col" class="text">commit</th><th scope="col">episodes</th>'
        f'<th scope="col">time</th></tr></thead><tbody>{rows}</tbody></table>'
    )
    parts.append(_scrolled(table))
    for stage in _stage_order(report.configs):
        shown = html.escape(json.dumps(report.configs[stage], indent=2, default=str, ensure_ascii=False))
        name = html.escape(_stage_name(stage))
        parts.append(f"<details><summary>Config of {name}</summary><pre>{shown}</pre></details>")
    return "".join(parts)


def _bar(name: str, rate: Rate | None, colour: str) -> Bar | None:
    if rate is None or not rate.trials:
        return None
    note = f"{rate.successes} of {rate.trials}"
    return Bar(name, rate.mean, rate.interval.low, rate.interval.high, colour, note)


def _interval(rate: Rate) -> str:
    return f"[{scores.percent(rate.interval.low)}, {scores.percent(rate.interval.high)}], n = {rate.trials}"


def _scrolled(table: str) -> str:
    """A table that scrolls sideways where the page is too narrow, by keyboard too."""
    return f'<div class="scroll" tabindex="0">{table}</div>' if table else ""


def _grid(parts: Sequence[str]) -> str:
    return f'<div class="columns">{"".join(parts)}</div>'


def _stage_name(stage: str) -> str:
    return STAGE_NAMES.get(stage, stage)


def _stage_colour(stage: str) -> str:
    return f"g{STAGES.index(stage)}" if stage in STAGES else "c5"


def _stage_order(stages: Mapping[str, object]) -> list[str]:
    return sorted(stages, key=lambda s: (STAGES.index(s) if s in STAGES else len(STAGES), s))


CSS = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1b1f27; --muted: #5c6573; --line: #e1e5eb;
  --accent: #41309f; --soft: #ebe8fa; --good: #0b7a4b; --bad: #c02f1d; }
@media (prefers-color-scheme: dark) {
  :root { --page: #12151b; --card: #1a1f27; --ink: #e8ebf0; --muted: #9aa5b4; --line: #2c333e; --accent: #b6abff;
    --soft: #2a2650; --good: #4cd08f; --bad: #ff8a78; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, Roboto, sans-serif; }
header, main { max-width: 1360px; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2rem; }
h1 { margin: 0; font-size: 1.9rem; letter-spacing: -.01em; }
h2 { margin: 0 0 .8rem; font-size: 1.25rem; }
h3 { margin: 1.2rem 0 .6rem; font-size: 1rem; color: var(--accent); }
h3:first-of-type { margin-top: 0; }
header .facts { margin: .3rem 0 1rem; font-size: .95rem; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; padding: .6rem 0; border-top: 1px solid var(--line);
  font-size: .9rem; }
a { color: var(--accent); text-decoration: none; }
a:hover { text-decoration: underline; }
section { margin: 0 0 1.25rem; padding: 1.25rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 12px; }
section > p { max-width: 46rem; margin: 0 0 1rem; color: var(--muted); }
.columns { display: grid; gap: 1.5rem 2rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr)); }
.columns.wide { grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); align-items: start; }
.columns p { margin: 0 0 1rem; color: var(--muted); }
.columns table { font-size: .93rem; }
.columns th, .columns td { padding: .35rem .4rem; }
.tiles { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 210px), 1fr)); padding: 0;
  margin: 0 0 1.4rem; list-style: none; }
.tiles li { padding: .8rem 1rem; border-radius: 10px; background: var(--soft); }
.tiles b { display: block; font-size: 1.75rem; line-height: 1.2; color: var(--accent); }
.tiles span { display: block; }
.tiles small, td small, th small, .note, summary small { color: var(--muted); font-weight: 400; }
.scroll { overflow-x: auto; min-width: 0; }
table { border-collapse: collapse; width: 100%; margin-bottom: 1.2rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .4rem; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, .text { text-align: left; }
thead th { font-weight: 500; font-size: .85rem; color: var(--muted); }
tbody th { font-weight: 600; }
td small { display: block; font-size: .75rem; line-height: 1.2; }
.none { color: var(--muted); }
.templates { width: auto; min-width: min(100%, 46rem); margin-top: 1.4rem; }
@media (max-width: 700px) { .templates th small { display: block; } }
.templates td small { display: inline-block; min-width: 4.2rem; }
.meter { display: inline-block; width: 4.6rem; padding: 0 .4rem; border-radius: 4px; text-align: right;
  background: linear-gradient(90deg, var(--soft) var(--v), transparent var(--v)); }
.note { font-size: .85rem; margin: .6rem 0 0; }
details > summary { cursor: pointer; color: var(--accent); }
details .columns { margin-top: .8rem; }
section > details { margin-top: .8rem; }
.stage > summary { font-weight: 600; margin-bottom: .8rem; }
pre, code { font: .84em/1.45 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
section > pre, section > details > pre { margin: 0 0 1rem; padding: .8rem 1rem; overflow: auto; max-height: 30rem;
  background: var(--page); border-radius: 8px; }
"""
