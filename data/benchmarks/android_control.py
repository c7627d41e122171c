"""Readers of AndroidControl (arXiv 2406.03679) in the JSON forms that releases evaluate on: UI-R1's and UI-S1's.

Neither tells the size of a screenshot; both were made for phones of 1080x2400, which the format declares here as
`SCREEN`. Recorded points are pixels of the real screenshot, and some phones were larger: a point beyond `SCREEN` stays
where it is (its coordinate exceeds 1000) and is reported. An answer that was given on the opened image is scored in
that image's pixels (`ActionRule.screen`), so that such items count like all others.

Modes: low shows the instruction of the step (behind the goal, where the file has one), high the goal alone. What was
done before is told by the instructions of the earlier steps.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from data.benchmarks.action_labels import (
    SECONDS,
    collect,
    pixel_boxes,
    recorded_action,
    recorded_point,
    step_problems,
    swipe,
)
from data.benchmarks.entries import Entry, EntryError, annotation_file, read_benchmark
from gui_owl_jax.agent.actions import Action, ToolCall, action_from_call
from gui_owl_jax.agent.devices import DeviceFamily, tool_name
from gui_owl_jax.agent.errors import DataError, ParseError
from gui_owl_jax.evals.benchmark import ActionLabel, Benchmark, Item

SCREEN = (1080, 2400)
HIGH, LOW = "high", "low"


def read_ui_r1(place: pathlib.Path) -> Benchmark:
    """Reads UI-R1's `ac_test.json` (or `*ac_test.json`): steps with their own instruction, hence low; no boxes.

    An entry is `image`, `task` and `gt` with AndroidControl's own action. The facet "action" is its `action_type`.

    Raises:
      DataError: no such file, or it is not a JSON list.
    """
    path = annotation_file(place, "*ac_test.json")
    benchmark = read_benchmark("android_control_low_ui_r1", [path], _ui_r1_item)
    return dataclasses.replace(benchmark, problems=(*benchmark.problems, *step_problems(benchmark.items)))


def read_ui_s1_high(place: pathlib.Path) -> Benchmark:
    """Reads UI-S1's `android_control_evaluation_std.jsonl`, goals alone. See `read_ui_s1`."""
    return read_ui_s1(place, HIGH)


def read_ui_s1_low(place: pathlib.Path) -> Benchmark:
    """Reads UI-S1's `android_control_evaluation_std.jsonl`, goals with the step's instruction. See `read_ui_s1`."""
    return read_ui_s1(place, LOW)


def read_ui_s1(place: pathlib.Path, mode: str) -> Benchmark:
    """Reads UI-S1's JSON lines, one episode a line.

    The label of a step is `check_options` (the file's training form has `action_content` alone), its boxes are
    `candidate_bbox` (`bbox`). A label that swipes has a direction, in AndroidControl's sense; the coordinates beside it
    in `action_content` agree with it up and down but not sideways, and are not used.

    Args:
      place: the file, or the folder of `*android_control_evaluation_std.jsonl`.
      mode: `HIGH` or `LOW`.

    Returns:
      A `Benchmark` whose items have the facets "action" and "episode" (all steps of an episode, in order).

    Raises:
      DataError: no such file, or a line is not JSON.
    """
    path = annotation_file(place, "*android_control_evaluation_std.jsonl")
    return collect(f"android_control_{mode}_ui_s1", _ui_s1_steps(path, mode))


def instruction(mode: str, goal: str, step: str) -> str:
    """What an agent is asked in a mode; a step without an instruction is asked for its goal alone."""
    return f"{goal}\nNext step: {step}" if mode == LOW and step.strip() else goal


