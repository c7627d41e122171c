"""The error hierarchy of the project: every error raised on bad input derives from `GuiOwlError`."""

from __future__ import annotations

import enum


class GuiOwlError(Exception):
    """Base of all errors that the project raises on purpose."""


class ConfigError(GuiOwlError):
    """A config field has a value that cannot work; the message names the field."""


class DataError(GuiOwlError):
    """A file or record is damaged or malformed; the message names both."""


class CheckpointError(GuiOwlError):
    """A checkpoint (Orbax or Hugging Face) is missing, damaged or does not fit the model."""


class EnvError(GuiOwlError):
    """An environment broke its contract (not: the agent failed the task)."""


class EndpointError(GuiOwlError):
    """A server of a model cannot be used: it is not there, refuses the key, or does not know the model."""


class TransportError(GuiOwlError):
    """A step lost the token ids that training needs; text is never tokenised again instead."""


class TrainingError(GuiOwlError):
    """Training cannot go on (a non-finite loss, say); the message names the last good checkpoint."""


class ParseReason(enum.StrEnum):
    """Why a model output is not an action."""

    NO_TOOL_CALL = "no_tool_call"
    UNCLOSED_TAG = "unclosed_tag"  # a tag without its partner
    SEVERAL_TOOL_CALLS = "several_tool_calls"
    TRAILING_TEXT = "trailing_text"  # words behind the call
    BAD_JSON = "bad_json"
    WRONG_TOOL = "wrong_tool"
    UNKNOWN_ACTION = "unknown_action"
    MISSING_ARGUMENT = "missing_argument"
    UNKNOWN_ARGUMENT = "unknown_argument"  # an argument that the action does not have
    BAD_ARGUMENT = "bad_argument"  # a value of the wrong type or shape
    OUT_OF_RANGE = "out_of_range"


class ParseError(GuiOwlError):
    """A model output is not an action of its device family.

    Attributes:
      reason: which rule failed.
    """

    def __init__(self, reason: ParseReason, detail: str):
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
