"""OSWorld's task files (`evaluation_examples/examples/<domain>/<id>.json`), one task a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.benchmarks.online_fields import Fields, read_json
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.online.task import JOINS, Check, Evaluation, OnlineTask, Operation

_DETAILS = {"snapshot": str, "source": str, "proxy": bool, "fixed_ip": bool, "possibility_of_env_change": str}


def read_osworld(path: Path) -> tuple[OnlineTask, ...]:
    """Reads one task file, or all of a folder and its domains' folders in the order of their names.

    `test_*.json` (lists of ids by domain) are left aside. Every file of the release has the same fields; `config` is
    absent where nothing is set up.

    Raises:
      DataError: there is none, or one is malformed; names file and field.
    """
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*.json") if not p.name.startswith("test_"))
    if not files:
        raise DataError(f"{path}: no OSWorld task file (<domain>/<id>.json) below it")
    return tuple(_task(file) for file in files)


def read_osworld_ids(path: Path) -> dict[str, tuple[str, ...]]:
    """Reads a list of the tasks that make up a benchmark (`test_all.json`): domain -> ids.

    Raises:
      DataError: it is malformed.
    """
    fields = Fields(str(path), read_json(path))
    return {domain: fields.texts(domain) for domain in read_json(path)}


def _task(file: Path) -> OnlineTask:
    fields = Fields(str(file), read_json(file))
    task_id = fields.text("id")
    if task_id != file.stem:
        raise DataError(f"{file}: field 'id' is {task_id!r}, must be the file's name")
    fields.take("trajectory", str)  # where the release keeps recordings: nothing for us
    details = {name: fields.take(name, kind) for name, kind in _DETAILS.items()}
    evaluation = _evaluation(Fields(f"{file}: evaluator", fields.take("evaluator", dict)))
    task = OnlineTask(
        task_id=task_id,
        source="osworld",
        instruction=fields.text("instruction"),
        family=DeviceFamily.DESKTOP,
        evaluation=evaluation,
        apps=fields.texts("related_apps"),
        setup=_operations(f"{file}: config", fields.take("config", list, default=[])),
        infeasible=evaluation.checks[0].kind == "osworld.infeasible",
        tags=(file.parent.name,),
        details=details,
    )
    fields.close()
    return task


def _operations(where: str, steps: Sequence[object]) -> tuple[Operation, ...]:
    operations = []
    for index, step in enumerate(steps):
        fields = Fields(f"{where}[{index}]", step)
        operations.append(Operation(fields.text("type"), fields.take("parameters", dict)))
        fields.close()
    return tuple(operations)


def _evaluation(fields: Fields) -> Evaluation:
    """One evaluator with one result, or lists of as many of each."""
    functions = fields.take("func", str, list)
    before = _operations(f"{fields.where}: postconfig", fields.take("postconfig", list, default=[]))
    join = fields.take("conj", str, default="and")
    if join not in JOINS:
        raise DataError(f"{fields.where}: field 'conj' is {join!r}, must be one of {', '.join(JOINS)}")
    if functions == "infeasible":
        for name in ("result", "expected", "options"):
            fields.take(name, dict, default={})
        fields.close()
        return Evaluation((Check("osworld.infeasible", Operation("declared")),), join, before=before)
    many = isinstance(functions, list)
    names = functions if many else [functions]
    if not names or not all(isinstance(name, str) and name and name != "infeasible" for name in names):
        raise DataError(f"{fields.where}: field 'func' is {functions!r:.200}, must name evaluators")

    def column(name: str, must: bool) -> list[Any]:
        if name not in fields and not must:
            return [None] * len(names)
        value = fields.take(name, list if many else dict)
        values = value if many else [value]
        if len(values) != len(names):
            raise DataError(f"{fields.where}: field {name!r} has {len(values)} entries for {len(names)} evaluators")
        return values

    results, expected, options = column("result", True), column("expected", False), column("options", False)
    checks = []
    for index, (name, found, wanted, option) in enumerate(zip(names, results, expected, options)):
        where = f"[{index}]" if many else ""
        getter = _getter(f"{fields.where}: result{where}", found)
        other = _getter(f"{fields.where}: expected{where}", wanted) if wanted else None
        if not isinstance(option, dict | None):
            raise DataError(f"{fields.where}: options{where} is {type(option).__name__}, must be an object")
        checks.append(Check(f"osworld.{name}", getter, other, option or {}))
    fields.close()
    return Evaluation(tuple(checks), join, "not_failed", before)


def _getter(where: str, data: object) -> Operation:
    fields = Fields(where, data)
    kind = fields.text("type")
    assert isinstance(data, dict)
    return Operation(kind, {name: value for name, value in data.items() if name != "type"})
