"""Listing and click targets."""

import json

import numpy as np
import pytest

from data.grounding import (
    LISTING_INSTRUCTION,
    ClickExamples,
    ListingExamples,
    LocateExamples,
    click_action,
    click_elements,
    click_response,
    element_phrase,
    listing_response,
    place,
    thin_out,
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
    assert listing_response(screen()) == " Mia\n Noah\n Send"
    marked = screen(DeviceFamily.WEB, (1, None, 2, 3))
    assert listing_response(marked) == " 1 Mia\n Noah\n 3 Send"
    pair = [ScreenElement(text, "cell", (x, 32, 32, 32)) for text, x in (("Ann", 0), ("Box", 32))]
    assert listing_response(AnnotatedScreen(BLANK, tuple(pair), DeviceFamily.DESKTOP)) == " Ann Box"


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
        assert (
            json.loads(response.split("\n")[2])["name"]
            == {"mobile": "mobile_use", "desktop": "computer_use", "web": "browser_use"}[family]
        )


def test_web_needs_labels():
    with pytest.raises(DataError, match="'Mia' of a web screen"):
        click_action(DeviceFamily.WEB, screen().elements[0], 96, 160)


def test_places():
    assert [place(screen(), e) for e in screen().elements] == ["505, 103", "505, 303", "172, 503", "839, 903"]
    marked = screen(DeviceFamily.WEB, (1, None, 2, 3))
    assert [place(marked, e) for e in click_elements(marked)] == ["1", "2", "3"]


def parts(example, processor) -> tuple[str, str]:
    """The task that the prompt states, and the answer."""
    prompt = processor.tokenizer.decode(example.tokens[example.loss_mask == 0])
    return prompt.split("Task: ")[1].split("\n")[0], processor.decode_response(example.tokens[example.loss_mask > 0])


def test_listing_examples(screens, processor, context):
    listing = ListingExamples(screens, processor, context)
    assert len(listing) == len(screens)
    assert parts(listing[0], processor) == (LISTING_INSTRUCTION, listing_response(screens[0]))
    assert len(listing[0].images) == 1


def test_locate_examples_answer_in_the_order_asked(screens, processor, context):
    source = LocateExamples(screens, processor, context, count=3, repeats=2, keeps=(0,))
    assert len(source) == 2 * len(screens)
    for index in range(len(source)):
        screen = screens[index // 2]
        by_name = {element.text or element.kind: place(screen, element) for element in click_elements(screen)}
        task, answer = parts(source[index], processor)
        names = task.removeprefix("Find ").removesuffix(".").split(", ")
        assert len(names) == min(3, len(by_name)) and len(set(names)) == len(names)
        assert answer.split("\n") == [f" {name} {by_name[name]}" for name in names]
    assert parts(source[0], processor) != parts(source[1], processor)
    assert parts(source[0], processor) == parts(source[0], processor)
    with pytest.raises(IndexError):
        source[len(source)]


def test_thinned_screens_show_the_kept_elements_and_nothing_else():
    noise = np.random.default_rng(0).integers(0, 200, (160, 96, 3), dtype=np.uint8)
    full = AnnotatedScreen(noise, screen().elements, DeviceFamily.MOBILE)
    thin = thin_out(full, [full.elements[1]])
    assert thin.elements == (full.elements[1],)
    np.testing.assert_array_equal(thin.image[32:64], noise[32:64])
    assert np.unique(thin.image[0:32].reshape(-1, 3), axis=0).shape == (1, 3)
    assert (full.image == noise).all()


def test_locate_on_thinned_screens_asks_for_what_is_left(screens, processor, context):
    source = LocateExamples(screens, processor, context, count=5, repeats=1, keeps=(2,))
    for index in range(len(source)):
        task, _ = parts(source[index], processor)
        assert len(task.split(", ")) == min(2, len(click_elements(screens[index])))


def test_click_examples_ask_in_several_ways_and_answer_in_one(screens, processor, context):
    clicks = ClickExamples(screens, processor, context)
    assert len(clicks) == sum(len(click_elements(screen)) for screen in screens) > len(screens)
    wanted = [(screen, element) for screen in screens for element in click_elements(screen)]
    asks = set()
    for index, (screen, element) in enumerate(wanted):
        task, answer = parts(clicks[index], processor)
        parsed = parse_response(answer, screen.family)
        assert parsed.conclusion == element_phrase(screen.family, element)
        assert parsed.action == click_action(screen.family, element, *screen.image.shape[1::-1])
        assert (element.text or element.kind) in task
        asks.add(task == parsed.conclusion)
    assert asks == {True, False}


def test_the_words_can_be_chosen(screens, processor, context):
    clicks = ClickExamples(screens, processor, context, phrase=lambda family, element: f"Press {element.text} now.")
    assert "Action: Press" in parts(clicks[0], processor)[1]
