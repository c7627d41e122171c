"""The environment: a wrong button ends the episode, and nothing on the screen says which is right."""

from __future__ import annotations

import pickle

import numpy as np

from envs.interface import StepResult, TaskSpec
from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.trajectory import Observation
from tests.launch.coin.tasks import LENGTH


class Coin:
    def reset(self, task: TaskSpec) -> StepResult:
        self._task, self._right = task, 0
        return self._result(done=False)

    def step(self, action: Action | None) -> StepResult:
        right = action is not None and action.button == self._task.params["buttons"][self._right]
        self._right += right
        return self._result(done=not right or self._right == LENGTH)

    def snapshot(self) -> bytes:
        return pickle.dumps((self._task, self._right))

    def restore(self, snapshot: bytes) -> StepResult:
        self._task, self._right = pickle.loads(snapshot)
        return self._result(done=False)

    def close(self) -> None:
        pass

    def _result(self, done: bool) -> StepResult:
        colour = (self._task.seed + 100 * self._right) % 256
        return StepResult(
            observation=Observation(np.full((32, 32, 3), colour, np.uint8)),
            done=done,
            success=self._right == LENGTH,
            subtasks=(self._right > 0, self._right == LENGTH),
            state_hash=f"{self._task.task_id}/{self._right}",
        )


def make() -> Coin:
    return Coin()
