import dataclasses
import random

import numpy as np
import pytest

from envs.interface import Environment, check_result
from envs.virtual.policies import plan
from envs.virtual.tasks import TEMPLATES, sample_task
from envs.virtual.widgets import leaves, screen_size
from envs.virtual.world import World, make
from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.devices import BUTTONS, DeviceFamily
from gui_owl_jax.agent.errors import EnvError


def same(one, other):
    np.testing.assert_array_equal(one.observation.image, other.observation.image)
    for field in dataclasses.fields(one):
        if field.name != "observation":
            assert getattr(one, field.name) == getattr(other, field.name), field.name


def test_world_is_an_environment():
    assert isinstance(make(), Environment)


@pytest.mark.parametrize("name", TEMPLATES)
def test_equal_tasks_look_equal_whatever_ran_before(name):
    task = sample_task(name, 7)
    fresh, used = World(), World()
    used.reset(sample_task("desk.act", 1))
    used.step(Action("click", label=2))
    same(check_result(fresh.reset(task)), used.reset(task))
    for _, action in plan(task):
        same(fresh.step(action), used.step(action))


@pytest.mark.parametrize("name", TEMPLATES)
def test_snapshots_restore_exactly_in_the_middle_of_an_episode(name):
    task = sample_task(name, 8)
    moves = [action for _, action in plan(task)]
    for cut in range(len(moves)):
        world, other = World(), World()
        result = world.reset(task)
        for action in moves[:cut]:
            result = world.step(action)
        saved, episode = world.snapshot(), world.episode
        rest = [world.step(action) for action in moves[cut:]]
        other.reset(sample_task("files.open_file", 0))
        for place in (world, other):
            same(place.restore(saved), result)
            assert place.episode == episode
            for action, expected in zip(moves[cut:], rest):
                same(place.step(action), expected)


def test_screens_of_different_seeds_differ():
    world = World()
    for name in TEMPLATES:
        hashes = {world.reset(sample_task(name, seed)).state_hash for seed in range(10)}
        assert len(hashes) == 10, name


def test_hash_tells_states_apart_and_forgets_how_they_were_reached():
    task = sample_task("settings.toggle", 0)
    world = World(end_on_success=False)
    start = world.reset(task)
    (_, toggle), *_ = plan(task)
    once = world.step(toggle)
    twice = world.step(toggle)
    assert start.state_hash == twice.state_hash != once.state_hash
    assert world.reset(dataclasses.replace(task, max_steps=9)).state_hash == start.state_hash


@pytest.mark.parametrize("scale", [1, 2, 3])
def test_screens_are_laid_out_on_the_grid(scale):
    world = World(scale)
    for name, template in TEMPLATES.items():
        result = world.reset(sample_task(name, 2))
        width, height = screen_size(template.app.family)
        assert result.observation.image.shape == (height * scale, width * scale, 3)
        assert result.observation.text == ""
        for element in result.elements:
            assert all(side % (32 * scale) == 0 for side in element.box)
            x, y, w, h = element.box
            assert h == 32 * scale and x + w <= width * scale and y + h <= height * scale


def test_web_marks_count_clickable_elements_in_reading_order():
    world = World()
    for name, template in TEMPLATES.items():
        elements = world.reset(sample_task(name, 4)).elements
        labels = [element.label for element in elements if element.clickable]
        web = template.app.family == DeviceFamily.WEB
        assert labels == (list(range(1, len(labels) + 1)) if web else [None] * len(labels))
        assert all(element.label is None for element in elements if not element.clickable)
        places = [(element.box[1], element.box[0]) for element in elements]
        assert places == sorted(places)


def test_steps_are_used_up_by_nothing_and_by_misses():
    task = sample_task("messages.open_chat", 0)
    world = World()
    start = world.reset(task)
    first = world.step(None)
    assert first.state_hash == start.state_hash and not first.done
    last = world.step(Action("click", coordinate=(500, 50)))  # the title
    assert last.state_hash == start.state_hash and last.done and not last.success
    with pytest.raises(EnvError, match="over"):
        world.step(None)


def test_episode_goes_on_after_success_if_asked_to():
    task = sample_task("settings.toggle", 0)
    (_, toggle), *_ = plan(task)
    world = World(end_on_success=False)
    world.reset(task)
    result = world.step(toggle)
    assert not result.done and result.success
    assert world.step(Action("terminate", status="success")).success
    for ending, success in (("success", True), ("failure", False)):
        world.reset(task)
        world.step(toggle)
        result = world.step(Action("terminate", status=ending))
        assert result.done and result.success == success
    world.reset(task)
    world.step(toggle)
    undone = world.step(toggle)
    assert undone.done and not undone.success and not undone.subtasks[-1]


def test_terminate_before_the_goal_is_no_success():
    world = World()
    for status in ("success", "failure"):
        world.reset(sample_task("settings.toggle", 0))
        result = world.step(Action("terminate", status=status))
        assert result.done and not result.success


def test_milestones_stay_reached():
    task = sample_task("messages.write_word", 0)
    world = World()
    world.reset(task)
    seen = [world.step(action).subtasks for _, action in plan(task)]
    assert seen == [(True, False, False), (True, True, False), (True, True, True)]


