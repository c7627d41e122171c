"""Fixed benchmarks of the virtual world: lists of tasks, their seeds and step budgets, frozen in files.

`pc_eval_v1` (desktop and web) and `mobile_eval_v1` (phones) are in the spirit of PC-Eval and Mobile-Eval. A suite never
changes: two results on it compare, whenever they were made. The tasks are sampled again from templates and seeds, and
the loader checks that they are still those of the file: a change of the world that touches one raises an error, and
asks for a new version (`specification` of a new name, `python -m envs.virtual.suites NAME`).

What counts as a success is the world's own rule: the goal holds (the asked change and no other) after some action
within the budget, and the agent did not end the episode with "failure". The agent need not declare that it is done;
AndroidWorld's stricter rule is in `data.benchmarks.online_tasks_android`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from envs.interface import TaskSpec
from envs.virtual.tasks import TEMPLATES, combinations, sample_task, template_names
from envs.virtual.world import begin, state_hash
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import ConfigError, DataError, EnvError

FOLDER = Path(__file__).parent / "suites"
SPLIT = "heldout"
FIELDS = {"task_id": str, "template": str, "seed": int, "max_steps": int, "instruction": str, "start": str}


@dataclasses.dataclass(frozen=True)
class Specification:
    """What a suite was made from.

    Attributes:
      families: device families, all templates of which are in it.
      per_template: tasks of each template.
      first_seed: seeds are counted up from it; far from those that training and its evaluations draw.
    """

    families: tuple[DeviceFamily, ...]
    per_template: int
    first_seed: int


SPECIFICATIONS = {
    "pc_eval_v1": Specification((DeviceFamily.DESKTOP, DeviceFamily.WEB), 10, 2_026_000_000),
    "mobile_eval_v1": Specification((DeviceFamily.MOBILE,), 10, 2_026_500_000),
}


def names() -> tuple[str, ...]:
    """The suites that there are."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def budget(template: str) -> int:
    """Actions allowed in a suite: twice the fewest that solve the task and one more, enough to repair a wrong one."""
    return 2 * TEMPLATES[template].length + 1


def specification(name: str) -> dict[str, object]:
    """What the file of a suite holds, made anew: for every template, held-out tasks of rising seeds.

    No combination of parameters comes twice before all of the template's held-out ones have come.
    """
    made = SPECIFICATIONS[name]
    seeds = iter(range(made.first_seed, sys.maxsize))
    rows: list[dict[str, object]] = []
    for family in made.families:
        for template in template_names(family):
            rows += [_row(task) for task in _spread(template, made.per_template, seeds)]
    return {"name": name, "world": "envs.virtual", "split": SPLIT, "tasks": rows}


def _spread(template: str, count: int, seeds: Iterator[int]) -> list[TaskSpec]:
    found: list[TaskSpec] = []
    left: list[object] = []
    while len(found) < count:
        left = left or [dict(params) for params in combinations(template, SPLIT)]
        task = sample_task(template, next(seeds), SPLIT)
        if dict(task.params) in left:
            left.remove(dict(task.params))
            found.append(dataclasses.replace(task, max_steps=budget(template)))
    return found


def _row(task: TaskSpec) -> dict[str, object]:
    row = {name: getattr(task, name) for name in FIELDS if name != "start"}
    return {**row, "start": state_hash(begin(task))}


def load(name: str, folder: Path = FOLDER) -> tuple[TaskSpec, ...]:
    """The tasks of a suite.

    Args:
      name: one of `names()`.
      folder: where the files lie.

    Raises:
      ConfigError: there is no such suite.
      DataError: its file is damaged; names the entry and the field.
      EnvError: the world has changed since the suite was frozen.
    """
    path = folder / f"{name}.json"
    if Path(name).name != name or not path.is_file():
        known = ", ".join(sorted(each.stem for each in folder.glob("*.json")))
        raise ConfigError(f"suite {name!r} of envs.virtual is none of {known}")
    try:
        data = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: is no JSON: {error}") from error
    head = {"name": name, "world": "envs.virtual", "split": SPLIT}
    if not isinstance(data, dict) or set(data) != {*head, "tasks"} or not isinstance(data["tasks"], list):
        raise DataError(f"{path}: must be an object with the fields name, world, split and a list of tasks")
    for field, wanted in head.items():
        if data[field] != wanted:
            raise DataError(f"{path}: field {field!r} is {data[field]!r}, must be {wanted!r}")
    tasks = tuple(_task(name, f"{path}: tasks[{index}]", row) for index, row in enumerate(data["tasks"]))
    if not tasks or len({task.task_id for task in tasks}) < len(tasks):
        raise DataError(f"{path}: field 'tasks' is empty, or a task_id occurs twice")
    return tasks


def _task(name: str, where: str, row: object) -> TaskSpec:
    if not isinstance(row, dict) or set(row) != set(FIELDS):
        raise DataError(f"{where}: must be an object with the fields {', '.join(FIELDS)}")
    for field, kind in FIELDS.items():
        if type(row[field]) is not kind:
            raise DataError(f"{where}: field {field!r} is {row[field]!r:.80}, must be {kind.__name__}")
    changed = f"{where}: the world has changed since {name} was frozen; raise the version: freeze a suite of a new name"
    try:
        task = dataclasses.replace(sample_task(row["template"], row["seed"], SPLIT), max_steps=row["max_steps"])
    except EnvError as error:
        raise EnvError(f"{changed} ({error})") from error
    found = _row(task)
    for field in FIELDS:
        if found[field] != row[field]:
            raise EnvError(f"{changed} (field {field!r} is {row[field]!r:.120}, the world makes {found[field]!r:.120})")
    return task


def freeze(name: str, folder: Path = FOLDER) -> Path:
    """Writes the file of a new suite, one task a line.

    Raises:
      ConfigError: it has no specification, or its file is there already: a suite never changes.
    """
    path = folder / f"{name}.json"
    if name not in SPECIFICATIONS or path.exists():
        raise ConfigError(f"suite {name!r}: SPECIFICATIONS has none of this name, or {path} is frozen already")
    data = specification(name)
    rows = data.pop("tasks")
    assert isinstance(rows, list)
    head = json.dumps(data, indent=1)[:-2]
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    folder.mkdir(exist_ok=True)
    path.write_text(f'{head},\n "tasks": [\n  {lines}\n ]\n}}\n', "utf-8")
    return path


if __name__ == "__main__":
    print(freeze(sys.argv[1]))
