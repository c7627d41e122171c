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
from gui_owl_jax.agent.trajectory import Observation, Step, Trajectory
from gui_owl_jax.hf.processor import EncodedPrompt, Processor
from gui_owl_jax.rollout.engine import Engine, Sample, request_seed


class Pool(Protocol):
    """What the loop needs of an environment pool (see the environment interface)."""

    size: int

    def reset(self, tasks: Mapping[int, Any]) -> Mapping[int, Any]:
        """Starts tasks in slots."""
        ...

    def step(self, actions: Mapping[int, Any]) -> Mapping[int, Any]:
        """Acts in slots."""
        ...


@dataclasses.dataclass
class _Episode:
    """A running episode; `image_steps` of its prompts index `steps` plus the current observation."""

    index: int
    task: Any
    observation: Observation
    state_hash: str
    steps: list[Step] = dataclasses.field(default_factory=list)


def run_episodes(
    pool: Pool,
    engine: Engine,
    params,
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
      scramble: the control of a blind agent: in every wave, screenshots are passed on between the running episodes
        of one device family, so that an agent acts on a screen of another task.
      progress: label of a progress bar; empty for none.
      source: the trajectories' source field.

    Returns:
      one Trajectory per task; `outcome` is None and `failure` set where the environment failed.
    """
    waiting = list(range(len(tasks)))[::-1]
    running: dict[int, _Episode] = {}
    finished: list[Trajectory | None] = [None] * len(tasks)
    bar = tqdm.tqdm(total=len(tasks), desc=progress, unit="episode", disable=not progress, mininterval=1.0)

    def finish(episode: _Episode, outcome: int | None, subtasks=(), failure: str = "") -> None:
        finished[episode.index] = _trajectory(episode, outcome, subtasks, failure, source)
        bar.update()

    while waiting or running:
        free = [slot for slot in range(pool.size) if slot not in running]
        starts = {slot: waiting.pop() for slot in free[: len(waiting)]}
        for slot, result in pool.reset({slot: tasks[i] for slot, i in starts.items()}).items() if starts else ():
            episode = _Episode(starts[slot], tasks[starts[slot]], _BLANK, "")
            if _failed(result):
                finish(episode, None, failure=f"{result.kind}: {result.message}")
                continue
            running[slot] = dataclasses.replace(
                episode, observation=result.observation, state_hash=result.state_hash, steps=[]
            )
        if not running:
            continue
        slots = sorted(running, key=lambda s: running[s].index)
        screens = {slot: running[slot].observation for slot in slots}
        if scramble:
            screens = _pass_on(screens, {slot: running[slot].task.family for slot in slots})
        prompts = [_prompt(running[slot], screens[slot], processor, context) for slot in slots]
        seeds = np.stack([request_seed(*seed, running[s].index, len(running[s].steps)) for s in slots])
        samples = engine.generate(params, [p for p, _ in prompts], seeds)
        actions = {}
        for slot, (prompt, image_steps), sample in zip(slots, prompts, samples):
            step = _step(running[slot], screens[slot], prompt, image_steps, sample, processor)
            running[slot].steps.append(step)
            actions[slot] = step.action
        for slot, result in pool.step(actions).items():
            episode = running[slot]
            if _failed(result):
                finish(running.pop(slot), None, failure=f"{result.kind}: {result.message}")
            elif result.done:
                finish(running.pop(slot), int(result.success), result.subtasks)
            else:
                episode.observation, episode.state_hash = result.observation, result.state_hash
    bar.close()
    return [t for t in finished if t is not None]


_BLANK = Observation(np.zeros((1, 1, 3), np.uint8))


def _failed(result) -> bool:
    """Pools answer with a step result or with a failure, which has a kind."""
    return hasattr(result, "kind")


def _prompt(
    episode: _Episode, screen: Observation, processor: Processor, context: ContextConfig
) -> tuple[EncodedPrompt, tuple[int, ...]]:
    """The encoded prompt of the next turn and the indices of the steps whose screenshots it shows."""
    messages = build_messages(episode.task.instruction, episode.task.family, episode.steps, context)
    image_steps = tuple(part.step for m in messages for part in m.content if not isinstance(part, str))
    images = {i: (episode.steps[i].observation if i < len(episode.steps) else screen).image for i in image_steps}
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
    text = processor.decode_response(sample.token_ids)
    common = dict(
        observation=screen,
        response=text,
        token_ids=sample.token_ids,
        logps=sample.logps,
        sampler_logps=sample.sampler_logps,
        prompt_ids=prompt.ids,
        image_steps=image_steps,
        state_hash=episode.state_hash,
    )
    try:
        parsed = parse_response(text, episode.task.family)
    except ParseError as error:
        return Step(**common, error=str(error.reason))
    return Step(**common, thought=parsed.thought, conclusion=parsed.conclusion, action=parsed.action)


def _pass_on(screens: Mapping[int, Observation], families: Mapping[int, DeviceFamily]) -> dict[int, Observation]:
    """Every slot gets the screen of the next slot of its device family, in a ring."""
    passed = dict(screens)
    for family in set(families.values()):
        ring = [slot for slot in screens if families[slot] == family]
        for slot, other in zip(ring, ring[1:] + ring[:1]):
            passed[slot] = screens[other]
    return passed


def _trajectory(
    episode: _Episode, outcome: int | None, subtasks: Sequence[bool], failure: str, source: str
) -> Trajectory:
    task = episode.task
    return Trajectory(
        task_id=task.task_id,
        app=task.app,
        family=task.family,
        instruction=task.instruction,
        steps=tuple(episode.steps),
        outcome=outcome,
        source=source,
        seed=task.seed,
        subtasks=tuple(subtasks),
        failure=failure,
        metadata={"template": task.template},
    )
