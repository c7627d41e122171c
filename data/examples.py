"""From the step of a trajectory to one training example.

Supervised examples are rendered: prompt and response as the agent would see and say them, loss on the response.
Reinforcement learning examples are never rendered: they are the ids that were sampled, behind the ids that were fed.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gui_owl_jax.agent.context import ContextConfig, build_messages
from gui_owl_jax.agent.errors import DataError, ParseError, TransportError
from gui_owl_jax.agent.parsing import render_response
from gui_owl_jax.agent.prompts import Message
from gui_owl_jax.agent.trajectory import Step, Trajectory
from gui_owl_jax.hf.images import image_patches
from gui_owl_jax.hf.processor import EncodedPrompt, Processor
from gui_owl_jax.models.layout import Example, ImagePatches

_STEP_IDS = ("prompt_ids", "token_ids", "logps", "sampler_logps")


def prompt_example(prompt: EncodedPrompt, response: np.ndarray) -> Example:
    """Joins a prompt and a response into an example whose targets are the response's tokens.

    Worked: prompt ids [7 8 9], response ids [4 5] -> tokens [7 8 9 4 5], loss_mask [0 0 0 1 1].
    """
    loss_mask = np.zeros(len(prompt.ids) + len(response), np.float32)
    loss_mask[len(prompt.ids) :] = 1.0
    return _example(prompt.ids, response, loss_mask, prompt.images, {})


def chat_example(
    messages: Sequence[Message], images: dict[int, np.ndarray], text: str, processor: Processor
) -> Example:
    """Returns the example of a prompt and the text that should answer it; loss on the text and its im_end."""
    return prompt_example(processor.encode_prompt(messages, images), processor.encode_response(text))


def response_text(trajectory: Trajectory, index: int) -> str:
    """Returns what the agent said at a step: the response as it was, or one rendered from conclusion and action.

    Raises:
      DataError: the step has neither, or its response was not an action.
    """
    step = trajectory.steps[index]
    where = f"step {index} of trajectory {trajectory.task_id}"
    if step.error:
        raise DataError(f"{where}: its response is no action ({step.error}), nothing to imitate")
    if step.response:
        return step.response
    if step.action is None:
        raise DataError(f"{where}: it has no response and no action")
    try:
        return render_response(step.conclusion, step.action, trajectory.family, step.thought)
    except ParseError as error:
        raise DataError(f"{where}: {error}") from error


def step_example(trajectory: Trajectory, index: int, processor: Processor, context: ContextConfig) -> Example:
    """Returns the supervised example of one step.

    Args:
      trajectory: any source.
      index: which of its steps.
      processor: tokenizer and image processor of the model.
      context: how much history the prompt shows, and in which style.

    Returns:
      Prompt and response; targets are the response and the im_end behind it.

    Raises:
      DataError: the step has no response to imitate.
    """
    steps = trajectory.steps
    said = steps[index].observation.text
    messages = build_messages(trajectory.instruction, trajectory.family, steps[:index], context, observation_text=said)
    images = {i: step.observation.image for i, step in enumerate(steps[: index + 1])}
    return chat_example(messages, images, response_text(trajectory, index), processor)


def rl_example(
    trajectory: Trajectory, index: int, processor: Processor, advantage: float, weight: float = 1.0
) -> Example:
    """Returns the reinforcement learning example of one step, from transported ids alone (token-id transport).

    Args:
      trajectory: sampled by the policy; its steps carry ids and log-probabilities.
      index: which of its steps.
      processor: cuts the screenshots named by the step's `image_steps` into patches; its tokenizer only names ids.
      advantage: of the trajectory; the same for all its sampled tokens.
      weight: importance weight of the trajectory (inclusion, task).

    Returns:
      Prompt ids, then sampled ids; targets are the sampled ids. Extras, each f32 [l] and 0 on the prompt:
      "logps" (temperature 1), "sampler_logps" (as drawn), "advantages", "weights".

    Raises:
      TransportError: ids or log-probabilities are missing or do not belong together.
    """
    step = trajectory.steps[index]
    where = f"step {index} of trajectory {trajectory.task_id}"
    missing = [name for name in _STEP_IDS if getattr(step, name) is None]
    if missing:
        raise TransportError(f"{where} lost {', '.join(missing)}; sample it again, text is never tokenised instead")
    prompt, sampled, logps, sampler_logps = (np.asarray(getattr(step, name)) for name in _STEP_IDS)
    if not (len(sampled) == len(logps) == len(sampler_logps) > 0):
        lengths = f"{len(sampled)} ids, {len(logps)} and {len(sampler_logps)} log-probabilities"
        raise TransportError(f"{where} has {lengths}; there must be as many of each, and at least one")
    images = _transported_images(trajectory, step, processor, where)
    values = {
        "logps": logps,
        "sampler_logps": sampler_logps,
        "advantages": np.full(len(sampled), advantage),
        "weights": np.full(len(sampled), weight),
    }
    before = np.zeros(len(prompt), np.float32)
    extras = {name: np.concatenate([before, value.astype(np.float32)]) for name, value in values.items()}
    loss_mask = np.concatenate([before, np.ones(len(sampled), np.float32)])
    return _example(prompt, sampled, loss_mask, images, extras)


def _transported_images(
    trajectory: Trajectory, step: Step, processor: Processor, where: str
) -> tuple[ImagePatches, ...]:
    """The patches of the screenshots in a step's prompt, checked against the pads in its prompt ids."""
    wrong = [i for i in step.image_steps if not 0 <= i < len(trajectory.steps)]
    if wrong:
        raise TransportError(f"{where} refers to screenshots of steps {wrong}, there are {len(trajectory.steps)}")
    screens = [trajectory.steps[i].observation.image for i in step.image_steps]
    images = tuple(image_patches(screen, processor.image_config) for screen in screens)
    pads = int(np.count_nonzero(np.asarray(step.prompt_ids) == processor.tokenizer.image_pad))
    merged = sum(len(image.patches) for image in images) // processor.image_config.merge_size**2
    if pads < merged:  # more are possible: an earlier turn of the prompt may hold sampled ones
        raise TransportError(f"{where} has {pads} image tokens in its prompt, its screenshots make {merged}")
    return images


