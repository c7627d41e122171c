"""Reads recorded desktop trajectories in the AgentNet form (xlang-ai/OpenCUA): one JSON file beside a folder of images.

Recorded points are shares of the screen; here they become points of the 0-1000 grid. A recorded step may hold several
actions (move, then scroll): each becomes a step of its own with the same screenshot.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.agent.trajectory import Observation, Step, Trajectory

# One notch of a mouse wheel, in the pixels of `computer_use.scroll`.
NOTCH_PIXELS = 100
_CLICKS = {
    "click": "left_click",
    "rightClick": "right_click",
    "middleClick": "middle_click",
    "doubleClick": "double_click",
    "tripleClick": "triple_click",
    "moveTo": "mouse_move",
    "dragTo": "left_click_drag",
}


def read_trajectory(path: str | pathlib.Path) -> Trajectory:
    """Reads one recorded trajectory.

    Args:
      path: the JSON file; screenshots lie in `images` beside it, or next to it.

    Returns:
      A desktop trajectory of source "human", with outcome 1 (recordings were kept because they succeeded).

    Raises:
      DataError: the file, a screenshot, or an action is malformed; names it.
    """
    path = pathlib.Path(path)
    try:
        record = json.loads(path.read_text())
        steps = [step for item in record["steps"] for step in _steps(item, path)]
        return Trajectory(
            task_id=record["task_id"],
            app=",".join(record["meta_info"]["applications"] + record["meta_info"]["websites"]) or "desktop",
            family=DeviceFamily.DESKTOP,
            instruction=record["user_task_description"],
            steps=tuple(steps),
            outcome=1,
            source="human",
            metadata={"format": "agentnet", "system": record["meta_info"]["system"]},
        )
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not a recorded AgentNet trajectory: {type(error).__name__}: {error}") from error


def _steps(item: Mapping[str, Any], path: pathlib.Path) -> list[Step]:
    folder = path.parent / "images"
    image_path = (folder if folder.is_dir() else path.parent) / item["image"]
    with Image.open(image_path) as image:
        observation = Observation(np.asarray(image.convert("RGB")))
    thought = item["inner_monologue"]["thought"].strip()
    conclusion = " ".join(item["inner_monologue"]["low_level_instruction"].split())
    where = f"{path}: step {item['step_num']}"
    actions = [_action(entry, where) for entry in item["ground_truth_actions"]]
    return [Step(observation, thought=thought, conclusion=conclusion, action=action) for action in actions]


def _action(entry: Mapping[str, Any], where: str) -> Action:
    kind, params = entry["type"], entry["params"]
    if kind in _CLICKS:
        point = params["position"]
        if not (0 <= point["x"] <= 1 and 0 <= point["y"] <= 1):
            raise DataError(f"{where}: {kind} at {point}, which is outside the screen")
        return Action(_CLICKS[kind], coordinate=(round(point["x"] * 1000), round(point["y"] * 1000)))
    if kind == "write":
        return Action("type", text=params["text"])
    if kind in ("press", "hotkey"):
        keys = params.get("keys") or params["key"]
        return Action("key", keys=(keys,) if isinstance(keys, str) else tuple(keys))
    if kind in ("scroll", "hscroll"):
        return Action(kind, pixels=int(params["amount"]) * NOTCH_PIXELS)
    if kind == "wait":
        return Action("wait", time=float(params.get("seconds", 1)))
    if kind == "terminate":
        return Action("terminate", status=params["status"])
    raise DataError(f"{where}: the action {kind!r} has no counterpart in computer_use")
