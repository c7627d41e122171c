"""Scores answers against recorded actions: a verdict a step; step, type and click accuracy; episodes.

The three figures that papers print: "step" (everything is right), "type" (the kind of action is), and "click" (of the
steps whose recorded action touches a point, those that the answer touches rightly: wrong kinds count as misses).
"click_if_typed" leaves out steps of the wrong kind. For benchmarks that list whole episodes, UI-S1's two: "episode"
(all steps right) and "progress" (mean share of an episode's steps before the first that is wrong).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gui_owl_jax.agent.actions import SCALE, Action
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.action_rules import (
    ActionRule,
    centre,
    click_hits,
    finger_direction,
    scroll_matches,
    text_matches,
)
from gui_owl_jax.evals.benchmark import ActionLabel, Answer, Benchmark, Item, Look
from gui_owl_jax.evals.score import (
    FAILED,
    HIT,
    MISS,
    REFUSED,
    UNPARSABLE,
    Score,
    Verdict,
    answered_action,
    make_score,
    paired,
    rate,
)
from gui_owl_jax.evals.statistics import Interval, Rate, paired_difference, success_rate
from gui_owl_jax.evals.targets import Point, in_box, is_refusal, point_in_image

if TYPE_CHECKING:
    from gui_owl_jax.agent.dialects import Dialect

WRONG_TYPE = "wrong_type"
WRONG_TEXT = "wrong_text"
WRONG_DIRECTION = "wrong_direction"
WRONG_BUTTON = "wrong_button"
WRONG_STATUS = "wrong_status"
UNTYPED = frozenset((WRONG_TYPE, REFUSED, UNPARSABLE, FAILED))  # reasons of answers that are not of the right type

TOUCHES = frozenset(("click", "long_press"))
_TEXTS = frozenset(("type", "open", "answer", "interact"))
EPISODE = "episode"  # the facet; it makes no table


def score(benchmark: Benchmark, answers: Iterable[Answer], rule: ActionRule, dialect: Dialect) -> Score:
    """Scores the answers to a benchmark of recorded actions.

    A step that could not be asked counts as wrong.

    Args:
      benchmark: items with an `ActionLabel`; where all have the facet "episode", an episode's items in order.
      answers: of the benchmark's items, at most one each.
      rule: how they are judged.
      dialect: how the answers are written; its scale is part of the rule's name.

    Returns:
      The `Score`. Its averages are "step", "type", "click", "click_if_typed", "episode" and "progress" (the module's
      docstring), without those that have no step. The table "type by action" has type accuracies, the others step
      accuracies.

    Raises:
      DataError: answers do not belong to the items, or an item has no recorded action.
    """
    pairs = paired(benchmark, answers)
    verdicts = [judge(item, answer, rule, dialect) for item, answer in pairs]
    facets = list(dict.fromkeys(name for item in benchmark.items for name in item.facets if name != EPISODE))
    result = make_score(
        benchmark,
        f"{rule.name},dialect={dialect.name},scale={dialect.scale}",
        verdicts,
        averages=_averages(benchmark.items, verdicts),
        facets=facets,
    )
    if "action" not in facets:
        return result
    typed: dict[str, list[int]] = {}
    for item, verdict in zip(benchmark.items, verdicts):
        typed.setdefault(item.facets.get("action", ""), []).append(int(type_is_right(verdict)))
    table = {action: success_rate(typed[action]) for action in sorted(typed)}
    return dataclasses.replace(result, tables={**result.tables, "type by action": table})


def judge(item: Item, answer: Answer, rule: ActionRule, dialect: Dialect) -> Verdict:
    """The verdict on one answer; the last look holds it.

    Raises:
      DataError: the item has no recorded action.
    """
    if not isinstance(item.target, ActionLabel):
        raise DataError(f"item {item.item_id!r} asks for {type(item.target).__name__}, not for an action")
    action = answered_action(item, answer, dialect)
    if isinstance(action, Verdict):
        return action
    reason, point, detail = _compare(action, item, item.target, answer, rule)
    return Verdict(item.item_id, reason == HIT, reason, point, detail)


def type_is_right(verdict: Verdict) -> bool:
    """Whether the answer is of the recorded kind (or, where a rule lets a click open an app, such a click)."""
    return verdict.reason not in UNTYPED


def oracle(item: Item, dialect: Dialect) -> Answer:
    """The answer of an agent that does what was recorded, to check readers and rules by.

    The image is taken to be as large as the item declares; where the recorded point lies beyond, just large enough.

    Raises:
      DataError: the item has no recorded action.
    """
    if not isinstance(item.target, ActionLabel):
        raise DataError(f"item {item.item_id!r} asks for {type(item.target).__name__}, not for an action")
    action, (width, height) = item.target.action, item.size or (SCALE, SCALE)
    if action.kind in TOUCHES and action.coordinate is not None:
        x, y = action.coordinate[0] * width / SCALE, action.coordinate[1] * height / SCALE
        width, height = (side if at <= side else math.ceil(at) + 1 for at, side in ((x, width), (y, height)))
    return answer_with(item, action, dialect, (width, height))


def answer_with(item: Item, action: Action, dialect: Dialect, size: tuple[int, int]) -> Answer:
    """The answer of an agent that does an action on a whole image of (width, height) `size`.

    `action` has its points on the 0-1000 screen of the item's declared size, and may lie beyond.
    """
    declared = item.size or size
    stretch = declared[0] / size[0], declared[1] / size[1]

    def moved(point: Point | None) -> Point | None:
        return None if point is None else (point[0] * stretch[0], point[1] * stretch[1])

    shown = dataclasses.replace(action, coordinate=moved(action.coordinate), coordinate2=moved(action.coordinate2))
    text = dialect.render(shown, item.family, conclusion="Do it.", shown=size)
    return Answer(item.item_id, (Look(text, (0.0, 0.0, float(size[0]), float(size[1])), size),), size)


def _compare(
    action: Action, item: Item, label: ActionLabel, answer: Answer, rule: ActionRule
) -> tuple[str, Point | None, str]:
    """(reason, point in pixels of the image, detail)."""
    recorded = label.action
    screen = _Screen(item, answer, rule.screen)
    shown, point = screen.answered(action) if action.kind in TOUCHES else (None, None)
    if recorded.kind == "open" and action.kind == "click" and rule.open == "text_or_click" and label.boxes:
        assert point is not None
        hit = click_hits(rule.click, point, centre(label.boxes[0]), label.boxes, screen.size)
        return HIT if hit else MISS, shown, "a click that may open the app"
    if action.kind != recorded.kind:
        reason = REFUSED if is_refusal(action) else WRONG_TYPE
        return reason, shown, f"the answer is {action.kind}, recorded is {recorded.kind}"
    if recorded.kind in TOUCHES:
        assert point is not None
        wanted = screen.recorded(recorded)
        boxes = [box for box in label.boxes if in_box(wanted, box)] if rule.click == "ui_s1" else label.boxes
        hit = click_hits(rule.click, point, wanted, boxes, screen.size)
        detail = f"{math.dist(point, wanted):.1f} pixels from the recorded ({wanted[0]:g}, {wanted[1]:g})"
        return HIT if hit else MISS, shown, detail
    if recorded.kind == "swipe":
        detail = f"the finger goes {finger_direction(action)}, recorded is {finger_direction(recorded)}"
        return HIT if scroll_matches(rule.scroll, action, recorded) else WRONG_DIRECTION, None, detail
    if recorded.kind in _TEXTS:
        said, wanted_text = action.text or "", recorded.text or ""
        detail = f"{said!r:.80} for {wanted_text!r:.80}"
        return HIT if text_matches(rule.text, said, wanted_text) else WRONG_TEXT, None, detail
    if recorded.kind == "system_button":
        return HIT if action.button == recorded.button else WRONG_BUTTON, None, f"{action.button}"
    if recorded.kind == "terminate":
        reason = HIT if action.status == recorded.status else REFUSED if is_refusal(action) else WRONG_STATUS
        return reason, None, f"{action.status}"
    return HIT if recorded.kind == "wait" or action == recorded else MISS, None, ""


class _Screen:
    """The pixels in which an answer and a recording are compared (`SCREENS`)."""

    def __init__(self, item: Item, answer: Answer, screen: str):
        self._window = answer.looks[-1].window
        opened = answer.opened
        declared = item.size or opened
        self.size = declared if screen == "declared" else opened
        self._stretch = self.size[0] / opened[0], self.size[1] / opened[1]
        self._declared = 0.0, 0.0, float(declared[0]), float(declared[1])

    def answered(self, action: Action) -> tuple[Point, Point]:
        """Where an answer touches, in pixels of the image and in those of the comparison."""
        assert action.coordinate is not None
        x, y = point_in_image(action.coordinate, self._window)
        return (x, y), (x * self._stretch[0], y * self._stretch[1])

    def recorded(self, action: Action) -> Point:
        assert action.coordinate is not None
        return point_in_image(action.coordinate, self._declared)


def _averages(items: Sequence[Item], verdicts: Sequence[Verdict]) -> dict[str, Rate]:
    typed = [type_is_right(verdict) for verdict in verdicts]
    touching = [isinstance(item.target, ActionLabel) and item.target.action.kind in TOUCHES for item in items]
    clicks = [verdict for verdict, touches in zip(verdicts, touching) if touches]
    averages = {"step": rate(verdicts), "type": success_rate([int(right) for right in typed])}
    if clicks:
        averages["click"] = rate(clicks)
        averages["click_if_typed"] = rate(verdict for verdict in clicks if type_is_right(verdict))
    if items and all(EPISODE in item.facets for item in items):
        averages |= episode_averages(items, verdicts)
    return averages


def episode_averages(items: Sequence[Item], verdicts: Sequence[Verdict]) -> Mapping[str, Rate]:
    """UI-S1's metrics of episodes, from verdicts on steps that were each asked with the recorded history.

    Args:
      items: with the facet "episode"; the steps of one in order.
      verdicts: on the items, in the same order.

    Returns:
      "episode": the rate of episodes whose steps are all right. "progress": the mean share of steps before the first
      wrong one; its interval is a bootstrap over episodes, and it counts the finished episodes as successes.
    """
    episodes: dict[str, list[bool]] = {}
    for item, verdict in zip(items, verdicts):
        episodes.setdefault(item.facets[EPISODE], []).append(verdict.right)
    finished = success_rate([int(all(steps)) for steps in episodes.values()])
    progress = np.array([[*steps, False].index(False) / len(steps) for steps in episodes.values()])
    mean = float(progress.mean())
    interval = Interval(mean, mean)
    if len(progress) > 1:
        interval = paired_difference(np.zeros_like(progress), progress, resamples=1000).bootstrap
    return {EPISODE: finished, "progress": Rate(mean, interval, finished.successes, finished.trials)}
