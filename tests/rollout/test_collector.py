"""The agent loop under scripted engines: what a step carries, what a failure costs, who sees what."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from data.examples import rl_example
from envs.pool import EnvPool, LocalPool
from envs.testing import make_task
from envs.virtual import tasks as virtual
from envs.virtual.policies import plan
from envs.virtual.world import World
from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.context import ContextConfig
from gui_owl_jax.agent.devices import DEVICE_FAMILIES, DeviceFamily
from gui_owl_jax.agent.parsing import render_response
from gui_owl_jax.hf.images import ImageConfig
from gui_owl_jax.hf.processor import Processor
from gui_owl_jax.hf.tokenizer import small_tokenizer
from gui_owl_jax.rollout.collector import run_episodes
from gui_owl_jax.rollout.engine import Sample, request_seed

SEED = (5, 1)
CONTEXT = ContextConfig(history_n=1, style="compact")
WORLD = "envs.virtual.world:make"


@pytest.fixture(scope="module")
def processor() -> Processor:
    corpus = ["Task: Open the chat with Mia.\nsystem\nuser\nassistant\nDevice: mobile. Tool: mobile_use."]
    return Processor(small_tokenizer(corpus, 512), ImageConfig(min_pixels=32 * 32))


class Script:
    """Finds the answer by the request's seed, which names episode and turn; keeps the prompts that it was given."""

    def __init__(self, processor: Processor, answers: dict[tuple[int, int], str]):
        self.processor = processor
        self.answers = {tuple(request_seed(*SEED, *place)): text for place, text in answers.items()}
        self.prompts: dict[tuple, np.ndarray] = {}

    def generate(self, params, prompts, seeds) -> list[Sample]:
        samples = []
        for prompt, seed in zip(prompts, seeds):
            self.prompts[tuple(seed)] = prompt.ids
            ids = self.processor.encode_response(self.answers[tuple(seed)])
            logps = -np.arange(1, len(ids) + 1, dtype=np.float32)
            samples.append(Sample(ids, logps, 2 * logps, truncated=False))
        return samples


def scripted(tasks) -> dict[tuple[int, int], str]:
    """The answers of the scripted policies by (episode, turn)."""
    moves = [plan(task) for task in tasks]
    return {
        (i, turn): render_response(conclusion, action, task.family)
        for i, task in enumerate(tasks)
        for turn, (conclusion, action) in enumerate(moves[i])
    }


@pytest.fixture(scope="module")
def tasks():
    return [task for family in DEVICE_FAMILIES for task in virtual.tasks(family, "train", 7, seed=3)]


@pytest.fixture(scope="module")
def played(processor, tasks):
    engine = Script(processor, scripted(tasks))
    with LocalPool(WORLD, 4) as pool:
        return engine, run_episodes(pool, engine, None, processor, tasks, CONTEXT, seed=SEED)


def test_scripts_win_every_episode(played, tasks):
    trajectories = played[1]
    assert [t.task_id for t in trajectories] == [task.task_id for task in tasks]
    assert all(t.outcome == 1 and not t.failure and t.subtasks[-1] for t in trajectories)
    for task, trajectory in zip(tasks, trajectories):
        assert [(step.conclusion, step.action) for step in trajectory.steps] == plan(task)
        assert trajectory.metadata["template"] == task.template and trajectory.source == "policy"


def test_steps_carry_what_training_needs(played, processor):
    engine, trajectories = played
    longest = 0
    for i, trajectory in enumerate(trajectories):
        for turn, step in enumerate(trajectory.steps):
            place = tuple(request_seed(*SEED, i, turn))
            np.testing.assert_array_equal(step.prompt_ids, engine.prompts[place])
            np.testing.assert_array_equal(step.token_ids, processor.encode_response(engine.answers[place]))
            assert step.image_steps == tuple(range(max(0, turn - 1), turn + 1))  # the window is one turn
            assert step.response == engine.answers[place] and step.state_hash
            example = rl_example(trajectory, turn, processor, advantage=0.5, weight=2.0)
            np.testing.assert_array_equal(example.tokens, np.concatenate([step.prompt_ids, step.token_ids]))
            assert len(example.images) == len(step.image_steps)
            np.testing.assert_array_equal(example.extras["sampler_logps"][len(step.prompt_ids) :], step.sampler_logps)
            longest = max(longest, turn)
    assert longest >= 2


