"""Trajectories: the one currency between environments, data, prompts, training and reports.

All three classes check themselves when they are built, so that a malformed trajectory fails where it is made. The
JSON form leaves images and arrays out; whoever stores it keeps them beside (`data.store`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gui_owl_jax.agent.actions import ARGUMENT_NAMES, TOOL_KIND, Action, call_from_action
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import DataError, ParseError

SOURCES = ("rpa", "policy", "human")

# Name of every array that a step may carry -> its dtype. All but prompt_ids have one entry per sampled token.
STEP_ARRAYS = {"token_ids": np.int32, "logps": np.float32, "sampler_logps": np.float32, "prompt_ids": np.int32}


@dataclasses.dataclass(frozen=True, eq=False)
class Observation:
    """What the agent sees.

    Attributes:
      image: the screenshot, uint8 [H, W, 3].
      text: what the environment says beside it, "" for nothing.

    Raises:
      DataError: the image has another dtype or shape.
    """

    image: np.ndarray
    text: str = ""

    def __post_init__(self):
        image = self.image
        if not isinstance(image, np.ndarray):
            raise DataError(f"observation image is {type(image).__name__}, must be a numpy array")
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
            raise DataError(f"observation image is {image.dtype} {list(image.shape)}, must be uint8 [H, W, 3]")
        _check_type("observation text", self.text, str)

    @property
    def width(self) -> int:
        """Width in pixels."""
        return self.image.shape[1]

    @property
    def height(self) -> int:
        """Height in pixels."""
        return self.image.shape[0]


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One turn: what was seen, said and done.

    Attributes:
      observation: the screen before the action.
      thought: reasoning, "" for none.
      conclusion: the sentence of the Action line; what later prompts keep of an old step.
      action: the action done, None where the output was no action.
      response: the text of the model's output as it was; "" where no model spoke (scripts, recordings).
      error: why the response is no action (a `ParseReason`), "" where it is one.
      token_ids: int32 [T], the sampled ids; training reads these, never the text again.
      logps: float32 [T], log-probabilities of the sampled ids at temperature 1.
      sampler_logps: float32 [T], their log-probabilities under the distribution they were drawn from.
      prompt_ids: int32 [L], exactly the ids that were fed to the sampler, image pads expanded.
      image_steps: the trajectory's steps whose screenshots are in that prompt, in order.
      state_hash: hash of the environment's state before the action.

    Raises:
      DataError: a field has the wrong type, dtype, or length.
    """

    observation: Observation
    thought: str = ""
    conclusion: str = ""
    action: Action | None = None
    response: str = ""
    error: str = ""
    token_ids: np.ndarray | None = None
    logps: np.ndarray | None = None
    sampler_logps: np.ndarray | None = None
    prompt_ids: np.ndarray | None = None
    image_steps: tuple[int, ...] = ()
    state_hash: str = ""

    def __post_init__(self):
        _check_type("observation", self.observation, Observation)
        for name in ("thought", "conclusion", "response", "error", "state_hash"):
            _check_type(name, getattr(self, name), str)
        if self.action is not None:
            _check_type("action", self.action, Action)
            if self.error:
                raise DataError(f"error is {self.error!r} although there is an action: one of them must go")
        for name, dtype in STEP_ARRAYS.items():
            array = getattr(self, name)
            if array is not None:
                self._check_array(name, array, dtype)
        steps = self.image_steps
        if not isinstance(steps, tuple) or not all(type(index) is int and index >= 0 for index in steps):
            raise DataError(f"image_steps is {steps!r}, must be a tuple of step indices (int)")
        if list(steps) != sorted(set(steps)):
            raise DataError(f"image_steps is {steps}, must rise")

    def _check_array(self, name: str, array: object, dtype: type) -> None:
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != 1:
            found = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
            raise DataError(f"{name} is {found}, must be a {np.dtype(dtype)} array with one axis")
        if name in ("logps", "sampler_logps"):
            if self.token_ids is None or len(self.token_ids) != len(array):
                tokens = "no token_ids" if self.token_ids is None else f"{len(self.token_ids)} token_ids"
                raise DataError(f"{name} has {len(array)} entries for {tokens}")
            if not np.isfinite(array).all():
                raise DataError(f"{name} has entries that are not finite; a sampled token has a finite log-probability")
        elif (array < 0).any():
            raise DataError(f"{name} has negative ids")


