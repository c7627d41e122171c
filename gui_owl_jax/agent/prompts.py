"""System prompts and the chat template of the Qwen-VL models.

`chat_pieces` is the template; `render_chat` joins its pieces to the text that the published Jinja template gives.
The pieces keep apart what the text mixes: special tokens of the template, and content that may merely spell one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

import numpy as np

from gui_owl_jax.agent.actions import ToolCall
from gui_owl_jax.agent.devices import DeviceFamily, tool_name, tool_schema
from gui_owl_jax.agent.errors import ConfigError, DataError

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
VISION_START, IMAGE_PAD, VIDEO_PAD, VISION_END = (
    "<|vision_start|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|vision_end|>",
)
THINK, END_THINK = "<think>", "</think>"
ROLES = ("system", "user", "assistant", "tool")
STYLES = ("full", "compact")


@dataclasses.dataclass(frozen=True)
class ImageRef:
    """Stands for a screenshot.

    Attributes:
      step: the step of the trajectory that saw it; the current screen is step len(steps).
    """

    step: int


@dataclasses.dataclass(frozen=True)
class VideoRef:
    """Stands for a video.

    Attributes:
      video: the key of its frames.
      fps: frames to look at per second; None: as many as the processor is set to.
    """

    video: int
    fps: float | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Message:
    """One chat turn.

    Attributes:
      role: one of `ROLES`.
      content: texts, images and videos in order. Reasoning of an assistant turn stands in front of its answer, in
        `<think>` and `</think>`.
      token_ids: int32 [T], the sampled ids of an assistant turn; where known, prompts and training use them in
        place of the content. They may end with the id of `<|im_end|>` or, cut off by a budget, without.
      tool_calls: calls that an assistant turn makes beside its content.
    """

    role: str
    content: tuple[str | ImageRef | VideoRef, ...]
    token_ids: np.ndarray | None = None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclasses.dataclass(frozen=True)
class Special:
    """A special token that the template itself writes.

    Attributes:
      token: its text, e.g. "<|im_start|>".
    """

    token: str


@dataclasses.dataclass(frozen=True, eq=False)
class SampledTurn:
    """An assistant turn whose ids are known.

    Attributes:
      token_ids: int32 [T], without the id of `<|im_end|>` only where sampling was cut off.
      text: the content's text, which the ids replace.
      answer_only: whether the ids up to that of the last `</think>`, and the empty lines behind it, are to be left out.
    """

    token_ids: np.ndarray
    text: str
    answer_only: bool = False


Piece = str | Special | ImageRef | VideoRef | SampledTurn


def system_prompt(family: DeviceFamily, style: str = "full", extra_tools: Sequence[Mapping[str, object]] = ()) -> str:
    """The system message.

    Args:
      family: the device family whose tool is offered.
      style: "full" has the structure of the GUI-Owl-1.5 prompts (tools JSON, call format, response format) in own
        words; "compact" is a line for tiny models.
      extra_tools: JSON function schemas of further (MCP) tools; the compact style names them only.

    Raises:
      ConfigError: the style is unknown.
    """
    if style == "compact":
        names = [tool_name(family), *(_schema_name(tool) for tool in extra_tools)]
        return f"Device: {family}. {'Tool' if len(names) == 1 else 'Tools'}: {', '.join(names)}."
    if style != "full":
        raise ConfigError(f"style is {style!r}, must be one of {', '.join(STYLES)}")
    return f"{_tools_section([tool_schema(family), *extra_tools])}\n\n{_RESPONSE_FORMAT}"


def render_chat(
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, object]] | None = None,
    add_generation_prompt: bool = True,
    thinking: bool = False,
) -> str:
    """The prompt as one text, equal to what the published templates of Qwen3-VL-Instruct and -Thinking give.

    Text only: known `token_ids` are not looked at. Never tokenise it where content may spell a special token; that
    is what `chat_pieces` is for.

    Raises:
      DataError: see `chat_pieces`.
    """
    pieces = chat_pieces(messages, tools=tools, add_generation_prompt=add_generation_prompt, thinking=thinking)
    return "".join(_piece_text(piece) for piece in pieces)


def chat_pieces(
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, object]] | None = None,
    add_generation_prompt: bool = True,
    thinking: bool = False,
) -> list[Piece]:
    """The prompt in pieces.

    A `str` is text to tokenise without special tokens (neighbouring strings belong to one run of text and must be
    joined before tokenising), `Special` is one special token, `ImageRef` stands between `<|vision_start|>` and
    `<|vision_end|>` for the image's pads, `VideoRef` for the video's pads with all tokens around them, `SampledTurn`
    for known ids. A `Special("<|im_end|>")` follows a `SampledTurn` always: drop it where the ids end with it already.

    Models that think open their turn with `<think>` and a newline, which belong to the prompt. Their template drops
    the reasoning of every turn before the last question of the user, so that only the answers remain; the turns
    behind that question (calls of tools and what follows them) keep theirs.

    Args:
      messages: at least one; a system message comes first or not at all.
      tools: JSON function schemas for the template's tools section.
      add_generation_prompt: whether to end with the opening of an assistant turn.
      thinking: the format of the Thinking models instead of the Instruct ones.

    Raises:
      DataError: the template would silently drop a part (unknown role, late system message, image where the template
        takes text only, tool calls of another role), or there is no message.
    """
    if not messages:
        raise DataError("a chat needs at least one message")
    for index, message in enumerate(messages):
        _check_message(index, message)
    pieces: list[Piece] = []
    system = messages[0] if messages[0].role == "system" else None
    if tools:
        section = _tools_section(tools)
        texts = [*system.content, "\n\n", section] if system else [section]
        pieces += _turn("system", texts)
    elif system:
        pieces += _turn("system", system.content)
    question = _last_question(messages)
    for index, message in enumerate(messages):
        if message.role == "user":
            pieces += _turn("user", message.content)
        elif message.role == "assistant" and thinking:
            pieces += _turn("assistant", _thinking_content(message, index > question, index == len(messages) - 1))
        elif message.role == "assistant":
            pieces += _turn("assistant", _assistant_content(message))
        elif message.role == "tool":
            before = messages[index - 1].role if index else None
            after = messages[index + 1].role if index + 1 < len(messages) else None
            if before != "tool":
                pieces += [Special(IM_START), "user"]
            pieces += ["\n<tool_response>\n", *_with_vision_tokens(message.content), "\n</tool_response>"]
            if after != "tool":
                pieces += [Special(IM_END), "\n"]
    if add_generation_prompt:
        pieces += [Special(IM_START), f"assistant\n{THINK}\n" if thinking else "assistant\n"]
    return [piece for piece in pieces if piece != ""]


def _turn(role: str, content: Sequence[Piece]) -> list[Piece]:
    return [Special(IM_START), f"{role}\n", *_with_vision_tokens(content), Special(IM_END), "\n"]


def _with_vision_tokens(content: Sequence[Piece]) -> list[Piece]:
    pieces: list[Piece] = []
    for part in content:
        pieces += [Special(VISION_START), part, Special(VISION_END)] if isinstance(part, ImageRef) else [part]
    return pieces


def _assistant_content(message: Message) -> list[Piece]:
    texts = [part for part in message.content if isinstance(part, str)]
    texts += _tool_calls(message, behind_text=bool(message.content))
    if message.token_ids is not None:
        return [SampledTurn(message.token_ids, "".join(texts))]
    return list(texts)


def _thinking_content(message: Message, current: bool, last: bool) -> list[Piece]:
    """An assistant turn of a model that thinks; `current`: it stands behind the last question of the user."""
    answer = "".join(part for part in message.content if isinstance(part, str))
    reasoning = ""
    if END_THINK in answer:
        reasoning = answer.partition(END_THINK)[0].rstrip("\n").rpartition(THINK)[2].lstrip("\n")
        answer = answer.rpartition(END_THINK)[2].lstrip("\n")
    calls = "".join(_tool_calls(message, behind_text=bool(answer)))
    if current and (last or reasoning):
        # Sampling began behind the opening, so known ids hold the reasoning and its end.
        text = reasoning + f"\n{END_THINK}\n\n" + answer.lstrip("\n") + calls
        return [f"{THINK}\n", text if message.token_ids is None else SampledTurn(message.token_ids, text)]
    text = answer + calls
    return [text if message.token_ids is None else SampledTurn(message.token_ids, text, answer_only=True)]


def _tool_calls(message: Message, behind_text: bool) -> list[str]:
    texts: list[str] = []
    for index, call in enumerate(message.tool_calls):
        texts += ["\n"] if index or behind_text else []
        texts.append(f'<tool_call>\n{{"name": "{call.name}", "arguments": {_dump(call.arguments)}}}\n</tool_call>')
    return texts


def _last_question(messages: Sequence[Message]) -> int:
    """Index of the last user message that is no answer of a tool in disguise; of the last message without one."""
    for index in reversed(range(len(messages))):
        if messages[index].role == "user":
            text = "".join(_piece_text(piece) for piece in _with_vision_tokens(messages[index].content))
            if not (text.startswith("<tool_response>") and text.endswith("</tool_response>")):
                return index
    return len(messages) - 1


def _check_message(index: int, message: Message) -> None:
    if message.role not in ROLES:
        raise DataError(f"message {index} has role {message.role!r}, must be one of {', '.join(ROLES)}")
    if message.role == "system" and index:
        raise DataError(f"message {index} is a system message; only the first may be one")
    if isinstance(message.content, str):
        raise DataError(f"message {index}: content is a str, must be a tuple of texts, images and videos")
    pictured = any(isinstance(part, ImageRef | VideoRef) for part in message.content)
    if message.role in ("system", "assistant") and pictured:
        raise DataError(f"message {index} is a {message.role} message with an image; only user and tool turns show any")
    if message.role != "assistant" and (message.tool_calls or message.token_ids is not None):
        raise DataError(f"message {index} is a {message.role} message with tool calls or sampled ids")


def _piece_text(piece: Piece) -> str:
    match piece:
        case str():
            return piece
        case Special():
            return piece.token
        case ImageRef():
            return IMAGE_PAD
        case VideoRef():
            return f"{VISION_START}{VIDEO_PAD}{VISION_END}"
        case SampledTurn():
            return piece.text


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _schema_name(schema: Mapping[str, object]) -> str:
    function = schema.get("function", schema)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise DataError(f"a tool schema has no name: {schema!r:.80}")
    return function["name"]


def _tools_section(tools: Sequence[Mapping[str, object]]) -> str:
    lines = "".join(f"\n{_dump(tool)}" for tool in tools)
    return f"{_TOOLS_HEAD}{lines}{_TOOLS_FOOT}"


# Text of the published chat template, word for word: it is part of the format.
_TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_FOOT = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)

_RESPONSE_FORMAT = """# Response format

Every response has two parts, in this order:
1) Action: one short imperative sentence that says what to do in the interface.
2) One <tool_call>...</tool_call> block with nothing but the JSON {"name": <function-name>, "arguments": \
<args-json-object>}.

Rules:
- Write exactly one Action line and one <tool_call> block, and nothing after it.
- Keep the Action line to one sentence.
- Report the end of the task with a tool call too."""
