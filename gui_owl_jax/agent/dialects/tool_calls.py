"""Dialects that put a JSON tool call between tags: GUI-Owl-1.5 and Qwen-VL; the base of GUI-Owl v3 and MAI-UI.

`parsing.parse_response` reads the tags and the JSON of all of them; see there for what is tolerated. They differ in
where reasoning and conclusion stand, in the scale, and in the names of some actions.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import ClassVar

from gui_owl_jax.agent.actions import ToolCall
from gui_owl_jax.agent.devices import DEVICE_FAMILIES, DeviceFamily, tool_name
from gui_owl_jax.agent.dialects.base import Dialect, Said
from gui_owl_jax.agent.dialects.vocabulary import Rule, own_rules
from gui_owl_jax.agent.errors import ParseError, ParseReason
from gui_owl_jax.agent.parsing import parse_response
from gui_owl_jax.agent.prompts import system_prompt

MOBILE, DESKTOP, WEB = DEVICE_FAMILIES
_TOOLS = [tool_name(family) for family in DEVICE_FAMILIES]


@dataclasses.dataclass(frozen=True)
class ToolCallDialect(Dialect):
    """GUI-Owl-1.5: an Action line and a call, as `parsing` states (Mobile-Agent-v3.5)."""

    concludes: ClassVar[bool] = True

    def rules(self) -> Mapping[DeviceFamily, Sequence[Rule]]:
        """The actions of the dialect by device family."""
        return _OWN

    def split(self, text: str, family: DeviceFamily) -> Said:
        """Takes an output apart; ParseError if it is not exactly one call of the family's tool."""
        # Named as extra tools, the device's own are not checked against its table: that takes the dialect's rules.
        said = parse_response(text, family, extra_tools=_TOOLS)
        if said.call.name != tool_name(family):
            detail = f"{said.call.name!r:.80} was called, {family} has {tool_name(family)!r}"
            raise ParseError(ParseReason.WRONG_TOOL, detail)
        arguments = dict(said.call.arguments)
        kind = arguments.pop("action", None)
        if kind is None:
            raise ParseError(ParseReason.MISSING_ARGUMENT, "'action' is missing")
        if not isinstance(kind, str):
            raise ParseError(ParseReason.UNKNOWN_ACTION, f"{kind!r:.80} is not the name of an action")
        return Said(said.thought, said.conclusion, self.tidied(ToolCall(kind, arguments)), said.call)

    def tidied(self, call: ToolCall) -> ToolCall:
        """The call with arguments that the rules can read."""
        return call

    def call_text(self, call: ToolCall, family: DeviceFamily) -> str:
        """The JSON of the call."""
        arguments = {"action": call.name, **call.arguments}
        return json.dumps({"name": tool_name(family), "arguments": arguments}, ensure_ascii=False)

    def signature(self, call: ToolCall, family: DeviceFamily) -> str:
        """The arguments of the call as the prompt lists them."""
        return json.dumps({"action": call.name, **call.arguments}, ensure_ascii=False)

    def join(self, said: Said, family: DeviceFamily) -> str:
        """Puts an output together."""
        thought = f"<think>\n{said.thought}\n</think>\n\n" if said.thought else ""
        return f"{thought}Action: {said.conclusion}\n{self.call_block(said, family)}"

    def call_block(self, said: Said, family: DeviceFamily) -> str:
        """The call between its tags."""
        return f"<tool_call>\n{self.call_text(said.call, family)}\n</tool_call>"


@dataclasses.dataclass(frozen=True)
class GuiOwl15(ToolCallDialect):
    """GUI-Owl-1.5 with the prompts of `prompts.system_prompt`."""

    reasons: ClassVar[bool] = False

    def instructions(self, family: DeviceFamily) -> str:
        """The system prompt for acting on a family."""
        return system_prompt(family)


@dataclasses.dataclass(frozen=True)
class QwenVl(ToolCallDialect):
    """Qwen3-VL and Qwen2.5-VL: Thought and Action lines before the call (cookbooks of Qwen3-VL)."""

    def rules(self) -> Mapping[DeviceFamily, Sequence[Rule]]:
        """The actions of the dialect by device family."""
        return _QWEN

    def split(self, text: str, family: DeviceFamily) -> Said:
        """Takes an output apart."""
        said = super().split(text, family)
        return said._replace(thought=said.thought.removeprefix("Thought:").strip())

    def join(self, said: Said, family: DeviceFamily) -> str:
        """Puts an output together."""
        thought = f"Thought: {said.thought}\n" if said.thought else ""
        return f"{thought}Action: {said.conclusion}\n{self.call_block(said, family)}"


_OWN = {family: own_rules(family) for family in DEVICE_FAMILIES}
_QWEN = {MOBILE: own_rules(MOBILE, ("answer", "interact")), DESKTOP: own_rules(DESKTOP, ("interact",))}