def test_marks_of_web_screens_are_kept(played, tasks):
    for task, trajectory in zip(tasks, played[1]):
        if task.family != DeviceFamily.WEB:
            assert "marks" not in trajectory.metadata
            continue
        world = World()
        elements = world.reset(task).elements
        expected = {str(e.label): list(e.box) for e in elements if e.label is not None}
        assert len(trajectory.metadata["marks"]) == len(trajectory.steps)
        assert expected and trajectory.metadata["marks"][0] == expected


def test_processes_give_the_same_trajectories(played, processor, tasks):
    """Another kind of pool and another number of slots change nothing."""
    with EnvPool(WORLD, 7) as pool:
        trajectories = run_episodes(pool, played[0], None, processor, tasks, CONTEXT, seed=SEED)
    for a, b in zip(played[1], trajectories, strict=True):
        assert (a.task_id, a.outcome, a.metadata) == (b.task_id, b.outcome, b.metadata)
        for x, y in zip(a.steps, b.steps, strict=True):
            assert x.state_hash == y.state_hash
            np.testing.assert_array_equal(x.observation.image, y.observation.image)
            np.testing.assert_array_equal(x.prompt_ids, y.prompt_ids)


def test_an_output_that_is_no_action_uses_up_a_turn(processor):
    tasks = [task for task in virtual.tasks(DeviceFamily.MOBILE, "train", 8, seed=4) if len(plan(task)) == 1][:2]
    answers = scripted(tasks)
    answers[(0, 1)] = answers[(0, 0)]
    answers[(0, 0)] = "I would rather <tool_call> not."
    with LocalPool(WORLD, 2) as pool:
        late, quick = run_episodes(pool, Script(processor, answers), None, processor, tasks, CONTEXT, seed=SEED)
    assert late.steps[0].error == "unclosed_tag" and late.steps[0].action is None
    assert late.steps[0].response == answers[(0, 0)] and len(late.steps[0].token_ids)
    assert late.outcome == 1 and len(late.steps) == 2  # the task allows one action more than it needs
    assert late.steps[0].state_hash == late.steps[1].state_hash
    assert quick.outcome == 1 and len(quick.steps) == 1


def test_failing_environments_cost_their_own_trajectory(processor):
    faults = [{}, {"reset": "raise"}, {"1": "raise"}, {}, {"2": "hang"}, {"3": "sigkill"}, {}, {"1": "exit"}, {}]
    tasks = [make_task(f"task{i}", target=3, faults=fault) for i, fault in enumerate(faults)]
    text = render_response("Wait.", Action("wait", time=1.0), DeviceFamily.MOBILE)
    engine = Script(processor, {(i, turn): text for i in range(len(tasks)) for turn in range(5)})
    with EnvPool("envs.testing:make", 3, deadline_s=3.0) as pool:
        trajectories = run_episodes(pool, engine, None, processor, tasks, CONTEXT, seed=SEED)
        stats = dict(pool.stats)
    assert [t.outcome for t in trajectories] == [1 if not fault else None for fault in faults]
    kinds = [t.failure.split(":")[0] for t in trajectories]
    assert kinds == ["", "crash", "crash", "", "timeout", "died", "", "died", ""]
    # What had been done before the failure is kept.
    assert [len(t.steps) for t in trajectories] == [3, 0, 1, 3, 2, 3, 3, 1, 3]
    assert stats["replaced"] == 5


