"""Running a benchmark: items become questions, a policy answers them in batches, answers go to a store.

What an item is asked does not depend on which items share its batch, and batches are cut from the list of all items:
a run that was killed asks the batch it died in once more, as a whole, and so ends with the answers of an undisturbed
one. An item whose image is missing or damaged gets an answer that says so.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import tqdm
from PIL import Image

from gui_owl_jax.agent.context import ContextConfig, build_messages
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import ConfigError, DataError
from gui_owl_jax.agent.prompts import ImageRef, Message
from gui_owl_jax.agent.trajectory import Observation, Step
from gui_owl_jax.evals.answers import AnswerStore
from gui_owl_jax.evals.benchmark import ActionLabel, Answer, Answerer, Choice, Item, Look, Request
from gui_owl_jax.evals.zoom import Looked, Looker, ZoomConfig, look_once, look_twice

if TYPE_CHECKING:
    from gui_owl_jax.agent.dialects import Dialect

OWN_DIALECT = "gui_owl_1_5"  # the one that `agent.context` writes prompts for
_BLANK = Observation(np.zeros((1, 1, 3), np.uint8))
_READERS = 4  # threads that open images


@dataclasses.dataclass(frozen=True)
class Asking:
    """How items are asked.

    Attributes:
      dialect: the format of the answers, which the prompts explain.
      zoom: take a second look at items of grounding; None: one look.
      style: of the GUI-Owl-1.5 prompt (`ContextConfig.style`), for recorded actions in its dialect.
      batch: items that are asked together.
      seed: of draws, where the policy draws at all.
    """

    dialect: Dialect
    zoom: ZoomConfig | None = None
    style: str = "full"
    batch: int = 8
    seed: int = 0

    def __post_init__(self):
        if self.batch < 1:
            raise ConfigError(f"batch is {self.batch}, must be at least 1")


def run(
    items: Sequence[Item],
    images: str | pathlib.Path,
    answerer: Answerer,
    asking: Asking,
    store: AnswerStore,
    *,
    progress: str = "",
) -> None:
    """Answers the items that have no answer in the store yet.

    Args:
      items: this process's share of a benchmark, always the same list.
      images: the folder that image paths are relative to.
      answerer: the policy.
      asking: how items are asked.
      store: where answers are kept; those of a batch are on the disk before the next is asked.
      progress: name of a progress bar with the time left; "" for none.

    Raises:
      ConfigError: zoom is asked for, but an item is none of grounding.
    """
    if asking.zoom and (wrong := [item for item in items if isinstance(item.target, ActionLabel | Choice)]):
        raise ConfigError(f"zoom: item {wrong[0].item_id!r} does not ask for a place on the screen")
    done = sum(item.item_id in store for item in items)
    with tqdm.tqdm(total=len(items), initial=done, desc=progress, unit="item", disable=not progress) as bar:
        for start in range(0, len(items), asking.batch):
            batch = items[start : start + asking.batch]
            missing = {item.item_id for item in batch if item.item_id not in store}
            if missing:
                answers = answer_batch(batch, pathlib.Path(images), answerer, asking)
                store.append([answer for answer in answers if answer.item_id in missing])
                bar.update(len(missing))


def answer_batch(items: Sequence[Item], images: pathlib.Path, answerer: Answerer, asking: Asking) -> list[Answer]:
    """The answers to some items, in their order; their images are opened and let go here."""
    with ThreadPoolExecutor(_READERS) as readers:
        opened = list(readers.map(lambda item: _opened(images, item), items))
    asked = [(item, shown) for item, shown in zip(items, opened) if not isinstance(shown, str)]
    answers: dict[str, Answer] = {}
    for single in (True, False):
        part = [(item, shown) for item, shown in asked if (len(shown) == 1) == single]
        if part:
            looker = _looker(answerer, asking) if single else _look_at_no_place(answerer)
            requests = [request(item, shown, asking) for item, shown in part]
            for (item, shown), looked in zip(part, looker(requests, [item.family for item, _ in part]), strict=True):
                size = (shown[0].shape[1], shown[0].shape[0]) if shown else None
                answers[item.item_id] = Answer(item.item_id, looked.looks, size, looked.failure)
    failed = {
        item.item_id: Answer(item.item_id, failure=why) for item, why in zip(items, opened) if isinstance(why, str)
    }
    return [answers.get(item.item_id) or failed[item.item_id] for item in items]


def request(item: Item, images: Sequence[np.ndarray], asking: Asking) -> Request:
    """The question that an item is.

    Args:
      item: of a benchmark.
      images: its images, uint8 [H, W, 3] each.
      asking: how it is asked.
    """
    chat = messages(item, asking)
    steps = [part.step for message in chat for part in message.content if isinstance(part, ImageRef)]
    return Request(chat, dict(zip(steps, images, strict=True)), (asking.seed, zlib.crc32(item.item_id.encode())))


def messages(item: Item, asking: Asking) -> tuple[Message, ...]:
    """The chat that asks an item: for a place, for the next action of an episode, or for one of several answers."""
    dialect = asking.dialect
    picture = tuple(ImageRef(step) for step in range(len(item.images)))
    if isinstance(item.target, Choice):
        return (Message("user", (*picture, f"{item.instruction}\n\n{_choice_form(item.target.options)}")),)
    if isinstance(item.target, ActionLabel):
        if dialect.name == OWN_DIALECT:
            steps = [Step(_BLANK, conclusion=sentence) for sentence in item.history]
            return build_messages(item.instruction, item.family, steps, ContextConfig(0, asking.style))
        before = "\n".join(f"{number}. {sentence}" for number, sentence in enumerate(item.history, 1))
        text = f"Task: {item.instruction}\n\nDone so far:\n{before or 'nothing'}\n\nThe screen now:\n"
        return Message("system", (dialect.instructions(item.family),)), Message("user", (text, *picture))
    system = dialect.grounding_instructions(item.family)
    return Message("system", (system,)), Message("user", (*picture, item.instruction))


def fingerprint(items: Sequence[Item], asking: Asking) -> str:
    """A hash of everything that is asked: the items' ids, images and chats."""
    digest = hashlib.sha256()
    for item in items:
        chat = [[message.role, *map(str, message.content)] for message in messages(item, asking)]
        digest.update(json.dumps([item.item_id, item.images, chat]).encode())
    return digest.hexdigest()[:16]


