"""Model outputs to actions and back (the GUI-Owl-1.5 response format).

A response is an optional think block, a line `Action: <conclusion>`, and one `<tool_call>` with JSON inside. An
output gives exactly one action or a `ParseError` with its reason: there are no default coordinates, and nothing is
evaluated.

Tolerated, because it has one reading:
- whitespace, newlines or neither around the tags and inside the JSON; trailing `<|im_end|>` or `<|endoftext|>`;
- `<think>` or `<thinking>`, several blocks, and a first block whose opening tag stood in the prompt already;
- words outside of a think block before the Action line (they count as thought), and no Action line at all (the
  conclusion is then ""); of several Action lines the last one holds; a conclusion over several lines becomes one;
- JSON true, null (an absent argument), escapes, and raw newlines inside a string; tags inside a JSON string;
- numbers written as floats or as strings.

Refused: everything else. In particular text after the call, a second call, duplicate JSON keys, a coordinate list
in other brackets or in one string, and boxes of four numbers.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection

from gui_owl_jax.agent.actions import TOOL_KIND, Action, ToolCall, action_from_call, call_from_action
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import DataError, ParseError, ParseReason

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_THINK = re.compile(r"<(?P<slash>/?)(?P<name>think|thinking)>")
_TAG = re.compile(r"</?(?:think|thinking|tool_call)>")
_ACTION_LINE = re.compile(r"^[ \t]*Action:", re.MULTILINE)
_LINE_BREAK = re.compile(r"\s*[\r\n]\s*")
_JSON_SPACE = re.compile(r"[ \t\r\n]*")
_END = re.compile(r"(?:\s|<\|im_end\|>|<\|endoftext\|>)*")


@dataclasses.dataclass(frozen=True)
class ParsedResponse:
    """What a model output says.

    Attributes:
      thought: the reasoning in front of the Action line, "" for none.
      conclusion: the sentence of the Action line, one line, "" for none.
      action: the action; of kind `TOOL_KIND` when an extra tool was called.
      call: the call as the model wrote it.
    """

    thought: str
    conclusion: str
    action: Action
    call: ToolCall


def parse_response(text: str, family: DeviceFamily, *, extra_tools: Collection[str] = ()) -> ParsedResponse:
    """Reads one model output.

    Args:
      text: the output, without the prompt.
      family: the device family whose tool may be called.
      extra_tools: names of further (MCP) tools that may be called; their arguments are left as they are.

    Raises:
      ParseError: the output is not exactly one call; `.reason` says why.
    """
    thought, body = _split_thought(text)
    start = body.find(_OPEN)
    if start < 0:
        raise ParseError(ParseReason.NO_TOOL_CALL, f"no {_OPEN} in {text[-80:]!r}")
    if _CLOSE in body[:start]:
        raise ParseError(ParseReason.UNCLOSED_TAG, f"{_CLOSE} closes nothing")
    prose, conclusion = _split_prose(body[:start])
    call = _read_call(body, start + len(_OPEN))
    if call.name in extra_tools:
        action = Action(kind=TOOL_KIND, text=call.name)
    else:
        action = action_from_call(family, call)
    return ParsedResponse("\n".join(filter(None, [thought, prose])), conclusion, action, call)


def render_response(conclusion: str, action: Action, family: DeviceFamily, thought: str = "") -> str:
    """Writes a response in the published format; `parse_response` reads the same parts back.

        Action: Tap Send.
        <tool_call>
        {"name": "mobile_use", "arguments": {"action": "click", "coordinate": [512, 384]}}
        </tool_call>

    A thought stands in front in a `<think>` block. Outer whitespace of conclusion and thought is dropped.

    Raises:
      ParseError: the action does not fit the family's table.
      DataError: the conclusion is not one line or holds a tag, or the thought holds `</think>`.
    """
    conclusion, thought = conclusion.strip(), thought.strip()
    if _LINE_BREAK.search(conclusion) or _TAG.search(conclusion):
        raise DataError(f"the conclusion must be one line without tags, got {conclusion!r}")
    if "</think>" in thought:
        raise DataError(f"the thought must not hold </think>, got {thought!r}")
    call = call_from_action(family, action)
    payload = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    block = f"<think>\n{thought}\n</think>\n\n" if thought else ""
    return f"{block}Action: {conclusion}\n{_OPEN}\n{payload}\n{_CLOSE}"


def _split_thought(text: str) -> tuple[str, str]:
    """(thought, rest): takes the think blocks that stand before the call out of the text."""
    thoughts: list[str] = []
    while tag := _THINK.search(text.partition(_OPEN)[0]):  # think tags behind the call's tag are typed text
        if tag["slash"]:
            if thoughts:
                raise ParseError(ParseReason.UNCLOSED_TAG, f"{tag[0]} closes nothing")
            # The chat template of the thinking models ends the prompt with the opening tag.
            thoughts.append(text[: tag.start()].strip())
            text = text[tag.end() :]
        else:
            close = f"</{tag['name']}>"
            end = text.find(close, tag.end())
            if end < 0:
                raise ParseError(ParseReason.UNCLOSED_TAG, f"{tag[0]} has no {close}")
            thoughts.append(text[tag.end() : end].strip())
            text = f"{text[: tag.start()]}\n{text[end + len(close) :]}"
    return "\n".join(filter(None, thoughts)), text


def _split_prose(prose: str) -> tuple[str, str]:
    """(words before the last Action line, conclusion)."""
    lines = list(_ACTION_LINE.finditer(prose))
    if not lines:
        return prose.strip(), ""
    return prose[: lines[-1].start()].strip(), _LINE_BREAK.sub(" ", prose[lines[-1].end() :].strip())


def _read_call(body: str, start: int) -> ToolCall:
    """Reads the JSON at `start` (just after the opening tag) and checks that the response ends with its tag."""
    try:
        # Decoded from the front, not cut at the closing tag: typed text may spell a tag.
        value, end = _DECODER.raw_decode(body, _JSON_SPACE.match(body, start).end())  # type: ignore[union-attr]
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair cannot be typed or stored
    except (ValueError, RecursionError) as error:
        if _CLOSE not in body[start:]:
            raise ParseError(ParseReason.UNCLOSED_TAG, f"{_OPEN} has no {_CLOSE}") from error
        raise ParseError(ParseReason.BAD_JSON, f"{error}") from error
    rest = body[end:].lstrip()
    if _CLOSE not in rest:
        raise ParseError(ParseReason.UNCLOSED_TAG, f"{_OPEN} has no {_CLOSE}")
    if _OPEN in rest or rest.startswith("{"):
        raise ParseError(ParseReason.SEVERAL_TOOL_CALLS, "a second call follows the first")
    if not rest.startswith(_CLOSE):
        raise ParseError(ParseReason.BAD_JSON, f"text behind the JSON: {rest[:80]!r}")
    if not _END.fullmatch(rest, len(_CLOSE)):
        raise ParseError(ParseReason.TRAILING_TEXT, f"text behind the call: {rest[len(_CLOSE) :][:80]!r}")
    return _check_call(value)


def _check_call(value: object) -> ToolCall:
    if not isinstance(value, dict):
        raise ParseError(ParseReason.BAD_JSON, f"the call is {type(value).__name__}, must be an object")
    if unknown := sorted(set(value) - {"name", "arguments"}):
        raise ParseError(ParseReason.UNKNOWN_ARGUMENT, f"the call has {unknown!s:.200} beside name and arguments")
    if not isinstance(value.get("name"), str):
        raise ParseError(ParseReason.WRONG_TOOL, "the call has no name")
    if "arguments" not in value:
        raise ParseError(ParseReason.MISSING_ARGUMENT, "the call has no arguments")
    if not isinstance(value["arguments"], dict):
        raise ParseError(ParseReason.BAD_ARGUMENT, f"arguments is {value['arguments']!r:.80}, must be an object")
    return ToolCall(value["name"], value["arguments"])


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for key, value in pairs:
        if key in members:  # the last one would win silently
            raise ValueError(f"duplicate key {key!r:.80}")
        members[key] = value
    return members


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_unique, parse_constant=_no_constant)
