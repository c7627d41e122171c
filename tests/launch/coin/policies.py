"""The script."""

from __future__ import annotations

from envs.interface import TaskSpec
from gui_owl_jax.agent.actions import Action


def plan(task: TaskSpec) -> list[tuple[str, Action]]:
    return [(f"Press {button}.", Action("system_button", button=button)) for button in task.params["buttons"]]
