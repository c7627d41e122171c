"""From the virtual world to batches: what the first training stages are fed."""

import numpy as np
import pytest

from data.examples import CachedExamples, StepExamples
from data.flywheel.collect import collect
from data.grounding import ClickExamples, ListingExamples, click_action, click_elements, element_phrase
from data.packing import Budget, fill_rate
from data.pipeline import make_pipeline
from data.store import ScreenSource, TrajectorySource, write_screens, write_trajectories
from envs.pool import EnvPool, LocalPool
from envs.virtual import hand, tasks
from envs.virtual.policies import plan
from gui_owl_jax.agent.devices import DEVICE_FAMILIES


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    todo = [task for family in DEVICE_FAMILIES for task in tasks.tasks(family, "train", 20, seed=0)]
    screens = []
    with EnvPool("envs.virtual.world:make", 8) as pool:
        write_trajectories(folder / "t", collect(pool, todo, plan, on_screen=screens.append), 2)
    write_screens(folder / "s", screens)
    return todo, TrajectorySource(folder / "t"), ScreenSource(folder / "s")


def test_every_script_succeeds(collected):
    todo, trajectories, screens = collected
    assert [trajectory.outcome for trajectory in trajectories] == [1] * len(todo)
    assert [trajectory.task_id for trajectory in trajectories] == [task.task_id for task in todo]
    assert len(screens) == sum(len(trajectory.steps) + 1 for trajectory in trajectories)


def test_processes_and_the_calling_process_give_the_same(collected):
    todo, trajectories, _ = collected
    with LocalPool("envs.virtual.world:make", 3) as pool:
        local = collect(pool, todo[::7], plan)
    for a, b in zip(local, trajectories[::7], strict=True):
        assert [step.action for step in a.steps] == [step.action for step in b.steps]
        assert all((x.observation.image == y.observation.image).all() for x, y in zip(a.steps, b.steps))


def test_grounding_speaks_as_the_scripts_do(collected):
    _, _, screens = collected
    for screen in screens:
        size = (screen.image.shape[1], screen.image.shape[0])
        for element in click_elements(screen, hand.element_phrase):
            assert click_action(screen.family, element, *size) == hand.click_action(screen.family, element)
            if " " not in element.text and element.text:
                assert element_phrase(screen.family, element) == hand.element_phrase(screen.family, element)


def test_batches(collected, processor, config, context):
    _, trajectories, screens = collected
    steps = StepExamples(trajectories, processor, context)
    listing = ListingExamples(screens, processor, context)
    clicks = ClickExamples(screens, processor, context, phrase=hand.element_phrase)
    assert len(clicks) > 3 * len(screens)
    for sources, weights in [([listing, clicks], [0.6, 0.4]), ([CachedExamples(steps)], None)]:
        pipeline = make_pipeline(sources, config, Budget(rows=4, tokens=768, patches=512), weights=weights)
        batches = [batch for batch, _ in zip(iter(pipeline), range(8))]
        tokens, patches = np.mean([fill_rate(batch) for batch in batches], axis=0)
        assert tokens > 0.7 and patches > 0.3
        assert all(batch["loss_mask"].sum() > 0 for batch in batches)
