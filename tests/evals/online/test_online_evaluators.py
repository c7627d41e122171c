import dataclasses

import numpy as np
import pytest

from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.agent.trajectory import Observation, Step, Trajectory
from gui_owl_jax.evals.online.evaluators import EVALUATORS, coverage, evaluate
from gui_owl_jax.evals.online.evidence import Ending, Recording, ending_of
from gui_owl_jax.evals.online.task import Check, Evaluation, OnlineTask, Operation, Unsupported

TERMINAL = Operation("vm_terminal_output")


def rule(value):
    return Operation("rule", {"rules": value})


def expects(text, **options):
    return Check("osworld.exact_match", TERMINAL, rule({"expected": text}), options)


def task(*checks, join="and", gate="", infeasible=False):
    evaluation = Evaluation(checks, join, gate)
    return OnlineTask("t", "osworld", "Do it.", DeviceFamily.DESKTOP, evaluation, infeasible=infeasible)


def recorded(text):
    return Recording(outputs={TERMINAL.key: text})


def test_osworld_infeasible_tasks_need_a_failure_as_last_action():
    hopeless = task(Check("osworld.infeasible", Operation("declared")), infeasible=True)
    for declared, score in (("failure", 1), ("success", 0), ("", 0)):
        ending = Ending(declared)
        assert evaluate(hopeless, ending, Recording(ending)) == score


def test_giving_up_a_feasible_osworld_task_scores_nothing():
    easy = task(expects("x"), gate="not_failed")
    for declared, score in (("failure", 0), ("success", 1), ("", 1)):
        assert evaluate(easy, Ending(declared), recorded("x")) == score
    assert evaluate(easy, Ending("success"), recorded("y")) == 0


def test_androidworld_counts_a_success_only_if_it_was_declared():
    operation = Operation("is_successful", {"task_name": "A"})
    android = task(Check("androidworld.is_successful", operation), gate="declared")
    for declared, holds, score in (("success", True, 1), ("", True, 0), ("success", False, 0), ("failure", True, 1)):
        ending = Ending(declared)
        assert evaluate(android, ending, Recording(ending, outputs={operation.key: holds})) == score
    with pytest.raises(Unsupported, match="is_successful"):
        evaluate(android, Ending("success"), Recording())
    with pytest.raises(DataError, match="must be a number"):
        evaluate(android, Ending("success"), Recording(outputs={operation.key: "yes"}))


def fuzzy(text):
    return Check("osworld.fuzzy_match", TERMINAL, rule({"expected": text}))


def test_joins():
    right, wrong, half, third = expects("ab"), expects("x"), fuzzy("abcdef"), fuzzy("abcdefghij")
    both = recorded("ab")

    def score(*checks, join):
        return evaluate(task(*checks, join=join), Ending(), both)

    assert score(half, join="and") == 0.5 and score(third, join="and") == pytest.approx(1 / 3)
    assert score(right, half, join="and") == 0.75 and score(half, wrong, join="and") == 0 == score(wrong, join="or")
    assert score(wrong, half, third, join="or") == 0.5 and score(half, right, join="or") == 1
    unknown = Check("osworld.compare_table", TERMINAL)
    # What an unsupported check would say no longer matters once the score is settled.
    assert score(wrong, unknown, join="and") == 0 and score(right, unknown, join="or") == 1
    for checks, join in (((right, unknown), "and"), ((wrong, unknown), "or")):
        with pytest.raises(Unsupported, match="osworld.compare_table"):
            score(*checks, join=join)
    with pytest.raises(DataError, match="xor"):
        task(right, join="xor")
    with pytest.raises(DataError, match="no check"):
        task()


def test_what_the_agent_left_scores_nothing_where_it_is_missing_or_damaged(tmp_path):
    found = Operation("vm_file", {"path": "/home/a.json", "dest": "a.json"})
    check = Check("osworld.check_json", found, rule({"expect": [{"key": ["k"], "method": "eq", "ref": 1}]}))
    get = Recording(folder=tmp_path)
    assert evaluate(task(check), Ending(), get) == 0
    (tmp_path / "a.json").write_text("{")
    assert evaluate(task(check), Ending(), get) == 0
    (tmp_path / "a.json").write_text('{"k": 1}')
    assert evaluate(task(check), Ending(), get) == 1


