"""The environment interface: what a task is, what a step returns, what an environment must do.

An environment is a plain Python object with five methods. It need not guard against its own faults: it may
raise, hang or die, and `envs.pool.EnvPool` turns each of these into an `EnvFailure` of its slot. What it must
keep is determinism: the same task gives the same first screen and the same `state_hash`, whatever ran before.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.elements import ScreenElement
from gui_owl_jax.agent.errors import EnvError
from gui_owl_jax.agent.trajectory import Observation

__all__ = [
    "EnvFactory",
    "EnvFailure",
    "Environment",
    "FailureKind",
    "ScreenElement",
    "StepResult",
    "TaskSpec",
    "check_result",
]

SPLITS = ("train", "heldout")


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """One task: a template with its parameters filled in, and the seed of the world it starts in.

    Attributes:
      task_id: unique name, parameters and seed included; equal ids mean equal tasks.
      app: name of the app that the task plays in.
      family: device family of the app.
      instruction: what the agent is asked to do, in words.
      seed: seed of the start state.
      split: "train" or "heldout".
      max_steps: most actions the agent may take; the environment is done after them.
      template: name of the template.
      params: parameters of the template, plain Python values.
    """

    task_id: str
    app: str
    family: DeviceFamily
    instruction: str
    seed: int
    split: str
    max_steps: int
    template: str = ""
    params: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if self.split not in SPLITS:
            raise EnvError(f"task {self.task_id}: split is {self.split!r}, must be one of {SPLITS}")
        if self.max_steps < 1:
            raise EnvError(f"task {self.task_id}: max_steps is {self.max_steps}, must be at least 1")

    def __reduce__(self):  # a read-only mapping (`types.MappingProxyType`) cannot be pickled, tasks travel to processes
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if isinstance(self.params, types.MappingProxyType):
            values["params"] = dict(self.params)
        return TaskSpec, tuple(values.values())


@dataclasses.dataclass(frozen=True, eq=False)
class StepResult:
    """What `reset`, `step` and `restore` return.

    Attributes:
      observation: the screen after the action.
      done: the episode is over: the task holds, the agent ended it, or its steps are used up.
      success: the task's predicate holds (and, if the agent ended the episode, it did not claim failure).
      subtasks: which of the task's subtask predicates hold, in the task's order.
      state_hash: hash of the state behind the screen; equal states have equal hashes.
      elements: the annotated screen in reading order, () where the environment knows none. Never shown to the agent.
    """

    observation: Observation
    done: bool = False
    success: bool = False
    subtasks: tuple[bool, ...] = ()
    state_hash: str = ""
    elements: tuple[ScreenElement, ...] = ()


class FailureKind(enum.StrEnum):
    """How an environment failed."""

    TIMEOUT = "timeout"  # no answer within the deadline
    CRASH = "crash"  # it raised, or returned what is no StepResult
    DIED = "died"  # its process ended


@dataclasses.dataclass(frozen=True)
class EnvFailure:
    """A failure of the infrastructure, returned in place of a `StepResult`: never to be read as a reward of 0.

    Attributes:
      kind: `FailureKind` ("timeout", "crash" or "died").
      message: what happened, for a log.
    """

    kind: FailureKind
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@runtime_checkable
class Environment(Protocol):
    """One device: reset it to a task, act on it, save and restore it."""

    def reset(self, task: TaskSpec) -> StepResult:
        """Starts `task` from its start state, whatever ran before, and returns its first screen."""
        ...

    def step(self, action: Action | None) -> StepResult:
        """Does one action. None stands for a model output that is no action: it uses up a step, changes nothing."""
        ...

    def snapshot(self) -> bytes:
        """Returns the whole state, task and used steps included."""
        ...

    def restore(self, snapshot: bytes) -> StepResult:
        """Goes back to a snapshot (of any environment of the same factory) and returns its screen."""
        ...

    def close(self) -> None:
        """Frees what the environment holds; it is not used afterwards."""
        ...


EnvFactory = Callable[[], Environment]


def check_result(result: object) -> StepResult:
    """Returns `result` if it is a well-formed `StepResult`.

    Raises:
      EnvError: it is of another type, or its screenshot is not a uint8 array [H, W, 3].
    """
    if not isinstance(result, StepResult):
        raise EnvError(f"the environment returned {type(result).__name__}, not StepResult")
    image = getattr(result.observation, "image", None)
    shape, dtype = tuple(getattr(image, "shape", ())), getattr(image, "dtype", None)
    if len(shape) != 3 or shape[-1] != 3 or 0 in shape or str(dtype) != "uint8":
        raise EnvError(f"the screenshot has shape {shape} and dtype {dtype}, must be uint8 [H, W, 3]")
    return result
