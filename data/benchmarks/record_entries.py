"""Benchmarks that come as TFRecords: records as entries, damaged ones among them, and the screenshots inside."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from data.benchmarks.entries import EntryError, annotation_files
from data.benchmarks.tfrecord import parse_example, read_records
from gui_owl_jax.agent.errors import DataError

Record = bytes | DataError  # an error stands in place of a damaged record


def records(place: pathlib.Path, names: Sequence[str]) -> Iterator[tuple[str, Record]]:
    """Each record with where it stands, "file[3]"; see `annotation_files` and `read_records`.

    Raises:
      DataError: no record file.
    """
    for path in annotation_files(place, names):
        for index, record in enumerate(read_records(path)):
            yield f"{path.name}[{index}]", record


def features(record: Record, where: str) -> dict[str, list]:
    """The features of a record; raises `EntryError` for a damaged one."""
    if isinstance(record, DataError):
        raise EntryError("damaged_record", str(record))
    try:
        return parse_example(record, where)
    except DataError as error:
        raise EntryError("damaged_record", str(error)) from error


def text(value: bytes, name: str) -> str:
    """A feature's bytes as text; raises `EntryError` where they are not UTF-8."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EntryError("bad_field", f"{name} is not UTF-8: {error}") from error


def write_screenshots(
    entries: Iterable[tuple[str, Record]],
    save: Callable[[Record, str, pathlib.Path], int],
    folder: str | pathlib.Path,
) -> int:
    """Writes the screenshots of records, those of damaged ones excepted (reading reports them).

    Args:
      entries: of `records`.
      save: writes those of one record into the folder and says how many; raises `EntryError` for a damaged one.
      folder: made if it is not there; files in it are overwritten.

    Returns:
      How many were written.

    Raises:
      OSError: a file cannot be written.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    for where, record in entries:
        try:
            written += save(record, where, folder)
        except EntryError:
            continue
    return written
