"""The scripts solve every task; a blind agent does not, and a wrong click cannot be repaired."""

import dataclasses

import pytest

from envs.interface import SPLITS
from envs.virtual import raster
from envs.virtual.hand import Hand
from envs.virtual.policies import click_action, element_phrase, plan, policy
from envs.virtual.tasks import SLACK, TEMPLATES, sample_task
from envs.virtual.world import World, advance, begin, screen_of
from gui_owl_jax.agent.actions import Action, call_from_action
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import EnvError


def not_drawn(tree, labels=None, cursor=None, scale=1):
    """A renderer for tests that look at states only."""
    return raster.render(dataclasses.replace(tree, children=()))


@pytest.mark.parametrize("name", TEMPLATES)
def test_scripts_solve_every_task_and_predicates_turn_from_false_to_true(name):
    world = World(renderer=not_drawn)
    for seed in range(200):
        task = sample_task(name, seed, SPLITS[seed % 2])
        result = world.reset(task)
        assert not any(result.subtasks) and not result.success and not result.done, task
        steps = 0
        for conclusion, action in policy(task, world):
            assert not result.done, task
            result = world.step(action)
            steps += 1
            assert conclusion.endswith(".") and conclusion[0].isupper()
            call_from_action(task.family, action)  # an action of the family, or it raises
        assert result.done and result.success and all(result.subtasks), task
        assert steps == TEMPLATES[name].length, task


@pytest.mark.parametrize("name", TEMPLATES)
def test_scripts_are_the_shortest_way(name):
    """No shorter sequence of sensible actions solves the task (searched without repeating a state)."""
    template = TEMPLATES[name]
    for seed in range(2):
        task = sample_task(name, seed)
        assert not reachable([begin(task)], template.length - 1, task)


def sensible_actions(episode, texts):
    """Every action with an effect that a screen suggests, typing or answering one of `texts`."""
    screen = screen_of(episode)
    family = screen.family
    hand = Hand(Glimpse(screen, episode.state))
    keys = [leaf.key for leaf in screen.tree.children if leaf.key]
    made = [hand.click(key)[1] for key in keys]
    made += [hand.scroll_down()[1]]
    if family == DeviceFamily.WEB:
        fields = [key for key in keys if key.split(":")[0] in ("field", "search")]
        wraps = [key for key in keys if key.startswith("wrap:")]
        made += [hand.type(text, into=key)[1] for text in texts for key in fields]
        made += [hand.select(key, option)[1] for key in wraps for option in ("Red", "Tan", "Sky")]
        made += [Action("go_back"), Action("scroll", label="WINDOW", direction="up")]
        made += [Action("answer", text=text) for text in texts]
    else:
        made += [hand.type(text)[1] for text in texts]
    if family == DeviceFamily.MOBILE:
        made += [hand.hold(key)[1] for key in keys] + [hand.back()[1]]
    if family == DeviceFamily.DESKTOP:
        for gesture in (hand.double_click, hand.right_click, hand.point):
            made += [gesture(key)[1] for key in keys]
        made += [hand.drag("", key)[1] for key in keys]
        made += [hand.press("delete")[1], Action("scroll", pixels=96)]
    return made


@dataclasses.dataclass(frozen=True)
class Glimpse:
    screen: object
    state: object


def reachable(starts, depth, task):
    """Whether some sequence of at most `depth` sensible actions leads from a start to success.

    Typed are the parameters of the task, and what must be read, once a screen on the way has shown it.
    """
    params = frozenset(task.params.values())
    needed = {action.text for _, action in plan(task) if action.text} - params

    def known(episode, before):
        leaves = screen_of(episode).tree.children
        return before | {text for leaf in leaves for text in (leaf.text, leaf.value) if text in needed}

    frontier = [(episode, known(episode, params)) for episode in starts]
    seen = set()
    for _ in range(depth):
        after = []
        for episode, texts in frontier:
            for action in sensible_actions(episode, texts):
                fresh = dataclasses.replace(episode, done=False, steps=0)
                result = advance(fresh, action, screen_of(episode))
                if result.success:
                    return True
                learnt = known(result, texts)
                mark = (repr(result.state), result.cursor, learnt)
                if not result.done and mark not in seen:
                    seen.add(mark)
                    after.append((result, learnt))
        frontier = after
    return False


