"""The context window: which part of an episode stands in the next prompt.

The newest N turns keep their screenshots and full responses; older turns become a numbered list of conclusions in
the first user turn that is kept (GUI-Owl-1.5, N = 4). Steps keep their numbers, and none is dropped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from gui_owl_jax.agent.actions import TOOL_KIND
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import ConfigError, DataError
from gui_owl_jax.agent.parsing import render_response
from gui_owl_jax.agent.prompts import STYLES, ImageRef, Message, system_prompt
from gui_owl_jax.agent.trajectory import Step

__all__ = ["ContextConfig", "ImageRef", "Message", "build_messages"]


@dataclasses.dataclass(frozen=True)
class ContextConfig:
    """How an episode becomes a prompt.

    Attributes:
      history_n: N, how many earlier turns keep screenshot and response; the prompt has at most N + 1 images.
      style: "full" (the GUI-Owl-1.5 prompt with the tool's JSON) or "compact" (a few words, for tiny models).

    Raises:
      ConfigError: history_n is negative or the style is unknown.
    """

    history_n: int = 4
    style: str = "full"

    def __post_init__(self):
        if self.history_n < 0:
            raise ConfigError(f"history_n is {self.history_n}, must not be negative")
        if self.style not in STYLES:
            raise ConfigError(f"style is {self.style!r}, must be one of {', '.join(STYLES)}")


def build_messages(
    instruction: str,
    family: DeviceFamily,
    steps: Sequence[Step],
    config: ContextConfig,
    *,
    observation_text: str = "",
    extra_tools: Sequence[Mapping[str, object]] = (),
) -> tuple[Message, ...]:
    """The prompt for turn len(steps).

    With N = 2 after four steps (0-based 0..3):

        system
        user       instruction, "Step 1: ...", "Step 2: ..."; screenshot of step 2
        assistant  response of step 2
        user       screenshot of step 3
        assistant  response of step 3
        user       screenshot of the current screen, ImageRef(4)

    Args:
      instruction: the task.
      family: its device family.
      steps: the turns so far.
      config: window and style.
      observation_text: what the environment says beside the current screenshot (`Observation.text`).
      extra_tools: JSON function schemas of further (MCP) tools.

    Raises:
      DataError: a step of the window has neither a response nor an action.
    """
    first = max(0, len(steps) - config.history_n)
    summaries = [f"Step {index + 1}: {_summary(steps[index])}" for index in range(first)]
    messages = [Message("system", (system_prompt(family, config.style, extra_tools),))]
    opening: tuple[str, ...] = (_opening(instruction, summaries, config.style),)
    for index in range(first, len(steps)):
        step = steps[index]
        messages.append(_user(opening, index, step.observation.text))
        messages.append(Message("assistant", (_response(index, step, family),), step.token_ids))
        opening = ()
    messages.append(_user(opening, len(steps), observation_text))
    return tuple(messages)


def _opening(instruction: str, summaries: Sequence[str], style: str) -> str:
    if style == "compact":
        previous = f"Previous actions: {'; '.join(summaries)}\n" if summaries else ""
        return f"Task: {instruction}\n{previous}"
    return (
        "Decide on the next move from the screenshot, the instruction and the previous actions.\n\n"
        f"Instruction: {instruction}\n\nPrevious actions:\n" + ("\n".join(summaries) or "None")
    )


def _user(opening: tuple[str, ...], index: int, observation_text: str) -> Message:
    texts = (f"\nObservation: {observation_text}",) if observation_text else ()
    return Message("user", (*opening, ImageRef(index), *texts))


def _response(index: int, step: Step, family: DeviceFamily) -> str:
    """What the step said: its response, or the action of a script in the response format."""
    if step.response:
        return step.response
    if step.action is None or step.action.kind == TOOL_KIND:
        if step.token_ids is not None:
            return ""  # an empty response was sampled; the ids say so
        raise DataError(f"step {index} has neither a response nor an action that can be written as one")
    return render_response(step.conclusion, step.action, family, step.thought)


def _summary(step: Step) -> str:
    """One line that stands for an old step. A step never vanishes: without a conclusion its kind is named."""
    conclusion = " ".join(step.conclusion.split())
    if conclusion:
        return conclusion
    return "no valid action" if step.action is None else step.action.kind
