"""Writing small files whole or not at all, and reading JSON with errors that name the file and the field."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gui_owl_jax.agent.errors import CheckpointError


def write_text(path: Path, text: str) -> None:
    """Writes `text` as UTF-8 under a temporary name and renames it, so that no reader sees half a file."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes `content` as indented JSON, whole or not at all."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
      CheckpointError: the file is missing, unreadable, or holds something else than an object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as e:
        raise CheckpointError(f"{path} is missing") from e
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as e:
        raise CheckpointError(f"{path} is not readable JSON: {e}") from e
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a JSON {type(content).__name__}, expected an object")
    return content


@dataclasses.dataclass(frozen=True)
class Section:
    """An object of a JSON file. What is read from it is checked; every error names the file and the field.

    Attributes:
      content: the parsed object.
      place: the file's name, and below the top level the object's.

    Raises:
      CheckpointError: by every method, when the field is missing or malformed.
    """

    content: Mapping[str, Any]
    place: str

    def section(self, name: str) -> Section:
        """An object inside this one."""
        found = self._get(name)
        if not isinstance(found, Mapping):
            raise self._malformed(name, "an object")
        return Section(found, f"{self.place}: {name}")

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number; `default` where the field is absent, as in the other methods."""
        found = self._get(name, default)
        if not isinstance(found, int) or isinstance(found, bool):
            raise self._malformed(name, "a whole number")
        return found

    def number(self, name: str, default: float | None = None) -> float:
        """A number."""
        found = self._get(name, default)
        if not isinstance(found, int | float) or isinstance(found, bool):
            raise self._malformed(name, "a number")
        return float(found)

    def wholes(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers."""
        found = self._get(name)
        if not isinstance(found, list | tuple) or not all(type(item) is int for item in found):
            raise self._malformed(name, "a list of whole numbers")
        return tuple(found)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        found = self._get(name, default)
        if not isinstance(found, bool):
            raise self._malformed(name, "true or false")
        return found

    def check(self, fixed: Mapping[str, Any]) -> None:
        """Lets fields be absent, null, or equal to `fixed`; any other value is one that is not implemented."""
        for name, value in fixed.items():
            found = self.content.get(name)
            if found is not None and found != value:
                raise CheckpointError(f"{self.place}: {name} is {found!r}; only {value!r} is implemented")

    def _get(self, name: str, default: Any = None) -> Any:
        found = self.content.get(name, default)
        if name not in self.content and default is None:
            raise CheckpointError(f"{self.place} lacks the field {name!r}")
        return found

    def _malformed(self, name: str, expected: str) -> CheckpointError:
        found = self.content[name]
        return CheckpointError(f"{self.place} has a malformed field: {name} is {found!r}, expected {expected}")
