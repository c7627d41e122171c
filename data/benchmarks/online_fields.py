"""Strict access to the fields of a task file: every field is read or refused, and errors name file and field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gui_owl_jax.agent.errors import DataError


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
      DataError: it cannot be read, or is no JSON.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON: {error}") from error


class Fields:
    """The fields of one JSON object; `close` raises for those that nobody asked for.

    Attributes:
      where: file and place in it, for errors.
    """

    def __init__(self, where: str, data: object):
        if not isinstance(data, Mapping):
            raise DataError(f"{where} is {type(data).__name__}, must be an object")
        self.where = where
        self._data = dict(data)

    def __contains__(self, name: str) -> bool:
        return name in self._data

    def take(self, name: str, *kinds: type, default: Any = None) -> Any:
        """A field of one of `kinds`; `default` where it is missing, None for a field that must be there.

        Raises:
          DataError: it is missing or of another type.
        """
        if name not in self._data:
            if default is None:
                raise DataError(f"{self.where}: field {name!r} is missing")
            return default
        value = self._data.pop(name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
            raise DataError(f"{self.where}: field {name!r} is {type(value).__name__}, must be {wanted}")
        return value

    def text(self, name: str) -> str:
        """A string that is not empty."""
        value = self.take(name, str)
        if not value.strip():
            raise DataError(f"{self.where}: field {name!r} is empty")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        values = self.take(name, list)
        if not all(isinstance(value, str) for value in values):
            raise DataError(f"{self.where}: field {name!r} must be a list of strings")
        return tuple(values)

    def close(self) -> None:
        """Raises DataError for fields that are left: the format has none of that name."""
        if self._data:
            raise DataError(f"{self.where}: unknown fields {', '.join(map(repr, sorted(self._data)))}")
