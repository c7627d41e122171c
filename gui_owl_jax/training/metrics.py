"""Metrics of a run: `metrics.jsonl`, which a resumed run reproduces byte for byte, and TensorBoard event files.

A line of `metrics.jsonl` is `{"step": 7, "loss": 0.5, ...}`, the step first and the other names sorted. Nothing in it
depends on the clock; timings go to TensorBoard alone. Write the metrics of a step before its checkpoint: what is in
the file up to a restored step is then complete.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from gui_owl_jax.agent.errors import DataError

FILE_NAME = "metrics.jsonl"


class MetricsWriter:
    """Appends to the metrics of one folder. Only one process may write (process 0 of a run)."""

    def __init__(self, folder: str | Path, *, tensorboard: bool = True):
        """Opens the folder; a last line torn by a killed writer is cut off."""
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / FILE_NAME
        self._repair()
        self._file: TextIO = self.path.open("a", encoding="utf-8")
        self._tensorboard = tensorboard
        self._events: EventsWriter | None = None
        self._event_files = 0
        self._purge_step: int | None = None

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def write(self, step: int, metrics: Mapping[str, Any], timings: Mapping[str, Any] | None = None) -> None:
        """Appends one line and the TensorBoard scalars.

        Args:
          step: the training step the numbers belong to.
          metrics: name to number, boolean or string (scalars of numpy and jax do); a number that is not finite becomes
            null in the file.
          timings: seconds, rates and whatever else the clock decides; TensorBoard only.
        """
        values = {name: _plain(value, name) for name, value in metrics.items()}
        line = {"step": int(step)} | {name: _finite(values[name]) for name in sorted(values)}
        # One write call and a flush: a killed process leaves whole lines, or one torn at the end.
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        if self._tensorboard:
            values |= {name: _plain(value, name) for name, value in (timings or {}).items()}
            scalars = {name: float(value) for name, value in values.items() if not isinstance(value, str | None)}
            summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()])
            self._open_events().write_event(Event(step=int(step), wall_time=time.time(), summary=summary))

    def truncate_after(self, step: int) -> None:
        """Drops the lines of later steps, as a run resumed from `step` writes them again."""
        self._file.close()
        kept = [json.dumps(line, allow_nan=False) + "\n" for line in read_metrics(self.folder) if line["step"] <= step]
        _replace(self.path, "".join(kept))
        self._file = self.path.open("a", encoding="utf-8")
        if self._events is not None:
            self._events.close()
            self._events = None
        self._purge_step = step + 1  # TensorBoard hides what older event files say from there on

    def flush(self) -> None:
        """Forces all lines onto the disk; call it before a checkpoint is saved."""
        self._file.flush()
        os.fsync(self._file.fileno())
        if self._events is not None:
            self._events.flush()

    def close(self) -> None:
        """Closes the files."""
        self._file.close()
        if self._events is not None:
            self._events.close()

    def _open_events(self) -> EventsWriter:
        # tensorboardX's SummaryWriter costs a millisecond a step and a thread; its file writer does neither.
        if self._events is None:
            self._event_files += 1  # names hold the second of their making: two of one second must not meet
            self._events = EventsWriter(str(self.folder / "events"), f".{os.getpid()}.{self._event_files}")
            if self._purge_step is not None:
                start = SessionLog(status=SessionLog.START)
                self._events.write_event(Event(step=self._purge_step, wall_time=time.time(), session_log=start))
        return self._events

    def _repair(self) -> None:
        if not self.path.exists():
            return
        whole, newline, torn = self.path.read_text("utf-8", errors="replace").rpartition("\n")
        if torn:
            _replace(self.path, whole + newline)


def read_metrics(folder: str | Path) -> Iterator[dict[str, Any]]:
    """Yields the lines of a folder's `metrics.jsonl` in order; a torn last line is left out.

    Raises:
      DataError: when the file is missing, or a line is not a JSON object with a step; names the file and the line.
    """
    path = Path(folder) / FILE_NAME
    if not path.exists():
        raise DataError(f"{path} does not exist")
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, text in enumerate(file, start=1):
            if not text.endswith("\n"):
                return
            try:
                line = json.loads(text)
                line["step"] = int(line["step"])
            except (ValueError, TypeError, KeyError) as error:
                raise DataError(f"{path}, line {number}: not a line of metrics: {text[:80]!r}") from error
            yield line


def _plain(value: Any, name: str) -> bool | int | float | str | None:
    """Turns scalars of numpy and jax into Python's; float32 keeps its short decimal form (0.1, not 0.10000000149)."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    array = np.asarray(value)
    if array.ndim:
        raise DataError(f"metric {name}: wanted a scalar, got an array of shape {array.shape}")
    if np.issubdtype(array.dtype, np.floating) or array.dtype.name == "bfloat16":
        return float(str(array.astype(np.float32) if array.dtype.itemsize < 4 else array[()]))
    return array.item()


def _finite(value: bool | int | float | str | None) -> bool | int | float | str | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _replace(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, "utf-8")
    temporary.replace(path)
