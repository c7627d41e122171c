"""Online success: what an evaluation of a stage found, its rates, and the table over all stages.

A stage is one policy evaluated on held-out tasks: "random" weights, or the policy after "pretrain", "sft", "mrpo".
Episodes whose environment failed say nothing about the policy: they are counted and left out of every rate.
"""

from __future__ import annotations

import dataclasses
import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gui_owl_jax.agent.devices import DEVICE_FAMILIES, DeviceFamily
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals import statistics
from gui_owl_jax.evals.statistics import Interval, PairedDifference, Rate

STAGES = ("random", "pretrain", "sft", "mrpo")
COLUMNS = ("mobile", "desktop", "web", "average", "grounding", "scrambled")


@dataclasses.dataclass(frozen=True)
class TaskRow:
    """One evaluated episode.

    Attributes:
      task_id: unique name of the task, the same in every stage.
      family: its device family.
      app: its app.
      template: its template.
      outcome: 1 success, 0 failure, None when the environment failed.
      failure: how the environment failed, "" for not at all.
      steps: turns taken.
      parse_errors: turns whose output was no action.
    """

    task_id: str
    family: DeviceFamily
    app: str
    template: str
    outcome: int | None
    failure: str = ""
    steps: int = 0
    parse_errors: int = 0


@dataclasses.dataclass(frozen=True)
class GroundingScore:
    """Clicks that hit the element asked for.

    Attributes:
      hits: of all trials.
      trials: clicks asked for.
      families: device family -> (hits, trials).
    """

    hits: int
    trials: int
    families: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)

    @property
    def rate(self) -> Rate:
        """Accuracy with its Wilson interval."""
        return _rate(self.hits, self.trials)

    def to_json(self) -> dict[str, object]:
        """The "grounding" field of a stage's file."""
        families = {name: {"hits": hits, "trials": trials} for name, (hits, trials) in self.families.items()}
        return {"hits": self.hits, "trials": self.trials, "families": families}


@dataclasses.dataclass(frozen=True)
class StageResult:
    """The evaluation of one stage.

    Attributes:
      stage: its name, usually one of `STAGES`.
      policy: where the weights came from.
      tasks: one row per episode.
      grounding: clicks on held-out screens, None where they were not asked for.
      scrambled: the control: episodes of the same tasks with screenshots passed on between tasks; None where not run.
      parameters: size of the model.
      commit: of the code that evaluated.
      seconds: how long it took.
    """

    stage: str
    policy: str
    tasks: tuple[TaskRow, ...]
    grounding: GroundingScore | None = None
    scrambled: tuple[TaskRow, ...] | None = None
    parameters: int = 0
    commit: str = ""
    seconds: float = 0.0


def read_stage(path: str | Path) -> StageResult:
    """Reads the file of one stage, `<stage>.json`.

    Raises:
      DataError: it is missing, is not JSON, or lacks a field; names the file and the field.
    """
    try:
        data = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON: {error}") from error
    return stage_from_json(data, str(path))


def stage_from_json(data: object, where: str = "stage") -> StageResult:
    """Checks and converts what a stage's file holds; fields that are not known are ignored.

    Args:
      data: the decoded JSON.
      where: the file's name, for the error.

    Raises:
      DataError: a field is missing or malformed.
    """
    model = _get(where, data, "model", dict)
    grounding = _get(where, data, "grounding", dict, type(None))
    scrambled = _get(where, data, "scrambled", list, type(None))
    return StageResult(
        stage=_get(where, data, "stage", str),
        policy=_get(where, data, "policy", str),
        tasks=_rows(f"{where}: tasks", _get(where, data, "tasks", list)),
        grounding=None if grounding is None else _grounding(f"{where}: grounding", grounding),
        scrambled=None if scrambled is None else _rows(f"{where}: scrambled", scrambled),
        parameters=_get(f"{where}: model", model, "parameters", int),
        commit=_get(where, data, "commit", str),
        seconds=float(_get(where, data, "seconds", int, float)),
    )


def in_order(stages: Iterable[StageResult]) -> tuple[StageResult, ...]:
    """Stages in the order of training; others follow by name."""

    def place(result: StageResult) -> tuple[int, str]:
        return (STAGES.index(result.stage) if result.stage in STAGES else len(STAGES), result.stage)

    return tuple(sorted(stages, key=place))


