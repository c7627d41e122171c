"""Trajectories and annotated screens on disk: ArrayRecord shards, written whole or not at all.

    write_trajectories("runs/demo/rpa", trajectories, shards=4)
    source = TrajectorySource("runs/demo/rpa")
    source[7]  # a Trajectory, screenshots and token arrays bit for bit as they were written

Metadata must be plain JSON values. The file format is that of `data.records`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from data.records import RecordDecoder, RecordEncoder, RecordSource, write_records
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.elements import AnnotatedScreen, ScreenElement
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.agent.trajectory import Trajectory, trajectory_arrays, trajectory_from_json, trajectory_to_json


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
            return len(decoder.body["images"])

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
    body = {
        "trajectory": trajectory_to_json(trajectory),
        "images": [encoder.image(step.observation.image) for step in trajectory.steps],
        "arrays": {name: encoder.array(array) for name, array in trajectory_arrays(trajectory).items()},
    }
    return encoder.record("trajectory", body)


def _decode_trajectory(decoder: RecordDecoder) -> Trajectory:
    with decoder.explained():
        body = decoder.body
        images = [decoder.image(reference) for reference in body["images"]]
        arrays = {name: decoder.array(reference) for name, reference in body["arrays"].items()}
        return trajectory_from_json(body["trajectory"], images, arrays)


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


def _decode_screen(decoder: RecordDecoder) -> AnnotatedScreen:
    with decoder.explained():
        body = decoder.body
        elements = tuple(
            ScreenElement(**{name: _frozen(value) for name, value in element.items()}) for element in body["elements"]
        )
        image = decoder.image(body["image"])
        return AnnotatedScreen(image=image, elements=elements, family=DeviceFamily(body["family"]), app=body["app"])


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
