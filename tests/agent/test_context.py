from __future__ import annotations

import re

import numpy as np
import pytest

from gui_owl_jax.agent.actions import TOOL_KIND, Action
from gui_owl_jax.agent.context import ContextConfig, ImageRef, Message, build_messages
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import ConfigError, DataError
from gui_owl_jax.agent.parsing import render_response
from gui_owl_jax.agent.prompts import render_chat, system_prompt
from gui_owl_jax.agent.trajectory import Observation, Step

MOBILE = DeviceFamily.MOBILE
SCREEN = Observation(np.zeros((2, 2, 3), np.uint8))
TAP = Action("click", coordinate=(10.0, 20.0))


def steps(count: int) -> list[Step]:
    return [Step(SCREEN, conclusion=f"Tap item {index}.", action=TAP, thought=f"t{index}") for index in range(count)]


def images(messages) -> list[int]:
    return [part.step for message in messages for part in message.content if isinstance(part, ImageRef)]


def text_of(message: Message) -> str:
    return "".join(part for part in message.content if isinstance(part, str))


@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize("history_n", [0, 1, 2, 4, 9])
@pytest.mark.parametrize("count", range(8))
def test_window(count, history_n, style):
    done = steps(count)
    messages = build_messages("Do it.", MOBILE, done, ContextConfig(history_n, style))
    kept = min(history_n, count)
    first = count - kept
    assert messages[0].role == "system" and text_of(messages[0]) == system_prompt(MOBILE, style)
    assert [message.role for message in messages[1:]] == ["user", "assistant"] * kept + ["user"]
    assert images(messages) == list(range(first, count + 1))  # the newest turns and the current screen
    assert messages[-1].content[-1] == ImageRef(count)
    for index in range(first, count):
        spoken = render_response(f"Tap item {index}.", TAP, MOBILE, f"t{index}")
        assert text_of(messages[2 + 2 * (index - first)]) == spoken
    opening = text_of(messages[1])
    assert "Do it." in opening
    # every older step is there once, under its own number, in order; no newer one is
    listed = re.findall(r"Step (\d+): Tap item (\d+)\.", opening)
    assert listed == [(str(index + 1), str(index)) for index in range(first)]
    assert all(text_of(message) == "" for message in messages[3::2])  # later user turns are screenshots alone


def test_full_layout():
    messages = build_messages("Do it.", MOBILE, [], ContextConfig())
    assert messages[1].content == (
        "Decide on the next move from the screenshot, the instruction and the previous actions.\n\n"
        "Instruction: Do it.\n\nPrevious actions:\nNone",
        ImageRef(0),
    )
    messages = build_messages("Do it.", MOBILE, steps(6), ContextConfig())
    assert text_of(messages[1]).endswith("\n\nPrevious actions:\nStep 1: Tap item 0.\nStep 2: Tap item 1.")


def test_compact_layout():
    config = ContextConfig(history_n=1, style="compact")
    assert render_chat(build_messages("Do it.", MOBILE, [], config)) == (
        "<|im_start|>system\nDevice: mobile. Tool: mobile_use.<|im_end|>\n"
        "<|im_start|>user\nTask: Do it.\n<|vision_start|><|image_pad|><|vision_end|><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    messages = build_messages("Do it.", MOBILE, steps(3), config)
    assert messages[1].content == (
        "Task: Do it.\nPrevious actions: Step 1: Tap item 0.; Step 2: Tap item 1.\n",
        ImageRef(2),
    )


def test_sampled_ids_and_the_response_as_it_was_travel_with_the_turn():
    ids = np.array([4, 5, 6], np.int32)
    done = [Step(SCREEN, conclusion="Tap.", action=TAP, response="Action: Tap.<tool_call>{...}", token_ids=ids)]
    turn = build_messages("x", MOBILE, done, ContextConfig())[2]
    assert turn.role == "assistant" and turn.token_ids is ids
    assert turn.content == ("Action: Tap.<tool_call>{...}",)
    assert build_messages("x", MOBILE, steps(1), ContextConfig())[2].token_ids is None


def test_a_step_without_conclusion_keeps_its_place_in_the_list():
    done = [
        Step(SCREEN, conclusion="Read\n code  47.", action=TAP),
        Step(SCREEN, response="?", error="no_tool_call"),
        Step(SCREEN, action=Action("wait", time=1.0)),
        *steps(1),
    ]
    opening = text_of(build_messages("x", MOBILE, done, ContextConfig(history_n=1))[1])
    assert opening.endswith("Step 1: Read code 47.\nStep 2: no valid action\nStep 3: wait")


def test_an_unparsable_response_stays_in_the_window():
    done = [Step(SCREEN, response="tap??", error="no_tool_call")]
    assert text_of(build_messages("x", MOBILE, done, ContextConfig())[2]) == "tap??"
    empty = [Step(SCREEN, error="no_tool_call", token_ids=np.array([7], np.int32))]
    assert text_of(build_messages("x", MOBILE, empty, ContextConfig())[2]) == ""


@pytest.mark.parametrize("step", [Step(SCREEN), Step(SCREEN, action=Action(TOOL_KIND, text="search"))])
def test_a_step_that_says_nothing_is_refused(step):
    with pytest.raises(DataError, match="step 1 has neither a response nor an action"):
        build_messages("x", MOBILE, [*steps(1), step], ContextConfig())


def test_observation_texts_stand_behind_their_screenshots():
    done = [Step(Observation(SCREEN.image, "[1] Cart"), conclusion="Go back.", action=Action("go_back"))]
    messages = build_messages("x", DeviceFamily.WEB, done, ContextConfig(), observation_text="[1] Shop")
    assert messages[1].content[1:] == (ImageRef(0), "\nObservation: [1] Cart")
    assert messages[3].content == (ImageRef(1), "\nObservation: [1] Shop")


def test_a_prompt_is_the_beginning_of_the_next_while_the_window_has_room():
    """Within the window nothing earlier changes: what was fed to the sampler stays as it was."""
    done = steps(4)
    for count in range(4):
        now = render_chat(build_messages("x", MOBILE, done[:count], ContextConfig()))
        after = render_chat(build_messages("x", MOBILE, done[: count + 1], ContextConfig()))
        assert after.startswith(now)


def test_extra_tools_are_offered():
    extra = {"type": "function", "function": {"name": "search", "description": "Find files."}}
    messages = build_messages("x", DeviceFamily.DESKTOP, [], ContextConfig(), extra_tools=[extra])
    assert '"name": "search"' in text_of(messages[0])


@pytest.mark.parametrize("values", [{"history_n": -1}, {"style": "terse"}])
def test_a_config_that_cannot_work_is_refused(values):
    with pytest.raises(ConfigError, match=next(iter(values))):
        ContextConfig(**values)