def test_what_the_benchmark_lacks_is_an_error(tmp_path):
    found = Operation("vm_file", {"path": "/home/a.csv", "dest": "a.csv"})
    wanted = Operation("cloud_file", {"path": "https://x/b.csv", "dest": "b.csv"})
    csv = task(Check("osworld.compare_csv", found, wanted))
    (tmp_path / "a.csv").write_text("1,2\n")
    with pytest.raises(DataError, match="osworld task t.*b.csv is missing"):
        evaluate(csv, Ending(), Recording(folder=tmp_path))
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="b.csv"):
        evaluate(csv, Ending(), Recording(folder=tmp_path))
    (tmp_path / "b.csv").write_text("1,2\n")
    assert evaluate(csv, Ending(), Recording(folder=tmp_path)) == 1
    with pytest.raises(DataError, match="osworld.compare_csv.*colour"):
        odd = dataclasses.replace(csv.evaluation.checks[0], options={"colour": 1})
        evaluate(task(odd), Ending(), Recording(folder=tmp_path))


def test_files_are_found_by_the_names_of_the_task(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    get = Recording(folder=tmp_path)

    def names(**arguments):
        found = get(Operation("cloud_file", arguments))
        return found.rsplit("/")[-1] if isinstance(found, str) else [path.rsplit("/")[-1] for path in found]

    assert names(dest="a") == "a"
    assert names(dest=["a", "b", "c"], multi=True) == "a"
    assert names(dest=["a", "b", "c"], multi=True, gives=[2, 0]) == ["c", "a"]
    assert get(Operation("cache_file", {"path": "b"})).endswith("/b")
    assert get(Operation("vm_file", {"dest": "none"})) is None
    for bad in ({"dest": "../a"}, {"dest": "/etc/passwd"}, {}, {"dest": ["a"], "multi": True, "gives": [1]}):
        with pytest.raises(DataError):
            get(Operation("cloud_file", bad))
    with pytest.raises(Unsupported):
        Recording()(Operation("vm_file", {"dest": "a"}))


def test_outputs_are_told_apart_by_their_command():
    date, who = (Operation("vm_command_line", {"command": command, "shell": True}) for command in ("date", "who"))
    get = Recording(outputs={date.key: "today", who.key: "me"})
    assert (get(date), get(Operation("vm_command_line", {"shell": True, "command": "who"}))) == ("today", "me")
    with pytest.raises(Unsupported, match="vm_command_line"):
        get(Operation("vm_command_line", {"command": "ls"}))


def test_the_ending_is_read_off_the_last_action():
    def ending(*actions):
        steps = tuple(Step(Observation(np.zeros((2, 2, 3), np.uint8)), action=action) for action in actions)
        return ending_of(Trajectory("t", "a", DeviceFamily.DESKTOP, "Do it.", steps, 1, "policy"), url="http://x")

    fail, done, answer = (
        Action("terminate", status="failure"),
        Action("terminate", status="success"),
        Action("answer", text="42"),
    )
    wait = Action("wait", time=1.0)
    assert ending() == ending(wait) == ending(fail, wait) == ending(None) == Ending("", "", "http://x")
    assert ending(wait, fail).declared == "failure" and ending(done).declared == "success"
    assert ending(answer) == Ending("success", "42", "http://x") and ending(answer, done) == ending(answer)
    assert ending(answer, fail) == Ending("failure", "42", "http://x")


def test_coverage_counts_checks_and_whole_tasks():
    live = Check("osworld.exact_match", Operation("vm_window_size"), rule({"expected": 1}))
    judged = Check("webarena.fuzzy_match", Operation("answer"), rule(["x"]))
    tasks = [task(expects("x")), task(expects("x"), Check("osworld.compare_table", TERMINAL)), task(live), task(judged)]
    found = coverage(tasks)
    assert (found.tasks, found.judged) == (4, 1)
    assert found.kinds == {"osworld.exact_match": 3, "osworld.compare_table": 1, "webarena.fuzzy_match": 1}
    assert found.unsupported == {"osworld.compare_table": 1, "osworld.exact_match": 1, "webarena.fuzzy_match": 1}
    assert coverage(tasks, judge=True).judged == 2
    assert coverage(tasks, available={"vm_window_size", "rule"}).judged == 1


def test_evaluators_are_named_by_their_benchmark():
    assert {name.split(".")[0] for name in EVALUATORS} == {"osworld", "webarena", "androidworld"}
    assert EVALUATORS["osworld.exact_match"] is not EVALUATORS["webarena.exact_match"]
