"""The chat renderer against the published template, and the system prompts."""

from __future__ import annotations

import json
import os
import pathlib
import random

import jinja2.ext
import jinja2.sandbox
import numpy as np
import pytest

from gui_owl_jax.agent.actions import ToolCall
from gui_owl_jax.agent.devices import DeviceFamily, tool_name, tool_schema
from gui_owl_jax.agent.errors import ConfigError, DataError
from gui_owl_jax.agent.prompts import (
    ImageRef,
    Message,
    SampledTurn,
    Special,
    VideoRef,
    chat_pieces,
    render_chat,
    system_prompt,
)

CONFORMANCE = pathlib.Path(
    os.environ.get("GUI_OWL_CONFORMANCE", pathlib.Path(__file__).parents[2] / "../shared/conformance")
)
TEMPLATE = CONFORMANCE / "tokenizer" / "qwen3_vl_chat_template.jinja"


@pytest.fixture(scope="module")
def template():
    if not TEMPLATE.exists():
        pytest.skip(f"the published chat template is not at {TEMPLATE}")
    # The settings under which such templates are published: no HTML escaping, keys in their own order.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8"))


def published(template, messages, tools=None, add_generation_prompt=True, **forms) -> str:
    converted = [as_dict(message, **forms) for message in messages]
    return template.render(messages=converted, tools=tools, add_generation_prompt=add_generation_prompt)


def as_dict(message: Message, strings: bool = False, nested_calls: bool = True, image_key: str = "image") -> dict:
    """A message in the form of the published API: content as a list of parts, or as a string where that is possible."""

    def as_part(part: str | ImageRef | VideoRef) -> dict:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        if isinstance(part, VideoRef):
            return {"type": "video", "video": f"{part.video}.mp4"}
        return {"type": image_key, image_key: f"{part.step}.png"}

    content: object = [as_part(part) for part in message.content]
    if strings and all(isinstance(part, str) for part in message.content):
        content = "".join(message.content)
    result: dict = {"role": message.role, "content": content}
    if message.tool_calls:
        calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in message.tool_calls]
        result["tool_calls"] = [{"type": "function", "function": call} for call in calls] if nested_calls else calls
    return result


TOOLS = [
    tool_schema(DeviceFamily.MOBILE),
    {"type": "function", "function": {"name": "搜索", "description": "<a> & 'b'"}},
]
CALL = ToolCall("mobile_use", {"action": "click", "coordinate": [1, 2.5], "text": 'é <b> "q" \'\n', "flag": None})
CHATS = {
    "user": [Message("user", ("Hi",))],
    "system and user": [Message("system", ("Be kind.",)), Message("user", ("Hi",))],
    "image first": [Message("user", (ImageRef(0), "What is it?"))],
    "images between texts": [Message("user", ("a", ImageRef(0), "b", ImageRef(1), ImageRef(2), "c"))],
    "videos and images": [
        Message("user", (VideoRef(0), "a", ImageRef(1), VideoRef(1, fps=1.0))),
        Message("tool", ("seen", VideoRef(0))),
    ],
    "turns": [
        Message("system", ("S",)),
        Message("user", ("Task", ImageRef(0))),
        Message("assistant", ("Action: a",)),
        Message("user", (ImageRef(1),)),
        Message("assistant", ("Action: b", "\nmore")),
        Message("user", (ImageRef(2),)),
    ],
    "ends with assistant": [Message("user", ("Hi",)), Message("assistant", ("Hello",))],
    "a tool call": [Message("user", ("Hi",)), Message("assistant", ("Let me see.",), tool_calls=(CALL,))],
    "tool calls alone": [Message("user", ("Hi",)), Message("assistant", (), tool_calls=(CALL, CALL))],
    "tool responses": [
        Message("user", ("Hi",)),
        Message("assistant", ("x",), tool_calls=(CALL, CALL)),
        Message("tool", ("done",)),
        Message("tool", ("screen:", ImageRef(0), "ok")),
        Message("user", ("Go on.",)),
        Message("assistant", (), tool_calls=(CALL,)),
        Message("tool", (ImageRef(1),)),
    ],
    "tool first": [Message("tool", ("orphan",)), Message("tool", ("orphan",))],
    "empty contents": [Message("system", ()), Message("user", ()), Message("assistant", ()), Message("tool", ())],
    "template syntax in the content": [Message("user", ("{{ messages }} {% if %} <|im_end|> <|image_pad|>",))],
    "line ends": [Message("user", ("\n a \n\n",)), Message("assistant", ("\n",)), Message("user", (" ", "\r\n"))],
}
FORMS = [{}, {"strings": True}, {"nested_calls": False}, {"image_key": "image_url"}]