@dataclasses.dataclass(frozen=True, eq=False)
class Trajectory:
    """One episode of one task.

    Attributes:
      task_id: unique name of the task, parameters included.
      app: the app that the task is about.
      family: its device family.
      instruction: what the agent was asked to do.
      steps: the turns in order.
      outcome: Z, 1 for success and 0 for failure; None when the infrastructure failed and nothing can be said.
      source: who acted, one of `SOURCES`.
      seed: seed of the episode.
      subtasks: which of the task's predicates held at the end, in the task's order.
      failure: what went wrong in the infrastructure, "" for nothing; then outcome is None.
      metadata: further values that JSON can hold.

    Raises:
      DataError: a field is malformed, or a step does not fit the family or its place.
    """

    task_id: str
    app: str
    family: DeviceFamily
    instruction: str
    steps: tuple[Step, ...]
    outcome: int | None
    source: str
    seed: int = 0
    subtasks: tuple[bool, ...] = ()
    failure: str = ""
    metadata: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        try:
            self._check()
        except DataError as error:
            raise DataError(f"trajectory of task {self.task_id!r}: {error}") from error

    def _check(self) -> None:
        for name in ("task_id", "app", "instruction", "source", "failure"):
            _check_type(name, getattr(self, name), str)
        if not self.task_id:
            raise DataError("task_id is empty")
        _check_type("family", self.family, DeviceFamily)
        _check_type("steps", self.steps, tuple)
        if self.outcome is not None and (type(self.outcome) is not int or self.outcome not in (0, 1)):
            raise DataError(f"outcome is {self.outcome!r}, must be the int 0 or 1, or None")
        if self.failure and self.outcome is not None:
            raise DataError(f"outcome is {self.outcome} although the infrastructure failed ({self.failure})")
        if self.source not in SOURCES:
            raise DataError(f"source is {self.source!r}, must be one of {', '.join(SOURCES)}")
        if type(self.seed) is not int:
            raise DataError(f"seed is {self.seed!r}, must be an int")
        if not isinstance(self.subtasks, tuple) or not all(isinstance(done, bool) for done in self.subtasks):
            raise DataError(f"subtasks is {self.subtasks!r}, must be a tuple of bool")
        _check_type("metadata", self.metadata, Mapping)
        for index, step in enumerate(self.steps):
            _check_type(f"steps[{index}]", step, Step)
            if step.image_steps and step.image_steps[-1] > index:
                raise DataError(f"steps[{index}].image_steps is {step.image_steps}: it cannot have seen a later screen")
            if step.action is not None and step.action.kind != TOOL_KIND:
                try:
                    call_from_action(self.family, step.action)
                except ParseError as error:
                    raise DataError(f"steps[{index}].action does not fit {self.family}: {error}") from error


def trajectory_arrays(trajectory: Trajectory) -> dict[str, np.ndarray]:
    """The arrays of all steps, under the names that `trajectory_from_json` asks for: "<step>.<field>"."""
    return {
        f"{index}.{name}": getattr(step, name)
        for index, step in enumerate(trajectory.steps)
        for name in STEP_ARRAYS
        if getattr(step, name) is not None
    }


def trajectory_to_json(trajectory: Trajectory) -> dict[str, object]:
    """A dict that JSON can hold, with everything but the images and the arrays (`trajectory_arrays`).

    Raises:
      DataError: the metadata has values that JSON does not give back as they were.
    """
    header = {field.name: getattr(trajectory, field.name) for field in dataclasses.fields(trajectory)}
    header |= {
        "family": str(trajectory.family),
        "steps": [_step_to_json(step) for step in trajectory.steps],
        "subtasks": list(trajectory.subtasks),
        "metadata": dict(trajectory.metadata),
    }
    try:
        kept = json.loads(json.dumps(header, allow_nan=False)) == header
    except (TypeError, ValueError) as error:
        raise DataError(f"trajectory of task {trajectory.task_id!r}: metadata: {error}") from error
    if not kept:
        raise DataError(f"trajectory of task {trajectory.task_id!r}: metadata must hold plain JSON values only")
    return header