WRONG_KINDS = ("click", "long_press", "left_click", "double_click", "right_click", "type", "select", "left_click_drag")


def wrong_versions(episode, action):
    """The same action on every other widget of the same kind."""
    screen = screen_of(episode)
    hand = Hand(Glimpse(screen, episode.state))
    family = screen.family
    found = []
    for leaf in screen.tree.children:
        if not leaf.key:
            continue
        element = hand.element(leaf.key)
        if family == DeviceFamily.WEB:
            other = dataclasses.replace(action, label=element.label)
        else:
            other = dataclasses.replace(action, coordinate=click_action(family, element).coordinate)
        found.append((leaf.kind, other))
    kinds = [kind for kind, other in found if other == action]
    assert len(kinds) == 1
    return [other for kind, other in found if kind in kinds and other != action]


# Pointing at a wrong file, and looking at a wrong sheet, do nothing yet.
HARMLESS = {("files.move_file", 0), ("sheet.carry_cell", 0)}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_wrong_click_cannot_be_repaired_within_the_budget(name):
    task = sample_task(name, 0)
    assert task.max_steps == TEMPLATES[name].length + SLACK
    episode, tried = begin(task), 0
    for index, (_, action) in enumerate(plan(task)):
        aimed = action.label if task.family == DeviceFamily.WEB else action.coordinate
        if action.kind in WRONG_KINDS and aimed is not None and (name, index) not in HARMLESS:
            wrong = wrong_versions(episode, action)[:3]
            tried += len(wrong)
            starts = [advance(episode, other, screen_of(episode)) for other in wrong]
            assert not any(start.success for start in starts)
            left = task.max_steps - episode.steps - 1
            assert not reachable([start for start in starts if not start.done], left, task), index
        episode = advance(episode, action, screen_of(episode))
    assert tried or name == "files.move_file"


def blind_rate(name, count):
    """Success of the moves that solve another layout of the same task: same words, other places and values."""
    world, wins = World(renderer=not_drawn), 0
    for seed in range(count):
        task = sample_task(name, seed)
        result = world.reset(task)
        for _, action in plan(dataclasses.replace(task, seed=seed + 10_000)):
            if not result.done:
                result = world.step(action)
        wins += result.success
    return wins / count


def test_a_blind_agent_fails():
    rates = {name: blind_rate(name, 60) for name in TEMPLATES}
    assert sum(rates.values()) / len(rates) < 0.08, rates
    assert max(rates.values()) < 0.25, rates


def test_plan_needs_no_world_and_follows_the_scale():
    task = sample_task("messages.forward_number", 5)
    for scale in (1, 2, 3):
        world = World(scale)
        world.reset(task)
        for _, action in plan(task, scale):
            result = world.step(action)
        assert result.success


def test_phrases_and_clicks_of_elements():
    world = World()
    chats = world.reset(sample_task("messages.open_chat", 1)).elements
    element = next(element for element in chats if element.kind == "tile")
    assert element_phrase(DeviceFamily.MOBILE, element) == f"Tap {element.text}."
    assert click_action(DeviceFamily.MOBILE, element).kind == "click"
    cells = world.reset(sample_task("sheet.set_cell", 1)).elements
    element = next(element for element in cells if element.kind == "cell")
    assert element_phrase(DeviceFamily.DESKTOP, element) == f"Click {element.text.split()[0]}."
    links = world.reset(sample_task("desk.act", 1)).elements
    marked = [element for element in links if element.label]
    assert [click_action(DeviceFamily.WEB, element).label for element in marked] == list(range(1, len(marked) + 1))
    with pytest.raises(EnvError, match="Tickets"):
        click_action(DeviceFamily.WEB, links[0])


def test_click_actions_do_what_the_script_does():
    # Grounding labels and trajectories must agree on where an element is clicked.
    for name in ("messages.open_chat", "settings.choose_level", "sheet.set_cell", "desk.act"):
        task = sample_task(name, 3)
        world = World()
        elements = world.reset(task).elements
        conclusion, action = plan(task)[0]
        same = [element for element in elements if element.clickable and click_action(task.family, element) == action]
        assert [element_phrase(task.family, element) for element in same] == [conclusion]
