"""WebArena's evaluators: of the answer, of the address, and of page contents that somebody with a live site fetched.

Rules of the release (`evaluation_harness/evaluators.py`): scores are 0 or 1 and are multiplied over all reference
answers and all evaluation types. Said otherwise here: "|OR|" counts in reference answers too (the release splits it
only for pages, so that its task 65 |OR| 3 cannot be solved).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlparse

from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.online.task import Check, OnlineTask, Operation

# (reference, the agent's answer, the instruction) -> 0 to 1: a person or a model that reads them.
Judge = Callable[[str, str, str], float]

UNACHIEVABLE = "N/A"
_OR = " |OR| "
_BETWEEN_WORDS = re.compile(
    r"""[;@#$%&?!\[\](){}<>"]|--+|\.\.+  # always
    |[:,](?!\d)  # but not in 1,000 and 10:30
    |(?<!\w)'|'(?!\w)  # but not in o'clock
    |\.(?=['"]*(?:\s|$))  # but not in 2.5
    """,
    re.VERBOSE,
)
_PLACEHOLDER = re.compile(r"__[A-Z]+(?:_[A-Z]+)*__")


def clean(answer: str) -> str:
    """Without blanks around it, without one pair of quotes, in lower case."""
    answer = answer.strip()
    for quote in ("'", '"'):
        if answer.startswith(quote) and answer.endswith(quote):
            answer = answer[1:-1]
            break
    return answer.lower()


def exact_match(answer: str, reference: str) -> float:
    """The cleaned answer is the cleaned reference; the answer is cleaned twice, as in the release."""
    return float(clean(clean(answer)) == clean(reference))


def must_include(answer: str, references: list[str]) -> float:
    """The cleaned answer contains every reference (of alternatives joined by " |OR| " one is enough).

    A single reference of one character must be a word of its own: "2" is not in "12" or "2.5". Words are those of the
    Penn Treebank tokeniser that the release uses, in short: "2%", "$2" and "(2)," hold the word, "2/3", "2-3" and "1,2"
    do not. One exception: a full stop before a blank ends a word wherever it stands.
    """
    return float(all(_includes(clean(answer), reference, alone=len(references) == 1) for reference in references))


def _includes(answer: str, reference: str, alone: bool) -> bool:
    return any(_contains(clean(answer), clean(option), alone) for option in reference.split(_OR))


def _contains(answer: str, reference: str, alone: bool) -> bool:
    if not alone or len(reference) != 1 or not reference.isalnum():
        return reference in answer
    return reference in _BETWEEN_WORDS.sub(" ", answer).split()


def fuzzy_match(answer: str, references: list[str], *, intent: str, judge: Judge) -> float:
    """The judge finds that the answer means the same as every reference; an empty answer only matches an empty one."""
    score = 1.0
    for reference in references:
        said = clean(answer)
        score *= float(judge(reference, said, intent)) if said else float(not reference)
    return score


def unachievable(answer: str, reference: str, *, intent: str, note: str, judge: Judge | None = None) -> float:
    """The task cannot be done: the answer is "N/A", or gives a reason that the judge finds to be `note`.

    Without a judge only the literal "N/A" counts, so that the score is a lower bound.
    """
    if exact_match(answer, reference):
        return 1.0
    return 0.0 if judge is None or not clean(answer) else float(judge(note, clean(answer), intent))


def url_match(url: str, references: list[str]) -> float:
    """The address contains that of a reference (host and path), and for each of their parameters one of its values.

    The rule "GOLD in PRED": the parameters of all references are pooled; others in the address are ignored.

    Raises:
      DataError: a reference still has a placeholder for its site.
    """
    for reference in references:
        if found := _PLACEHOLDER.search(reference):
            raise DataError(f"url_match: {found[0]} in {reference!r} stands for a site: call with_sites first")
    base, query = _parts(url)
    wanted: dict[str, set[str]] = {}
    bases = []
    for reference in references:
        path, parameters = _parts(reference)
        bases.append(path)
        for name, values in parameters.items():
            wanted.setdefault(name, set()).update(values)
    right = any(path in base for path in bases)
    return float(right and all(values & set(query.get(name, [])) for name, values in wanted.items()))


def _parts(url: str) -> tuple[str, dict[str, list[str]]]:
    parsed = urlparse(url.rstrip("/"))
    return (parsed.netloc + parsed.path).rstrip("/"), parse_qs(parsed.query)


def program_html(contents: list[str], required: list[Mapping[str, Any]]) -> float:
    """Every fetched page content has what its target requires: "exact_match" a text, or "must_include" texts."""
    if not isinstance(contents, list) or len(contents) != len(required):
        raise DataError(f"program_html: {len(required)} targets need as many page contents, in their order")
    return float(all(_page_has(content, wanted) for content, wanted in zip(contents, required)))


def _page_has(content: str, wanted: Mapping[str, Any]) -> bool:
    if "exact_match" in wanted:
        return clean(content) == clean(wanted["exact_match"])
    return all(_includes(content, reference, alone=False) for reference in wanted["must_include"])


def with_sites(task: OnlineTask, sites: Mapping[str, str]) -> OnlineTask:
    """The task with the placeholders of its sites ("__SHOPPING__") replaced by addresses, in setup and checks.

    Args:
      task: a WebArena task.
      sites: placeholder -> address without a trailing slash.

    Raises:
      DataError: a placeholder has no address.
    """

    def replaced(value: Any) -> Any:
        if isinstance(value, str):
            for name in set(_PLACEHOLDER.findall(value)):
                if name not in sites:
                    raise DataError(f"{task.source} task {task.task_id}: no address for {name}")
                value = value.replace(name, sites[name])
            return value
        if isinstance(value, Mapping):
            return {key: replaced(inner) for key, inner in value.items()}
        return [replaced(inner) for inner in value] if isinstance(value, list) else value

    def operation(old: Operation) -> Operation:
        return Operation(old.kind, replaced(old.arguments))

    def check(old: Check) -> Check:
        expected = None if old.expected is None else operation(old.expected)
        return dataclasses.replace(old, result=operation(old.result), expected=expected)

    evaluation = dataclasses.replace(task.evaluation, checks=tuple(map(check, task.evaluation.checks)))
    return dataclasses.replace(task, setup=tuple(map(operation, task.setup)), evaluation=evaluation)
