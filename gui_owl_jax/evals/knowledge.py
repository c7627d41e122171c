"""Scores multiple-choice answers (GUI Knowledge Bench): accuracy in all and by category, unparsable answers counted.

An answer is a JSON object with the key "answer", and in most prompts a "thought". It may stand among words or in a code
fence; thoughts in think tags are skipped.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping

from gui_owl_jax.agent.errors import DataError, ParseError, ParseReason
from gui_owl_jax.evals.benchmark import Answer, Benchmark, Choice, Item
from gui_owl_jax.evals.rules import check_settings, rule_name
from gui_owl_jax.evals.score import (
    HIT,
    MISS,
    UNPARSABLE,
    Score,
    Verdict,
    by_facet,
    make_score,
    paired,
    rate,
    unasked,
)
from gui_owl_jax.evals.statistics import weighted_average

READINGS: Mapping[str, str] = {
    "json": 'the answer is the "answer" of a JSON object',
    "json_or_bare": "or it is the whole response, and nothing but the name of an option",
}
CATEGORY = "category"

_THOUGHTS = re.compile(r".*</think(?:ing)?>", re.DOTALL)
_NAMED = re.compile(r"\s*([A-Za-z]+)\s*(?:[.):]|$)")  # "B", "B.", "B) the second one", "yes"
_DECODER = json.JSONDecoder(strict=False)


@dataclasses.dataclass(frozen=True)
class KnowledgeRule:
    """How answers are read.

    Attributes:
      reading: a key of `READINGS`.
    """

    reading: str = "json"

    def __post_init__(self):
        check_settings(self, reading=READINGS)

    @property
    def name(self) -> str:
        """The full name, which `parse` reads: "reading=json"."""
        return rule_name(self)

    @staticmethod
    def parse(name: str) -> KnowledgeRule:
        """Reads "reading=json" or "json".

        Raises:
          ConfigError: an unknown reading.
        """
        return KnowledgeRule(name.strip().removeprefix("reading="))


def score(
    benchmark: Benchmark, answers: Iterable[Answer], rule: KnowledgeRule | None = None, dialect: object = None
) -> Score:
    """Scores the answers to a benchmark of choices.

    Args:
      benchmark: items with a `Choice`.
      answers: of the benchmark's items, at most one each.
      rule: how they are read; `KnowledgeRule()` by default.
      dialect: not looked at: a choice is no action. It is here so that all benchmarks are scored alike.

    Returns:
      The `Score`: "micro", and "macro:category" (unweighted mean of the categories) where all items have one.

    Raises:
      DataError: answers do not belong to the items, or the items are no choices.
    """
    del dialect
    rule = rule or KnowledgeRule()
    verdicts = [judge(item, answer, rule) for item, answer in paired(benchmark, answers)]
    averages = {"micro": rate(verdicts)}
    categories = by_facet(benchmark.items, verdicts, CATEGORY)
    if categories and "" not in categories:
        averages[f"macro:{CATEGORY}"] = weighted_average(list(categories.values()))
    return make_score(benchmark, rule.name, verdicts, averages=averages)


def judge(item: Item, answer: Answer, rule: KnowledgeRule) -> Verdict:
    """The verdict on one answer; the last look holds it.

    Raises:
      DataError: the item is no choice.
    """
    target = item.target
    if not isinstance(target, Choice):
        raise DataError(f"item {item.item_id!r} asks for {type(target).__name__}, not for a choice")
    if (verdict := unasked(answer)) is not None:
        return verdict
    try:
        chosen = read_choice(answer.looks[-1].response, target.options, rule.reading)
    except ParseError as error:
        return Verdict(item.item_id, False, UNPARSABLE, detail=str(error))
    right = chosen == target.answer
    return Verdict(item.item_id, right, HIT if right else MISS, detail=f"{chosen}, right is {target.answer}")


def read_choice(response: str, options: Iterable[str], reading: str = "json") -> str:
    """The option that a response names.

    Upper and lower case do not matter; the option's text may follow its name ("B. Settings"). Several JSON objects must
    agree.

    Args:
      response: the model's words.
      options: names of the options.
      reading: a key of `READINGS`.

    Returns:
      The name as it stands in `options`.

    Raises:
      ParseError: there is no answer, none of the options, or more than one.
    """
    names = {option.lower(): option for option in options}
    body = _THOUGHTS.sub("", response)
    said = list(_answers(body))
    if not said and reading == "json_or_bare" and body.strip().strip(".").lower() in names:
        return names[body.strip().strip(".").lower()]
    if not said:
        raise ParseError(ParseReason.MISSING_ARGUMENT, f'no JSON object with an "answer" in {body[-80:]!r}')
    chosen = set()
    for value in said:
        match = _NAMED.match(value) if isinstance(value, str) else None
        if match is None or match[1].lower() not in names:
            raise ParseError(
                ParseReason.BAD_ARGUMENT, f"the answer {value!r:.80} is none of {', '.join(names.values())}"
            )
        chosen.add(names[match[1].lower()])
    if len(chosen) > 1:
        raise ParseError(ParseReason.BAD_ARGUMENT, f"the response answers {' and '.join(sorted(chosen))}")
    return chosen.pop()


def _answers(text: str) -> Iterator[object]:
    """The values of "answer" in the JSON objects of a text; what is inside an object is not searched again."""
    start = text.find("{")
    while start >= 0:
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            if "answer" in value:
                yield value["answer"]
        start = text.find("{", end)
