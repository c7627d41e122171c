"""Judging an episode of any interactive benchmark, and saying which tasks cannot be judged here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping

from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.online import documents, files, texts, webarena
from gui_owl_jax.evals.online.evidence import RECORDED, Ending, Getter
from gui_owl_jax.evals.online.files import UnreadableFile
from gui_owl_jax.evals.online.task import Check, OnlineTask, Unsupported
from gui_owl_jax.evals.online.webarena import Judge


def infeasible(declared: str) -> float:
    """OSWorld's infeasible tasks: right is the agent whose last action says that it cannot be done."""
    return float(declared == "failure")


def is_successful(holds: object) -> float:
    """AndroidWorld: what the task's own code says of the device's state, 0 to 1."""
    if not isinstance(holds, bool | int | float) or not 0 <= holds <= 1:
        raise DataError(f"is_successful: the device said {holds!r}, must be a number from 0 to 1")
    return float(holds)


def _by_name(source: str, *functions: Callable[..., float]) -> dict[str, Callable[..., float]]:
    return {f"{source}.{function.__name__}": function for function in functions}


EVALUATORS: Mapping[str, Callable[..., float]] = {
    **_by_name("osworld", infeasible),
    **_by_name("osworld", texts.exact_match, texts.match_in_list, texts.is_in_list, texts.literal_match),
    **_by_name("osworld", texts.check_include_exclude, texts.fuzzy_match, texts.is_utc_0),
    **_by_name("osworld", texts.check_gnome_favorite_apps, texts.check_moved_jpgs),
    **_by_name("osworld", files.compare_text_file, files.diff_text_file, files.compare_csv, files.check_csv),
    **_by_name("osworld", files.check_list, files.check_json, files.compare_zip_files, files.run_sqlite3),
    **_by_name("osworld", files.find_default_font, files.check_thunderbird_prefs, files.check_thunderbird_filter),
    **_by_name("osworld", documents.compare_docx_files, documents.compare_line_spacing, documents.compare_docx_tables),
    **_by_name("osworld", documents.contains_page_break, documents.compare_font_names),
    **_by_name("osworld", documents.compare_subscript_contains, documents.is_first_line_centered),
    **_by_name("webarena", webarena.exact_match, webarena.must_include, webarena.fuzzy_match, webarena.unachievable),
    **_by_name("webarena", webarena.url_match, webarena.program_html),
    **_by_name("androidworld", is_successful),
}
NEED_JUDGE = ("webarena.fuzzy_match",)  # cannot do without
TAKE_JUDGE = (*NEED_JUDGE, "webarena.unachievable")


def evaluate(task: OnlineTask, ending: Ending, get: Getter, judge: Judge | None = None) -> float:
    """The score of a finished episode, 0 to 1.

    Args:
      task: what was asked.
      ending: what the agent said last; `task.evaluation.gate` asks for it.
      get: fetches values from the world, or `evidence.Recording`. `evaluation.before` has been done already.
      judge: reads answers that no rule can compare.

    Raises:
      Unsupported: an evaluator that the score depends on is missing, or what it needs.
      DataError: the task, or a file that the benchmark expects, is malformed. What the agent left behind never is an
        error: a missing or damaged file scores 0.
    """
    evaluation = task.evaluation
    if evaluation.gate == "not_failed" and ending.declared == "failure":
        return 0.0
    if evaluation.gate == "declared" and not ending.declared:
        return 0.0
    scores = []
    for check in evaluation.checks:
        try:
            score = _score(check, get, judge)
        except DataError as error:
            raise DataError(f"{task.source} task {task.task_id}: {error}") from error
        if evaluation.join == "and" and score == 0:
            return 0.0
        if evaluation.join == "or" and score == 1:
            return 1.0
        scores.append(score)
    return max(scores) if evaluation.join == "or" else sum(scores) / len(scores)


def _score(check: Check, get: Getter, judge: Judge | None) -> float:
    function = EVALUATORS.get(check.kind)
    if function is None:
        raise Unsupported(check.kind, "not one of the evaluators that are implemented")
    if check.kind in NEED_JUDGE and judge is None:
        raise Unsupported(check.kind, "it needs a judge")
    options = {**check.options, "judge": judge} if check.kind in TAKE_JUDGE else dict(check.options)
    found = get(check.result)
    wanted = () if check.expected is None else (get(check.expected),)
    if found is None or None in wanted:
        return 0.0
    try:
        return function(found, *wanted, **options)
    except UnreadableFile as error:
        if error.path in (found if isinstance(found, list) else [found]):
            return 0.0  # the agent made it
        raise
    except (TypeError, AttributeError) as error:  # options or values that the evaluator does not take
        raise DataError(f"{check.kind}: {error}") from error


@dataclasses.dataclass(frozen=True)
class Coverage:
    """Which tasks can be judged.

    Attributes:
      tasks: how many there are.
      judged: of these, tasks all of whose checks are supported.
      kinds: evaluator -> how many checks use it, all of them, the most frequent first.
      unsupported: those of them that are not supported.
    """

    tasks: int
    judged: int
    kinds: Mapping[str, int]
    unsupported: Mapping[str, int]

    def report(self) -> str:
        """The counts as lines of text."""
        lines = [f"{self.judged} of {self.tasks} tasks can be judged without a live world"]
        for kind, count in self.kinds.items():
            lines.append(f"{count:5}  {kind}{'  unsupported' if kind in self.unsupported else ''}")
        return "\n".join(lines)


def coverage(tasks: Iterable[OnlineTask], available: Collection[str] = RECORDED, judge: bool = False) -> Coverage:
    """Counts evaluators by name, and those that cannot be run here.

    Args:
      tasks: of any benchmarks.
      available: kinds of operations that there is a getter for; by default those that can be recorded.
      judge: whether there is one.
    """
    counts: dict[str, int] = {}
    missing: dict[str, int] = {}
    total = judged = 0
    for task in tasks:
        bad = [check for check in task.evaluation.checks if not _supported(check, available, judge)]
        total, judged = total + 1, judged + (not bad)
        for found, checks in ((counts, task.evaluation.checks), (missing, bad)):
            for check in checks:
                found[check.kind] = found.get(check.kind, 0) + 1
    return Coverage(total, judged, _by_count(counts), _by_count(missing))


def _supported(check: Check, available: Collection[str], judge: bool) -> bool:
    operations = [check.result.kind] + ([] if check.expected is None else [check.expected.kind])
    known = check.kind in EVALUATORS and all(kind in available for kind in operations)
    return known and (judge or check.kind not in NEED_JUDGE)


def _by_count(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
