from __future__ import annotations

import pytest

from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import ConfigError, DataError, ParseError
from gui_owl_jax.evals.benchmark import Answer, Benchmark, Choice, Item, Look, Refusal
from gui_owl_jax.evals.knowledge import KnowledgeRule, judge, read_choice, score
from gui_owl_jax.evals.score import count_reasons

LETTERS = ("A", "B", "C")
YES_NO = ("yes", "no", "unknown")


@pytest.mark.parametrize(
    ("response", "options", "answer"),
    [
        ('{"thought": "hm", "answer": "B"}', LETTERS, "B"),
        ('{"answer": "b"}', LETTERS, "B"),
        ('Answer: {"answer": " C. Camera "}', LETTERS, "C"),
        ('{"answer": "B) the second"}', LETTERS, "B"),
        ('```json\n{"thought": "a {brace}", "answer": "A"}\n```', LETTERS, "A"),
        ('<think>maybe {"answer": "A"}</think>{"answer": "C"}', LETTERS, "C"),
        ('{"thought": "not {\\"answer\\": \\"A\\"}", "answer": "B"}', LETTERS, "B"),
        ('{"answer": "B"} so {"answer": "b"}', LETTERS, "B"),
        ('{"thought": "two\nlines", "answer": "B"}', LETTERS, "B"),
        ('{"answer": "Yes"}', YES_NO, "yes"),
        ('{"answer": "unknown."}', YES_NO, "unknown"),
        ('{"thought": "{"} {"answer": "no"}', YES_NO, "no"),
    ],
)
def test_answers(response, options, answer):
    assert read_choice(response, options) == answer


@pytest.mark.parametrize(
    "response",
    [
        "",
        "B",
        "The answer is B",
        '{"thought": "B"}',
        '{"answer": "D"}',
        '{"answer": "AB"}',
        '{"answer": "A and B"}',
        '{"answer": ["A"]}',
        '{"answer": null}',
        '{"answer": "A"} or {"answer": "B"}',
        '{"answer": "A"',
        '<think>{"answer": "A"}</think>',
    ],
)
def test_what_is_no_answer(response):
    with pytest.raises(ParseError):
        read_choice(response, LETTERS)


def test_a_bare_answer_is_read_where_the_rule_says_so():
    for response in ("B", " b.\n", "<think>x</think>B"):
        assert read_choice(response, LETTERS, "json_or_bare") == "B"
    assert read_choice('{"answer": "A"}', LETTERS, "json_or_bare") == "A"
    for response in ("B is right", "D", "A B"):
        with pytest.raises(ParseError):
            read_choice(response, LETTERS, "json_or_bare")


def question(item_id, answer, **facets):
    return Item(item_id, "?", Choice(answer, LETTERS), DeviceFamily.DESKTOP, facets=facets)


def said(item_id, response):
    return Answer(item_id, (Look(response, (0, 0, 10, 10), (10, 10)),))


def test_accuracy_in_all_and_by_category():
    benchmark = Benchmark(
        "kb",
        (
            question("1", "A", category="Perception"),
            question("2", "B", category="Perception"),
            question("3", "C", category="Planning"),
            question("4", "A", category="Perception"),
            question("5", "A", category="Perception"),
        ),
    )
    answers = [
        said("1", '{"answer": "A"}'),
        said("2", '{"answer": "A"}'),
        said("3", '{"answer": "C"}'),
        said("4", "A"),
        Answer("5", failure="image missing"),
    ]
    result = score(benchmark, answers)
    assert result.rule == "reading=json"
    assert (result.averages["micro"].successes, result.averages["micro"].trials) == (2, 5)
    assert result.averages["macro:category"].mean == pytest.approx((1 / 4 + 1) / 2)
    assert count_reasons(result.verdicts) == {"hit": 2, "failed": 1, "miss": 1, "unparsable": 1}
    assert result.tables["category"]["Planning"].successes == 1
    lenient = score(benchmark, answers, KnowledgeRule("json_or_bare"))
    assert lenient.averages["micro"].successes == 3


def test_rules_and_items_of_another_kind_are_refused():
    assert KnowledgeRule.parse("reading=json") == KnowledgeRule.parse("json") == KnowledgeRule()
    with pytest.raises(ConfigError, match="reading"):
        KnowledgeRule.parse("guess")
    with pytest.raises(DataError, match="Refusal"):
        judge(Item("1", "?", Refusal(), DeviceFamily.DESKTOP), Answer("1"), KnowledgeRule())