def test_another_change_beside_the_asked_one_is_no_success():
    task = sample_task("settings.toggle", 0)
    world = World(end_on_success=False)
    elements = world.reset(dataclasses.replace(task, max_steps=5)).elements
    (_, toggle), *_ = plan(task)
    other = next(e for e in elements if e.kind == "switch" and e.text != task.params["who"])
    x, y = other.centre
    world.step(Action("click", coordinate=(x / 0.096, y / 0.160)))
    assert not world.step(toggle).success


def test_wrong_answer_ends_the_episode():
    task = sample_task("desk.answer_code", 0)
    world = World()
    world.reset(task)
    opening, answer = (action for _, action in plan(task))
    world.step(opening)
    saved = world.snapshot()
    assert world.step(answer).success
    world.restore(saved)
    wrong = world.step(Action("answer", text=answer.text + "0"))
    assert wrong.done and not wrong.success


def test_bad_use_is_refused():
    world = World()
    with pytest.raises(EnvError, match="reset"):
        world.step(None)
    with pytest.raises(EnvError, match="scale"):
        World(scale=0)
    with pytest.raises(EnvError, match="no snapshot"):
        world.restore(b"something else")
    with pytest.raises(EnvError, match="other.app"):
        world.reset(dataclasses.replace(sample_task("desk.act", 0), template="other.app"))
    world.reset(sample_task("desk.act", 0))
    with pytest.raises(EnvError, match="damaged"):
        world.restore(world.snapshot()[:-20])
    world.close()
    with pytest.raises(EnvError, match="reset"):
        world.snapshot()


def test_another_renderer_gets_the_tree_the_marks_and_the_cursor():
    seen = []

    def renderer(tree, labels, cursor, scale):
        seen.append((tree.box, dict(labels), cursor, scale))
        return np.zeros((tree.box[3] * scale, tree.box[2] * scale, 3), np.uint8)

    world = World(scale=2, renderer=renderer)
    world.reset(sample_task("files.open_file", 0))
    world.reset(sample_task("desk.act", 0))
    assert seen[0][0] == (0, 0, 160, 96) and seen[0][1] == {} and seen[0][2] is not None
    assert len(seen[1][1]) == 9 and seen[1][2] is None


TEXTS = ("Mia", "47", "", "\n\t", "a very long text that fits nowhere", "\u6f22\u5b57", "<|image_pad|>", "delete")


def random_action(rng, family):
    def point():
        return rng.choice([(0, 0), (1000, 1000), (rng.randint(0, 1000), rng.uniform(0, 1000))])

    label, text = rng.randint(0, 12), rng.choice(TEXTS)
    choices = {
        DeviceFamily.MOBILE: [
            Action("click", coordinate=point()),
            Action("long_press", coordinate=point(), time=1.0),
            Action("swipe", coordinate=point(), coordinate2=point()),
            Action("type", text=text),
            Action("system_button", button=rng.choice(BUTTONS)),
            Action("key", text="enter"),
            Action("open", text="settings"),
            Action("wait", time=1.0),
        ],
        DeviceFamily.DESKTOP: [
            Action(kind, coordinate=point())
            for kind in (
                *("left_click", "double_click", "right_click", "middle_click", "triple_click"),
                *("mouse_move", "left_click_drag"),
            )
        ]
        + [
            Action("key", keys=(rng.choice(["delete", "ctrl", "a"]),)),
            Action("type", text=text),
            Action("scroll", pixels=rng.choice([-1000000, -96, -5, 0, 40, 1000])),
            Action("hscroll", pixels=50),
            Action("wait", time=1.0),
        ],
        DeviceFamily.WEB: [
            Action("click", label=label),
            Action("type", label=label, text=text),
            Action("select", label=label, option=rng.choice(["Red", "Tan", "None", ""])),
            Action("scroll", label=rng.choice(["WINDOW", label]), direction=rng.choice(["up", "down"])),
            Action("go_back"),
            Action("wait"),
            Action("wikipedia"),
        ],
    }
    return rng.choice([*choices[family], None])


@pytest.mark.parametrize("app", sorted({template.app.name for template in TEMPLATES.values()}))
def test_random_actions_never_break_an_app(app):
    rng = random.Random(app)
    world = World()
    names = [name for name, template in TEMPLATES.items() if template.app.name == app]
    for turn in range(40):
        task = dataclasses.replace(sample_task(rng.choice(names), turn), max_steps=1000)
        family = task.family
        world.reset(task)
        for _ in range(50):
            result = check_result(world.step(random_action(rng, family)))
            keys = [leaf.key for leaf in leaves(world.screen.tree) if leaf.key]
            assert len(keys) == len(set(keys))
            width, height = screen_size(family)
            assert result.observation.image.shape == (height, width, 3)
            x, y = world.episode.cursor
            assert 0 <= x < width and 0 <= y < height
            boxes = [element.box for element in result.elements]
            assert len(set(boxes)) == len(boxes)
            hash(world.state)  # states stay immutable all through
            if family == DeviceFamily.WEB:
                assert len(keys) <= 9
            if result.done:
                break
