"""The agent loop: a policy acts in a batch of environments until every episode has ended.

The loop goes in waves: all running episodes get their next turn sampled in one call, then all environments step at
once. A slot whose environment failed ends its own trajectory only (outcome None) and takes the next task; an episode
that has ended frees its slot for the next task at the next wave. Requests carry their own PRNG keys, derived from
(seed, episode, turn), so trajectories are reproducible and do not depend on who shared a batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tqdm

from gui_owl_jax.agent.context import ContextConfig, build_messages
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import ParseError
from gui_owl_jax.agent.parsing import parse_response
from gui_owl_jax.agent.prompts import ImageRef
from gui_owl_jax.agent.trajectory import Observation, Step, Trajectory
from gui_owl_jax.hf.processor import EncodedPrompt, Processor
from gui_owl_jax.rollout.engine import Sample, request_seed


class Pool(Protocol):
    """What the loop needs of an environment pool (see the environment interface)."""

    size: int

    def reset(self, tasks: Mapping[int, Any]) -> Mapping[int, Any]:
        """Starts tasks in slots."""
        ...

    def step(self, actions: Mapping[int, Any]) -> Mapping[int, Any]:
        """Acts in slots."""
        ...


class Sampler(Protocol):
    """What the loop needs of an engine (`engine.Engine`)."""

    def generate(self, params: Any, prompts: Sequence[EncodedPrompt], seeds: np.ndarray) -> Sequence[Sample]:
        """Samples one response per prompt."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class _Screen:
    """What an episode shows: the observation, and the boxes of its Set-of-Marks labels (for reports only)."""

    observation: Observation
    marks: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, result: Any) -> _Screen:
        marks = {str(e.label): list(map(int, e.box)) for e in result.elements if e.label is not None}
        return cls(result.observation, marks)


@dataclasses.dataclass
class _Episode:
    """A running episode; `shown` are the screens of its steps, `screen` is the current one."""

    index: int
    task: Any
    screen: _Screen
    state_hash: str
    steps: list[Step] = dataclasses.field(default_factory=list)
    shown: list[_Screen] = dataclasses.field(default_factory=list)


def run_episodes(
    pool: Pool,
    engine: Sampler,
    params: Any,
    processor: Processor,
    tasks: Sequence[Any],
    context: ContextConfig,
    *,
    seed: Sequence[int],
    scramble: bool = False,
    progress: str = "",
    source: str = "policy",
) -> list[Trajectory]:
    """Runs one episode per task and returns the trajectories in the order of `tasks`.

    Args:
      pool: the environments; at most pool.size episodes run at a time.
      engine: the sampler.
      params: the policy's parameters.
      processor: tokenizer and image processor.
      tasks: TaskSpecs; the same task may occur several times (a group).
      context: the prompt's window and style.
      seed: integers that seed every draw together with (episode, turn).
      scramble: the control of a blind agent: in every wave, screenshots are passed on between episodes of one device
        family, so that an agent acts on a screen of another task, never on its own.
      progress: label of a progress bar; empty for none.
      source: the trajectories' source field.

    Returns:
      One Trajectory per task; `outcome` is None and `failure` set where the environment failed. Where screens have
      Set-of-Marks labels, metadata["marks"] holds one {label: [x, y, width, height]} per step.
    """
    waiting = list(range(len(tasks)))[::-1]
    running: dict[int, _Episode] = {}
    finished: dict[int, Trajectory] = {}
    passer = _Passer()
    with tqdm.tqdm(total=len(tasks), desc=progress, unit="episode", disable=not progress, mininterval=1.0) as bar:
        while waiting or running:
            free = [slot for slot in range(pool.size) if slot not in running]
            starts = {slot: waiting.pop() for slot in free[: len(waiting)]}
            for slot, result in pool.reset({slot: tasks[i] for slot, i in starts.items()}).items():
                index, task = starts[slot], tasks[starts[slot]]
                if _failed(result):
                    finished[index] = _trajectory(_Episode(index, task, _NOTHING, ""), source, failure=result)
                else:
                    running[slot] = _Episode(index, task, _Screen.of(result), result.state_hash)

            slots = sorted(running, key=lambda s: running[s].index)
            episodes = [running[slot] for slot in slots]
            screens = passer(episodes) if scramble else [episode.screen for episode in episodes]
            prompts = [_prompt(e, screen.observation, processor, context) for e, screen in zip(episodes, screens)]
            seeds = [request_seed(*seed, episode.index, len(episode.steps)) for episode in episodes]
            samples = engine.generate(params, [p for p, _ in prompts], np.stack(seeds)) if episodes else []
            for episode, screen, (prompt, image_steps), sample in zip(episodes, screens, prompts, samples):
                episode.steps.append(_step(episode, screen.observation, prompt, image_steps, sample, processor))
                episode.shown.append(screen)

            for slot, result in pool.step({slot: running[slot].steps[-1].action for slot in slots}).items():
                episode = running[slot]
                if _failed(result):
                    finished[episode.index] = _trajectory(running.pop(slot), source, failure=result)
                elif result.done:
                    finished[episode.index] = _trajectory(running.pop(slot), source, ending=result)
                else:
                    episode.screen, episode.state_hash = _Screen.of(result), result.state_hash
            bar.update(len(finished) - bar.n)
    return [finished[i] for i in range(len(tasks))]


