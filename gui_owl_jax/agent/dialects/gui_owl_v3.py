"""GUI-Owl v3: thinking, JSON call and conclusion, each in tags of its own (Mobile-Agent-v3, Qwen2.5-VL based).

    <thinking>The search field is at the top.</thinking>
    <tool_call>
    {"name": "mobile_use", "arguments": {"action": "click", "coordinate": [540, 96]}}
    </tool_call>
    <conclusion>Tapped the search field.</conclusion>

The newline that `enter` asks for is part of our text; `clear` has no counterpart. The wheel turns by clicks.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from gui_owl_jax.agent.actions import ToolCall
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.dialects.base import Said
from gui_owl_jax.agent.dialects.grid import CLICK_PIXELS
from gui_owl_jax.agent.dialects.tool_calls import DESKTOP, MOBILE, ToolCallDialect
from gui_owl_jax.agent.dialects.vocabulary import Rule, Style, own_rules

_CONCLUSION = re.compile(r"<conclusion>((?:(?!</?conclusion>).)*)</conclusion>", re.DOTALL)
_END = re.compile(r"(?:\s|<\|im_end\|>|<\|endoftext\|>)*\Z")
_NOT_IN_V3 = ("left_click", "type", "left_click_drag", "triple_click", "hscroll", "answer", "interact")
_TYPE = Rule("type", "type", {"text": "text"}, when={"clear": (0, "0", ""), "enter": (0, "0", "")})
_RULES = {
    MOBILE: own_rules(MOBILE, ("interact",)),
    DESKTOP: (
        Rule("click", "left_click", {"coordinate": "coordinate"}),
        _TYPE,
        Rule("type", "", note="text is typed at the cursor, and no field is cleared first"),
        *own_rules(DESKTOP, _NOT_IN_V3),
        Rule("drag", "", note="left_click_drag starts where the cursor is and has no place for the first point"),
    ),
}


@dataclasses.dataclass(frozen=True)
class GuiOwlV3(ToolCallDialect):
    """GUI-Owl v3."""

    style: ClassVar[Style] = Style(pixels=CLICK_PIXELS)

    def rules(self) -> Mapping[DeviceFamily, Sequence[Rule]]:
        """The actions of the dialect by device family."""
        return _RULES

    def split(self, text: str, family: DeviceFamily) -> Said:
        """Takes an output apart."""
        conclusion = ""
        for block in _CONCLUSION.finditer(text):
            if _END.match(text, block.end()):  # only at the end: typed text may spell the tag
                text, conclusion = text[: block.start()], " ".join(block[1].split())
        said = super().split(text, family)
        return said._replace(conclusion=conclusion or said.conclusion)

    def tidied(self, call: ToolCall) -> ToolCall:
        """The call with arguments that the rules can read."""
        arguments = dict(call.arguments)
        if call.name == "type" and arguments.get("enter") in (1, "1") and isinstance(arguments.get("text"), str):
            arguments = {**arguments, "text": f"{arguments['text']}\n", "enter": 0}
        return ToolCall(call.name, arguments)

    def join(self, said: Said, family: DeviceFamily) -> str:
        """Puts an output together."""
        thought = f"<thinking>\n{said.thought}\n</thinking>\n" if said.thought else ""
        return f"{thought}{self.call_block(said, family)}\n<conclusion>\n{said.conclusion}\n</conclusion>"
