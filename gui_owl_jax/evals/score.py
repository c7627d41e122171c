"""Verdicts on the items of a benchmark and what they add up to: averages and tables with Wilson intervals."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.dialects import Dialect
from gui_owl_jax.agent.errors import DataError, ParseError
from gui_owl_jax.evals.benchmark import Answer, Benchmark, Item
from gui_owl_jax.evals.statistics import Rate, success_rate

# Reasons of a verdict that every scorer uses in the same sense; a rule may add its own ("wrong_type", "wrong_text").
HIT = "hit"
MISS = "miss"
UNPARSABLE = "unparsable"  # the answer's text is no answer of the dialect: wrong, and counted on its own
REFUSED = "refused"  # the agent says that nothing on the screen answers the instruction, right or wrong
FAILED = "failed"  # the item could not be asked: its image is missing or damaged, the endpoint gave up


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether one answer is right under a rule.

    Attributes:
      item_id: the item.
      right: whether it counts.
      reason: short name to count by: the constants above, or a rule's own.
      point: (x, y) that the answer points at, in pixels of the original image; None where it points at nothing.
      detail: one sentence for a reader, "" for none.
    """

    item_id: str
    right: bool
    reason: str
    point: tuple[float, float] | None = None
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class Score:
    """What a benchmark's answers add up to under one rule.

    Attributes:
      benchmark: its name.
      rule: full name of the rule, with all its settings.
      verdicts: of the items that count, in the order of the benchmark.
      left_out: how many items the rule leaves out (refusals, failures).
      averages: name ("micro", "macro", "official") -> rate; the headline comes first.
      tables: facet -> value -> rate over the items with this value.
    """

    benchmark: str
    rule: str
    verdicts: tuple[Verdict, ...]
    left_out: int
    averages: Mapping[str, Rate]
    tables: Mapping[str, Mapping[str, Rate]]


def paired(benchmark: Benchmark, answers: Iterable[Answer]) -> list[tuple[Item, Answer]]:
    """Every item with its answer, in the order of the benchmark; an item without one gets an answer that failed.

    Raises:
      DataError: an answer belongs to no item, or an item has two.
    """
    known = {item.item_id for item in benchmark.items}
    by_id: dict[str, Answer] = {}
    for answer in answers:
        if answer.item_id not in known:
            raise DataError(f"{benchmark.name}: an answer names item {answer.item_id!r}, which the benchmark lacks")
        if answer.item_id in by_id:
            raise DataError(f"{benchmark.name}: item {answer.item_id!r} has two answers")
        by_id[answer.item_id] = answer
    return [
        (item, by_id.get(item.item_id) or Answer(item.item_id, failure="no answer is stored"))
        for item in benchmark.items
    ]


def make_score(
    benchmark: Benchmark,
    rule: str,
    verdicts: Sequence[Verdict],
    *,
    left_out: int = 0,
    averages: Mapping[str, Rate] | None = None,
    facets: Sequence[str] | None = None,
) -> Score:
    """Adds verdicts up.

    Args:
      benchmark: the items that the verdicts are about.
      rule: full name of the rule.
      verdicts: at most one an item.
      left_out: items that the rule leaves out.
      averages: name -> rate; by default the micro average alone.
      facets: by which tables are made; by default all that the items have, in the order of their first appearance.

    Returns:
      The `Score`.

    Raises:
      DataError: a verdict belongs to no item, or verdicts and left-out items are not as many as the items.
    """
    if len(verdicts) + left_out != len(benchmark.items):
        raise DataError(
            f"{benchmark.name}: {len(verdicts)} verdicts and {left_out} items left out, "
            f"but the benchmark has {len(benchmark.items)} items"
        )
    if facets is None:
        facets = list(dict.fromkeys(name for item in benchmark.items for name in item.facets))
    return Score(
        benchmark=benchmark.name,
        rule=rule,
        verdicts=tuple(verdicts),
        left_out=left_out,
        averages=dict(averages) if averages is not None else {"micro": rate(verdicts)},
        tables={facet: by_facet(benchmark.items, verdicts, facet) for facet in facets},
    )


def unasked(answer: Answer) -> Verdict | None:
    """The verdict on an item that could not be asked: wrong. None for one that was."""
    if answer.looks and not answer.failure:
        return None
    return Verdict(answer.item_id, False, FAILED, detail=answer.failure or "the item was not asked")


def answered_action(item: Item, answer: Answer, dialect: Dialect) -> Action | Verdict:
    """The action that the last look of an answer holds, or the verdict on an answer without one."""
    if (verdict := unasked(answer)) is not None:
        return verdict
    look = answer.looks[-1]
    try:
        return dialect.parse(look.response, item.family, shown=look.shown).action
    except ParseError as error:
        return Verdict(item.item_id, False, UNPARSABLE, detail=str(error))


def rate(verdicts: Iterable[Verdict]) -> Rate:
    """The share of right verdicts, with its 95 % Wilson interval."""
    return success_rate([int(verdict.right) for verdict in verdicts])


def by_facet(items: Iterable[Item], verdicts: Iterable[Verdict], facet: str) -> dict[str, Rate]:
    """Rates by the value of a facet, sorted by value; items without the facet are under ""."""
    return grouped(items, verdicts, lambda item: [item.facets.get(facet, "")])


def grouped(
    items: Iterable[Item], verdicts: Iterable[Verdict], keys: Callable[[Item], Iterable[str]]
) -> dict[str, Rate]:
    """Rates of the verdicts grouped by the keys of their item, sorted by key; a verdict counts under each of them.

    Raises:
      DataError: a verdict belongs to no item.
    """
    by_id = {item.item_id: item for item in items}
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.item_id not in by_id:
            raise DataError(f"a verdict names item {verdict.item_id!r}, which the benchmark lacks")
        for key in keys(by_id[verdict.item_id]):
            groups.setdefault(key, []).append(verdict)
    return {name: rate(groups[name]) for name in sorted(groups)}


def count_reasons(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """How many verdicts have each reason, the most frequent first, then by name."""
    counts = collections.Counter(verdict.reason for verdict in verdicts)
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def score_to_json(score: Score) -> dict[str, Any]:
    """A score as JSON holds it: the same for the same verdicts, whenever and however the answers were collected."""
    return {
        "benchmark": score.benchmark,
        "rule": score.rule,
        "counted": len(score.verdicts),
        "left_out": score.left_out,
        "averages": {name: _rate_to_json(each) for name, each in score.averages.items()},
        "reasons": count_reasons(score.verdicts),
        "tables": {
            facet: {value: _rate_to_json(each) for value, each in table.items()}
            for facet, table in score.tables.items()
        },
        "verdicts": [dataclasses.asdict(verdict) for verdict in score.verdicts],
    }


def _rate_to_json(each: Rate) -> dict[str, Any]:
    """Mean and interval in [0, 1]; the mean is null without trials, for which JSON has no number."""
    return {
        "mean": each.mean if math.isfinite(each.mean) else None,
        "low": each.interval.low,
        "high": each.interval.high,
        "successes": each.successes,
        "trials": each.trials,
    }