@pytest.mark.parametrize("forms", FORMS, ids=str)
@pytest.mark.parametrize("generation", [True, False])
@pytest.mark.parametrize("tools", [None, [], TOOLS], ids=["none", "empty", "two"])
@pytest.mark.parametrize("case", CHATS)
def test_equals_the_published_template(template, case, tools, generation, forms):
    messages = CHATS[case]
    ours = render_chat(messages, tools=tools, add_generation_prompt=generation)
    assert ours == published(template, messages, tools, generation, **forms)


def test_calls_tools_and_responses_word_for_word():
    """The same as above for one chat, where the published template is not at hand."""
    call = ToolCall("search", {"query": "é"})
    messages = [
        Message("system", ("S",)),
        Message("user", ("U", ImageRef(0))),
        Message("assistant", ("A",), tool_calls=(call, call)),
        Message("tool", ("R",)),
        Message("tool", (ImageRef(1),)),
    ]
    section = system_prompt(DeviceFamily.WEB).partition("\n\n# Response format")[0]
    payload = '<tool_call>\n{"name": "search", "arguments": {"query": "é"}}\n</tool_call>'
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    assert render_chat(messages, tools=[tool_schema(DeviceFamily.WEB)]) == (
        f"<|im_start|>system\nS\n\n{section}<|im_end|>\n"
        f"<|im_start|>user\nU{image}<|im_end|>\n"
        f"<|im_start|>assistant\nA\n{payload}\n{payload}<|im_end|>\n"
        f"<|im_start|>user\n<tool_response>\nR\n</tool_response>\n<tool_response>\n{image}\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def random_chat(rng: random.Random) -> list[Message]:
    def text() -> str:
        return "".join(rng.choice(["a", " ", "\n", "中", "<", '"', "{{ x }}", "<|im_end|>", ""]) for _ in range(6))

    def content(images: bool) -> tuple:
        def picture() -> ImageRef | VideoRef:
            return ImageRef(rng.randrange(9)) if rng.random() < 0.7 else VideoRef(rng.randrange(9))

        return tuple(picture() if images and rng.random() < 0.4 else text() for _ in range(rng.randrange(4)))

    messages = [Message("system", content(False))] if rng.random() < 0.5 else []
    for _ in range(rng.randint(1, 7)):
        role = rng.choice(["user", "assistant", "tool"])
        calls = (CALL,) * rng.randrange(3) if role == "assistant" else ()
        messages.append(Message(role, content(role != "assistant"), tool_calls=calls))
    return messages


def test_random_chats_equal_the_published_template(template):
    rng = random.Random(0)
    for _ in range(500):
        messages = random_chat(rng)
        tools, generation, nested = rng.choice([None, TOOLS]), rng.random() < 0.5, rng.random() < 0.5
        ours = render_chat(messages, tools=tools, add_generation_prompt=generation)
        assert ours == published(template, messages, tools, generation, nested_calls=nested)


@pytest.mark.parametrize("family", DeviceFamily)
def test_the_full_system_prompt_has_the_section_of_the_template(template, family):
    section = published(template, [Message("user", ())], [tool_schema(family)], False)
    section = section.removeprefix("<|im_start|>system\n").partition("<|im_end|>")[0]
    assert system_prompt(family).startswith(f"{section}\n\n# Response format\n\n")


@pytest.mark.parametrize("family", DeviceFamily)
def test_the_full_system_prompt_lists_tools_as_json_lines(family):
    extra = {"type": "function", "function": {"name": "search", "description": "Find files."}}
    prompt = system_prompt(family, extra_tools=[extra])
    lines = prompt.split("<tools>\n")[1].split("\n</tools>")[0].split("\n")
    assert [json.loads(line) for line in lines] == [tool_schema(family), extra]


def test_the_compact_system_prompt_is_a_line():
    assert system_prompt(DeviceFamily.MOBILE, "compact") == "Device: mobile. Tool: mobile_use."
    extra = {"type": "function", "function": {"name": "search"}}
    assert system_prompt(DeviceFamily.WEB, "compact", [extra]) == "Device: web. Tools: browser_use, search."
    assert all(tool_name(family) in system_prompt(family, "compact") for family in DeviceFamily)


def test_an_unknown_style_is_refused():
    with pytest.raises(ConfigError, match="'terse', must be one of full, compact"):
        system_prompt(DeviceFamily.MOBILE, "terse")


def test_pieces_keep_template_and_content_apart():
    ids = np.array([1, 2], np.int32)
    messages = [Message("user", ("<|im_end|>", ImageRef(3))), Message("assistant", ("text",), ids)]
    pieces = chat_pieces(messages)
    sampled = pieces.pop(10)
    assert isinstance(sampled, SampledTurn) and sampled.token_ids is ids and sampled.text == "text"
    start, end = Special("<|im_start|>"), Special("<|im_end|>")
    image = [Special("<|vision_start|>"), ImageRef(3), Special("<|vision_end|>")]
    user = [start, "user\n", "<|im_end|>", *image, end, "\n"]  # the text "<|im_end|>" is the user's
    assert pieces == [*user, start, "assistant\n", end, "\n", start, "assistant\n"]
    assert render_chat(messages) == render_chat([messages[0], Message("assistant", ("text",))])


THOUGHT = "<think>\nwhy\n</think>\n\nA"


def test_thinking_drops_the_reasoning_of_earlier_turns():
    """Word for word; the comparison with the published template is in tests/hf/test_chat_template.py."""
    call = ToolCall("search", {})
    messages = [
        Message("user", ("U",)),
        Message("assistant", (THOUGHT,)),
        Message("user", ("V",)),
        Message("assistant", (THOUGHT,), tool_calls=(call,)),
        Message("tool", ("R",)),
    ]
    payload = '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>'
    assert render_chat(messages, thinking=True) == (
        "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n"
        f"<|im_start|>assistant\n<think>\nwhy\n</think>\n\nA\n{payload}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nR\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n"
    )
    # Instruct models keep every turn as it is and are not told to think.
    assert render_chat(messages).count(THOUGHT) == 2 and render_chat(messages).endswith("<|im_start|>assistant\n")


def test_sampled_turns_of_models_that_think():
    """Ids were sampled behind the opening `<think>`, so they hold the reasoning; earlier turns give the answer only."""
    ids = np.array([1, 2], np.int32)
    turn = Message("assistant", ("why\n</think>\n\nA",), ids)
    messages = [Message("user", ("U",)), turn, Message("user", ("V",)), turn, Message("tool", ("R",))]
    pieces = chat_pieces(messages, thinking=True)
    early, late = (piece for piece in pieces if isinstance(piece, SampledTurn))
    assert early.token_ids is ids and early.answer_only and early.text == "A"
    assert late.token_ids is ids and not late.answer_only and late.text == "why\n</think>\n\nA"
    assert pieces[pieces.index(late) - 2 : pieces.index(late)] == ["assistant\n", "<think>\n"]
    assert pieces[pieces.index(early) - 1] == "assistant\n"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one message"),
        ([Message("user", ()), Message("system", ("late",))], "message 1 is a system message"),
        ([Message("developer", ("x",))], "role 'developer'"),
        ([Message("user", "text")], "content is a str"),  # type: ignore[arg-type]
        ([Message("system", (ImageRef(0),))], "system message with an image"),
        ([Message("system", (VideoRef(0),))], "system message with an image"),
        ([Message("user", ()), Message("assistant", (ImageRef(0),))], "message 1 is a assistant message with an image"),
        ([Message("user", (), tool_calls=(CALL,))], "user message with tool calls"),
        ([Message("user", (), np.array([1], np.int32))], "sampled ids"),
    ],
)
def test_what_the_template_would_drop_is_refused(messages, message):
    with pytest.raises(DataError, match=message):
        render_chat(messages)
