"""Raw answers that others published, as the `Answer`s of a benchmark's items: they are scored without a model."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable, Mapping

from gui_owl_jax.agent.errors import ConfigError, DataError
from gui_owl_jax.evals.answers import read_answers
from gui_owl_jax.evals.benchmark import Answer, Benchmark, Item, Look


def read_mai_ui(path: pathlib.Path, benchmark: Benchmark) -> list[Answer]:
    """Reads MAI-UI's `output_server/*.jsonl`: a row an item, with its `id` and `raw_response`.

    The rows do not tell what the model was shown; MAI-UI's points are relative, so that the whole image in its own
    pixels stands for it. The verdicts beside the responses are not looked at.

    Args:
      path: of the file.
      benchmark: whose items the rows answer.

    Raises:
      DataError: the file cannot be read, a row is malformed or answers no item, or an item's size is not declared.
    """
    items = {item.item_id: item for item in benchmark.items}
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # responses may hold other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: {error}") from error
    return [
        _mai_ui_answer(f"{path}: line {number}", line, items) for number, line in enumerate(lines, 1) if line.strip()
    ]


def _mai_ui_answer(where: str, line: str, items: Mapping[str, Item]) -> Answer:
    try:
        row = json.loads(line)
        name, response = row["id"], row["raw_response"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{where}: no row with id and raw_response: {type(error).__name__}: {error}") from error
    if not isinstance(response, str):
        raise DataError(f"{where}: raw_response is {type(response).__name__}, must be a string")
    item = items.get(name) if isinstance(name, str) else None
    if item is None:
        raise DataError(f"{where}: id {name!r} is no item of the benchmark")
    if item.size is None:
        raise DataError(f"{where}: the benchmark does not declare the size of {item.image!r}")
    width, height = item.size
    return Answer(name, (Look(response, (0.0, 0.0, float(width), float(height)), (width, height)),))


def _own(path: pathlib.Path, benchmark: Benchmark) -> list[Answer]:
    del benchmark
    return read_answers(path)[1]


FORMATS: Mapping[str, Callable[[pathlib.Path, Benchmark], list[Answer]]] = {"own": _own, "mai_ui": read_mai_ui}


def read(form: str, path: str | os.PathLike, benchmark: Benchmark) -> list[Answer]:
    """Reads answers in the format `form`, a key of `FORMATS`.

    Raises:
      ConfigError: the format is unknown.
      DataError: the file is missing or malformed, or does not belong to the benchmark.
    """
    if form not in FORMATS:
        raise ConfigError(f"answers_format is {form!r}, must be one of {', '.join(FORMATS)}")
    return FORMATS[form](pathlib.Path(path), benchmark)
