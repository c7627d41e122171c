"""What is left of an episode when it is judged: the agent's last words, and values fetched from its world."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.agent.trajectory import Trajectory
from gui_owl_jax.evals.online.task import Operation, Unsupported

# Fetches the value of an operation: a text, a path or a list of paths, or any JSON value. None: there is nothing (the
# agent made no such file). Raises `Unsupported` for operations that it cannot do.
Getter = Callable[[Operation], object]

SPOKEN = ("answer", "url", "declared")  # operations answered by the `Ending`
FILES = ("vm_file", "cloud_file", "cache_file")
OUTPUTS = ("vm_command_line", "vm_terminal_output", "list_directory")
RECORDED = frozenset({"rule", *SPOKEN, *FILES, *OUTPUTS})  # what `Recording` can tell without a live world


@dataclasses.dataclass(frozen=True)
class Ending:
    """How an episode ended.

    Attributes:
      declared: "success" or "failure" where the agent ended it itself (an answer counts as "success"), else "".
      answer: text of its last answer, "" for none.
      url: address of the page that was open at the end, "" where there is no browser.
    """

    declared: str = ""
    answer: str = ""
    url: str = ""


def ending_of(trajectory: Trajectory, url: str = "") -> Ending:
    """Reads the ending off the trajectory's last action; `url` is what only the world knows.

    An OSWorld `FAIL` is `terminate(failure)` here. Answers given on the way stay valid: the desktop family may answer
    and then terminate.
    """
    actions = [step.action for step in trajectory.steps]
    answers = [action.text or "" for action in actions if action is not None and action.kind == "answer"]
    last = actions[-1] if actions else None
    declared = ""
    if last is not None and last.kind == "terminate":
        declared = last.status or ""
    elif last is not None and last.kind == "answer":
        declared = "success"
    return Ending(declared, answers[-1] if answers else "", url)


@dataclasses.dataclass(frozen=True)
class Recording:
    """A getter that answers from files and outputs that were stored when the episode ended.

    Attributes:
      ending: of the episode.
      folder: where fetched and expected files lie under the names ("dest") that the task gives them; None without.
      outputs: `Operation.key` -> what a command printed, or a listing showed.
    """

    ending: Ending = Ending()
    folder: Path | None = None
    outputs: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def __call__(self, operation: Operation) -> object:
        """The value of an operation.

        Raises:
          Unsupported: it takes a live world, or was not recorded.
          DataError: its arguments are malformed, or an expected file is missing.
        """
        kind = operation.kind
        if kind == "rule":
            return operation.arguments.get("rules")
        if kind in SPOKEN:
            return getattr(self.ending, kind)
        if kind in FILES and self.folder is not None:
            return self._files(operation)
        if operation.key in self.outputs:
            return self.outputs[operation.key]
        raise Unsupported(kind, "it was not recorded, and there is no live world to ask")

    def _files(self, operation: Operation) -> object:
        """Paths in the folder; with "multi" those whose places "gives" lists, a single one not as a list."""
        where, arguments = f"operation {operation.kind}", operation.arguments
        names = arguments.get("path" if operation.kind == "cache_file" else "dest")
        if not arguments.get("multi"):
            return self._path(where, names, operation.kind)
        gives = arguments.get("gives", [0])
        if not isinstance(names, list) or not isinstance(gives, list):
            raise DataError(f"{where}: with multi, 'dest' and 'gives' must be lists")
        if not all(type(index) is int and 0 <= index < len(names) for index in gives):
            raise DataError(f"{where}: 'gives' is {gives}, must name places of {len(names)} files")
        paths = [self._path(where, names[index], operation.kind) for index in gives]
        return paths[0] if len(paths) == 1 else paths

    def _path(self, where: str, name: object, kind: str) -> str | None:
        if not isinstance(name, str) or not name or Path(name).is_absolute() or ".." in Path(name).parts:
            raise DataError(f"{where}: {name!r} is no name of a file in the recording's folder")
        assert self.folder is not None
        path = self.folder / name
        if path.is_file():
            return str(path)
        if kind == "cloud_file":
            raise DataError(f"{where}: the expected file {path} is missing; fetch it before the task is judged")
        return None
