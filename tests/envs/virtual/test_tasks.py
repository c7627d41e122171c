import itertools
import pickle

import pytest

from envs.interface import SPLITS
from envs.virtual.tasks import SLACK, TEMPLATES, combinations, sample_task, tasks, template_names
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import EnvError


def key(params):
    return tuple(sorted(params.items()))


@pytest.mark.parametrize("name", TEMPLATES)
def test_splits_are_disjoint_and_cover_all_combinations(name):
    template = TEMPLATES[name]
    train, heldout = ({key(params) for params in combinations(name, split)} for split in SPLITS)
    assert train and heldout and not train & heldout
    every = (dict(zip(template.choices, values)) for values in itertools.product(*template.choices.values()))
    assert train | heldout == {key(params) for params in every if template.allowed(params)}
    assert 0.2 <= len(heldout) / len(train | heldout) <= 0.3


@pytest.mark.parametrize("name", TEMPLATES)
def test_tasks_come_from_their_split_and_say_what_they_ask_for(name):
    for split in SPLITS:
        own = {key(params) for params in combinations(name, split)}
        for seed in range(30):
            task = sample_task(name, seed, split)
            assert key(task.params) in own and task.split == split and task.template == name
            assert task.max_steps == TEMPLATES[name].length + SLACK
            assert all(value in task.instruction for value in task.params.values())
            assert task == sample_task(name, seed, split) == pickle.loads(pickle.dumps(task))


def test_splits_do_not_move():
    # Held-out results of different checkouts compare only while these stay the same.
    assert {key(params)[0][1] for params in combinations("desk.answer_code", "heldout")} == {"Ben", "Tom"}


@pytest.mark.parametrize("family", DeviceFamily)
def test_tasks_take_the_templates_in_turn(family):
    names = template_names(family)
    assert len(names) >= 6 and len({TEMPLATES[name].app.name for name in names}) >= 2
    drawn = tasks(family, "heldout", 3 * len(names), seed=1)
    assert [task.template for task in drawn] == list(names) * 3
    assert len({task.task_id for task in drawn}) == len(drawn)
    assert {task.split for task in drawn} == {"heldout"} and {task.family for task in drawn} == {family}
    assert drawn == tasks(family, "heldout", 3 * len(names), seed=1)
    assert not {task.task_id for task in drawn} & {task.task_id for task in tasks(family, "heldout", 60, seed=2)}
    assert {task.template for task in tasks(family, "train", 5, 0, names[:1])} == {names[0]}


def test_bad_requests_are_refused():
    with pytest.raises(EnvError, match="desk.fly"):
        sample_task("desk.fly", 0)
    with pytest.raises(EnvError, match="validation"):
        sample_task("desk.act", 0, "validation")
    with pytest.raises(EnvError, match="desk.act"):
        tasks(DeviceFamily.MOBILE, "train", 1, 0, ["desk.act"])
