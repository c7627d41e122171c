"""Trajectories and annotated screens on disk: ArrayRecord shards, written whole or not at all.

    write_trajectories("runs/demo/rpa", trajectories, shards=4)
    source = TrajectorySource("runs/demo/rpa")
    source[7]  # a Trajectory, screenshots and token arrays bit for bit as they were written

Metadata must be plain JSON values; tuples in it come back as lists. The file format is that of `data.records`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from data.records import RecordDecoder, RecordEncoder, RecordSource, write_records
from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.elements import AnnotatedScreen, ScreenElement
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.agent.trajectory import Observation, Step, Trajectory

_STEP_ARRAYS = ("token_ids", "logps", "sampler_logps", "prompt_ids")
_STEP_TEXTS = ("thought", "conclusion", "response", "error", "state_hash")


def write_trajectories(prefix: str | Path, trajectories: Iterable[Trajectory], shards: int = 1) -> list[Path]:
    """Writes trajectories to `<prefix>-0000i-of-0000n.arrayrecord`, replacing an earlier set; returns the paths.

    Raises:
      DataError: a trajectory cannot be written (it names which); nothing is left on disk then.
    """
    return write_records(prefix, map(_encode_trajectory, trajectories), shards)


def write_screens(prefix: str | Path, screens: Iterable[AnnotatedScreen], shards: int = 1) -> list[Path]:
    """Writes annotated screens, as `write_trajectories` does trajectories."""
    return write_records(prefix, map(_encode_screen, screens), shards)


class TrajectorySource(Sequence[Trajectory]):
    """Random access to written trajectories.

    Args:
      paths: the prefix they were written to, or the files in order.

    Raises:
      DataError: when made: a file is missing, truncated or foreign; when read: a record is damaged or incomplete.
    """

    def __init__(self, paths: str | Path | Sequence[str | Path]):
        self._records = RecordSource(paths)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return _decode_trajectory(self._decoder(index))

    def step_count(self, index: int) -> int:
        """Returns the number of steps of trajectory `index` without decoding its images."""
        decoder = self._decoder(index)
        with decoder.explained():
            return len(decoder.body["steps"])

    def _decoder(self, index: int) -> RecordDecoder:
        return RecordDecoder(self._records[index], "trajectory", self._records.place(index))


class ScreenSource(Sequence[AnnotatedScreen]):
    """Random access to written screens; arguments and errors as `TrajectorySource`."""

    def __init__(self, paths: str | Path | Sequence[str | Path]):
        self._records = RecordSource(paths)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        decoder = RecordDecoder(self._records[index], "screen", self._records.place(index))
        return _decode_screen(decoder)


def _encode_trajectory(trajectory: Trajectory) -> bytes:
    encoder = RecordEncoder()
    try:
        body = {
            field.name: getattr(trajectory, field.name)
            for field in dataclasses.fields(trajectory)
            if field.name not in ("steps", "family", "metadata")
        }
        body |= {
            "family": str(trajectory.family),
            "steps": [_encode_step(encoder, step) for step in trajectory.steps],
            "metadata": dict(trajectory.metadata),
        }
        return encoder.record("trajectory", body)
    except (TypeError, ValueError) as error:
        raise DataError(f"trajectory of task {trajectory.task_id} cannot be written: {error}") from error


def _encode_step(encoder: RecordEncoder, step: Step) -> dict[str, object]:
    body: dict[str, object] = {name: getattr(step, name) for name in _STEP_TEXTS}
    body["image"] = encoder.image(step.observation.image)
    body["text"] = step.observation.text
    body["action"] = None if step.action is None else _without_none(dataclasses.asdict(step.action))
    body["image_steps"] = [int(i) for i in step.image_steps]
    for name in _STEP_ARRAYS:
        if getattr(step, name) is not None:
            body[name] = encoder.array(getattr(step, name))
    return body


def _encode_screen(screen: AnnotatedScreen) -> bytes:
    encoder = RecordEncoder()
    try:
        body = {
            "image": encoder.image(screen.image),
            "elements": [dataclasses.asdict(element) for element in screen.elements],
            "family": str(screen.family),
            "app": screen.app,
        }
        return encoder.record("screen", body)
    except (TypeError, ValueError) as error:
        raise DataError(f"screen of {screen.app} cannot be written: {error}") from error


def _without_none(values: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def _decode_trajectory(decoder: RecordDecoder) -> Trajectory:
    with decoder.explained():
        body = dict(decoder.body)
        body["family"] = DeviceFamily(body["family"])
        body["steps"] = tuple(_decode_step(decoder, step) for step in body["steps"])
        body["subtasks"] = tuple(body["subtasks"])
        for field in dataclasses.fields(Trajectory):
            body[field.name]  # a field that is missing is an error, not its default
        return Trajectory(**body)


def _decode_step(decoder: RecordDecoder, body: dict) -> Step:
    arrays = {name: decoder.array(body[name]) for name in _STEP_ARRAYS if name in body}
    action = body["action"]
    return Step(
        observation=Observation(image=decoder.image(body["image"]), text=body["text"]),
        action=None if action is None else Action(**{name: _frozen(value) for name, value in action.items()}),
        image_steps=tuple(body["image_steps"]),
        **{name: body[name] for name in _STEP_TEXTS},
        **arrays,
    )


def _decode_screen(decoder: RecordDecoder) -> AnnotatedScreen:
    with decoder.explained():
        body = decoder.body
        elements = tuple(
            ScreenElement(**{name: _frozen(value) for name, value in element.items()}) for element in body["elements"]
        )
        image: np.ndarray = decoder.image(body["image"])
        return AnnotatedScreen(image=image, elements=elements, family=DeviceFamily(body["family"]), app=body["app"])


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
