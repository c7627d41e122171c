"""The virtual world: one device with one app and one task, an `envs.interface.Environment`."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from envs.interface import StepResult, TaskSpec
from envs.virtual import raster
from envs.virtual.gestures import Screen, event_of
from envs.virtual.tasks import TEMPLATES
from envs.virtual.template import Template
from envs.virtual.widgets import Widget, elements, marks, screen_size
from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import EnvError
from gui_owl_jax.agent.trajectory import Observation

Renderer = Callable[[Widget, Mapping[str, int], "tuple[int, int] | None", int], np.ndarray]

_SNAPSHOT = b"virtual-world-1\n"  # snapshots start with it


@dataclasses.dataclass(frozen=True)
class Episode:
    """All that a world knows while a task runs.

    Attributes:
      task: the task.
      first: the app's state at the start.
      state: the app's state now.
      cursor: pixel (x, y) of the mouse cursor at scale 1.
      answer: what the agent answered, None before it did.
      steps: actions taken.
      reached: which milestones were reached so far, and whether the goal holds now.
      done: nothing more can be done.
      gave_up: the agent ended the episode with status "failure".
    """

    task: TaskSpec
    first: Any
    state: Any
    cursor: tuple[int, int]
    answer: str | None = None
    steps: int = 0
    reached: tuple[bool, ...] = ()
    done: bool = False
    gave_up: bool = False

    @property
    def success(self) -> bool:
        """Whether the goal holds and the agent did not claim failure."""
        return bool(self.reached) and self.reached[-1] and not self.gave_up


def template_of(task: TaskSpec) -> Template:
    """The template of a task.

    Raises:
      EnvError: the task belongs to another environment.
    """
    if task.template not in TEMPLATES:
        raise EnvError(f"task {task.task_id}: template {task.template!r} is none of {', '.join(TEMPLATES)}")
    return TEMPLATES[task.template]


def begin(task: TaskSpec) -> Episode:
    """The start of a task; equal tasks start equal."""
    template = template_of(task)
    state = template.start(task.params, random.Random(f"layout/{task.template}/{task.seed}"))
    width, height = screen_size(template.app.family)
    episode = Episode(task, state, state, cursor=(width - 5, height - 6))
    return dataclasses.replace(episode, reached=_check(template, episode))


def screen_of(episode: Episode, scale: int = 1) -> Screen:
    """What an episode shows."""
    app = template_of(episode.task).app
    tree = app.view(episode.state)
    labels = marks(tree) if app.family == DeviceFamily.WEB else {}
    return Screen(app.family, tree, labels, episode.cursor, scale)


def advance(episode: Episode, action: Action | None, screen: Screen, end_on_success: bool = True) -> Episode:
    """The episode after one action; None, and actions that mean nothing on the screen, only use up a step."""
    template = template_of(episode.task)
    changes: dict[str, Any] = {"steps": episode.steps + 1}
    if action is not None and action.kind == "answer":
        changes |= {"answer": action.text or "", "done": True}
    elif action is not None and action.kind == "terminate":
        changes |= {"done": True, "gave_up": action.status != "success"}
    elif action is not None:
        event, changes["cursor"] = event_of(action, screen)
        if event is not None:
            changes["state"] = template.app.update(episode.state, event)
    after = dataclasses.replace(episode, **changes)
    after = dataclasses.replace(after, reached=_check(template, after))
    ended = after.steps >= after.task.max_steps or (end_on_success and after.success)
    return dataclasses.replace(after, done=True) if ended else after


def _check(template: Template, episode: Episode) -> tuple[bool, ...]:
    params, first = episode.task.params, episode.first
    before = episode.reached or (False,) * (len(template.milestones) + 1)
    now = [was or check(params, first, episode) for was, check in zip(before, template.milestones)]
    return (*now, template.goal(params, first, episode))


class World:
    """One device.

    Args:
      scale: pixels of the screenshot per pixel of the layout, 1 or more.
      end_on_success: whether the episode ends as soon as the goal holds; otherwise only when the agent ends it or
        its steps are used up.
      renderer: draws the screens.
    """

    def __init__(self, scale: int = 1, end_on_success: bool = True, renderer: Renderer = raster.render):
        if scale < 1:
            raise EnvError(f"scale is {scale}, must be at least 1")
        self.scale = scale
        self.end_on_success = end_on_success
        self._renderer = renderer
        self._episode: Episode | None = None
        self._screen: Screen | None = None

    @property
    def episode(self) -> Episode:
        """The running episode.

        Raises:
          EnvError: before the first reset.
        """
        if self._episode is None:
            raise EnvError("the world has no task: reset it first")
        return self._episode

    @property
    def state(self) -> Any:
        """The app's state, for scripts."""
        return self.episode.state

    @property
    def screen(self) -> Screen:
        """The screen as it is now, for scripts."""
        if self._screen is None:
            self._screen = screen_of(self.episode, self.scale)
        return self._screen

    def reset(self, task: TaskSpec) -> StepResult:
        """Starts `task`."""
        return self._show(begin(task))

    def step(self, action: Action | None) -> StepResult:
        """Does one action.

        Raises:
          EnvError: the episode is over, or was never begun.
        """
        if self.episode.done:
            raise EnvError(f"task {self.episode.task.task_id}: the episode is over, reset the world")
        return self._show(advance(self.episode, action, self.screen, self.end_on_success))

    def snapshot(self) -> bytes:
        """The episode as bytes (a pickle: restore only your own)."""
        return _SNAPSHOT + pickle.dumps(self.episode)

    def restore(self, snapshot: bytes) -> StepResult:
        """Goes back to a snapshot, of this or of another world.

        Raises:
          EnvError: the bytes are no snapshot of a virtual world.
        """
        if not snapshot.startswith(_SNAPSHOT):
            raise EnvError("these bytes are no snapshot of a virtual world")
        try:
            episode = pickle.loads(snapshot[len(_SNAPSHOT) :])
        except Exception as error:  # pickle raises almost anything on damaged bytes
            raise EnvError(f"the snapshot is damaged: {error}") from error
        if not isinstance(episode, Episode):
            raise EnvError(f"the snapshot holds {type(episode).__name__}, not an episode")
        return self._show(episode)

    def close(self) -> None:
        """Forgets the episode."""
        self._episode = self._screen = None

    def _show(self, episode: Episode) -> StepResult:
        self._episode, self._screen = episode, screen_of(episode, self.scale)
        screen = self._screen
        cursor = screen.cursor if screen.family == DeviceFamily.DESKTOP else None
        image = self._renderer(screen.tree, screen.labels, cursor, self.scale)
        return StepResult(
            observation=Observation(image),
            done=episode.done,
            success=episode.success,
            subtasks=episode.reached,
            state_hash=state_hash(episode),
            elements=elements(screen.tree, screen.labels, self.scale),
        )


def state_hash(episode: Episode) -> str:
    """Hash of all that decides what happens next, apart from the count of steps: app, state, cursor, answer."""
    parts = (episode.task.app, episode.state, episode.cursor, episode.answer)
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def make(scale: int = 1, end_on_success: bool = True) -> World:
    """The factory for pools: `EnvPool("envs.virtual.world:make", ...)`."""
    return World(scale, end_on_success)
