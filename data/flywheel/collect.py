"""Collecting scripted (RPA) trajectories, and annotated screens along the way, from a pool of environments.

    pool = EnvPool("envs.virtual.world:make", size=16)
    screens = []
    trajectories = collect(pool, tasks, plan, on_screen=screens.append, progress="RPA")
    write_trajectories("runs/demo/rpa", trajectories)
    write_screens("runs/demo/screens", screens)

The pool and the policy are handed in; no environment is imported here.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import tqdm
from absl import logging

from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.elements import AnnotatedScreen
from gui_owl_jax.agent.trajectory import Step, Trajectory

Move = tuple[str, Action]  # the conclusion ("Tap Mia.") and the action


class Pool(Protocol):
    """What is needed of an environment pool (`envs.pool`)."""

    size: int

    def submit(self, method: str, arguments: Mapping[int, Any]) -> None:
        """Starts "reset" or "step" in slots."""
        ...

    def ready(self, at_least: int = 1) -> Mapping[int, Any]:
        """Returns results by slot as they come in."""
        ...


class Task(Protocol):
    """What is needed of a task (`envs.interface.TaskSpec`); read only."""

    @property
    def task_id(self) -> str:
        """Unique name."""
        ...

    @property
    def app(self) -> str:
        """The app it plays in."""
        ...

    @property
    def family(self) -> DeviceFamily:
        """The device family."""
        ...

    @property
    def instruction(self) -> str:
        """What to do, in words."""
        ...

    @property
    def seed(self) -> int:
        """Seed of the start state."""
        ...

    @property
    def split(self) -> str:
        """train or heldout."""
        ...

    @property
    def template(self) -> str:
        """The template it was made from."""
        ...


@dataclasses.dataclass
class _Episode:
    """A running episode: `screen` is the last result, `move` what was then done."""

    index: int
    task: Task
    moves: Iterator[Move]
    screen: Any = None
    move: Move | None = None
    steps: list[Step] = dataclasses.field(default_factory=list)


def collect(
    pool: Pool,
    tasks: Sequence[Task],
    policy: Callable[[Any], Iterable[Move]],
    *,
    on_screen: Callable[[AnnotatedScreen], None] | None = None,
    source: str = "rpa",
    progress: str = "",
) -> list[Trajectory]:
    """Runs a scripted policy on every task and returns the trajectories in the order of `tasks`.

    Slots do not wait for each other: each goes on as soon as its own environment has answered.

    Args:
      pool: the environments; at most pool.size episodes run at a time.
      tasks: what to do.
      policy: gives the moves of a task; the next one is asked for when the previous one was done. The episode ends
        when the environment says so or the moves are used up. No moves at all collect first screens only.
      on_screen: is given every screen that was seen, with its elements (environments that annotate none are skipped).
      source: the trajectories' source field.
      progress: label of a progress bar; empty for none.

    Returns:
      One trajectory per task. Where the environment failed, its outcome is None and `failure` says why.
    """
    waiting = list(range(len(tasks)))[::-1]
    running: dict[int, _Episode] = {}
    finished: list[Trajectory | None] = [None] * len(tasks)
    with tqdm.tqdm(total=len(tasks), desc=progress, unit="episode", disable=not progress, mininterval=1.0) as bar:
        free = list(range(pool.size))
        while waiting or running:
            starts = {}
            while free and waiting:
                slot, index = free.pop(), waiting.pop()
                running[slot] = _Episode(index, tasks[index], iter(policy(tasks[index])))
                starts[slot] = tasks[index]
            if starts:
                pool.submit("reset", starts)
            for slot, result in pool.ready().items():
                trajectory = _advance(running[slot], result, source)
                if hasattr(result, "elements") and result.elements and on_screen is not None:
                    episode = running[slot]
                    screen = result.observation.image
                    on_screen(AnnotatedScreen(screen, result.elements, episode.task.family, episode.task.app))
                if trajectory is None:
                    pool.submit("step", {slot: running[slot].move[1]})  # type: ignore[index]
                else:
                    finished[running.pop(slot).index] = trajectory
                    free.append(slot)
                    bar.update()
    failed = sum(trajectory is not None and trajectory.outcome is None for trajectory in finished)
    if failed:
        logging.warning("%d of %d episodes were lost to failures of their environment", failed, len(tasks))
    return [trajectory for trajectory in finished if trajectory is not None]


def with_slips(policy: Callable[[Any], Iterable[Move]], share: float, seed: int) -> Callable[[Any], list[Move]]:
    """Makes a scripted policy as unsteady as recorded people: now and then it says the right thing and does another.

    A move slips with probability `share`: its action is replaced by one that an earlier task of the same template took
    at the same step, on its own screen. The conclusion stays. Trajectories with slips mostly fail, and say so.

    Args:
      policy: gives the right moves of a task.
      share: probability of a slip per move, in [0, 1).
      seed: of the slips. Calls in the same order give the same moves.
    """
    earlier: dict[tuple[str, int], list[Action]] = {}

    def unsteady(task: Task) -> list[Move]:
        draw = random.Random(f"{seed}/{task.task_id}")
        moves = []
        for step, (conclusion, action) in enumerate(policy(task)):
            others = earlier.setdefault((task.template, step), [])
            wrong = [other for other in others if other.kind == action.kind and other != action]
            others.append(action)
            slips = draw.random() < share and wrong
            moves.append((conclusion, draw.choice(wrong) if slips else action))
        return moves

    return unsteady


def _advance(episode: _Episode, result: Any, source: str) -> Trajectory | None:
    """Books a result; returns the trajectory if the episode is over, else sets the next move."""
    if episode.move is not None:
        conclusion, action = episode.move
        before = episode.screen
        episode.steps.append(
            Step(before.observation, conclusion=conclusion, action=action, state_hash=before.state_hash)
        )
    if hasattr(result, "kind"):  # a failure has a kind, a step result has none
        return _trajectory(episode, source, outcome=None, failure=f"{result.kind}: {result.message}")
    episode.screen = result
    episode.move = None if result.done else next(episode.moves, None)
    if episode.move is None:
        return _trajectory(episode, source, outcome=int(result.success), subtasks=tuple(result.subtasks))
    return None


def _trajectory(episode: _Episode, source: str, **ending: Any) -> Trajectory:
    task = episode.task
    return Trajectory(
        task_id=task.task_id,
        app=task.app,
        family=task.family,
        instruction=task.instruction,
        steps=tuple(episode.steps),
        source=source,
        seed=task.seed,
        metadata={"template": task.template, "split": task.split},
        **ending,
    )
