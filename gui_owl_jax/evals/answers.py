"""Raw answers on disk: JSON lines that a killed evaluation appends to, and that can be scored again by any rule.

The first line of a file is a header with everything that the answers depend on; every further line is an `Answer`. A
line counts once it ends with its newline: what a kill leaves behind the last one is cut off when writing goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gui_owl_jax.agent.errors import ConfigError, DataError
from gui_owl_jax.evals.benchmark import Answer, Look

FORMAT = "gui_owl_jax answers 1"


class AnswerStore:
    """The answers of one process of an evaluation, together with those that others wrote before.

    Use it as a context manager. What is appended is on the disk when `append` returns.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        settings: Mapping[str, Any],
        *,
        others: Sequence[str | os.PathLike] = (),
        retry_failed: bool = False,
    ):
        """Opens a file for appending, or starts it.

        Args:
          path: of the file.
          settings: what the answers depend on, anything that JSON holds.
          others: further files of the same evaluation, whose items need not be asked again.
          retry_failed: treat items that could not be asked as if they had no answer yet. The new answer stands behind
            the old one and replaces it.

        Raises:
          ConfigError: a file holds answers that were given under other settings.
          DataError: a file is damaged.
        """
        self.path, self.settings = Path(path), json.loads(json.dumps(settings))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole = _cut_torn_line(self.path)
        own = [self.path] if whole else []
        found: list[Answer] = []
        for file in [*own, *map(Path, others)]:
            stored, answers = _read_lines(file)
            if stored is not None:
                _check_settings(file, stored, self.settings)
            found += answers
        self.answers = _latest(self.path, found)
        if retry_failed:
            self.answers = {name: answer for name, answer in self.answers.items() if not answer.failure}
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115
        if not whole:
            self._write([{"format": FORMAT, "settings": self.settings}])

    def __enter__(self) -> AnswerStore:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __contains__(self, item_id: str) -> bool:
        return item_id in self.answers

    def append(self, answers: Sequence[Answer]) -> None:
        """Adds answers and waits until they are on the disk.

        Raises:
          DataError: an item has an answer already; nothing is written.
        """
        names = [answer.item_id for answer in answers]
        twice = [name for i, name in enumerate(names) if name in self.answers or name in names[:i]]
        if twice:
            raise DataError(f"{self.path}: item {twice[0]!r} has an answer already")
        self._write([answer_to_json(answer) for answer in answers])
        self.answers |= {answer.item_id: answer for answer in answers}

    def _write(self, values: Iterable[Mapping[str, Any]]) -> None:
        self._file.write("".join(f"{json.dumps(value)}\n" for value in values))
        self._file.flush()
        os.fsync(self._file.fileno())


def read_answers(path: str | os.PathLike) -> tuple[dict[str, Any], list[Answer]]:
    """Reads a file of answers.

    Returns:
      The settings of its header, and the answers, one an item, in the order of the file.

    Raises:
      DataError: the file is missing or damaged.
    """
    settings, answers = _read_lines(Path(path))
    if settings is None:
        raise DataError(f"{path}: no whole first line; it must hold the format and settings of the answers")
    return settings, list(_latest(Path(path), answers).values())


def write_answers(path: str | os.PathLike, settings: Mapping[str, Any], answers: Iterable[Answer]) -> None:
    """Writes a whole file of answers under a temporary name and renames it."""
    path = Path(path)
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with AnswerStore(part, settings) as store:
        store.append(list(answers))
    part.replace(path)


def answer_to_json(answer: Answer) -> dict[str, Any]:
    """An answer as JSON holds it."""
    looks = [{"response": look.response, "window": look.window, "shown": look.shown} for look in answer.looks]
    return {"item_id": answer.item_id, "looks": looks, "size": answer.size, "failure": answer.failure}


def answer_from_json(value: Any, where: str) -> Answer:
    """The inverse of `answer_to_json`.

    Raises:
      DataError: a field is missing or malformed; the message begins with `where`.
    """
    try:
        looks = tuple(
            Look(_text(look["response"]), _numbers(look["window"], 4, float), _numbers(look["shown"], 2, int))
            for look in value["looks"]
        )
        size = None if value["size"] is None else _numbers(value["size"], 2, int)
        return Answer(_text(value["item_id"]), looks, size, _text(value["failure"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{where}: no answer: {type(error).__name__}: {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} must be a string")
    return value


def _numbers(value: Any, count: int, kind: type) -> Any:
    if not isinstance(value, list | tuple) or len(value) != count or any(isinstance(v, bool | str) for v in value):
        raise TypeError(f"{value!r:.80} must be a list of {count} numbers")
    return tuple(kind(v) for v in value)


def _latest(path: Path, answers: Iterable[Answer]) -> dict[str, Answer]:
    """One answer an item: where it was asked again after a failure, the one that did not fail, else the last.

    An answer may stand in several files, as those of processes are put together in one.
    """
    found: dict[str, Answer] = {}
    for answer in answers:
        before = found.get(answer.item_id)
        if before is not None and not before.failure and not answer.failure and before != answer:
            raise DataError(f"{path}: item {answer.item_id!r} has two answers")
        if before is None or before.failure:
            found[answer.item_id] = answer
    return found


def _read_lines(path: Path) -> tuple[dict[str, Any] | None, list[Answer]]:
    """(settings, answers) of the whole lines of a file; (None, []) where not even the first one is whole."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise DataError(f"{path}: {error}") from error
    if not lines:
        return None, []
    values = []
    for number, line in enumerate(lines, 1):
        try:
            values.append(json.loads(line))
        except ValueError as error:
            raise DataError(f"{path}: line {number} is not JSON: {error}") from error
    head = values[0]
    if not isinstance(head, dict) or head.get("format") != FORMAT or not isinstance(head.get("settings"), dict):
        raise DataError(f"{path}: line 1 must hold the format {FORMAT!r} and the settings of the answers")
    answers = [answer_from_json(value, f"{path}: line {number}") for number, value in enumerate(values[1:], 2)]
    return head["settings"], answers


def _cut_torn_line(path: Path) -> bool:
    """Cuts off what stands behind the last newline; returns whether a line is left."""
    if not path.exists():
        return False
    with open(path, "r+b") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)
    return b"\n" in content


def _check_settings(path: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in sorted({*stored, *wanted}):
        if stored.get(name) != wanted.get(name):
            raise ConfigError(
                f"{path} holds answers with {name} = {stored.get(name)!r}, now it is {wanted.get(name)!r}: "
                "go on with the former settings, or start in another folder"
            )
