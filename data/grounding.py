"""Grounding and screen-reading examples from annotated screens.

Three kinds, all ordinary prompts in the agent's own style with one screenshot and no history:

    List the elements.   ->   Mia Noah\n Send                 every text, one line per row of the screen
    Find Send, Mia.      ->   Send 833, 900\n Mia 250, 100      places, in the order asked
    Tap Mia.             ->  Action: Tap Mia.\n<tool_call>\n{"name": "mobile_use", ...}\n</tool_call>

The first two are dense: a dozen words or places from one image. They are what makes a model read; clicks alone teach
it to find the widgets and then to guess. Places are points on the 0-1000 grid, x then y, at the centre of the element.
Where a screen has Set-of-Marks labels, they stand before the text and in place of the point: ` 3 Mia`, ` Mia 3`.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Callable, Sequence

import numpy as np

from data.examples import chat_example
from gui_owl_jax.agent.actions import Action, from_pixels
from gui_owl_jax.agent.context import ContextConfig, build_messages
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.elements import AnnotatedScreen, ScreenElement
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.agent.parsing import render_response
from gui_owl_jax.hf.processor import Processor
from gui_owl_jax.models.layout import Example

__all__ = [
    "LISTING_INSTRUCTION",
    "AnnotatedScreen",
    "ClickExamples",
    "ListingExamples",
    "LocateExamples",
    "ScreenElement",
    "click_action",
    "click_elements",
    "click_response",
    "element_phrase",
    "listing_response",
]

LISTING_INSTRUCTION = "List the elements."
# How else people ask for an element; the answer is the same click.
ASKS = ("Find {}.", "Open {}.", "Choose {}.", "Select {}.", "Where is {}?", "Set {}.", "Turn on {}.", "Send {}.")
# How many elements a screen keeps in "locate" and "click" examples, drawn evenly; 0 keeps all.
KEEPS = (2, 2, 2, 3, 3, 4, 0)
_BLANK = (235, 238, 242)
_VERBS = {DeviceFamily.MOBILE: "Tap", DeviceFamily.DESKTOP: "Click", DeviceFamily.WEB: "Click"}
Phrase = Callable[[DeviceFamily, ScreenElement], str]


def element_phrase(family: DeviceFamily, element: ScreenElement) -> str:
    """Returns the sentence that asks for a click on an element, which is also the conclusion: "Tap Mia."."""
    return f"{_VERBS[family]} {element.text or element.kind}."


def click_action(family: DeviceFamily, element: ScreenElement, width: int, height: int) -> Action:
    """Returns the family's action that clicks an element of a screen of `width` x `height` pixels.

    Raises:
      DataError: a web element has no label to click by.
    """
    if family == DeviceFamily.WEB:
        if element.label is None:
            raise DataError(f"element {element.text!r} of a web screen has no label")
        return Action(kind="click", label=element.label)
    kind = "click" if family == DeviceFamily.MOBILE else "left_click"
    return Action(kind=kind, coordinate=from_pixels(*element.centre, width, height))


def listing_response(screen: AnnotatedScreen) -> str:
    """Returns all texts in reading order, one line per row of the screen, each behind a space and its label if any.

    A space in front makes a word the same token here as inside a sentence.
    """
    rows: dict[int, str] = {}
    for element in screen.elements:
        if element.text:
            label = "" if element.label is None else f" {element.label}"
            rows[element.box[1]] = rows.get(element.box[1], "") + f"{label} {element.text}"
    return "\n".join(rows.values())


def place(screen: AnnotatedScreen, element: ScreenElement) -> str:
    """Returns where an element is: its label on a web screen, else its centre as "505, 103"."""
    if screen.family == DeviceFamily.WEB:
        return str(element.label)
    x, y = from_pixels(*element.centre, *_size(screen))
    return f"{x}, {y}"


def click_response(screen: AnnotatedScreen, element: ScreenElement, phrase: Phrase = element_phrase) -> str:
    """Returns the response that clicks an element, in the exact format of the agent."""
    action = click_action(screen.family, element, *_size(screen))
    return render_response(phrase(screen.family, element), action, screen.family)


def click_elements(screen: AnnotatedScreen, phrase: Phrase = element_phrase) -> list[ScreenElement]:
    """Returns the elements that an instruction can name: clickable, with a phrase that fits no other element."""
    named = [(phrase(screen.family, element), element) for element in screen.elements]
    uses = collections.Counter(words for words, _ in named)
    by_label = screen.family == DeviceFamily.WEB
    return [
        element
        for words, element in named
        if element.clickable and uses[words] == 1 and not (by_label and element.label is None)
    ]


def _size(screen: AnnotatedScreen) -> tuple[int, int]:
    height, width = screen.image.shape[:2]
    return width, height


def _name(phrase: str) -> str:
    """What a phrase names: "Tap Mia." -> "Mia"."""
    return phrase.split(" ", 1)[-1].rstrip(".")


def thin_out(screen: AnnotatedScreen, kept: Sequence[ScreenElement]) -> AnnotatedScreen:
    """Returns the screen with only the elements `kept`; the boxes of the others are painted over in light grey.

    Few elements make an easy screen: with a dozen of them, matching a name to its place gives so faint a signal that a
    small model does not begin to learn it.
    """
    image = screen.image.copy()
    for element in screen.elements:
        if element not in kept:
            x, y, width, height = element.box
            image[y : y + height, x : x + width] = _BLANK
    for element in kept:  # boxes may overlap
        x, y, width, height = element.box
        image[y : y + height, x : x + width] = screen.image[y : y + height, x : x + width]
    return dataclasses.replace(screen, image=image, elements=tuple(e for e in screen.elements if e in kept))


class _ScreenExamples(Sequence[Example]):
    """What all kinds share: a prompt with an instruction and one screenshot."""

    def __init__(self, screens: Sequence[AnnotatedScreen], processor: Processor, context: ContextConfig):
        self._screens = screens
        self._processor = processor
        self._context = context

    def _example(self, screen: AnnotatedScreen, instruction: str, response: str) -> Example:
        messages = build_messages(instruction, screen.family, (), self._context)
        images: dict[int, np.ndarray] = {0: screen.image}
        return chat_example(messages, images, response, self._processor)


class ListingExamples(_ScreenExamples):
    """One "list the elements" example per screen.

    Args:
      screens: random access, a list or a `ScreenSource`.
      processor: tokenizer and image processor.
      context: style of the prompt.
    """

    def __len__(self) -> int:
        return len(self._screens)

    def __getitem__(self, index):
        screen = self._screens[index]
        return self._example(screen, LISTING_INSTRUCTION, listing_response(screen))


class LocateExamples(_ScreenExamples):
    """Per screen `repeats` examples that ask for the places of up to `count` elements in random order.

    Args:
      screens: random access, a list or a `ScreenSource`.
      processor: tokenizer and image processor.
      context: style of the prompt.
      phrase: names an element; the name is what follows the verb.
      count: most elements asked for in one example.
      repeats: examples per screen, each with other elements or another order.
      keeps: see `KEEPS`; (0,) leaves the screens as they are.
    """

    def __init__(
        self,
        screens: Sequence[AnnotatedScreen],
        processor: Processor,
        context: ContextConfig,
        phrase: Phrase = element_phrase,
        count: int = 5,
        repeats: int = 6,
        keeps: Sequence[int] = KEEPS,
    ):
        super().__init__(screens, processor, context)
        self._phrase, self._count, self._repeats, self._keeps = phrase, count, repeats, keeps

    def __len__(self) -> int:
        return len(self._screens) * self._repeats

    def __getitem__(self, index):
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        screen = self._screens[index % len(self) // self._repeats]
        draw = random.Random(index % len(self))
        elements = click_elements(screen, self._phrase)
        keep = min(draw.choice(self._keeps) or len(elements), len(elements))
        if keep < len(elements):
            elements = draw.sample(elements, keep)
            screen = thin_out(screen, elements)
        chosen = draw.sample(elements, min(self._count, len(elements)))
        names = [_name(self._phrase(screen.family, element)) for element in chosen]
        # The name right before its place: one step of attention from word to screen, which clicks then build upon.
        lines = [f" {name} {place(screen, element)}" for name, element in zip(names, chosen)]
        return self._example(screen, f"Find {', '.join(names)}.", "\n".join(lines))


class ClickExamples(_ScreenExamples):
    """One click example per element that an instruction can name (`click_elements`).

    Every second one asks in other words (`ASKS`), so that the policy listens to the name and not to the verb.

    Args:
      screens: random access, a list or a `ScreenSource`; read once when made, to number the elements.
      processor: tokenizer and image processor.
      context: style of the prompt.
      phrase: makes the conclusion of the response from family and element, and half of the instructions. Give the
        phrase that scripted trajectories use, so that what is learned here carries over.
      keeps: see `KEEPS`; (0,) leaves the screens as they are.
    """

    def __init__(
        self,
        screens: Sequence[AnnotatedScreen],
        processor: Processor,
        context: ContextConfig,
        phrase: Phrase = element_phrase,
        keeps: Sequence[int] = KEEPS,
    ):
        super().__init__(screens, processor, context)
        self._phrase, self._keeps = phrase, keeps
        self._places = [(i, element) for i, screen in enumerate(screens) for element in click_elements(screen, phrase)]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index):
        i, element = self._places[index]
        screen = self._screens[i]
        phrase = self._phrase(screen.family, element)
        draw = random.Random(index % len(self))
        others = [other for other in click_elements(screen, self._phrase) if other != element]
        keep = draw.choice(self._keeps)
        if 0 < keep <= len(others):
            screen = thin_out(screen, [element, *draw.sample(others, keep - 1)])
        instruction = phrase if draw.random() < 0.5 else draw.choice(ASKS).format(_name(phrase))
        return self._example(screen, instruction, click_response(screen, element, self._phrase))