def open_image(folder: pathlib.Path, name: str) -> np.ndarray:
    """A screenshot as uint8 [H, W, 3].

    Raises:
      DataError: it is missing, damaged, or its path leaves the folder.
    """
    path = pathlib.PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise DataError(f"image {name!r} lies outside the image folder")
    try:
        with Image.open(folder / path) as picture:
            return np.asarray(picture.convert("RGB"))
    except FileNotFoundError:
        raise DataError(f"image {name} is missing") from None
    # Pillow raises many kinds of errors on damaged files, SyntaxError and struct.error among them.
    except Exception as error:  # noqa: BLE001
        raise DataError(
            f"image {name} cannot be read: {type(error).__name__}: {error}".replace(str(folder), "")
        ) from error


def _opened(folder: pathlib.Path, item: Item) -> list[np.ndarray] | str:
    """The images of an item, or why one cannot be opened."""
    try:
        return [open_image(folder, name) for name in item.images]
    except DataError as error:
        return str(error)


def _looker(answerer: Answerer, asking: Asking) -> Looker:
    return look_twice(answerer, asking.dialect, asking.zoom) if asking.zoom else look_once(answerer)


def _look_at_no_place(answerer: Answerer) -> Looker:
    """Asks questions about no image or several, whose answers name no place on one."""

    def look(requests: Sequence[Request], families: Sequence[DeviceFamily]) -> list[Looked]:
        replies = answerer(requests)
        looks = [(Look(reply.response, (0.0, 0.0, 0.0, 0.0), reply.shown),) for reply in replies]
        return [Looked(failure=r.failure) if r.failure else Looked(look) for r, look in zip(replies, looks)]

    return look


def _choice_form(options: Sequence[str]) -> str:
    return (
        'Answer with one JSON object and nothing else: {"thought": "<why, in one sentence>", "answer": "<option>"}. '
        f"The options are: {', '.join(options)}."
    )
