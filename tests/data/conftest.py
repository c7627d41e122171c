"""Real parts of a nano size: tokenizer, processor, model configuration, and recorded trajectories."""

import dataclasses

import numpy as np
import pytest

from gui_owl_jax.agent.actions import Action, from_pixels
from gui_owl_jax.agent.context import ContextConfig
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.elements import AnnotatedScreen, ScreenElement
from gui_owl_jax.agent.parsing import render_response
from gui_owl_jax.agent.trajectory import Observation, Step, Trajectory
from gui_owl_jax.hf.images import ImageConfig
from gui_owl_jax.hf.processor import Processor
from gui_owl_jax.hf.tokenizer import small_tokenizer
from gui_owl_jax.models.config import get_preset

WORDS = ("Mia", "Noah", "Lunch", "Photo", "Music", "Mail", "Alarm", "Send")
SIZES = {DeviceFamily.MOBILE: (96, 160), DeviceFamily.DESKTOP: (160, 96), DeviceFamily.WEB: (128, 128)}


def make_screen(rng: np.random.Generator, family: DeviceFamily) -> AnnotatedScreen:
    """Noise, with two or three elements of 32 pixels height, one below the other."""
    width, height = SIZES[family]
    words = rng.permutation(WORDS)[: rng.integers(2, 4)]
    elements = tuple(
        ScreenElement(str(word), "button", (0, 32 * i, 64, 32), i + 1 if family == DeviceFamily.WEB else None)
        for i, word in enumerate(words)
    )
    return AnnotatedScreen(rng.integers(0, 255, (height, width, 3), np.uint8), elements, family, "messages")


def make_trajectory(rng: np.random.Generator, number: int, family: DeviceFamily = DeviceFamily.MOBILE) -> Trajectory:
    """An episode of one to three clicks."""
    steps = []
    for _ in range(rng.integers(1, 4)):
        screen = make_screen(rng, family)
        element = screen.elements[0]
        action = Action(kind="click", coordinate=from_pixels(*element.centre, *SIZES[family]))
        if family == DeviceFamily.WEB:
            action = Action(kind="click", label=element.label)
        steps.append(Step(Observation(screen.image), conclusion=f"Tap {element.text}.", action=action))
    return Trajectory(
        task_id=f"open:{number}",
        app="messages",
        family=family,
        instruction=f"Open the chat with {WORDS[number % len(WORDS)]}.",
        steps=tuple(steps),
        outcome=1,
        source="rpa",
        seed=number,
        subtasks=(True, False),
        metadata={"template": "open", "number": number, "nested": {"list": [1, 2.5, None]}},
    )


@pytest.fixture(scope="session")
def processor() -> Processor:
    rng = np.random.default_rng(0)
    corpus = [
        render_response(step.conclusion, step.action, family)
        for i in range(30)
        for family in (DeviceFamily.MOBILE, DeviceFamily.WEB)
        for step in make_trajectory(rng, i, family).steps
    ]
    corpus += ["system\nuser\nassistant\nTask: List the elements.\nDevice: mobile. Tool: mobile_use."] * 8
    return Processor(small_tokenizer(corpus, 512), ImageConfig(min_pixels=32 * 32))


@pytest.fixture(scope="session")
def config(processor):
    tokenizer = processor.tokenizer
    return dataclasses.replace(
        get_preset("nano"),
        image_token_id=tokenizer.image_pad,
        video_token_id=tokenizer.video_pad,
        vision_start_token_id=tokenizer.vision_start,
        vision_end_token_id=tokenizer.vision_end,
    )


@pytest.fixture(scope="session")
def context() -> ContextConfig:
    return ContextConfig(history_n=1, style="compact")


@pytest.fixture(scope="session")
def trajectories() -> list[Trajectory]:
    rng = np.random.default_rng(1)
    return [make_trajectory(rng, i, (DeviceFamily.MOBILE, DeviceFamily.WEB)[i % 2]) for i in range(24)]


@pytest.fixture(scope="session")
def screens() -> list[AnnotatedScreen]:
    rng = np.random.default_rng(2)
    return [make_screen(rng, list(DeviceFamily)[i % 3]) for i in range(24)]
