import json

import numpy as np
import pytest

from envs.virtual import policies, suites, tasks
from envs.virtual.tasks import combinations
from envs.virtual.world import World
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import ConfigError, DataError, EnvError

FAMILIES = {"pc_eval_v1": {DeviceFamily.DESKTOP, DeviceFamily.WEB}, "mobile_eval_v1": {DeviceFamily.MOBILE}}


def blank(tree, labels, cursor, scale):
    return np.zeros((1, 1, 3), np.uint8)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_suite_holds_every_template_of_its_families(name):
    found = suites.load(name)
    assert {task.family for task in found} == FAMILIES[name]
    counts = {template: sum(task.template == template for task in found) for template in tasks.TEMPLATES}
    assert {template for template, count in counts.items() if count} == {
        template for family in FAMILIES[name] for template in tasks.template_names(family)
    }
    assert set(counts.values()) <= {0, 10} and {task.split for task in found} == {"heldout"}
    for template in filter(counts.get, counts):
        params = {tuple(task.params.items()) for task in found if task.template == template}
        assert len(params) == min(10, len(combinations(template, "heldout")))


def test_sizes_and_names():
    assert suites.names() == ("mobile_eval_v1", "pc_eval_v1") == tuple(sorted(suites.SPECIFICATIONS))
    assert [len(suites.load(name)) for name in suites.names()] == [90, 190]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_scripts_solve_every_task_within_half_of_its_budget(name):
    world = World(renderer=blank)
    for task in suites.load(name):
        result = world.reset(task)
        moves = 0
        for _, action in policies.policy(task, world):
            result = world.step(action)
            moves += 1
        assert result.done and result.success, task.task_id
        assert 2 * moves + 1 == task.max_steps, task.task_id


@pytest.mark.parametrize("name", FAMILIES)
def test_doing_nothing_solves_no_task(name):
    world = World(renderer=blank)
    for task in suites.load(name)[::10]:
        world.reset(task)
        steps = 1
        while not (result := world.step(None)).done:
            steps += 1
        assert not result.success and steps == task.max_steps


@pytest.mark.parametrize("name", FAMILIES)
def test_the_file_is_what_its_specification_makes(name):
    assert json.loads((suites.FOLDER / f"{name}.json").read_text()) == suites.specification(name)


def test_a_changed_world_asks_for_a_new_version(monkeypatch):
    shop = tasks.TEMPLATES["shop.act"]
    words = type(shop)(**{**vars(shop), "instruction": "Please " + shop.instruction})
    monkeypatch.setitem(tasks.TEMPLATES, "shop.act", words)
    with pytest.raises(EnvError, match=r"world has changed since pc_eval_v1.*version.*'instruction'"):
        suites.load("pc_eval_v1")
    monkeypatch.undo()
    fewer = {name: template for name, template in tasks.TEMPLATES.items() if name != "shop.act"}
    monkeypatch.setattr(tasks, "TEMPLATES", fewer)
    with pytest.raises(EnvError, match="world has changed"):
        suites.load("pc_eval_v1")
    assert suites.load("mobile_eval_v1")


def test_a_changed_start_state_is_noticed(monkeypatch):
    settings = tasks.TEMPLATES["settings.toggle"]

    def start(params, rng):
        rng.random()
        return settings.start(params, rng)

    monkeypatch.setitem(tasks.TEMPLATES, "settings.toggle", type(settings)(**{**vars(settings), "start": start}))
    with pytest.raises(EnvError, match="'start'"):
        suites.load("mobile_eval_v1")


def test_damaged_files_are_named(tmp_path):
    data = json.loads((suites.FOLDER / "mobile_eval_v1.json").read_text())
    file = tmp_path / "mobile_eval_v1.json"

    def damaged(change):
        copy = json.loads(json.dumps(data))
        change(copy)
        file.write_text(json.dumps(copy))
        with pytest.raises((DataError, EnvError)) as caught:
            suites.load("mobile_eval_v1", tmp_path)
        assert str(file) in str(caught.value)
        return str(caught.value)

    assert "'seed'" in damaged(lambda d: d["tasks"][3].update(seed="7")) and "tasks[3]" in damaged(
        lambda d: d["tasks"][3].pop("start")
    )
    assert "'task_id'" in damaged(lambda d: d["tasks"][3].update(seed=7))
    assert "max_steps" in damaged(lambda d: d["tasks"][0].update(max_steps=0))
    assert "'split'" in damaged(lambda d: d.update(split="train"))
    assert "twice" in damaged(lambda d: d["tasks"].append(d["tasks"][0]))
    assert "empty" in damaged(lambda d: d.update(tasks=[]))
    file.write_text("{")
    with pytest.raises(DataError, match="JSON"):
        suites.load("mobile_eval_v1", tmp_path)


def test_unknown_suites_and_frozen_ones(tmp_path):
    for name in ("pc_eval_v0", "../suites/pc_eval_v1", ""):
        with pytest.raises(ConfigError, match="pc_eval_v1"):
            suites.load(name)
    with pytest.raises(ConfigError, match="frozen already"):
        suites.freeze("pc_eval_v1")
    assert suites.freeze("pc_eval_v1", tmp_path).read_bytes() == (suites.FOLDER / "pc_eval_v1.json").read_bytes()
