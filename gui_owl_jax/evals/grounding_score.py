"""Scores grounding answers: a verdict an item, averages, and tables by facet."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence

from gui_owl_jax.agent.dialects import Dialect
from gui_owl_jax.agent.errors import ConfigError, DataError
from gui_owl_jax.evals.benchmark import Answer, Benchmark, Box, Item, Polygon, Refusal
from gui_owl_jax.evals.grounding_rules import MACRO, GroundingRule, hits
from gui_owl_jax.evals.score import (
    HIT,
    MISS,
    REFUSED,
    Score,
    Verdict,
    answered_action,
    by_facet,
    grouped,
    make_score,
    paired,
    rate,
)
from gui_owl_jax.evals.statistics import Rate, weighted_average
from gui_owl_jax.evals.targets import Point, is_refusal, point_in_image, pointed_at

NO_POINT = "no_point"  # the answer is an action, but neither a point nor a refusal

# Benchmarks whose published average is a mean over the values of a facet. MMBench-GUI L2: the mean of basic and
# advanced, each the mean of its platforms weighted by their items, which is the micro average of the level.
OFFICIAL: Mapping[str, str] = {"mmbench_gui_l2": "level"}
# Facets of which an item has several, separated by SEPARATOR: it counts in the row of each.
SEVERAL = ("elements",)
SEPARATOR = ", "
# The tables that papers print: these facets, each split by text and icon.
CROSSED = (("group", "ui_type"), ("platform", "ui_type"), ("platform", "level"))


def score(benchmark: Benchmark, answers: Iterable[Answer], rule: GroundingRule, dialect: Dialect) -> Score:
    """Scores the answers to a grounding benchmark.

    An item that could not be asked counts as wrong. Targets are in pixels of the size that the annotations declare;
    where the image has another one, the point is taken at the same share of width and height.

    Args:
      benchmark: items with a box, a polygon or a refusal.
      answers: of the benchmark's items, at most one each.
      rule: how they are judged and averaged.
      dialect: how the answers are written; its scale is part of the rule's name.

    Returns:
      The `Score`; its headline is the rule's average, beside which the micro average always stands.

    Raises:
      DataError: answers do not belong to the items, or the items are none of grounding.
      ConfigError: the benchmark has no average of that name.
    """
    verdicts: list[Verdict] = []
    left_out = 0
    for item, answer in paired(benchmark, answers):
        if isinstance(item.target, Refusal) and rule.refusals == "excluded":
            left_out += 1
        else:
            verdicts.append(judge(item, answer, rule, dialect))
    result = make_score(
        benchmark,
        f"{rule.name},dialect={dialect.name},scale={dialect.scale}",
        verdicts,
        left_out=left_out,
        averages=_averages(benchmark, verdicts, rule.average),
    )
    return dataclasses.replace(result, tables=_tables(benchmark.items, verdicts, result.tables))


def judge(item: Item, answer: Answer, rule: GroundingRule, dialect: Dialect) -> Verdict:
    """The verdict on one answer; the last look holds it.

    Raises:
      DataError: the item is none of grounding.
    """
    target = item.target
    if not isinstance(target, Box | Polygon | Refusal):
        raise DataError(f"item {item.item_id!r} asks for {type(target).__name__}, not for a place on the screen")
    action = answered_action(item, answer, dialect)
    if isinstance(action, Verdict):
        return action
    if is_refusal(action):
        return Verdict(item.item_id, isinstance(target, Refusal) and rule.refusals != "origin", REFUSED)
    relative = pointed_at(action)
    if relative is None:
        return Verdict(item.item_id, False, NO_POINT, detail=f"the answer is {action.kind}")
    size, point = _in_declared_pixels(item, answer, point_in_image(relative, answer.looks[-1].window))
    if isinstance(target, Refusal):
        right = rule.refusals == "origin" and hits(rule, point, Box(0, 0, 0, 0), size)
    else:
        right = hits(rule, point, target, size)
    return Verdict(item.item_id, right, HIT if right else MISS, point=point)


def _in_declared_pixels(item: Item, answer: Answer, point: Point) -> tuple[tuple[int, int], Point]:
    """(size of the image, point in its pixels) as the annotations see it."""
    actual = answer.opened
    if item.size is None or item.size == actual:
        return actual, point
    return item.size, (point[0] * item.size[0] / actual[0], point[1] * item.size[1] / actual[1])


def _averages(benchmark: Benchmark, verdicts: Sequence[Verdict], average: str) -> dict[str, Rate]:
    micro = {"micro": rate(verdicts)}
    if average == "micro":
        return micro
    if average == "official":
        if benchmark.name not in OFFICIAL:
            raise ConfigError(
                f"average official is that of {', '.join(OFFICIAL)}; {benchmark.name} has none: use micro"
            )
        facet = OFFICIAL[benchmark.name]
    else:
        facet = average.removeprefix(MACRO)
    rates = by_facet(benchmark.items, verdicts, facet)
    if not rates or "" in rates:
        raise ConfigError(f"average {average}: not all items of {benchmark.name} have the facet {facet!r}")
    return {average: weighted_average(list(rates.values())), **micro}


def _tables(
    items: Sequence[Item], verdicts: Sequence[Verdict], plain: Mapping[str, Mapping[str, Rate]]
) -> dict[str, Mapping[str, Rate]]:
    tables = {facet: table for facet, table in plain.items() if facet not in SEVERAL}
    for pair in CROSSED:
        if set(pair) <= set(plain):
            tables[" x ".join(pair)] = grouped(items, verdicts, functools.partial(_crossed, pair))
    for facet in SEVERAL:
        if facet in plain:
            tables[facet] = grouped(items, verdicts, functools.partial(_each, facet))
    return tables


def _crossed(pair: tuple[str, str], item: Item) -> list[str]:
    return [" x ".join(item.facets.get(facet, "") for facet in pair)]


def _each(facet: str, item: Item) -> list[str]:
    return item.facets.get(facet, "").split(SEPARATOR)
