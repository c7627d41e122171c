"""Reading annotation files: typed access to the fields of an entry, and one problem for each malformed entry."""

from __future__ import annotations

import enum
import functools
import json
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from data.benchmarks.lint import lint
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.benchmark import Benchmark, Box, Item, Polygon, Problem


class EntryError(Exception):
    """An entry is no item; `kind` is that of the `Problem` which it becomes."""

    def __init__(self, kind: str, detail: str):
        super().__init__(detail)
        self.kind = kind


class BoxForm(enum.Enum):
    """What the four numbers of a box mean. Each format declares its own: the numbers alone do not tell."""

    XYWH = "left, top, width, height in pixels"
    XYXY = "left, top, right, bottom in pixels"
    NORMALISED = "left, top, right, bottom as shares of width and height"


class Entry:
    """One entry of an annotation file.

    The readers of fields raise `EntryError` for a field that is missing or of another type.

    Attributes:
      path: of the file.
      index: position in the file, from 0.
      fields: as they stand in the file.
    """

    def __init__(self, path: pathlib.Path, index: int, fields: Mapping[str, Any]):
        self.path = path
        self.index = index
        self.fields = fields

    def _field(self, name: str) -> Any:
        if name not in self.fields:
            raise EntryError("missing_field", f"{name} is missing")
        return self.fields[name]

    def text(self, name: str) -> str:
        """A string that is not blank."""
        value = self._field(name)
        if not isinstance(value, str) or not value.strip():
            raise EntryError("bad_field", f"{name} is {value!r:.80}, must be a string")
        return value

    def texts(self, name: str) -> list[str]:
        """A list of strings."""
        value = self._field(name)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise EntryError("bad_field", f"{name} is {value!r:.80}, must be a list of strings")
        return value

    def numbers(self, name: str) -> list[float]:
        """A list of finite numbers."""
        value = self._field(name)
        if not isinstance(value, list) or not all(_is_number(each) for each in value):
            raise EntryError("bad_field", f"{name} is {value!r:.80}, must be a list of finite numbers")
        return [float(each) for each in value]

    def size(self, name: str) -> tuple[int, int]:
        """(width, height) in whole pixels."""
        value = self.numbers(name)
        if len(value) != 2 or min(value) < 1 or any(each % 1 for each in value):
            raise EntryError("bad_field", f"{name} is {value}, must be a width and a height in whole pixels")
        return int(value[0]), int(value[1])

    def facets(self, **fields: str) -> dict[str, str]:
        """facet -> text of the field that is named for it; a field that is absent or blank gives no facet."""
        values = {facet: self.fields.get(name) for facet, name in fields.items()}
        return {facet: value for facet, value in values.items() if isinstance(value, str) and value.strip()}

    def box(self, name: str, form: BoxForm, size: tuple[int, int] | None = None) -> Box:
        """A box in pixels; `size` is that of the image, needed by NORMALISED alone."""
        value = self.numbers(name)
        if len(value) != 4:
            raise EntryError("bad_box", f"{name} has {len(value)} numbers, must have 4 ({form.value})")
        left, top, third, fourth = value
        if form is BoxForm.XYWH:
            return Box(left, top, left + third, top + fourth)
        if form is BoxForm.NORMALISED:
            if size is None:
                raise EntryError("missing_field", f"{name} has shares of an image whose size is not declared")
            if not all(0 <= each <= 1 for each in value):
                raise EntryError("bad_box", f"{name} is {value}, must have shares between 0 and 1")
            return Box(left * size[0], top * size[1], third * size[0], fourth * size[1])
        return Box(*value)

    def polygon(self, name: str) -> Polygon:
        """A polygon from x and y of each vertex in turn, at least three."""
        value = self.numbers(name)
        if len(value) < 6 or len(value) % 2:
            raise EntryError(
                "bad_polygon", f"{name} has {len(value)} numbers, must have x, y of three or more vertices"
            )
        return Polygon(tuple(zip(value[::2], value[1::2])))


def read_benchmark(name: str, paths: Iterable[pathlib.Path], make: Callable[[Entry], Item]) -> Benchmark:
    """Reads JSON files that each hold a list of entries.

    Args:
      name: of the benchmark.
      paths: in the order in which their items come.
      make: makes the item of an entry; raises `EntryError` where it is none.

    Returns:
      The items; a fatal problem for each entry that is malformed or has the id of an earlier one; what `lint` finds.

    Raises:
      DataError: a file cannot be read, is not JSON, or holds no list; names it.
    """

    def item(path: pathlib.Path, index: int, fields: object) -> Item:
        if not isinstance(fields, dict):
            raise EntryError("bad_entry", f"the entry is {type(fields).__name__}, must be an object")
        return make(Entry(path, index, fields))

    entries = (
        (f"{path.name}[{index}]", functools.partial(item, path, index, fields))
        for path in paths
        for index, fields in enumerate(_entries(path))
    )
    items, problems = make_items(entries)
    return Benchmark(name, items, (*problems, *lint(items)))


def make_items(entries: Iterable[tuple[str, Callable[[], Item]]]) -> tuple[tuple[Item, ...], list[Problem]]:
    """Makes items, and a fatal problem for each entry that is none or has the id of an earlier one.

    Args:
      entries: where each entry stands ("file[3]"), and what makes its item or raises `EntryError`.
    """
    items: dict[str, Item] = {}
    problems: list[Problem] = []
    for where, make in entries:
        try:
            item = make()
            if item.item_id in items:
                raise EntryError("duplicate_id", f"{item.item_id!r} is the id of an earlier entry")
            items[item.item_id] = item
        except EntryError as error:
            problems.append(Problem(where, error.kind, str(error), fatal=True))
    return tuple(items.values()), problems


def annotation_files(place: pathlib.Path, names: Sequence[str]) -> list[pathlib.Path]:
    """The annotation files of a benchmark that comes as several.

    Args:
      place: their folder, or one of them.
      names: glob patterns of their names.

    Returns:
      All files in the folder that match, by the pattern's place and then by name.

    Raises:
      DataError: there is none.
    """
    if place.is_file():
        return [place]
    found = list(dict.fromkeys(path for name in names for path in sorted(place.glob(name))))
    if not found:
        raise DataError(f"{place}: no annotation file; {', '.join(names)} should be there")
    return found


def annotation_file(place: pathlib.Path, name: str) -> pathlib.Path:
    """The one annotation file of a benchmark.

    Args:
      place: its folder, or the file itself.
      name: glob pattern of its name.

    Raises:
      DataError: there is none, or several.
    """
    found = annotation_files(place, [name])
    if len(found) > 1:
        raise DataError(f"{place}: {', '.join(path.name for path in found)} all match {name}: give the path of one")
    return found[0]


def _entries(path: pathlib.Path) -> list[Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a JSON file: {error}") from error
    if not isinstance(value, list):
        raise DataError(f"{path}: holds {type(value).__name__}, must hold a list of entries")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
