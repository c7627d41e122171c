import pytest

from data.benchmarks.online_tasks_webarena import read_webarena
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.online import webarena
from gui_owl_jax.evals.online.evaluators import coverage, evaluate
from gui_owl_jax.evals.online.evidence import RECORDED, Ending, Recording
from gui_owl_jax.evals.online.task import Unsupported

SITES = {
    f"__{name}__": f"http://host:{7000 + i}"
    for i, name in enumerate(("SHOPPING", "SHOPPING_ADMIN", "REDDIT", "GITLAB", "MAP", "WIKIPEDIA", "HOMEPAGE"))
}


@pytest.mark.parametrize(
    ("answer", "reference", "score"),
    [
        ("Sprite", "sprite", 1),
        ("  'Sprite' ", "Sprite", 1),
        ('"Sprite"', "Sprite", 1),
        ("\"'Sprite'\"", "Sprite", 1),
        ("Sprite.", "Sprite", 0),
        ("'Sprite\"", "Sprite", 0),
        ("", "Sprite", 0),
    ],
)
def test_exact_match_after_cleaning(answer, reference, score):
    assert webarena.exact_match(answer, reference) == score


@pytest.mark.parametrize(
    ("answer", "references", "score"),
    [
        ("It is Paris, France", ["paris"], 1),
        ("It is Paris", ["paris", "france"], 0),
        ("France: Paris", ["paris", "france"], 1),
        ("12 orders", ["2"], 0),
        ("2 orders", ["2"], 1),
        ("(2)", ["2"], 1),
        ("$2.", ["2"], 1),
        ("2.5 stars", ["2"], 0),
        ("1,2", ["2"], 0),
        ("2, or 3", ["2"], 1),
        ("2% of 30", ["2"], 1),
        ("2/3", ["2"], 0),
        ("There are 2. That is all", ["2"], 1),
        ("12 of 13", ["2", "3"], 1),  # only a single reference must be a word
        ("about 65 of them", ["65 |OR| 3"], 1),
        ("3", ["65 |OR| 3"], 1),
        ("13", ["65 |OR| 3"], 0),
        ("64", ["65 |OR| 3"], 0),
    ],
)
def test_must_include(answer, references, score):
    assert webarena.must_include(answer, references) == score


def test_fuzzy_match_asks_the_judge():
    asked = []

    def judge(reference, answer, intent):
        asked.append((reference, answer, intent))
        return reference == "r1"

    assert webarena.fuzzy_match(" 'Yes' ", ["r1"], intent="Is it?", judge=judge) == 1
    assert asked == [("r1", "yes", "Is it?")]
    assert webarena.fuzzy_match("yes", ["r1", "r2"], intent="Is it?", judge=judge) == 0
    assert webarena.fuzzy_match("", ["r1"], intent="Is it?", judge=judge) == 0 and len(asked) == 3
    assert webarena.fuzzy_match("", [""], intent="Is it?", judge=judge) == 1


def test_unachievable_tasks():
    arguments = {"reference": "N/A", "intent": "Do it.", "note": "there is no such shop"}
    assert webarena.unachievable("N/A", **arguments) == 1 == webarena.unachievable(" n/a ", **arguments)
    assert webarena.unachievable("There is no shop", **arguments) == 0 == webarena.unachievable("", **arguments)

    def judge(note, answer, intent):
        return (note, answer, intent) == ("there is no such shop", "there is no shop", "Do it.")

    assert webarena.unachievable("There is no shop", **arguments, judge=judge) == 1
    assert webarena.unachievable("It is done", **arguments, judge=judge) == 0


