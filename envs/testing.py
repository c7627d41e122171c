"""Small environments for tests of whatever drives a pool: one that behaves, and one that misbehaves on request."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from envs.interface import StepResult, TaskSpec
from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.elements import ScreenElement
from gui_owl_jax.agent.trajectory import Observation

FAULTS = ("raise", "hang", "exit", "sigkill", "garbage", "unpicklable", "damaged_image", "sys_exit")


def make_task(
    name: str = "count", target: int = 3, *, max_steps: int = 5, faults: Mapping[str, str] | None = None
) -> TaskSpec:
    """Returns a task of `CountingEnvironment`: act `target` times.

    Args:
      name: first part of the task id.
      target: number of actions after which the task holds.
      max_steps: most actions.
      faults: when -> what: "reset" or the number of a step ("1" is the first) -> one of `FAULTS`.
    """
    planned = dict(faults or {})
    return TaskSpec(
        task_id=f"{name}:{target}:{sorted(planned.items())}",
        app="counter",
        family=DeviceFamily.MOBILE,
        instruction=f"Act {target} times.",
        seed=0,
        split="train",
        max_steps=max_steps,
        template="count",
        params={"target": target, "faults": planned},
    )


class CountingEnvironment:
    """Counts actions and shows the count as the brightness of a 32x64 screen; fails as its task asks."""

    def __init__(self):
        self._task: TaskSpec | None = None
        self._count = self._steps = 0

    def reset(self, task: TaskSpec) -> StepResult:
        """Starts `task` with a count of 0."""
        self._task, self._count, self._steps = task, 0, 0
        return self._result("reset")

    def step(self, action: Action | None) -> StepResult:
        """Adds one to the count if there is an action."""
        self._steps += 1
        self._count += action is not None
        return self._result(str(self._steps))

    def snapshot(self) -> bytes:
        """Returns task, count and steps."""
        return pickle.dumps((self._task, self._count, self._steps))

    def restore(self, snapshot: bytes) -> StepResult:
        """Takes task, count and steps from a snapshot."""
        self._task, self._count, self._steps = pickle.loads(snapshot)
        return self._result("restore")

    def close(self) -> None:
        """Holds nothing, frees nothing."""

    def _result(self, moment: str) -> StepResult:
        assert self._task is not None
        params: Mapping[str, Any] = self._task.params
        fault = params["faults"].get(moment)
        if fault is not None:
            return misbehave(fault)
        success = self._count == params["target"]
        image = np.full((32, 64, 3), min(20 * self._count, 255), np.uint8)
        return StepResult(
            observation=Observation(image=image),
            done=success or self._steps >= self._task.max_steps,
            success=success,
            subtasks=(self._count > 0, success),
            state_hash=f"{self._task.task_id}/{self._count}",
            elements=(ScreenElement(text=str(self._count), kind="label", box=(0, 0, 64, 32)),),
        )


def misbehave(fault: str) -> Any:
    """Does one of `FAULTS`."""
    if fault == "hang":
        while True:
            time.sleep(3600)
    if fault == "exit":
        os._exit(3)
    if fault == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(3600)
    if fault == "sys_exit":
        raise SystemExit("leaving")
    if fault == "garbage":
        return {"reward": 1.0}
    if fault == "unpicklable":
        unpicklable: Any = lambda: ""  # noqa: E731
        return StepResult(observation=Observation(image=np.zeros((32, 64, 3), np.uint8)), state_hash=unpicklable)
    if fault == "damaged_image":
        return StepResult(observation=Observation(image=np.zeros((32, 64), np.float32)))
    raise ValueError(f"told to misbehave: {fault}")


def make() -> CountingEnvironment:
    """The factory, `envs.testing:make`."""
    return CountingEnvironment()


def make_that_raises() -> CountingEnvironment:
    """A factory that cannot make its environment."""
    raise OSError("no display")


def make_that_hangs() -> CountingEnvironment:
    """A factory that never returns."""
    return misbehave("hang")


def make_large() -> CountingEnvironment:
    """Makes an environment with screens of several megabytes."""

    class Large(CountingEnvironment):
        def reset(self, task: TaskSpec) -> StepResult:
            image = np.random.default_rng(0).integers(0, 255, (1440, 1080, 3), np.uint8)
            return StepResult(observation=Observation(image=image))

    return Large()


def make_leaky() -> CountingEnvironment:
    """Makes an environment whose reset forgets to clear the count."""

    class Leaky(CountingEnvironment):
        def reset(self, task: TaskSpec) -> StepResult:
            count = self._count
            super().reset(task)
            self._count = count
            return self._result("start")

    return Leaky()


def make_hungry() -> CountingEnvironment:
    """Makes an environment that asks for more memory than any pool grants."""

    class Hungry(CountingEnvironment):
        def reset(self, task: TaskSpec) -> StepResult:
            np.ones(1 << 34, np.uint8)
            return super().reset(task)

    return Hungry()
