"""What the readers of recorded phone actions share: from the recorded words to actions, and a benchmark of steps.

**Scrolling.** AndroidControl records `scroll` with the direction in which the view moves over the content. The finger
goes the other way, and our action is the finger's: "down" (see what is further down) is a swipe upwards. Its human
instructions bear this out for both axes: of the 597 test steps told to swipe in one direction, 529 have the opposite
as their label. `SWIPES` is that mapping; `ActionRule.scroll` reverses it for agents that were trained the other way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from data.benchmarks.entries import Entry, EntryError, make_items
from data.benchmarks.lint import lint
from gui_owl_jax.agent.actions import SCALE, Action
from gui_owl_jax.evals.benchmark import ActionLabel, Benchmark, Box, Item, Problem

# Direction in which the view moves -> where the finger starts and ends on the 0-1000 screen.
SWIPES: Mapping[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "down": ((500, 750), (500, 250)),
    "up": ((500, 250), (500, 750)),
    "right": ((750, 500), (250, 500)),
    "left": ((250, 500), (750, 500)),
}
# The records do not say how long; no rule reads it.
SECONDS = 2.0


def recorded_action(entry: Entry, size: tuple[int, int]) -> Action:
    """The action of AndroidControl's JSON dictionary (`action_type` and its parameters).

    `type` clicks a field first and presses enter at the end; it becomes plain typing, which is what can be compared.

    Args:
      entry: the dictionary.
      size: (width, height) of the screen that its pixels are meant on.

    Returns:
      The action; a point beyond the screen stays beyond 0..1000.

    Raises:
      EntryError: it is none of the data set's actions, or lacks a parameter.
    """
    kind = entry.text("action_type")
    if kind == "click":
        return Action("click", coordinate=_point(entry, size))
    if kind == "long_press":
        return Action("long_press", coordinate=_point(entry, size), time=SECONDS)
    if kind == "scroll":
        return swipe(entry)
    if kind == "open_app":
        return Action("open", text=entry.text("app_name"))
    if kind in ("input_text", "type"):
        return Action("type", text=entry.text("text"))
    if kind in ("navigate_back", "navigate_home"):
        return Action("system_button", button={"navigate_back": "Back", "navigate_home": "Home"}[kind])
    if kind == "wait":
        return Action("wait", time=SECONDS)
    raise EntryError("unknown_action", f"action_type is {kind!r}, which is none of AndroidControl's")


def swipe(entry: Entry) -> Action:
    """The swipe that moves the view in the entry's `direction`.

    Raises:
      EntryError: the direction is none of `SWIPES`.
    """
    direction = entry.text("direction")
    if direction not in SWIPES:
        raise EntryError("bad_field", f"direction is {direction!r}, must be one of {', '.join(SWIPES)}")
    start, end = SWIPES[direction]
    return Action("swipe", coordinate=start, coordinate2=end)


def recorded_point(entry: Entry, name: str, size: tuple[int, int]) -> tuple[float, float]:
    """A point [x, y] in pixels of a screen of `size`, on the 0-1000 screen.

    Raises:
      EntryError: the field is none.
    """
    point = entry.numbers(name)
    if len(point) != 2:
        raise EntryError("bad_field", f"{name} is {point}, must be x and y in pixels")
    return point[0] * SCALE / size[0], point[1] * SCALE / size[1]


def pixel_boxes(value: object, name: str) -> tuple[Box, ...]:
    """Boxes from a list of [left, top, right, bottom] in pixels.

    Raises:
      EntryError: it is none.
    """
    if not isinstance(value, list) or not all(isinstance(box, list) and len(box) == 4 for box in value):
        raise EntryError("bad_box", f"{name} is {value!r:.80}, must be a list of boxes of 4 numbers")
    if not all(isinstance(number, int | float) for box in value for number in box):
        raise EntryError("bad_box", f"{name} is {value!r:.80}, must hold numbers")
    return tuple(Box(*map(float, box)) for box in value)


def collect(name: str, entries: Iterable[tuple[str, Callable[[], Item]]], *, check_boxes: bool = True) -> Benchmark:
    """A benchmark of steps.

    Args:
      name: of the benchmark.
      entries: as for `make_items`.
      check_boxes: whether boxes are labels that `lint` looks at, rather than all elements of a screen.

    Returns:
      The items; a fatal problem for each entry that is none or has the id of an earlier one; then `step_problems`.
    """
    items, problems = make_items(entries)
    problems += lint(items) if check_boxes else []
    return Benchmark(name, items, (*problems, *step_problems(items)))


def step_problems(items: Iterable[Item]) -> list[Problem]:
    """What `lint` does not look at: `label_outside_image` and `empty_instruction`, none of them fatal."""
    problems = []
    for item in items:
        label, size = item.target, item.size
        if isinstance(label, ActionLabel) and label.action.coordinate is not None and size is not None:
            x, y = label.action.coordinate
            if not (0 <= x <= SCALE and 0 <= y <= SCALE):
                pixels = f"({x * size[0] / SCALE:g}, {y * size[1] / SCALE:g})"
                detail = f"the recorded point {pixels} lies outside the declared screen of {size[0]}x{size[1]}"
                problems.append(Problem(item.item_id, "label_outside_image", detail))
        if not item.instruction.strip():
            problems.append(Problem(item.item_id, "empty_instruction", "the step's instruction is blank"))
    return problems


def _point(entry: Entry, size: tuple[int, int]) -> tuple[float, float]:
    point = {"x, y": [entry.fields.get("x"), entry.fields.get("y")]}
    return recorded_point(Entry(entry.path, entry.index, point), "x, y", size)