@dataclasses.dataclass
class Recording:
    """Passes on to a pool and keeps the screens that each task showed."""

    pool: LocalPool
    own: dict[str, list[np.ndarray]] = dataclasses.field(default_factory=dict)

    @property
    def size(self) -> int:
        return self.pool.size

    def reset(self, tasks):
        self.running = {**getattr(self, "running", {}), **{slot: task.task_id for slot, task in tasks.items()}}
        return self._keep(self.pool.reset(tasks))

    def step(self, actions):
        return self._keep(self.pool.step(actions))

    def _keep(self, results):
        for slot, result in results.items():
            self.own.setdefault(self.running[slot], []).append(result.observation.image)
        return results


def test_a_blind_agent_sees_other_tasks_only(processor):
    """Groups of one task, a family whose last episode runs alone, and a family with a single task."""
    mobile = virtual.tasks(DeviceFamily.MOBILE, "train", 4, seed=5)
    long = max(virtual.tasks(DeviceFamily.DESKTOP, "train", 12, seed=5), key=lambda task: len(plan(task)))
    short = min(virtual.tasks(DeviceFamily.DESKTOP, "train", 12, seed=5), key=lambda task: len(plan(task)))
    alone = virtual.tasks(DeviceFamily.WEB, "train", 1, seed=5)[0]
    assert len(plan(long)) > len(plan(short))
    tasks = [mobile[0], mobile[0], *mobile, long, short, alone]
    pool = Recording(LocalPool(WORLD, 9))
    engine = Script(processor, scripted(tasks))
    trajectories = run_episodes(pool, engine, None, processor, tasks, CONTEXT, seed=SEED, scramble=True)
    assert all(t.outcome == 1 for t in trajectories)  # the script does not look

    def showed(image: np.ndarray, families: set[DeviceFamily]) -> set[str]:
        """The tasks of some families that an image is a screen of; by identity, as equal screens may occur."""
        own = {task.task_id for task in tasks if task.family in families}
        return {name for name in own for screen in pool.own[name] if screen is image}

    for task, trajectory in zip(tasks, trajectories):
        for step in trajectory.steps:
            image = step.observation.image
            if task is alone:
                assert not image.any() and image.shape == pool.own[task.task_id][0].shape
                continue
            assert not any(image is screen for screen in pool.own[task.task_id])
            assert showed(image, {task.family})
    by_turn = [showed(step.observation.image, {DeviceFamily.DESKTOP}) for step in trajectories[6].steps]
    assert by_turn == [{short.task_id}] * len(plan(long))  # stored, once that episode was over


class Dice:
    """Draws one of three answers by the request's seed."""

    def __init__(self, processor: Processor, answers: list[str]):
        self.ids = [processor.encode_response(text) for text in answers]

    def generate(self, params, prompts, seeds) -> list[Sample]:
        drawn = [self.ids[np.random.default_rng(seed).integers(len(self.ids))] for seed in seeds]
        return [Sample(ids, *(np.zeros(len(ids), np.float32),) * 2, truncated=False) for ids in drawn]


def test_the_seed_decides(processor):
    tasks = [task for task in virtual.tasks(DeviceFamily.MOBILE, "train", 4, seed=6) for _ in range(6)]
    answers = [
        render_response("Tap.", Action("click", coordinate=(500, y)), DeviceFamily.MOBILE) for y in (100, 500, 900)
    ]

    def play(seed, slots) -> list:
        with LocalPool(WORLD, slots) as pool:
            dice = Dice(processor, answers)
            trajectories = run_episodes(pool, dice, None, processor, tasks, CONTEXT, seed=(seed,))
        return [[(step.response, step.state_hash) for step in t.steps] for t in trajectories]

    first = play(0, 5)
    assert first == play(0, 5) == play(0, 24)
    assert first != play(1, 5)
    assert len({tuple(steps) for steps in map(tuple, first[:6])}) > 1  # the members of a group differ