def trajectory_from_json(
    data: Mapping[str, object], images: Sequence[np.ndarray], arrays: Mapping[str, np.ndarray]
) -> Trajectory:
    """Puts a trajectory together again.

    Args:
      data: what `trajectory_to_json` gave.
      images: one screenshot per step, uint8 [H, W, 3].
      arrays: what `trajectory_arrays` gave.

    Raises:
      DataError: a field is unknown, missing or malformed, or images or arrays are missing or left over.
    """
    values = _exact("trajectory", data, [field.name for field in dataclasses.fields(Trajectory)])
    try:
        family = DeviceFamily(values["family"])
    except ValueError as error:
        raise DataError(f"trajectory: family is {values['family']!r}, unknown") from error
    steps = _as_list("trajectory: steps", values["steps"])
    if len(images) != len(steps):
        raise DataError(f"trajectory: {len(images)} images for {len(steps)} steps")
    left = dict(arrays)
    rebuilt = tuple(_step_from_json(index, step, images[index], left) for index, step in enumerate(steps))
    if left:
        raise DataError(f"trajectory: arrays that no step names: {sorted(left)}")
    subtasks = tuple(_as_list("trajectory: subtasks", values["subtasks"]))
    return Trajectory(**{**values, "family": family, "steps": rebuilt, "subtasks": subtasks})


_STEP_TEXTS = ("thought", "conclusion", "response", "error", "state_hash")
_STEP_KEYS = ("observation_text", *_STEP_TEXTS, "action", "image_steps", "arrays")


def _step_to_json(step: Step) -> dict[str, object]:
    return {
        "observation_text": step.observation.text,
        **{name: getattr(step, name) for name in _STEP_TEXTS},
        "action": None if step.action is None else _action_to_json(step.action),
        "image_steps": list(step.image_steps),
        "arrays": [name for name in STEP_ARRAYS if getattr(step, name) is not None],
    }


def _step_from_json(index: int, data: object, image: np.ndarray, arrays: dict[str, np.ndarray]) -> Step:
    where = f"trajectory: steps[{index}]"
    values = _exact(where, data, _STEP_KEYS)
    found: dict[str, Any] = {}
    for name in _as_list(f"{where}.arrays", values["arrays"]):
        if name not in STEP_ARRAYS:
            raise DataError(f"{where}.arrays names {name!r}, must be one of {', '.join(STEP_ARRAYS)}")
        key = f"{index}.{name}"
        if key not in arrays:
            raise DataError(f"{where}: array {key!r} is missing")
        found[name] = arrays.pop(key)
    try:
        return Step(
            observation=Observation(image, values["observation_text"]),
            action=None if values["action"] is None else _action_from_json(values["action"]),
            image_steps=tuple(_as_list("image_steps", values["image_steps"])),
            **{name: values[name] for name in _STEP_TEXTS},
            **found,
        )
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def _action_to_json(action: Action) -> dict[str, object]:
    values = {name: getattr(action, name) for name in ("kind", *ARGUMENT_NAMES)}
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if value is not None
    }


def _action_from_json(data: object) -> Action:
    if not isinstance(data, Mapping) or not isinstance(data.get("kind"), str):
        raise DataError(f"action is {data!r:.80}, must be an object with a kind")
    if unknown := sorted(set(data) - {"kind", *ARGUMENT_NAMES}):
        raise DataError(f"action has unknown fields {unknown}")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    return Action(**values)


def _exact(where: str, data: object, keys: Sequence[str]) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise DataError(f"{where} is {type(data).__name__}, must be an object")
    missing, unknown = sorted(set(keys) - set(data)), sorted(set(data) - set(keys))
    if missing or unknown:
        raise DataError(f"{where}: missing fields {missing}, unknown fields {unknown}")
    return dict(data)


def _as_list(where: str, value: object) -> list:
    _check_type(where, value, list)
    return value  # type: ignore[return-value]


def _check_type(where: str, value: object, wanted: type) -> None:
    if not isinstance(value, wanted):
        raise DataError(f"{where} is {type(value).__name__}, must be {wanted.__name__}")
