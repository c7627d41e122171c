"""Reader of AndroidControl as published (arXiv 2406.03679): GZIP TFRecords, one episode a record.

Features: `episode_id`, `goal`, and one value a screenshot of `screenshots` (PNG), `accessibility_trees` (serialised
`AndroidAccessibilityForest` of android_env), `screenshot_widths`, `screenshot_heights`; one less of `actions` (JSON)
and `step_instructions`. A step's item refers to its screenshot as `<episode>_<step>.png`, which
`extract_screenshots` writes.
"""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from data.benchmarks.action_labels import collect, recorded_action
from data.benchmarks.android_control import HIGH, LOW, instruction
from data.benchmarks.entries import Entry, EntryError
from data.benchmarks.record_entries import Record, features, records, text, write_screenshots
from data.benchmarks.tfrecord import declare, decode
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.benchmark import ActionLabel, Benchmark, Box, Item

FILES = ("android_control-*",)
SPLITS = "splits.json"

# The fields that are read, as numbered in android_env's protos (`android_env/proto/a11y`).
_FOREST = declare(
    {
        "Rect": {"left": (1, "int32"), "top": (2, "int32"), "right": (3, "int32"), "bottom": (4, "int32")},
        "Node": {
            "bounds_in_screen": (2, "Rect"),
            "is_clickable": (14, "bool"),
            "is_editable": (15, "bool"),
            "is_long_clickable": (19, "bool"),
            "is_visible_to_user": (23, "bool"),
        },
        "Tree": {"nodes": (1, "Node*")},
        "Window": {"tree": (11, "Tree")},
        "Forest": {"windows": (1, "Window*")},
    }
)["Forest"]


def read_high(place: pathlib.Path) -> Benchmark:
    """Reads the steps of the test split, goals alone. See `read_records_benchmark`."""
    return read_records_benchmark(place, HIGH)


def read_low(place: pathlib.Path) -> Benchmark:
    """Reads the steps of the test split, goals with the step's instruction. See `read_records_benchmark`."""
    return read_records_benchmark(place, LOW)


def read_records_benchmark(place: pathlib.Path, mode: str) -> Benchmark:
    """Reads AndroidControl's records; every file is read once from end to end, images included.

    Where `splits.json` (lists of episode ids by split) lies beside the records, only its "test" episodes are read;
    otherwise all are.

    Args:
      place: a record file, or the folder of `android_control-*`.
      mode: `HIGH` or `LOW`.

    Returns:
      A `Benchmark` whose items have the facets "action" (AndroidControl's type) and "episode". The boxes of a click or
      long press are those of all visible elements that can be clicked, held or edited. A damaged record is one fatal
      problem.

    Raises:
      DataError: no record file, or `splits.json` is malformed.
    """
    return collect(f"android_control_{mode}", _steps(place, mode), check_boxes=False)


def extract_screenshots(place: str | pathlib.Path, folder: str | pathlib.Path) -> int:
    """Writes the screenshots that the items refer to, those of damaged records excepted.

    Args:
      place: as for `read_records_benchmark`.
      folder: made if it is not there; files in it are overwritten.

    Returns:
      How many were written.

    Raises:
      DataError: as in reading.
      OSError: a file cannot be written.
    """
    return write_screenshots(records(pathlib.Path(place), FILES), _save, folder)


def _save(record: Record, where: str, folder: pathlib.Path) -> int:
    episode = _Episode(record, where)
    for step in range(len(episode.actions)):
        (folder / episode.image(step)).write_bytes(episode.features["screenshots"][step])
    return len(episode.actions)


