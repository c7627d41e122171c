"""Taking outputs apart that consist of blocks in tags: `<think>...</think><answer>...</answer>`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from gui_owl_jax.agent.errors import ParseError, ParseReason

_T = TypeVar("_T")
_END = re.compile(r"(?:\s|<\|im_end\|>|<\|endoftext\|>)*")


def thought_before(text: str, opening: str, names: Sequence[str]) -> tuple[str, int]:
    """What an output says before the tag that opens its answer, and where the answer begins.

    Words outside of the thought's tags count as thought; its opening tag may have stood in the prompt already.

    Args:
      text: the output.
      opening: the tag that opens the answer; one inside of the thought is not meant.
      names: tags that a thought may stand in, without brackets.

    Raises:
      ParseError: UNCLOSED_TAG, the thought does not end; NO_TOOL_CALL, no answer opens.
    """
    thought, at = "", 0
    for name in names:
        open_tag, close_tag = f"<{name}>", f"</{name}>"
        begin, end = text.find(open_tag), text.find(close_tag)
        first = text.find(opening)
        if 0 <= begin and (first < 0 or begin < first):
            if end < 0:
                raise ParseError(ParseReason.UNCLOSED_TAG, f"{open_tag} has no {close_tag}")
            thought = "\n".join(filter(None, [text[:begin].strip(), text[begin + len(open_tag) : end].strip()]))
            at = end + len(close_tag)
            break
        if 0 <= end and (first < 0 or end < first):
            thought, at = text[:end].strip(), end + len(close_tag)
            break
    begin = text.find(opening, at)
    if begin < 0:
        raise ParseError(ParseReason.NO_TOOL_CALL, f"no {opening} in {text[-80:]!r}")
    return "\n".join(filter(None, [thought, text[at:begin].strip()])), begin + len(opening)


def block(text: str, start: int, opening: str, read: Callable[[str, int], tuple[_T, int]]) -> tuple[_T, int]:
    """What stands between a tag that ends at `start` and its partner, and where the partner ends.

    It is read from the front, not cut at the closing tag: typed text may spell a tag.

    Args:
      text: the output.
      start: where the opening tag ends.
      opening: the opening tag.
      read: reads the content from a position on; gives it and where it ends.

    Raises:
      ParseError: the content cannot be read, or the tag is not closed behind it.
    """
    closing = f"</{opening[1:]}"
    try:
        value, end = read(text, start)
    except ParseError as error:
        if closing not in text[start:]:
            raise ParseError(ParseReason.UNCLOSED_TAG, f"{opening} has no {closing}") from error
        raise
    rest = text[end:].lstrip()
    if not rest.startswith(closing):
        if closing not in rest:
            raise ParseError(ParseReason.UNCLOSED_TAG, f"{opening} has no {closing}")
        raise ParseError(ParseReason.BAD_JSON, f"{rest[:80]!r} stands behind what was read, before {closing}")
    return value, len(text) - len(rest) + len(closing)


def check_end(text: str, at: int, again: str) -> None:
    """Checks that nothing but end tokens follows.

    Args:
      text: the output.
      at: where its last part ends.
      again: a pattern of the opening of a further answer.

    Raises:
      ParseError: SEVERAL_TOOL_CALLS or TRAILING_TEXT.
    """
    if _END.fullmatch(text, at):
        return
    if re.search(again, text[at:]):
        raise ParseError(ParseReason.SEVERAL_TOOL_CALLS, f"a second call follows the first: {text[at:].strip()[:80]!r}")
    raise ParseError(ParseReason.TRAILING_TEXT, f"text behind the call: {text[at:].strip()[:80]!r}")
