"""The exported templates against the published ones, on random chats and with tools."""

from __future__ import annotations

import functools
import json
import random

import pytest

from gui_owl_jax.agent.actions import ToolCall
from gui_owl_jax.agent.prompts import ImageRef, Message, VideoRef, render_chat

TEXTS = ["", "hi", " a\n\n", "<b>&\"'é", "{{ x }}", "\n  lead", "点一下", "<|im_end|>"]


@pytest.fixture(scope="module")
def template():
    """Compiles a template as transformers does: sandboxed, blocks trimmed, JSON with Unicode and HTML as it is."""
    sandbox = pytest.importorskip("jinja2.sandbox")
    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return functools.cache(environment.from_string)


def random_chat(rng: random.Random) -> dict:
    def part() -> dict:
        text = {"text": rng.choice(TEXTS)}
        pictures = [
            {"type": "image"},
            {"type": "image", "image": "f"},
            {"image_url": "u"},
            {"type": "video"},
            {"video": "v"},
        ]
        return rng.choice([text, {"type": "text", **text}, *pictures, {"type": "other"}])

    def content() -> str | list[dict]:
        return rng.choice(TEXTS) if rng.random() < 0.5 else [part() for _ in range(rng.randrange(5))]

    def call() -> dict:
        arguments = rng.choice([{"action": "click", "coordinate": [1, 2.5], "text": "é<"}, '{"a": 1}', {}])
        function = {"name": rng.choice(["mobile_use", "x"]), "arguments": arguments}
        return function if rng.random() < 0.5 else {"type": "function", "function": function}

    messages = [{"role": "system", "content": content()}] if rng.random() < 0.5 else []
    for _ in range(rng.randrange(1, 7)):
        message = {"role": rng.choice(["user", "assistant", "tool", "tool", "system"]), "content": content()}
        if message["role"] == "assistant" and rng.random() < 0.5:
            message["tool_calls"] = [call() for _ in range(rng.randrange(3))]
        messages.append(message)
    tools = rng.choice([None, [], [{"type": "function", "function": {"name": "a", "d": "é<"}}], [{"a": 1}, {"b": [1]}]])
    variables = {"messages": messages, "tools": tools, "add_generation_prompt": rng.random() < 0.5}
    return variables | ({"add_vision_id": rng.random() < 0.5} if rng.random() < 0.7 else {})


def test_same_text_as_the_published_template(small, template, conformance):
    published = (conformance / "tokenizer" / "qwen3_vl_chat_template.jinja").read_text()
    rng = random.Random(0)
    for _ in range(1000):
        chat = random_chat(rng)
        assert template(small.chat_template).render(chat) == template(published).render(chat), chat


def test_same_text_as_render_chat(small, template):
    """The Python renderer that makes our prompts agrees with the template that we export."""
    chats = [
        [Message("user", ("Compare ", ImageRef(0), ImageRef(1), "."))],
        [
            Message("system", ("S",)),
            Message("user", (ImageRef(0), "q\n")),
            Message("assistant", ("a",)),
            Message("user", ()),
        ],
        [Message("user", ("q",)), Message("tool", ("r1",)), Message("tool", ("r2", ImageRef(0)))],
        [Message("user", ("a", VideoRef(0), ImageRef(0), VideoRef(1, fps=4))), Message("tool", (VideoRef(2),))],
    ]
    for messages in chats:
        for tools in (None, [{"name": "f", "description": "é"}]):
            expected = template(small.chat_template).render(
                messages=[as_dict(m) for m in messages], tools=tools, add_generation_prompt=True
            )
            assert render_chat(messages, tools=tools) == expected


def as_dict(message: Message) -> dict:
    kinds = {str: "text", ImageRef: "image", VideoRef: "video"}
    content = [{"type": kinds[type(p)]} | ({"text": p} if isinstance(p, str) else {}) for p in message.content]
    calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in message.tool_calls]
    return {"role": message.role, "content": content} | ({"tool_calls": calls} if calls else {})


def test_same_text_as_the_published_template_of_thinking_models(small, template, golden):
    assert not small.thinking and small.for_thinking().thinking
    own = template(small.for_thinking().chat_template)
    cases = json.loads((golden / "thinking_chats.json").read_text(encoding="utf-8"))
    assert len(cases) == 60
    for case in cases:
        assert own.render(case["chat"]) == case["text"], case["chat"]


def test_same_text_as_render_chat_when_thinking(small, template):
    own = template(small.for_thinking().chat_template)
    rng = random.Random(1)
    answers = [
        "",
        "yes",
        "\n\nyes\n",
        "<think>\nwhy\n</think>\n\nyes",
        "why\n</think>yes",
        "<think>\n\n</think>\n\nyes",
    ]
    answers += ["<think>a</think>b<think>c</think>d", "<think>cut off", "</think>", "a\n<think>\n"]
    asked: list = ["q", "<tool_response>\nr\n</tool_response>", "<tool_response>", ImageRef(0), VideoRef(0)]
    kept = dropped = 0
    for _ in range(1000):
        messages = [Message("system", (rng.choice(["", "S"]),))] if rng.random() < 0.3 else []
        for _ in range(rng.randrange(1, 6)):
            role = rng.choice(["user", "assistant", "assistant", "tool"])
            if role == "assistant":
                content = tuple(rng.choice(answers) for _ in range(rng.randrange(3)))
                calls = (ToolCall("f", {"a": "é<"}),) * rng.randrange(3)
                messages.append(Message(role, content, tool_calls=calls))
            else:
                messages.append(Message(role, tuple(rng.choice(asked) for _ in range(rng.randrange(3)))))
        tools, generation = rng.choice([None, [{"name": "f"}]]), rng.random() < 0.5
        variables = {"messages": [as_dict(m) for m in messages], "tools": tools, "add_generation_prompt": generation}
        found = render_chat(messages, tools=tools, add_generation_prompt=generation, thinking=True)
        assert found == own.render(variables), messages
        kept += "<think>\nwhy" in found
        dropped += "why" not in found and any("why" in str(m.content) for m in messages)
    assert kept > 20 and dropped > 20
