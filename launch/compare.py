"""Compares two results of `launch.evaluate` task by task.

python -m launch.compare --before=runs/a/evaluate/sft.json --after=runs/a/evaluate/mrpo.json

Prints success of each run by device family and, for the tasks that both tried, the paired difference after - before
with its 95 % interval (Student's t; with several attempts a task counts once, with its mean).
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Sequence

from absl import flags

from gui_owl_jax.agent.devices import DEVICE_FAMILIES
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals import statistics, success_metrics
from gui_owl_jax.evals.statistics import PairedDifference
from gui_owl_jax.evals.success import StageResult, percent, points, read_stage
from gui_owl_jax.evals.success_metrics import Outcomes
from launch import common

BEFORE = flags.DEFINE_string("before", None, "Result file of the first run.", required=True)
AFTER = flags.DEFINE_string("after", None, "Result file of the second run.", required=True)


def main(argv: list[str]) -> None:
    """Prints the table."""
    del argv
    print(table(BEFORE.value, AFTER.value))


def table(before: str | pathlib.Path, after: str | pathlib.Path) -> str:
    """The comparison of two result files, as text.

    Raises:
      DataError: a file is malformed, they are of different suites, or have no task in common.
    """
    (first, runs, suite), (second, others, other_suite) = _read(before), _read(after)
    if suite != other_suite:
        raise DataError(f"{before} is of suite {suite!r}, {after} of {other_suite!r}: their tasks do not compare")
    families = {row.task_id: str(row.family) for row in (*first.tasks, *second.tasks)}
    if not set(runs) & set(others):
        raise DataError(f"{before} and {after} have no task in common")
    present = [str(family) for family in DEVICE_FAMILIES if str(family) in families.values()]
    lines = [["success in %", first.stage, second.stage, "after - before", "95 % interval", "pairs", "better", "worse"]]
    for family in present:
        rates = [_rate(_of(outcomes, families, family)) for outcomes in (runs, others)]
        found = success_metrics.compare_outcomes(_of(runs, families, family), _of(others, families, family))
        lines.append([family, *rates, *_difference(found)])
    rates = [_average(outcomes, families) for outcomes in (runs, others)]
    lines.append(["average", *rates, *_difference(success_metrics.compare_outcomes(runs, others, families))])
    most = min((len(each) for outcomes in (runs, others) for each in outcomes.values()), default=1)
    for k in range(2, most + 1):
        lines.append([f"pass@{k}", *(_estimate(success_metrics.mean_pass_at_k(each, k)) for each in (runs, others))])
    steps = [_mean_steps(result) for result in (first, second)]
    lines.append(["steps", *(f"{value:.1f}" for value in steps)])
    title = f"{first.stage} ({first.policy}) -> {second.stage} ({second.policy})" + (f", {suite}" if suite else "")
    return "\n".join([title, *_aligned(lines)])


def _read(path: str | pathlib.Path) -> tuple[StageResult, Outcomes, str]:
    """The result, the outcomes of all attempts without those whose environment failed, and the suite."""
    result = read_stage(path)
    data = json.loads(pathlib.Path(path).read_text("utf-8"))
    attempts = data.get("attempts", {row.task_id: [row.outcome] for row in result.tasks})
    tried = {row.task_id for row in result.tasks}
    if not isinstance(attempts, dict) or set(attempts) != tried:
        raise DataError(f"{path}: field 'attempts' must have the outcomes of the tasks in field 'tasks'")
    for task, outcomes in attempts.items():
        if not isinstance(outcomes, list) or not all(each is None or each in (0, 1) for each in outcomes):
            raise DataError(f"{path}: field 'attempts': {task!r} must have a list of 0, 1 and null")
    kept = {task: [each for each in outcomes if each is not None] for task, outcomes in attempts.items()}
    return result, {task: outcomes for task, outcomes in kept.items() if outcomes}, str(data.get("suite", ""))


def _of(outcomes: Outcomes, families: dict[str, str], family: str) -> dict[str, Sequence[int]]:
    return {task: attempts for task, attempts in outcomes.items() if families[task] == family}


def _rate(outcomes: Outcomes) -> str:
    """The success rate with Wilson's interval; with several attempts, with the bootstrap over tasks."""
    if all(len(attempts) == 1 for attempts in outcomes.values()):
        rate = statistics.success_rate([attempts[0] for attempts in outcomes.values()])
        return _with_interval(rate.mean, rate.interval.low, rate.interval.high)
    return _estimate(success_metrics.mean_pass_at_k(outcomes, 1))


def _average(outcomes: Outcomes, families: dict[str, str]) -> str:
    """The mean over device families; several attempts have no interval here."""
    groups: dict[str, list[float]] = {}
    for task, attempts in outcomes.items():
        groups.setdefault(families[task], []).append(sum(attempts) / len(attempts))
    if not outcomes or set(groups) != set(families.values()):
        return "-"
    if all(len(attempts) == 1 for attempts in outcomes.values()):
        rate = statistics.macro_average(groups)
        return _with_interval(rate.mean, rate.interval.low, rate.interval.high)
    return percent(sum(sum(group) / len(group) for group in groups.values()) / len(groups))


def _estimate(found: success_metrics.Estimate) -> str:
    return _with_interval(found.mean, found.interval.low, found.interval.high)


def _with_interval(mean: float, low: float, high: float) -> str:
    return f"{percent(mean)} [{percent(low)}, {percent(high)}]" if math.isfinite(mean) else "-"


def _difference(found: PairedDifference | None) -> list[str]:
    if found is None:
        return ["-"] * 5
    return [points(found.mean), points(found.t), str(found.pairs), str(found.better), str(found.worse)]


def _mean_steps(result: StageResult) -> float:
    steps = [row.steps for row in result.tasks if row.outcome is not None]
    return sum(steps) / len(steps) if steps else math.nan


def _aligned(lines: list[list[str]]) -> list[str]:
    columns = max(map(len, lines))
    full = [line + [""] * (columns - len(line)) for line in lines]
    widths = [max(map(len, column)) for column in zip(*full)]
    rows = [
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]
        ).rstrip()
        for line in full
    ]
    return [rows[0], "-" * max(map(len, rows)), *rows[1:]]


if __name__ == "__main__":
    common.run_main(main)
