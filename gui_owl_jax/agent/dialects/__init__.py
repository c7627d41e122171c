"""Dialects: the formats in which agents of the field say what they do, in and out of the one `Action`.

| name | output | points |
|---|---|---|
| gui_owl_1_5 | Action line, JSON call | 0-1000 |
| gui_owl_v3 | thinking, JSON call, conclusion in tags | pixels of the resized picture |
| qwen3_vl, qwen2_5_vl | Thought and Action lines, JSON call | 0-999; pixels of the resized picture |
| ui_tars_1, ui_tars_1_5 | Thought line, call in the style of Python | 0-1000; pixels of the resized picture |
| ui_tars_2 | thinking and call in XML-like tags | 0-1000 |
| ui_r1, gui_r1 | think, answer: a list of one dict | pixels of the resized picture |
| mai_ui, mai_ui_grounding | thinking, JSON call; thinking, JSON point | 0-999; 0-1000 |
| ui_venus_1_5 | think, call in the style of Python, conclusion | 0-1000 |
| gui_owl_eval | whatever holds a point: GUI-Owl-1.5's own grounding evaluation | 0-1000 |

Only gui_owl_1_5 acts on the web family, whose elements have labels. The scales are those of the prompts; releases
disagree with themselves, and `with_scale` makes another reading.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping

from gui_owl_jax.agent.dialects.answers import AnswerDialect
from gui_owl_jax.agent.dialects.base import Dialect
from gui_owl_jax.agent.dialects.grid import RESIZED, check_scale
from gui_owl_jax.agent.dialects.gui_owl_eval import GuiOwlEval
from gui_owl_jax.agent.dialects.gui_owl_v3 import GuiOwlV3
from gui_owl_jax.agent.dialects.gui_r1 import GuiR1
from gui_owl_jax.agent.dialects.mai_ui import MaiUi, MaiUiGrounding
from gui_owl_jax.agent.dialects.tool_calls import GuiOwl15, QwenVl
from gui_owl_jax.agent.dialects.ui_tars import UiTars
from gui_owl_jax.agent.dialects.ui_tars_2 import UiTars2
from gui_owl_jax.agent.dialects.ui_venus import UiVenus
from gui_owl_jax.agent.errors import ConfigError

__all__ = ["DIALECTS", "RESIZED", "Dialect", "get", "with_scale"]

_ALL = (
    GuiOwl15("gui_owl_1_5", 1000.0),
    GuiOwlV3("gui_owl_v3", RESIZED),
    QwenVl("qwen3_vl", 999.0),
    QwenVl("qwen2_5_vl", RESIZED),
    UiTars("ui_tars_1", 1000.0, boxes=True),
    UiTars("ui_tars_1_5", RESIZED),
    UiTars2("ui_tars_2", 1000.0),
    AnswerDialect("ui_r1", RESIZED),
    MaiUi("mai_ui", 999.0),
    MaiUiGrounding("mai_ui_grounding", 1000.0),
    UiVenus("ui_venus_1_5", 1000.0),
    GuiR1("gui_r1", RESIZED),
    GuiOwlEval("gui_owl_eval", 1000.0),
)
DIALECTS: Mapping[str, Dialect] = types.MappingProxyType({dialect.name: dialect for dialect in _ALL})


def get(name: str) -> Dialect:
    """The dialect of a name.

    Raises:
      ConfigError: there is none.
    """
    if name not in DIALECTS:
        raise ConfigError(f"dialect is {name!r}, must be one of {', '.join(DIALECTS)}")
    return DIALECTS[name]


def with_scale(dialect: Dialect, scale: float | str) -> Dialect:
    """The dialect with points on another grid: 1000.0 or 999.0, say, or "resized".

    Raises:
      ConfigError: the scale is neither a positive number nor "resized".
    """
    return dataclasses.replace(dialect, scale=check_scale(scale))