def _ui_r1_item(entry: Entry) -> Item:
    label = entry.fields.get("gt")
    if not isinstance(label, dict):
        raise EntryError("missing_field", f"gt is {label!r:.80}, must be an object")
    task = entry.fields.get("task")
    if not isinstance(task, str):
        raise EntryError("bad_field", f"task is {task!r:.80}, must be a string")
    image = entry.text("image")
    return Item(
        item_id=pathlib.PurePosixPath(image).stem,
        instruction=task,
        target=ActionLabel(recorded_action(Entry(entry.path, entry.index, label), SCREEN)),
        family=DeviceFamily.MOBILE,
        image=image,
        size=SCREEN,
        facets={"action": str(label["action_type"])},
    )


def _ui_s1_steps(path: pathlib.Path, mode: str) -> Iterator[tuple[str, Callable[[], Item]]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    for number, line in enumerate(lines):
        where = f"{path.name}[{number}]"
        if not line.strip():
            continue
        try:
            episode = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: line {number + 1} is not JSON: {error}") from error
        if not isinstance(episode, dict) or not isinstance(episode.get("steps"), list):
            yield where, _malformed("an episode needs a list of steps")
            continue
        told = [step.get("step_instruction", "") if isinstance(step, dict) else "" for step in episode["steps"]]
        for index, step in enumerate(episode["steps"]):
            if not isinstance(step, dict) or not all(isinstance(text, str) for text in told):
                yield f"{where}.steps[{index}]", _malformed("a step is an object, its instruction a string")
                continue
            fields = {**step, "goal": episode.get("goal"), "episode": str(episode.get("episode_id", number))}
            make = _Step(Entry(path, number, fields), mode, told[index], tuple(filter(str.strip, told[:index])))
            yield f"{where}.steps[{index}]", make


@dataclasses.dataclass(frozen=True)
class _Step:
    """Makes the item of one step of UI-S1."""

    entry: Entry
    mode: str
    told: str
    history: tuple[str, ...]

    def __call__(self) -> Item:
        entry = self.entry
        options = entry.fields.get("check_options", entry.fields.get("action_content"))
        if not isinstance(options, dict):
            raise EntryError("missing_field", "a step needs check_options or action_content")
        image = pathlib.PurePosixPath(entry.text("screenshot")).name
        action, boxes = _ui_s1_label(Entry(entry.path, entry.index, options))
        return Item(
            item_id=pathlib.PurePosixPath(image).stem,
            instruction=instruction(self.mode, entry.text("goal"), self.told),
            target=ActionLabel(action, boxes),
            family=DeviceFamily.MOBILE,
            image=image,
            size=SCREEN,
            facets={"action": action.kind, "episode": entry.text("episode")},
            history=self.history,
        )


def _ui_s1_label(entry: Entry) -> tuple[Action, tuple[Any, ...]]:
    options: Mapping[str, Any] = entry.fields
    boxes = options.get("candidate_bbox", [options["bbox"]] if options.get("bbox") else [])
    if options.get("action") == "swipe" and "direction" in options:
        return swipe(entry), ()
    arguments = {name: value for name, value in options.items() if name not in ("candidate_bbox", "bbox")}
    points = {name: arguments.pop(name, None) for name in ("coordinate", "coordinate2")}
    points = {name: recorded_point(entry, name, SCREEN) for name, value in points.items() if value is not None}
    if arguments.get("action") == "long_press":
        arguments.setdefault("time", SECONDS)  # the checked form leaves it out
    # Points are added last: one beyond the declared screen is a finding of the reader, not a malformed action.
    inside: dict[str, object] = {name: (0, 0) for name in points}
    try:
        call = ToolCall(tool_name(DeviceFamily.MOBILE), {**arguments, **inside})
        action = action_from_call(DeviceFamily.MOBILE, call)
    except ParseError as error:
        raise EntryError("bad_action", f"{dict(options)!s:.120}: {error.detail}") from error
    return dataclasses.replace(action, **points), pixel_boxes(boxes, "candidate_bbox")  # type: ignore[arg-type]


def _malformed(detail: str) -> Callable[[], Item]:
    def fail() -> Item:
        raise EntryError("bad_entry", detail)

    return fail
