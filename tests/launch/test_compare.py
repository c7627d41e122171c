import json

import pytest

from data.store import TrajectorySource
from gui_owl_jax.agent.errors import ConfigError, DataError
from gui_owl_jax.evals import statistics
from gui_owl_jax.evals.success import read_stage
from launch import worlds
from launch.compare import table
from tests.launch.conftest import TINY, Main


def write(path, stage, outcomes, attempts=None, suite="pc_eval_v1", steps=3):
    """A result of `launch.evaluate`: {(family, task): outcome}."""
    rows = [
        {"task_id": task, "family": family, "app": "a", "template": "t", "outcome": outcome}
        | {"failure": "" if outcome is not None else "died: x", "steps": steps, "parse_errors": 0}
        for (family, task), outcome in outcomes.items()
    ]
    data = {"stage": stage, "policy": f"runs/{stage}", "suite": suite, "tasks": rows, "scrambled": None}
    data |= {"grounding": None, "model": {"parameters": 1}, "commit": "c", "seconds": 1.0}
    if attempts is not None:
        data["attempts"] = attempts
    path.write_text(json.dumps(data))
    return path


def keys(family, count):
    return [(family, f"{family}-{i}") for i in range(count)]


def cells(text, name):
    (line,) = (line for line in text.splitlines() if line.startswith(name))
    return line.split()


@pytest.fixture
def pair(tmp_path):
    tasks = keys("desktop", 10) + keys("web", 10)
    before = write(tmp_path / "sft.json", "sft", {key: int(i % 2) for i, key in enumerate(tasks)})
    after = write(tmp_path / "mrpo.json", "mrpo", {key: int(i % 10 != 0) for i, key in enumerate(tasks)}, steps=2)
    return before, after


def test_the_table_has_the_paired_difference_and_its_interval(pair):
    text = table(*pair)
    expected = statistics.paired_difference([0, 1] * 10, [0, *[1] * 9] * 2, strata=["d"] * 10 + ["w"] * 10)
    assert text.splitlines()[0] == "sft (runs/sft) -> mrpo (runs/mrpo), pc_eval_v1"
    row = cells(text, "average")
    assert row[1] == "50.0" and row[4] == "90.0" and row[7] == "+40.0" and row[-3:] == ["20", "8", "0"]
    assert f"[{100 * expected.t.low:+.1f}, {100 * expected.t.high:+.1f}]" in text
    assert cells(text, "desktop")[-3:] == cells(text, "web")[-3:] == ["10", "4", "0"]
    assert cells(text, "steps") == ["steps", "3.0", "2.0"]
    assert "mobile" not in text and "pass@" not in text


def test_the_other_way_round_has_the_other_sign(pair):
    assert cells(table(*reversed(pair)), "average")[7] == "-40.0"
    assert cells(table(pair[0], pair[0]), "average")[7] == "+0.0"


def test_failed_environments_are_left_out(tmp_path, pair):
    tasks = keys("desktop", 10) + keys("web", 10)
    outcomes = {key: int(i % 10 != 0) if i not in (2, 3, 13) else None for i, key in enumerate(tasks)}
    after = write(tmp_path / "later.json", "mrpo", outcomes)
    assert cells(table(pair[0], after), "average")[-3:] == ["17", "7", "0"]


def test_attempts_give_pass_at_k_and_count_a_task_once(tmp_path, pair):
    tasks = keys("desktop", 10) + keys("web", 10)
    attempts = {task: [1, 0, None] if i < 10 else [0, 0, 1] for i, (_, task) in enumerate(tasks)}
    first = {key: attempts[key[1]][0] for key in tasks}
    run = write(tmp_path / "many.json", "many", first, attempts)
    text = table(run, run)
    assert cells(text, "average")[-3:] == ["20", "0", "0"]
    assert cells(text, "desktop")[1] == "50.0" and cells(text, "web")[1] == "33.3"
    assert cells(text, "pass@2")[1] == f"{100 * (1 + 2 / 3) / 2:.1f}" and "pass@3" not in text
    assert "pass@" not in table(pair[0], run)


def test_results_that_do_not_compare_are_refused(tmp_path, pair):
    other = write(tmp_path / "o.json", "o", {("web", "w"): 1}, suite="mobile_eval_v1")
    with pytest.raises(DataError, match="pc_eval_v1.*mobile_eval_v1"):
        table(pair[0], other)
    strange = write(tmp_path / "s.json", "s", {("web", "w"): 1})
    with pytest.raises(DataError, match="no task in common"):
        table(pair[0], strange)
    for attempts in ({"w": [2]}, {"x": [1]}, {"w": 1}, []):
        broken = write(tmp_path / "b.json", "b", {("web", "w"): 1}, attempts)
        with pytest.raises(DataError, match="b.json: field 'attempts'"):
            table(broken, broken)


def test_worlds_give_their_suites():
    world = worlds.World("envs.virtual", 2, 10.0)
    assert len(world.suite("mobile_eval_v1")) == 90
    assert world.script(world.suite("mobile_eval_v1")[0])
    with pytest.raises(ConfigError, match="none of mobile_eval_v1, pc_eval_v1"):
        world.suite("pc_eval_v9")
    with pytest.raises(ConfigError, match="world tests.launch has no suites"):
        worlds.World("tests.launch", 2, 10.0).suite("pc_eval_v1")
    assert len(worlds.World("tests.launch.coin", 2, 10.0).suite("coin_v1")) == 3


def test_a_suite_is_evaluated_several_times(coin_folder, tmp_path):
    out = tmp_path / "evaluate"
    config = (f"--config={TINY}:supervised,{coin_folder}", "--config.evaluation.grounding_screens=0")
    flags = (f"--policy={coin_folder / 'sft'}", "--suite=coin_v1", "--attempts=2", "--stage=sft", f"--out={out}")
    Main("evaluate", *config, *flags).succeed()
    result, data = read_stage(out / "sft.json"), json.loads((out / "sft.json").read_text())
    suite = [task.task_id for task in worlds.World("tests.launch.coin", 2, 10.0).suite("coin_v1")]
    assert [row.task_id for row in result.tasks] == list(data["attempts"]) == suite and data["suite"] == "coin_v1"
    trajectories = TrajectorySource(out / "sft")
    assert [trajectory.task_id for trajectory in trajectories] == suite * 2
    outcomes = [trajectory.outcome for trajectory in trajectories]
    assert list(data["attempts"].values()) == [list(pair) for pair in zip(outcomes[:3], outcomes[3:])]
    assert [row.outcome for row in result.tasks] == outcomes[:3]
    assert "pass@2" in table(out / "sft.json", out / "sft.json")
