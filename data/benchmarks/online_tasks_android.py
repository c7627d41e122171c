"""AndroidWorld's list of tasks (`android_world/task_metadata.json`).

The tasks themselves are classes of the benchmark: they draw the parameters, set the device up and look at its state.
The file has what the agent is told, with parameters in braces, and how hard it is.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

from data.benchmarks.online_fields import Fields, read_json
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.online.task import Check, Evaluation, OnlineTask, Operation

DIFFICULTIES = ("easy", "medium", "hard")
STEPS_PER_COMPLEXITY = 10
_PARAMETER = re.compile(r"\{(\w+)\}")


def step_budget(complexity: float) -> int:
    """Steps that the release allows: int(10 * complexity); the classes know the complexity, the file does not."""
    return int(STEPS_PER_COMPLEXITY * complexity)


def read_androidworld(path: Path, complexity: Mapping[str, float] | None = None) -> tuple[OnlineTask, ...]:
    """Reads `task_metadata.json`, or the folder that it lies in.

    A success counts only if the agent declared the episode done, by an answer or by ending it (with either status, as
    in the release): a state that is right by the time the steps run out scores 0.

    Args:
      path: the file or its folder.
      complexity: task name -> complexity of its class, for the step budget; without it `max_steps` is None.

    Raises:
      DataError: the file is malformed; names entry and field.
    """
    file = path / "task_metadata.json" if path.is_dir() else path
    entries = read_json(file)
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{file} must hold a list of tasks")
    tasks = tuple(_task(f"{file}[{index}]", entry, complexity or {}) for index, entry in enumerate(entries))
    names = [task.task_id for task in tasks]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{file}: field 'task_name': {twice[0]!r} occurs twice")
    return tasks


def _task(where: str, entry: object, complexity: Mapping[str, float]) -> OnlineTask:
    fields = Fields(where, entry)
    name, template, difficulty = fields.text("task_name"), fields.text("task_template"), fields.text("difficulty")
    if difficulty not in DIFFICULTIES:
        raise DataError(f"{where}: field 'difficulty' is {difficulty!r}, must be one of {', '.join(DIFFICULTIES)}")
    steps = fields.text("optimal_steps")
    if not steps.isdecimal() or int(steps) < 1:
        raise DataError(f"{where}: field 'optimal_steps' is {steps!r}, must be a whole number in quotes, from 1")
    task = OnlineTask(
        task_id=name,
        source="androidworld",
        instruction=template,
        family=DeviceFamily.MOBILE,
        evaluation=Evaluation(
            (Check("androidworld.is_successful", Operation("is_successful", {"task_name": name})),), gate="declared"
        ),
        setup=(Operation("initialize_task", {"task_name": name}),),
        max_steps=step_budget(complexity[name]) if name in complexity else None,
        tags=tuple(tag for tag in fields.texts("tags") if tag),  # seven tasks of the release have the tag ""
        difficulty=difficulty,
        template=template,
        details={"optimal_steps": int(steps)},
    )
    fields.close()
    return task


def with_parameters(task: OnlineTask, parameters: Mapping[str, object]) -> OnlineTask:
    """The task with the parameters that its class drew filled into the instruction.

    Raises:
      DataError: a parameter of the template is missing.
    """
    missing = sorted(set(_PARAMETER.findall(task.template)) - set(parameters))
    if missing:
        raise DataError(f"androidworld task {task.task_id}: the template needs the parameters {', '.join(missing)}")
    filled = _PARAMETER.sub(lambda match: str(parameters[match[1]]), task.template)
    return dataclasses.replace(task, instruction=filled)