URLS = [
    ("http://h:1/a/b", ["http://h:1/a/b/"], 1),
    ("http://h:1/a/b/", ["http://h:1/a/b"], 1),
    ("http://h:1/a/b/c", ["http://h:1/a/b"], 1),  # the reference is in the address
    ("http://h:1/a", ["http://h:1/a/b"], 0),
    ("http://h:2/a/b", ["http://h:1/a/b"], 0),
    ("https://h:1/a/b", ["http://h:1/a/b"], 1),
    ("http://h:1/a?x=1&y=2", ["http://h:1/a?x=1"], 1),
    ("http://h:1/a?y=2", ["http://h:1/a?x=1"], 0),
    ("http://h:1/a?x=2", ["http://h:1/a?x=1"], 0),
    ("http://h:1/b", ["http://h:1/a", "http://h:1/b"], 1),
    ("http://h:1/b?x=1", ["http://h:1/a?x=1", "http://h:1/b?x=2"], 1),  # parameters are pooled
    ("", ["http://h:1/a"], 0),
]


@pytest.mark.parametrize(("url", "references", "score"), URLS)
def test_url_match(url, references, score):
    assert webarena.url_match(url, references) == score


def test_placeholders_must_be_replaced_first():
    with pytest.raises(DataError, match="__SHOPPING__.*with_sites"):
        webarena.url_match("http://x", ["__SHOPPING__/a"])


def test_page_contents():
    required = [{"must_include": ["Red |OR| blue", "1"]}, {"exact_match": "Done"}]
    assert webarena.program_html(["is blue, 15", " done "], required) == 1
    assert webarena.program_html(["is green, 15", "done"], required) == 0
    assert webarena.program_html(["is red, 15", "done!"], required) == 0
    with pytest.raises(DataError, match="2 targets"):
        webarena.program_html(["one"], required)


def oracle(task):
    """The ending that the references of a task describe."""
    answers, url = [], ""
    for check in task.evaluation.checks:
        rules = check.expected.arguments["rules"]
        if check.kind == "webarena.url_match":
            url = rules[-1]
        elif check.kind in ("webarena.exact_match", "webarena.unachievable"):
            answers.append(rules)
        elif check.kind == "webarena.must_include":
            answers += [reference.split(" |OR| ")[0] for reference in rules]
    return Ending("success", " ".join(answers), url)


def test_an_oracle_scores_all_and_silence_nothing(conformance):
    """All 319 tasks that can be judged by their answer and address."""
    tasks = [webarena.with_sites(task, SITES) for task in read_webarena(conformance / "webarena")]
    judged = [task for task in tasks if coverage([task]).judged]
    assert len(judged) == 319
    for task in judged:
        ending = oracle(task)
        assert evaluate(task, ending, Recording(ending)) == 1, task.task_id
        assert evaluate(task, Ending(), Recording()) == 0, task.task_id


def test_tasks_that_need_a_live_page_or_a_judge_say_so(conformance):
    tasks = read_webarena(conformance / "webarena")
    for task in tasks:
        if coverage([task]).judged:
            continue
        (kind, *_) = coverage([task]).unsupported
        ready = webarena.with_sites(task, SITES)
        ending = oracle(ready)
        with pytest.raises(Unsupported):
            evaluate(ready, ending, Recording(ending))
        assert kind in ("webarena.program_html", "webarena.fuzzy_match")


def test_with_pages_and_a_judge_all_tasks_can_be_judged(conformance):
    tasks = read_webarena(conformance / "webarena")
    assert coverage(tasks, available={*RECORDED, "page_contents"}, judge=True).judged == 812
    task = webarena.with_sites(next(t for t in tasks if t.evaluation.checks[-1].kind == "webarena.program_html"), SITES)
    operation = task.evaluation.checks[-1].result
    required = task.evaluation.checks[-1].expected.arguments["rules"]
    contents = [wanted.get("exact_match") or " ".join(wanted["must_include"]) for wanted in required]
    ending = oracle(task)
    assert evaluate(task, ending, Recording(ending, outputs={operation.key: contents})) == 1
    assert evaluate(task, ending, Recording(ending, outputs={operation.key: [""] * len(contents)})) == 0


def test_sites_are_replaced_everywhere(conformance):
    tasks = read_webarena(conformance / "webarena")
    ready = [webarena.with_sites(task, SITES) for task in tasks]
    assert not any(name in repr(task) for task in ready for name in SITES)
    with pytest.raises(DataError, match="task 0: no address for __SHOPPING_ADMIN__"):
        webarena.with_sites(tasks[0], {})
