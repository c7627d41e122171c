"""Makes thinking_chats.json: random chats, and their text by the published chat template of Qwen3-VL-Thinking.

    python tests/golden/make_thinking_chats.py chat_template.jinja

The argument is the template of a published Thinking checkpoint. Needs jinja2; the result is the same at every run.
"""

from __future__ import annotations

import json
import pathlib
import random
import sys

import jinja2.sandbox

TEXTS = ["", "hi", " a\n\n", "<b>&\"'é", "\n lead", "点"]
ANSWERS = [
    *TEXTS,
    "<think>\nwhy\n</think>\n\nyes",
    "why</think>yes",
    "<think>\n\n</think>\n\nyes",
    "<think>a</think>\nb<think>c\n</think>\n\nd",
    "<think>cut off",
    "</think>\n\n",
]
RESPONSE = "<tool_response>\nr\n</tool_response>"
TOOL = {"type": "function", "function": {"name": "a", "d": "é<"}}
CHATS = 60


def _content(rng: random.Random, texts: list[str]) -> str | list[dict]:
    if rng.random() < 0.5:
        return rng.choice(texts)
    pictures = [{"type": "image"}, {"image_url": "u"}, {"type": "video"}, {"video": "v"}, {"type": "other"}]
    return [rng.choice([{"type": "text", "text": rng.choice(texts)}] * 3 + pictures) for _ in range(rng.randrange(4))]


def _message(rng: random.Random) -> dict:
    role = rng.choice(["user", "assistant", "assistant", "tool", "tool"])
    if role == "user":
        return {"role": role, "content": RESPONSE if rng.random() < 0.3 else _content(rng, TEXTS)}
    message: dict = {"role": role, "content": _content(rng, TEXTS if role == "tool" else ANSWERS)}
    if role == "assistant":
        if rng.random() < 0.2:
            message["reasoning_content"] = rng.choice(["", "\nbecause\n", "why"])
        call = {"name": "a", "arguments": rng.choice([{"x": [1, 2.5], "é": "<"}, '{"a": 1}', {}])}
        calls = [rng.choice([call, {"type": "function", "function": call}]) for _ in range(rng.randrange(3))]
        message |= {"tool_calls": calls} if calls else {}
    return message


def chats() -> list[dict]:
    """The variables of the template, chat by chat."""
    rng, result = random.Random(0), []
    for _ in range(CHATS):
        messages = [{"role": "system", "content": _content(rng, TEXTS)}] if rng.random() < 0.4 else []
        messages += [_message(rng) for _ in range(rng.randrange(1, 7))]
        chat = {"messages": messages, "tools": [TOOL] if rng.random() < 0.2 else None}
        chat["add_generation_prompt"] = rng.random() < 0.5
        result.append(chat | ({"add_vision_id": True} if rng.random() < 0.3 else {}))
    return result


def main(template: str) -> None:
    """Renders the chats with a template under the settings of transformers and writes the file."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    compiled = environment.from_string(pathlib.Path(template).read_text(encoding="utf-8"))
    cases = [{"chat": chat, "text": compiled.render(chat)} for chat in chats()]
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    pathlib.Path(__file__).with_name("thinking_chats.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