_NOTHING = _Screen(Observation(np.zeros((1, 1, 3), np.uint8)))


def _failed(result: Any) -> bool:
    """Pools answer with a step result or with a failure, which has a kind."""
    return hasattr(result, "kind")


def _prompt(
    episode: _Episode, screen: Observation, processor: Processor, context: ContextConfig
) -> tuple[EncodedPrompt, tuple[int, ...]]:
    """The encoded prompt of the next turn and the indices of the steps whose screenshots it shows."""
    task, steps = episode.task, episode.steps
    messages = build_messages(task.instruction, task.family, steps, context, observation_text=screen.text)
    image_steps = tuple(part.step for m in messages for part in m.content if isinstance(part, ImageRef))
    images = {i: (steps[i].observation if i < len(steps) else screen).image for i in image_steps}
    return processor.encode_prompt(messages, images), image_steps


def _step(
    episode: _Episode,
    screen: Observation,
    prompt: EncodedPrompt,
    image_steps: tuple[int, ...],
    sample: Sample,
    processor: Processor,
) -> Step:
    """What the sampled ids mean, with the ids themselves kept for training."""
    step = Step(
        observation=screen,
        response=processor.decode_response(sample.token_ids),
        token_ids=sample.token_ids,
        logps=sample.logps,
        sampler_logps=sample.sampler_logps,
        prompt_ids=prompt.ids,
        image_steps=image_steps,
        state_hash=episode.state_hash,
    )
    try:
        parsed = parse_response(step.response, episode.task.family)
    except ParseError as error:
        return dataclasses.replace(step, error=str(error.reason))
    return dataclasses.replace(step, thought=parsed.thought, conclusion=parsed.conclusion, action=parsed.action)


class _Passer:
    """Passes screens on between the running episodes of a device family.

    Every episode gets the screen of the next one in the ring that has another task. Where all have the same task (the
    last episode that runs has no other), it is the latest screen of another task that was seen before; where there
    was none, a blank one. Tasks of the episodes A A B, all of one family: they get the screens of B, B, the first A.
    """

    def __init__(self) -> None:
        self._seen: dict[DeviceFamily, dict[str, _Screen]] = {}  # the latest screens of the latest two tasks

    def __call__(self, episodes: Sequence[_Episode]) -> list[_Screen]:
        """The screen that each episode shall be shown."""
        passed = [self._pass_on(i, episodes) for i in range(len(episodes))]
        for episode in episodes:
            seen = self._seen.setdefault(episode.task.family, {})
            seen.pop(episode.task.task_id, None)
            seen[episode.task.task_id] = episode.screen
            while len(seen) > 2:
                del seen[next(iter(seen))]
        return passed

    def _pass_on(self, index: int, episodes: Sequence[_Episode]) -> _Screen:
        own = episodes[index]
        for other in (*episodes[index + 1 :], *episodes[:index]):
            if other.task.family == own.task.family and other.task.task_id != own.task.task_id:
                return other.screen
        for task_id, screen in reversed(self._seen.get(own.task.family, {}).items()):
            if task_id != own.task.task_id:
                return screen
        return _Screen(Observation(np.zeros_like(own.screen.observation.image)))


def _trajectory(episode: _Episode, source: str, *, ending: Any = None, failure: Any = None) -> Trajectory:
    """The episode as a trajectory, by its last step result or by the failure that ended it."""
    task = episode.task
    metadata: dict[str, object] = {"template": task.template, "split": task.split}
    if any(screen.marks for screen in episode.shown):
        metadata["marks"] = [dict(screen.marks) for screen in episode.shown]
    return Trajectory(
        task_id=task.task_id,
        app=task.app,
        family=task.family,
        instruction=task.instruction,
        steps=tuple(episode.steps),
        outcome=None if ending is None else int(ending.success),
        source=source,
        seed=task.seed,
        subtasks=() if ending is None else tuple(map(bool, ending.subtasks)),
        failure="" if failure is None else f"{failure.kind}: {failure.message}",
        metadata=metadata,
    )