def success(rows: Iterable[TaskRow]) -> Rate:
    """The success rate over episodes, environment failures left out; its mean is NaN where nothing is left."""
    return statistics.success_rate([row.outcome for row in rows if row.outcome is not None])


def success_by(rows: Iterable[TaskRow], field: str) -> dict[str, Rate]:
    """Success rates by "family", "app" or "template", in the order in which these first occur.

    Raises:
      DataError: there is no such field.
    """
    if field not in ("family", "app", "template"):
        raise DataError(f'field is {field!r}, must be "family", "app" or "template"')
    groups: dict[str, list[TaskRow]] = {}
    for row in rows:
        groups.setdefault(str(getattr(row, field)), []).append(row)
    return {name: success(group) for name, group in groups.items()}


def average_success(rows: Iterable[TaskRow]) -> Rate:
    """The unweighted mean over the device families that occur; its mean is NaN where one of them has no outcome."""
    groups: dict[str, list[int]] = {}
    for row in rows:
        groups.setdefault(str(row.family), []).extend([] if row.outcome is None else [row.outcome])
    if not groups or not all(groups.values()):
        return _rate(0, 0)
    return statistics.macro_average(groups)


def environment_failures(rows: Iterable[TaskRow]) -> int:
    """How many episodes are left out of the rates."""
    return sum(row.outcome is None for row in rows)


def compare(before: StageResult, after: StageResult) -> PairedDifference | None:
    """How much better `after` is on the tasks that both stages finished, averaged over device families.

    Returns:
      The difference in success (its `t` interval is the one that the report prints), or None where a device family
      has fewer than two such tasks.
    """
    outcomes = {row.task_id: row.outcome for row in before.tasks if row.outcome is not None}
    pairs = [
        (outcomes[row.task_id], row.outcome, str(row.family))
        for row in after.tasks
        if row.outcome is not None and row.task_id in outcomes
    ]
    first, second, families = zip(*pairs) if pairs else ((), (), ())
    if not pairs or min(map(families.count, families)) < 2:
        return None
    return statistics.paired_difference(first, second, strata=families)


def headline(stages: Sequence[StageResult]) -> list[tuple[str, dict[str, Rate | None]]]:
    """The rows of the table over stages: (stage, column of `COLUMNS` -> rate or None where there is none)."""
    rows = []
    for result in in_order(stages):
        by_family = success_by(result.tasks, "family")
        cells: dict[str, Rate | None] = {str(family): by_family.get(str(family)) for family in DEVICE_FAMILIES}
        cells["average"] = average_success(result.tasks)
        cells["grounding"] = None if result.grounding is None else result.grounding.rate
        cells["scrambled"] = None if result.scrambled is None else average_success(result.scrambled)
        rows.append((result.stage, {name: rate if rate and rate.trials else None for name, rate in cells.items()}))
    return rows


def text_table(stages: Sequence[StageResult]) -> str:
    """The table over stages for a terminal: success in percent, its 95 % interval, and the differences below."""
    lines = [["stage", *COLUMNS]]
    for stage, cells in headline(stages):
        lines.append([stage, *(_text_cell(cells[name]) for name in COLUMNS)])
    widths = [max(map(len, column)) for column in zip(*lines)]
    table = [
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))])
        for line in lines
    ]
    table.insert(1, "-" * len(table[0]))
    return "\n".join(
        ["success in %, with its 95 % interval", *table, *map(_text_difference, differences(stages)), *_notes(stages)]
    )


