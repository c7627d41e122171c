"""How one action is judged against a recorded one: the rules that releases use, each by name.

Points and boxes are in pixels of the screen, y downwards. The sizes in the rules of UI-R1 and ClawGUI are those of the
1080x2400 phone that they were made for; they are not scaled to other screens. Shares are of the width and height of
the item's own screen.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.evals.benchmark import Box
from gui_owl_jax.evals.gestures import taps_match
from gui_owl_jax.evals.rules import check_settings, parse_rule, rule_name
from gui_owl_jax.evals.targets import Point, in_box

UI_R1_RADIUS = 0.14 * 1080  # pixels
GUI_R1_RADIUS = 140.0  # pixels
CLAWGUI_RADIUS = math.hypot(0.14 * 1080, 0.14 * 2400)  # pixels
CLAWGUI_BOXES = 5
UI_S1_DISTANCE, UI_S1_BOX = 0.04, 1.2  # share of the screen; height and width of a box become 1.2 times as long

CLICKS: Mapping[str, str] = {
    "ui_r1": "closer than 151.2 pixels to the recorded point (UI-R1, eval_ac.py)",
    "gui_r1": "closer than 140 pixels to the recorded point (GUI-R1)",
    "clawgui": "in one of the 5 elements whose centres are nearest to the recorded point, or at most 368.5 pixels from"
    " the point (ClawGUI)",
    "ui_s1": "in an element that holds the recorded point, enlarged to 1.2 times its size, or at most 0.04 of the"
    " screen from the point (UI-S1)",
    "aitw": "at most 0.14 of the screen from the recorded point, or in one element with it, enlarged to 2.4 times its"
    " size (Android in the Wild; its growth of 1.4 is added to the size)",
    "aitw_x1.4": "as aitw, with elements enlarged to 1.4 times their size, which is how later scorers read that figure",
}
TEXTS: Mapping[str, str] = {
    "f1>0.5": "F1 of the words above one half (OS-Atlas split)",
    "f1>=0.5": "F1 of the words at least one half (GUI-R1)",
    "substring": "one is part of the other, outer spaces and case apart (UI-S1)",
    "exact": "equal, character for character",
    "any": "not compared (UI-R1, Android in the Wild)",
}
SCROLLS: Mapping[str, str] = {
    "same": "the finger moves as the recorded action means it to (see data.benchmarks.action_labels.SWIPES)",
    "reversed": "the finger moves the other way: for agents that give the data set's direction to the finger",
    "axis": "along the same axis (Android in the Wild)",
    "any": "not compared (UI-S1, UI-R1)",
}
OPENS: Mapping[str, str] = {
    "text": "an app is opened by its name alone",
    "text_or_click": "or by a click on its icon, where the recording names one (UI-S1)",
}
SCREENS: Mapping[str, str] = {
    "image": "an answer's points are pixels of the image as it was opened, recorded points are taken as they stand",
    "declared": "an answer's points are stretched to the size that the item declares, which is what UI-R1 does with the"
    " 1080x2400 of its file, whatever the image",
}
OPPOSITE: Mapping[str, str] = {"up": "down", "down": "up", "left": "right", "right": "left"}


@dataclasses.dataclass(frozen=True)
class ActionRule:
    """How actions are judged. Waiting is right by its type alone, buttons and final statuses must be equal.

    Attributes:
      click: a key of `CLICKS`; long presses are judged likewise.
      text: a key of `TEXTS`, for typed texts, answers and names of apps.
      scroll: a key of `SCROLLS`.
      open: a key of `OPENS`.
      screen: a key of `SCREENS`.
    """

    click: str = "ui_r1"
    text: str = "f1>0.5"
    scroll: str = "same"
    open: str = "text"
    screen: str = "image"

    def __post_init__(self):
        check_settings(self, click=CLICKS, text=TEXTS, scroll=SCROLLS, open=OPENS, screen=SCREENS)

    @property
    def name(self) -> str:
        """The full name, which `parse` reads: "click=ui_r1,text=f1>0.5,scroll=same,open=text,screen=image"."""
        return rule_name(self)

    @staticmethod
    def parse(name: str) -> ActionRule:
        """Reads "click=ui_s1,text=exact", or a key of `RULES` with settings behind it ("ui_s1,scroll=same").

        Settings that are not named keep their defaults.

        Raises:
          ConfigError: an unknown name, setting or value.
        """
        return parse_rule(ActionRule(), RULES, name)


# What each release judges by. UI-R1 and Android in the Wild compare nothing but types beside clicks (and swipes).
RULES: Mapping[str, ActionRule] = {
    "ui_r1": ActionRule(click="ui_r1", text="any", scroll="any"),
    "gui_r1": ActionRule(click="gui_r1", text="f1>=0.5"),
    "clawgui": ActionRule(click="clawgui", text="f1>0.5"),
    "ui_s1": ActionRule(click="ui_s1", text="substring", scroll="any", open="text_or_click"),
    "aitw": ActionRule(click="aitw", text="any", scroll="axis"),
}


def click_hits(click: str, point: Point, recorded: Point, boxes: Sequence[Box], size: tuple[int, int]) -> bool:
    """Whether a click lands where the recorded one did.

    Args:
      click: a key of `CLICKS`.
      point: where the answer clicks, in pixels.
      recorded: where the recording clicks, in pixels of the same screen.
      boxes: elements of the screen, in the same pixels; for "ui_s1" those alone that may be clicked instead.
      size: (width, height) of the screen, of which distances are shares.

    Raises:
      ConfigError: an unknown rule.
    """
    if click == "ui_r1":
        return math.dist(point, recorded) < UI_R1_RADIUS
    if click == "gui_r1":
        return math.dist(point, recorded) < GUI_R1_RADIUS
    if click == "clawgui":
        nearest = sorted(boxes, key=lambda box: math.dist(centre(box), recorded))[:CLAWGUI_BOXES]
        return any(in_box(point, box) for box in nearest) or math.dist(point, recorded) <= CLAWGUI_RADIUS
    if click == "ui_s1":
        near = math.dist(_share(point, size), _share(recorded, size)) <= UI_S1_DISTANCE
        return near or any(in_box(point, scaled(box, UI_S1_BOX)) for box in boxes)
    if click in ("aitw", "aitw_x1.4"):
        width, height = size
        rows = [
            (box.top / height, box.left / width, (box.bottom - box.top) / height, (box.right - box.left) / width)
            for box in boxes
        ]
        table = rows or [(math.nan,) * 4]
        growth = 1.4 if click == "aitw" else 0.4
        return bool(taps_match(_share(point, size)[::-1], _share(recorded, size)[::-1], table, growth=growth))
    raise ConfigError(f"click rule {click!r} is none of {', '.join(CLICKS)}")


def text_matches(text: str, answer: str, recorded: str) -> bool:
    """Whether a text is the recorded one; `text` is a key of `TEXTS`.

    Raises:
      ConfigError: an unknown rule.
    """
    if text == "any":
        return True
    if text == "exact":
        return answer == recorded
    if text == "substring":
        one, other = answer.lower().strip(), recorded.lower().strip()
        return one in other or other in one
    if text in ("f1>0.5", "f1>=0.5"):
        value = word_f1(answer, recorded)
        return value > 0.5 if text == "f1>0.5" else value >= 0.5
    raise ConfigError(f"text rule {text!r} is none of {', '.join(TEXTS)}")


def word_f1(answer: str, recorded: str) -> float:
    """F1 of the sets of lower-case words; 1 for two blank texts."""
    one, other = set(answer.lower().split()), set(recorded.lower().split())
    if not one and not other:
        return 1.0
    return 2 * len(one & other) / (len(one) + len(other))


def scroll_matches(scroll: str, answer: Action, recorded: Action) -> bool:
    """Whether a swipe goes the recorded way; `scroll` is a key of `SCROLLS`.

    Raises:
      ConfigError: an unknown rule.
    """
    if scroll == "any":
        return True
    one, other = finger_direction(answer), finger_direction(recorded)
    if one is None or other is None:
        return False
    if scroll == "same":
        return one == other
    if scroll == "reversed":
        return one == OPPOSITE[other]
    if scroll == "axis":
        return one in (other, OPPOSITE[other])
    raise ConfigError(f"scroll rule {scroll!r} is none of {', '.join(SCROLLS)}")


def finger_direction(action: Action) -> str | None:
    """Where the finger of a swipe goes: "up", "down", "left" or "right" by the longer way, vertical if both are equal.

    Ways are shares of the screen. None for an action that does not move.
    """
    if action.coordinate is None or action.coordinate2 is None:
        return None
    across, down = (end - start for start, end in zip(action.coordinate, action.coordinate2))
    if across == down == 0:
        return None
    if abs(across) > abs(down):
        return "right" if across > 0 else "left"
    return "down" if down > 0 else "up"


def centre(box: Box) -> Point:
    """The middle of a box."""
    return (box.left + box.right) / 2, (box.top + box.bottom) / 2


def scaled(box: Box, factor: float) -> Box:
    """A box with the same middle whose width and height are `factor` times as long."""
    (x, y), width, height = centre(box), (box.right - box.left) * factor, (box.bottom - box.top) * factor
    return Box(x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def _share(point: Point, size: tuple[int, int]) -> Point:
    return point[0] / size[0], point[1] / size[1]
