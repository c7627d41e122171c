"""Grounding: does a click land on the element that was asked for?"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from gui_owl_jax.agent.actions import SCALE, Action
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.elements import ScreenElement
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.success import GroundingScore

# Actions that press one point of the screen; a drag or a swipe is no answer to "Click Send".
CLICKS = frozenset(("click", "long_press", "left_click", "right_click", "middle_click", "double_click", "triple_click"))


@dataclasses.dataclass(frozen=True)
class GroundingTrial:
    """One click that was asked for.

    Attributes:
      family: device family of the screen.
      action: what the model did, None where its output was no action.
      element: the element that was meant.
      width: of the screenshot, in pixels.
      height: of the screenshot, in pixels.
    """

    family: DeviceFamily
    action: Action | None
    element: ScreenElement
    width: int
    height: int


def click_hits(action: Action | None, element: ScreenElement, width: int, height: int) -> bool:
    """Whether an action clicks an element.

    The rule is that of ScreenSpot (SeeClick, arXiv 2401.10935): the point (x, y) lies in the box, all four edges
    included, where x = relative x / 1000 * width and y = relative y / 1000 * height are not rounded to pixels.
    A click by Set-of-Marks label hits if the label equals the element's. The kind of click does not matter; no action,
    or an action that is no click, misses.

    Args:
      action: on the 0-1000 grid, or by label.
      element: with its box in pixels of the screenshot.
      width: of the screenshot, in pixels.
      height: of the screenshot, in pixels.

    Raises:
      DataError: the click names a label, but the element has none: the screen and the action do not belong together.
    """
    if action is None or action.kind not in CLICKS:
        return False
    if action.label is not None:
        if element.label is None:
            raise DataError(f"element {element.text!r} has no label: a click by label {action.label!r} has no score")
        return action.label == element.label
    if action.coordinate is None:
        return False
    x, y = action.coordinate[0] * width / SCALE, action.coordinate[1] * height / SCALE  # exact on an edge
    left, top, box_width, box_height = element.box
    return left <= x <= left + box_width and top <= y <= top + box_height


def accuracy(trials: Iterable[GroundingTrial]) -> GroundingScore:
    """Counts the hits of `click_hits`, overall and by device family."""
    families: dict[str, tuple[int, int]] = {}
    for trial in trials:
        hit = click_hits(trial.action, trial.element, trial.width, trial.height)
        hits, total = families.get(str(trial.family), (0, 0))
        families[str(trial.family)] = (hits + hit, total + 1)
    return GroundingScore(
        hits=sum(hits for hits, _ in families.values()),
        trials=sum(total for _, total in families.values()),
        families=families,
    )
