"""Grounding and screen-reading examples from annotated screens.

Two kinds, both ordinary prompts in the agent's own style with one screenshot and no history:

    List the elements.   ->  Mia 500 100\nNoah 500 300\nSend 833 900
    Tap Mia.             ->  Action: Tap Mia.\n<tool_call>\n{"name": "mobile_use", ...}\n</tool_call>

The listing is what makes a model read words; the click alone teaches it to find the widgets and then to guess. Places
are points on the 0-1000 grid, x then y, at the centre of the element. Where a screen has Set-of-Marks labels, a line
begins with the label and the click names it: `3 Mia 500 100`, `{"action": "click", "label": 3}`.
"""

from __future__ import annotations

import collections
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
    "ScreenElement",
    "click_action",
    "click_elements",
    "click_response",
    "element_phrase",
    "listing_response",
]

LISTING_INSTRUCTION = "List the elements."
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
    """Returns one line per element that shows anything, in reading order: `[label ]text x y`."""
    lines = []
    for element in screen.elements:
        shown = [str(element.label)] if element.label is not None else []
        shown += [element.text] if element.text else []
        if shown:
            x, y = from_pixels(*element.centre, *_size(screen))
            lines.append(" ".join([*shown, str(x), str(y)]))
    return "\n".join(lines)


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


class _ScreenExamples(Sequence[Example]):
    """What both kinds share: a prompt with an instruction and one screenshot."""

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


class ClickExamples(_ScreenExamples):
    """One click example per element that an instruction can name (`click_elements`).

    Args:
      screens: random access, a list or a `ScreenSource`; read once when made, to number the elements.
      processor: tokenizer and image processor.
      context: style of the prompt.
      phrase: makes the instruction from family and element; the same words are the conclusion of the response. Give
        the phrase that scripted trajectories use, so that what is learned here carries over.
    """

    def __init__(
        self,
        screens: Sequence[AnnotatedScreen],
        processor: Processor,
        context: ContextConfig,
        phrase: Phrase = element_phrase,
    ):
        super().__init__(screens, processor, context)
        self._phrase = phrase
        self._places = [(i, element) for i, screen in enumerate(screens) for element in click_elements(screen, phrase)]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index):
        i, element = self._places[index]
        screen = self._screens[i]
        response = click_response(screen, element, self._phrase)
        return self._example(screen, self._phrase(screen.family, element), response)
