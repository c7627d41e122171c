"""Reader of Android in the Wild (arXiv 2307.10088): GZIP TFRecords, one step of an episode a record.

Points and boxes are shares of the screen, y before x. A gesture is a touch and a lift point: closer together than
`gestures.TAP_LENGTH` of the screen it is a tap, otherwise a swipe. The screenshot is stored as raw bytes [height,
width, channels]; an item refers to it as `<episode>_<step>.png`, which `extract_screenshots` writes.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from PIL import Image

from data.benchmarks.action_labels import collect
from data.benchmarks.entries import EntryError
from data.benchmarks.record_entries import Record, features, records, text, write_screenshots
from gui_owl_jax.agent.actions import SCALE, Action
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.evals.benchmark import ActionLabel, Benchmark, Box, Item
from gui_owl_jax.evals.gestures import GestureType, is_tap

FILES = ("*",)
_BUTTONS = {GestureType.PRESS_BACK: "Back", GestureType.PRESS_HOME: "Home", GestureType.PRESS_ENTER: "Enter"}
_STATUSES = {GestureType.TASK_COMPLETE: "success", GestureType.TASK_IMPOSSIBLE: "failure"}


def read_aitw(place: pathlib.Path) -> Benchmark:
    """Reads the records of a split; which episodes belong to it is told by the files that are given.

    Args:
      place: a record file, or a folder of nothing but record files.

    Returns:
      A `Benchmark` whose items have the facets "action" (the recorded type) and "episode"; the boxes of a label are all
      elements that were detected on the screen. A damaged record is one fatal problem.

    Raises:
      DataError: no record file.
    """
    return collect("aitw", _steps(place), check_boxes=False)


def extract_screenshots(place: str | pathlib.Path, folder: str | pathlib.Path) -> int:
    """Writes the screenshots that the items refer to as PNG files, those of damaged records excepted.

    Args:
      place: as for `read_aitw`.
      folder: made if it is not there; files in it are overwritten.

    Returns:
      How many were written.

    Raises:
      DataError: no record file.
      OSError: a file cannot be written.
    """
    return write_screenshots(records(pathlib.Path(place), FILES), _save, folder)


def _save(record: Record, where: str, folder: pathlib.Path) -> int:
    step = _Step(record, where)
    Image.fromarray(step.pixels()).save(folder / step.image)
    return 1


class _Step:
    """The features of one record.

    Raises:
      EntryError: the record is damaged or lacks a feature that every step has.
    """

    def __init__(self, record: Record, where: str):
        self.features = features(record, where)
        self.episode = self.text("episode_id")
        self.id = f"{self.episode}_{self.values('step_id', int, 1)[0]}"
        self.image = f"{self.id.replace('/', '_')}.png"
        (self.width,), (self.height,) = (self.values(f"image/{side}", int, 1) for side in ("width", "height"))
        if min(self.width, self.height) < 1:
            raise EntryError("bad_field", f"the screenshot has {self.width}x{self.height} pixels")

    def values(self, name: str, kind: type, count: int) -> list[Any]:
        values = self.features.get(name, [])
        if len(values) != count or not all(isinstance(value, kind) for value in values):
            raise EntryError("bad_field", f"{name} is {values!s:.80}, must be {count} of type {kind.__name__}")
        return values

    def text(self, name: str) -> str:
        return text(self.values(name, bytes, 1)[0], name)

    def pixels(self) -> np.ndarray:
        (channels,) = self.values("image/channels", int, 1)
        values = np.frombuffer(self.values("image/encoded", bytes, 1)[0], np.uint8)
        if channels != 3 or len(values) != self.height * self.width * channels:
            raise EntryError("bad_field", f"image/encoded has {len(values)} bytes, which is no picture of its size")
        return values.reshape(self.height, self.width, channels)

    def action(self) -> Action:
        number = self.values("results/action_type", int, 1)[0]
        if number not in list(GestureType):
            raise EntryError("unknown_action", f"results/action_type is {number}, which has no meaning")
        kind = GestureType(number)
        if kind is GestureType.TYPE:
            return Action("type", text=self.text("results/type_action"))
        if kind in _BUTTONS:
            return Action("system_button", button=_BUTTONS[kind])
        if kind in _STATUSES:
            return Action("terminate", status=_STATUSES[kind])
        touch, lift = (self.values(f"results/yx_{end}", float, 2) for end in ("touch", "lift"))
        start, end = ((yx[1] * SCALE, yx[0] * SCALE) for yx in (touch, lift))
        return Action("click", coordinate=start) if is_tap(touch, lift) else Action("swipe", start, end)

    def boxes(self) -> tuple[Box, ...]:
        flat = self.features.get("image/ui_annotations_positions", [])
        if len(flat) % 4 or not all(isinstance(value, float) for value in flat):
            raise EntryError("bad_box", "image/ui_annotations_positions must hold y, x, height, width of each box")
        rows = np.asarray(flat, np.float64).reshape(-1, 4) * (self.height, self.width, self.height, self.width)
        return tuple(Box(x, y, x + width, y + height) for y, x, height, width in rows.tolist())


def _steps(place: pathlib.Path) -> Iterator[tuple[str, Callable[[], Item]]]:
    for where, record in records(place, FILES):
        yield where, functools.partial(_item, record, where)


def _item(record: Record, where: str) -> Item:
    step = _Step(record, where)
    return Item(
        item_id=step.id,
        instruction=step.text("goal_info"),
        target=ActionLabel(step.action(), step.boxes()),
        family=DeviceFamily.MOBILE,
        image=step.image,
        size=(step.width, step.height),
        facets={
            "action": GestureType(step.features["results/action_type"][0]).name.lower(),
            "episode": step.episode,
        },
    )
