"""Listing and click targets."""

import json

import numpy as np
import pytest

from data.grounding import (
    LISTING_INSTRUCTION,
    ClickExamples,
    ListingExamples,
    click_action,
    click_elements,
    click_response,
    listing_response,
)
from gui_owl_jax.agent.actions import to_pixels
from gui_owl_jax.agent.devices import DEVICE_FAMILIES, DeviceFamily
from gui_owl_jax.agent.elements import AnnotatedScreen, ScreenElement
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.agent.parsing import parse_response

BLANK = np.zeros((160, 96, 3), np.uint8)


def screen(family=DeviceFamily.MOBILE, labels=(None, None, None, None)) -> AnnotatedScreen:
    rows = [("Mia", (0, 0, 96, 32), True), ("Noah", (0, 32, 96, 32), False), ("", (0, 64, 32, 32), True)]
    rows += [("Send", (64, 128, 32, 32), True)]
    elements = [ScreenElement(text, "row", box, label, click) for (text, box, click), label in zip(rows, labels)]
    return AnnotatedScreen(BLANK, tuple(elements), family)


def test_listing():
    assert listing_response(screen()) == "Mia 505 103\nNoah 505 303\nSend 839 903"
    marked = screen(DeviceFamily.WEB, (1, None, 2, 3))
    assert listing_response(marked) == "1 Mia 505 103\nNoah 505 303\n2 172 503\n3 Send 839 903"


def test_only_elements_that_words_can_name_are_clicked():
    assert [element.text for element in click_elements(screen())] == ["Mia", "", "Send"]  # "" is "the row"
    twice = AnnotatedScreen(BLANK, (*screen().elements, ScreenElement("Mia", "title", (0, 96, 96, 32))), "mobile")
    assert [element.text for element in click_elements(twice)] == ["", "Send"]
    marked = screen(DeviceFamily.WEB, (1, None, None, 3))
    assert [element.label for element in click_elements(marked)] == [1, 3]
    assert click_elements(screen(), phrase=lambda family, element: "Click it.") == []


@pytest.mark.parametrize("family", DEVICE_FAMILIES)
def test_click_hits_its_element(family):
    labels = (1, 2, 3, 4)
    for element in click_elements(screen(family, labels)):
        response = click_response(screen(family, labels), element)
        parsed = parse_response(response, family)
        assert parsed.conclusion == f"{'Tap' if family == 'mobile' else 'Click'} {element.text or 'row'}."
        if family == DeviceFamily.WEB:
            assert parsed.action.label == element.label
        else:
            assert element.contains(*to_pixels(parsed.action.coordinate, 96, 160))
        assert json.loads(response.split("\n")[2])["name"] == {
            "mobile": "mobile_use", "desktop": "computer_use", "web": "browser_use"
        }[family]


def test_web_needs_labels():
    with pytest.raises(DataError, match="'Mia' of a web screen"):
        click_action(DeviceFamily.WEB, screen().elements[0], 96, 160)


def test_examples(screens, processor, context):
    listing = ListingExamples(screens, processor, context)
    clicks = ClickExamples(screens, processor, context)
    assert len(listing) == len(screens)
    assert len(clicks) == sum(len(click_elements(screen)) for screen in screens) > len(screens)
    for source, instruction in ((listing, LISTING_INSTRUCTION), (clicks, None)):
        example = source[0]
        prompt = processor.tokenizer.decode(example.tokens[example.loss_mask == 0])
        answer = processor.decode_response(example.tokens[example.loss_mask > 0])
        if instruction is None:
            instruction = parse_response(answer, screens[0].family).conclusion
        else:
            assert answer == listing_response(screens[0])
        assert f"Task: {instruction}\n" in prompt
        assert len(example.images) == 1


def test_the_words_can_be_chosen(screens, processor, context):
    clicks = ClickExamples(screens, processor, context, phrase=lambda family, element: f"Press {element.text} now.")
    example = clicks[0]
    text = processor.tokenizer.decode(example.tokens)
    assert text.count(f"Press {click_elements(screens[0])[0].text} now.") == 2