class _Episode:
    """The features of one record, checked to be as many as they must be.

    Raises:
      EntryError: the record is damaged or lacks a feature.
    """

    def __init__(self, record: Record, where: str):
        self.features = features(record, where)
        self.id = str(self._single("episode_id", int))
        self.goal = text(self._single("goal", bytes), "goal")
        self.actions = self._several("actions", bytes)
        screens = len(self.actions) + 1
        for name, kind, count in (
            ("screenshots", bytes, screens),
            ("screenshot_widths", int, screens),
            ("screenshot_heights", int, screens),
            ("accessibility_trees", bytes, screens),
            ("step_instructions", bytes, screens - 1),
        ):
            if len(self._several(name, kind)) != count:
                raise EntryError("bad_field", f"{name} has {len(self.features[name])} values, must have {count}")
        self.told = [text(value, "step_instructions") for value in self.features["step_instructions"]]

    def image(self, step: int) -> str:
        return f"{self.id}_{step}.png"

    def size(self, step: int) -> tuple[int, int]:
        width, height = (self.features[f"screenshot_{side}"][step] for side in ("widths", "heights"))
        if min(width, height) < 1:
            raise EntryError("bad_field", f"the screenshot has {width}x{height} pixels")
        return width, height

    def _several(self, name: str, kind: type) -> list[Any]:
        values = self.features.get(name, [])
        if not all(isinstance(value, kind) for value in values):
            raise EntryError("bad_field", f"{name} must hold values of type {kind.__name__}")
        return values

    def _single(self, name: str, kind: type) -> Any:
        values = self._several(name, kind)
        if len(values) != 1:
            raise EntryError("missing_field", f"{name} has {len(values)} values, must have one")
        return values[0]


def _steps(place: pathlib.Path, mode: str) -> Iterator[tuple[str, Callable[[], Item]]]:
    test = _test_episodes(place)
    for where, record in records(place, FILES):
        try:
            episode = _Episode(record, where)
        except EntryError as error:
            yield where, functools.partial(_fail, error)
            continue
        if test is None or episode.id in test:
            for step in range(len(episode.actions)):
                yield f"{where}.steps[{step}]", functools.partial(_item, episode, step, mode, where)


def _item(episode: _Episode, step: int, mode: str, where: str) -> Item:
    try:
        fields = json.loads(episode.actions[step])
    except (ValueError, RecursionError) as error:
        raise EntryError("bad_field", f"actions[{step}] is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise EntryError("bad_field", f"actions[{step}] must be an object")
    size = episode.size(step)
    action = recorded_action(Entry(pathlib.Path(where), step, fields), size)
    touches = action.kind in ("click", "long_press")
    return Item(
        item_id=f"{episode.id}_{step}",
        instruction=instruction(mode, episode.goal, episode.told[step]),
        target=ActionLabel(action, _boxes(episode.features["accessibility_trees"][step], where) if touches else ()),
        family=DeviceFamily.MOBILE,
        image=episode.image(step),
        size=size,
        facets={"action": str(fields["action_type"]), "episode": episode.id},
        history=tuple(filter(str.strip, episode.told[:step])),
    )


def _boxes(tree: bytes, where: str) -> tuple[Box, ...]:
    try:
        forest = decode(_FOREST, tree, where)
    except DataError as error:
        raise EntryError("bad_field", f"accessibility_trees: {error}") from error
    nodes: Sequence[Any] = [node for window in forest.windows for node in window.tree.nodes]
    boxes = []
    for node in nodes:
        box = node.bounds_in_screen
        reacts = node.is_clickable or node.is_long_clickable or node.is_editable
        if node.is_visible_to_user and reacts and box.left < box.right and box.top < box.bottom:
            boxes.append(Box(box.left, box.top, box.right, box.bottom))
    return tuple(dict.fromkeys(boxes))


def _test_episodes(place: pathlib.Path) -> frozenset[str] | None:
    path = (place if place.is_dir() else place.parent) / SPLITS
    if not path.is_file():
        return None
    try:
        episodes = json.loads(path.read_text())["test"]
        return frozenset(str(int(episode)) for episode in episodes)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: must map 'test' to a list of episode ids: {error!r}") from error


def _fail(error: EntryError) -> Item:
    raise error
