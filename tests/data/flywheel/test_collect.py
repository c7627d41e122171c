"""Collection from real pools, healthy and failing."""

import types

import pytest

from data.flywheel.collect import collect, with_slips
from data.store import TrajectorySource, write_trajectories
from envs import testing
from envs.pool import EnvPool, LocalPool
from gui_owl_jax.agent.actions import Action

ACT = Action(kind="click", coordinate=(1, 1))


def script(task):
    return [(f"Act {i}.", ACT) for i in range(task.params["target"])]


@pytest.mark.parametrize("make", [EnvPool, LocalPool])
def test_trajectories_come_in_the_order_of_tasks(make, tmp_path):
    tasks = [testing.make_task(target=1 + i % 4) for i in range(23)]
    screens = []
    with make("envs.testing:make", 4) as pool:
        trajectories = collect(pool, tasks, script, on_screen=screens.append)
    assert [trajectory.task_id for trajectory in trajectories] == [task.task_id for task in tasks]
    for task, trajectory in zip(tasks, trajectories):
        assert trajectory.outcome == 1 and trajectory.source == "rpa" and trajectory.subtasks == (True, True)
        assert len(trajectory.steps) == task.params["target"]
        for i, step in enumerate(trajectory.steps):
            assert step.conclusion == f"Act {i}." and step.action == ACT
            assert step.observation.image[0, 0, 0] == 20 * i  # the screen before the action
            assert step.state_hash.endswith(f"/{i}")
        assert trajectory.metadata == {"template": "count", "split": "train"}
    assert len(screens) == sum(len(trajectory.steps) + 1 for trajectory in trajectories)
    assert screens[0].elements[0].text == "0" and screens[0].app == "counter"
    write_trajectories(tmp_path / "t", trajectories)
    assert len(TrajectorySource(tmp_path / "t")) == 23


def test_an_episode_ends_with_its_moves_or_its_environment():
    with LocalPool("envs.testing:make", 2) as pool:
        none, few, many = collect(
            pool,
            [testing.make_task(target=n, max_steps=4) for n in (3, 3, 2)],
            lambda task: iter([("Act.", ACT)] * {"count:3:[]": 2, "count:2:[]": 9}[task.task_id]),
        )
        assert (len(none.steps), none.outcome, len(few.steps), len(many.steps), many.outcome) == (2, 0, 2, 2, 1)
        (empty,) = collect(pool, [testing.make_task()], lambda task: ())
        assert empty.steps == () and empty.outcome == 0


def test_failures_cost_their_own_trajectory():
    tasks = [
        testing.make_task(faults={0: {}, 1: {"reset": "raise"}, 2: {"2": "exit"}, 3: {"1": "hang"}}.get(i % 8, {}))
        for i in range(24)
    ]
    with EnvPool("envs.testing:make", 4, deadline_s=1.0) as pool:
        trajectories = collect(pool, tasks, script)
        assert pool.stats["replaced"] == 9
    for i, trajectory in enumerate(trajectories):
        if i % 8 in (1, 2, 3):
            kind, steps = {1: ("crash", 0), 2: ("died", 2), 3: ("timeout", 1)}[i % 8]
            assert trajectory.outcome is None and trajectory.failure.startswith(kind)
            assert len(trajectory.steps) == steps
        else:
            assert trajectory.outcome == 1 and trajectory.failure == ""


def test_slips_say_the_right_thing_and_do_another():
    """Half of the moves are replaced by what an earlier task of the template did at that step; sentences stay."""
    tasks = [types.SimpleNamespace(task_id=f"t{i}", template="tap") for i in range(400)]
    steady = lambda task: [(f"Tap {task.task_id}.", Action("click", coordinate=(int(task.task_id[1:]), 0)))]  # noqa: E731
    unsteady = with_slips(steady, 0.5, seed=3)
    moves = [unsteady(task) for task in tasks]
    slipped = 0
    for index, (task, [(conclusion, action)]) in enumerate(zip(tasks, moves)):
        assert conclusion == f"Tap {task.task_id}."
        assert action.coordinate[0] <= index
        slipped += action.coordinate[0] != index
    assert 150 < slipped < 250
    again = with_slips(steady, 0.5, seed=3)
    assert [again(task) for task in tasks] == moves
    never = with_slips(steady, 0.0, seed=3)
    assert [never(task) for task in tasks] == [steady(task) for task in tasks]
