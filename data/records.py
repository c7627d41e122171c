"""Records of named values, images and arrays in sharded ArrayRecord files.

A record is one JSON header followed by binary blobs that the header refers to:

    b"GOWL" | uint32 length of the header | header (UTF-8 JSON) | blob 0 | blob 1 | ...
    header = {"kind": ..., "version": 1, "blobs": [size, ...], "body": {...}}
    an image in the body: {"png": blob};  an array: {"blob": blob, "dtype": "int32", "shape": [17]}

A set of files is named `<prefix>-00002-of-00005.arrayrecord`; record i lies in shard i modulo the number of
shards, so a stream of unknown length is written at once and read back in its order. Files are written under a
temporary name (`.tmp` appended) and renamed when whole, so a killed writer leaves only whole files.
"""

from __future__ import annotations

import contextlib
import glob
import io
import json
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from PIL import Image

from gui_owl_jax.agent.errors import DataError

SUFFIX = ".arrayrecord"
VERSION = 1
_MAGIC = b"GOWL"
_FRONT = struct.Struct("<4sI")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})" + re.escape(SUFFIX) + "$")


class RecordEncoder:
    """Gathers the blobs of one record while its body is built."""

    def __init__(self):
        self._blobs: list[bytes] = []

    def array(self, array: np.ndarray) -> dict[str, object]:
        """Stores an array; returns the reference to put into the body."""
        array = np.ascontiguousarray(array)
        self._blobs.append(array.tobytes())
        return {"blob": len(self._blobs) - 1, "dtype": array.dtype.str, "shape": list(array.shape)}

    def image(self, image: np.ndarray) -> dict[str, object]:
        """Stores a uint8 image [H, W, 3] as PNG (lossless); returns the reference to put into the body."""
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG", compress_level=3)
        self._blobs.append(buffer.getvalue())
        return {"png": len(self._blobs) - 1}

    def record(self, kind: str, body: object) -> bytes:
        """Returns the whole record.

        Raises:
          TypeError, ValueError: the body holds something that JSON cannot.
        """
        sizes = [len(blob) for blob in self._blobs]
        header = {"kind": kind, "version": VERSION, "blobs": sizes, "body": body}
        text = json.dumps(header, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        return b"".join([_FRONT.pack(_MAGIC, len(text)), text, *self._blobs])


class RecordDecoder:
    """Reads one record.

    Args:
      record: the bytes that `RecordEncoder.record` returned.
      kind: the kind it must have.
      place: file and record, named in errors.

    Raises:
      DataError: these are not the bytes of a record of that kind.
    """

    def __init__(self, record: bytes, kind: str, place: str):
        self._place = place
        with self.explained():
            magic, length = _FRONT.unpack_from(record)
            if magic != _MAGIC:
                raise ValueError("it was not written by this project (wrong first bytes)")
            header = json.loads(record[_FRONT.size : _FRONT.size + length])
            if header["version"] != VERSION:
                raise ValueError(f"format version {header['version']}, this code reads {VERSION}")
            if header["kind"] != kind:
                raise ValueError(f"it is a {header['kind']!r} record, not {kind!r}")
            self.body = header["body"]
            self._blobs: list[memoryview] = []
            start = _FRONT.size + length
            for size in header["blobs"]:
                self._blobs.append(memoryview(record)[start : start + size])
                start += size
            if start != len(record):
                raise ValueError(f"it has {len(record)} bytes, its header says {start}")

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turns any error of reading into a `DataError` that names the place."""
        try:
            yield
        except KeyError as error:
            raise DataError(f"{self._place}: the field {error} is missing") from error
        except Exception as error:
            raise DataError(f"{self._place}: {error}") from error

    def array(self, reference: dict) -> np.ndarray:
        """Returns the array behind a reference."""
        array = np.frombuffer(self._blobs[reference["blob"]], np.dtype(reference["dtype"]))
        return array.reshape(reference["shape"]).copy()

    def image(self, reference: dict) -> np.ndarray:
        """Returns the uint8 image [H, W, 3] behind a reference."""
        with Image.open(io.BytesIO(self._blobs[reference["png"]])) as image:
            return np.array(image.convert("RGB"))


def shard_paths(prefix: str | Path) -> list[Path]:
    """Returns the files of a set in order.

    Raises:
      DataError: there are none, some are missing, or files of several sets lie side by side.
    """
    paths = sorted(Path(path) for path in glob.glob(f"{glob.escape(str(prefix))}-*-of-*{SUFFIX}"))
    found = [(path, match) for path in paths if (match := _SHARD.fullmatch(path.name[len(Path(prefix).name) :]))]
    if not found:
        raise DataError(f"there are no files {prefix}-*-of-*{SUFFIX}")
    counts = {int(match[2]) for _, match in found}
    if len(counts) > 1:
        raise DataError(f"files of several sets begin with {prefix}: of {sorted(counts)} shards; remove the stale ones")
    missing = set(range(counts.pop())) - {int(match[1]) for _, match in found}
    if missing:
        raise DataError(f"shards {sorted(missing)} of {prefix} are missing; was its writer stopped? Write it again")
    return [path for path, _ in found]


def write_records(prefix: str | Path, records: Iterable[bytes], shards: int = 1) -> list[Path]:
    """Writes a set of files, replacing an earlier set of the same prefix.

    Args:
      prefix: folder and first part of the file names; the folder is made if it is missing.
      records: what to write, consumed as a stream.
      shards: number of files.

    Returns:
      The paths in order. If anything fails, no file of the new set is left.

    Raises:
      DataError: `shards` is below 1.
    """
    if shards < 1:
        raise DataError(f"shards is {shards}, must be at least 1")
    prefix = Path(prefix)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    paths = [prefix.with_name(f"{prefix.name}-{i:05d}-of-{shards:05d}{SUFFIX}") for i in range(shards)]
    temporary = [path.with_name(path.name + ".tmp") for path in paths]
    try:
        with contextlib.ExitStack() as stack:
            writers = []
            for path in temporary:
                writers.append(ArrayRecordWriter(str(path), "group_size:1"))
                stack.callback(writers[-1].close)
            for i, record in enumerate(records):
                writers[i % shards].write(record)
        for path in temporary:
            _flush_to_disk(path)
    except BaseException:
        for path in temporary:
            path.unlink(missing_ok=True)
        raise
    for source, target in zip(temporary, paths, strict=True):
        os.replace(source, target)
    for path in prefix.parent.glob(f"{glob.escape(prefix.name)}-*-of-*{SUFFIX}"):
        if path not in paths and _SHARD.fullmatch(path.name[len(prefix.name) :]):
            path.unlink()  # an earlier set with another number of shards
    return paths


def _flush_to_disk(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


class RecordSource:
    """The records of a set of files, by index; can be pickled and used from several threads.

    Args:
      paths: a prefix, or the files of a set in order.

    Raises:
      DataError: a file is missing, truncated, or no ArrayRecord file, or the files do not belong together.
    """

    def __init__(self, paths: str | Path | Sequence[str | Path]):
        self.paths = shard_paths(paths) if isinstance(paths, str | Path) else [Path(path) for path in paths]
        self._open()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> bytes:
        """Returns record `index`.

        Raises:
          IndexError: there is no such record.
          DataError: it is damaged.
        """
        if not 0 <= index < self._length:
            raise IndexError(f"record {index} of {self._length}")
        shard, row = index % len(self.paths), index // len(self.paths)
        try:
            (record,) = self._readers[shard].read([row])
        except (RuntimeError, ValueError) as error:
            raise DataError(f"{self.place(index)}: damaged ({error})") from error
        return record

    def place(self, index: int) -> str:
        """Returns file and record number of record `index`, for an error message."""
        return f"{self.paths[index % len(self.paths)]}, record {index // len(self.paths)}"

    def __getstate__(self):
        return self.paths

    def __setstate__(self, paths):
        self.paths = paths
        self._open()

    def _open(self) -> None:
        if not self.paths:
            raise DataError("no files were given")
        self._readers = []
        for path in self.paths:
            if not path.is_file():
                raise DataError(f"{path}: there is no such file")
            reader = ArrayRecordReader(str(path))
            if not reader.ok():
                raise DataError(f"{path}: truncated, damaged, or not an ArrayRecord file")
            self._readers.append(reader)
        counts = [reader.num_records() for reader in self._readers]
        self._length = sum(counts)
        expected = [len(range(shard, self._length, len(counts))) for shard in range(len(counts))]
        if counts != expected:
            raise DataError(f"{self.paths[0].parent}: shards hold {counts} records, a whole set would {expected}")