def html_table(stages: Sequence[StageResult]) -> str:
    """The table over stages as an HTML <table>, class "headline"; every text escaped."""
    head = "".join(f'<th scope="col">{name}</th>' for name in COLUMNS)
    body = []
    for stage, cells in headline(stages):
        row = "".join(f"<td>{_html_cell(cells[name])}</td>" for name in COLUMNS)
        body.append(f'<tr><th scope="row">{html.escape(stage)}</th>{row}</tr>')
    return (
        '<table class="headline"><caption>Success on held-out tasks in %, with its 95 % interval</caption>'
        f'<thead><tr><th scope="col">stage</th>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    )


def differences(stages: Sequence[StageResult]) -> list[tuple[str, str, PairedDifference]]:
    """(stage, the stage before it, their paired difference) for all neighbours that can be compared."""
    ordered = in_order(stages)
    pairs = [(after.stage, before.stage, compare(before, after)) for before, after in zip(ordered, ordered[1:])]
    return [(after, before, difference) for after, before, difference in pairs if difference is not None]


def percent(value: float) -> str:
    """0.8666 -> "86.7"; a dash where there is no number."""
    return f"{100 * value:.1f}" if math.isfinite(value) else "-"


def points(interval: Interval | float) -> str:
    """A difference in percentage points with its sign: 0.142 -> "+14.2", an interval -> "[+8.1, +20.3]"."""
    if isinstance(interval, Interval):
        return f"[{points(interval.low)}, {points(interval.high)}]"
    return f"{100 * interval:+.1f}"


def _text_cell(rate: Rate | None) -> str:
    if rate is None:
        return "-"
    return f"{percent(rate.mean)} [{percent(rate.interval.low)}, {percent(rate.interval.high)}]"


def _html_cell(rate: Rate | None) -> str:
    if rate is None:
        return '<span class="none" title="not evaluated">–</span>'
    interval = f"{percent(rate.interval.low)} – {percent(rate.interval.high)}"
    title = f"{rate.successes} of {rate.trials}"
    return f'<b title="{title}">{percent(rate.mean)}</b><small>{interval}</small>'


def _text_difference(item: tuple[str, str, PairedDifference]) -> str:
    after, before, found = item
    return f"{after} - {before}: {points(found.mean)} {points(found.t)} points over {found.pairs} paired tasks"


def _notes(stages: Sequence[StageResult]) -> list[str]:
    counts = [(result.stage, environment_failures(result.tasks), len(result.tasks)) for result in in_order(stages)]
    text = "{}: {} of {} episodes left out, their environment failed"
    return [text.format(*count) for count in counts if count[1]]


def _rate(successes: int, trials: int) -> Rate:
    interval = Interval(*statistics.wilson_interval(successes, trials))
    return Rate(successes / trials if trials else math.nan, interval, successes, trials)


def _rows(where: str, data: list) -> tuple[TaskRow, ...]:
    rows = [_row(f"{where}[{index}]", row) for index, row in enumerate(data)]
    seen: set[str] = set()
    for index, row in enumerate(rows):
        if row.task_id in seen:
            raise DataError(f"{where}[{index}].task_id {row.task_id!r} occurs twice")
        seen.add(row.task_id)
    return tuple(rows)


def _row(where: str, data: object) -> TaskRow:
    family = _get(where, data, "family", str)
    if family not in list(DEVICE_FAMILIES):
        raise DataError(f"{where}: field 'family' is {family!r}, must be one of {', '.join(DEVICE_FAMILIES)}")
    outcome = _get(where, data, "outcome", int, type(None))
    if outcome not in (0, 1, None):
        raise DataError(f"{where}: field 'outcome' is {outcome!r}, must be 0, 1 or null")
    return TaskRow(
        task_id=_get(where, data, "task_id", str),
        family=DeviceFamily(family),
        app=_get(where, data, "app", str),
        template=_get(where, data, "template", str),
        outcome=outcome,
        failure=_get(where, data, "failure", str),
        steps=_get(where, data, "steps", int),
        parse_errors=_get(where, data, "parse_errors", int),
    )


def _grounding(where: str, data: dict) -> GroundingScore:
    families = _get(where, data, "families", dict)
    return GroundingScore(
        *_hits(where, data),
        families={name: _hits(f"{where}: families: {name}", counts) for name, counts in families.items()},
    )


def _hits(where: str, data: object) -> tuple[int, int]:
    hits, trials = _get(where, data, "hits", int), _get(where, data, "trials", int)
    if not 0 <= hits <= trials:
        raise DataError(f"{where}: field 'hits' is {hits}, must lie between 0 and trials = {trials}")
    return hits, trials


def _get(where: str, data: object, name: str, *kinds: type):
    """The field `name` of a JSON object, which must be of one of `kinds`."""
    if not isinstance(data, dict):
        raise DataError(f"{where} is {type(data).__name__}, must be an object with field {name!r}")
    if name not in data:
        raise DataError(f"{where}: field {name!r} is missing")
    value = data[name]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
        raise DataError(f"{where}: field {name!r} is {type(value).__name__}, must be {wanted}")
    return value