def _example(
    prompt: np.ndarray,
    response: np.ndarray,
    loss_mask: np.ndarray,
    images: tuple[ImagePatches, ...],
    extras: Mapping[str, np.ndarray],
) -> Example:
    tokens = np.concatenate([prompt, response]).astype(np.int32)
    return Example(tokens=tokens, loss_mask=loss_mask, images=images, extras=extras)


class StepExamples(Sequence[Example]):
    """The supervised examples of all imitable steps of some trajectories, by index.

    Steps whose response was no action, and steps without any, are left out.

    Args:
      trajectories: random access, a list or a `TrajectorySource`; read once when made, to number the steps.
      processor: tokenizer and image processor.
      context: how prompts are built.
      keep: which trajectories to use; by default those that succeeded.
    """

    def __init__(
        self,
        trajectories: Sequence[Trajectory],
        processor: Processor,
        context: ContextConfig,
        keep: Callable[[Trajectory], bool] = lambda trajectory: trajectory.outcome == 1,
    ):
        self._trajectories = trajectories
        self._processor = processor
        self._context = context
        self._places = [
            (i, j)
            for i, trajectory in enumerate(trajectories)
            if keep(trajectory)
            for j, step in enumerate(trajectory.steps)
            if not step.error and (step.response or step.action is not None)
        ]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index):
        trajectory, step = self._places[index]
        return step_example(self._trajectories[trajectory], step, self._processor, self._context)


class CachedExamples(Sequence[Example]):
    """Keeps the examples of another source in memory once they were made, up to a number of bytes.

    A screenshot that several examples show is kept once: the steps of a trajectory repeat their history, and a screen
    has many elements to click. When the budget is used up, further examples are made anew each time; nothing is thrown
    out, because a shuffled epoch would come back to an example only after it was gone.

    Args:
      examples: the source.
      max_bytes: budget for token and patch arrays; every reading process has its own.
    """

    def __init__(self, examples: Sequence[Example], max_bytes: int = 1 << 30):
        self._examples = examples
        self._max_bytes = max_bytes
        self._clear()

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index):
        example = self._kept.get(index)
        if example is None:
            example = self._examples[index]
            if self._used < self._max_bytes:
                self._kept[index] = example = self._keep(example)
        return example

    @property
    def used_bytes(self) -> int:
        """Bytes of the arrays that are kept."""
        return self._used

    def _keep(self, example: Example) -> Example:
        images = []
        for image in example.images:
            content = np.ascontiguousarray(image.patches).data
            key = hashlib.blake2b(content, digest_size=16, key=repr(image.grid).encode()).digest()
            if key not in self._images:
                self._images[key] = image
                self._used += image.patches.nbytes
            images.append(self._images[key])
        arrays = (example.tokens, example.loss_mask, *example.extras.values())
        self._used += sum(array.nbytes for array in arrays)
        return dataclasses.replace(example, images=tuple(images))

    def _clear(self) -> None:
        self._used = 0
        self._kept: dict[int, Example] = {}
        self._images: dict[bytes, ImagePatches] = {}

    def __getstate__(self):  # a copy for another process starts empty, instead of taking everything along
        return self._examples, self._max_bytes

    def __setstate__(self, state):
        self._examples, self._max_bytes = state
        self._clear()
