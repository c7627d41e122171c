"""A dialect for tests: what an answer says is plain to see."""

from __future__ import annotations

import dataclasses
import types

from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.errors import ParseError, ParseReason


@dataclasses.dataclass(frozen=True)
class Plain:
    """Reads "x y" on the dialect's grid, "none" for a refusal, "wait"."""

    name: str = "plain"
    scale: float = 1000.0

    def parse(self, text, family, shown):
        if text == "none":
            return types.SimpleNamespace(action=Action("terminate", status="failure"))
        if text == "wait":
            return types.SimpleNamespace(action=Action("wait", time=1.0))
        try:
            x, y = (float(part) * 1000 / self.scale for part in text.split())
        except ValueError as error:
            raise ParseError(ParseReason.BAD_ARGUMENT, text) from error
        return types.SimpleNamespace(action=Action("left_click", coordinate=(x, y)))
