"""What all benchmarks have in common: items with a target, raw answers, and what was wrong with the files.

A reader (`data.benchmarks`) turns the published files of a benchmark into `Item`s. A policy gives each a raw `Answer`,
which is stored as it is. Scoring reads both and may be repeated under another rule without a model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.agent.prompts import Message


@dataclasses.dataclass(frozen=True)
class Box:
    """A rectangle that a point must hit: left, top, right, bottom in pixels of the original image, edges included."""

    left: float
    top: float
    right: float
    bottom: float


@dataclasses.dataclass(frozen=True)
class Polygon:
    """A polygon that a point must hit: its vertices (x, y) in pixels of the original image."""

    vertices: tuple[tuple[float, float], ...]


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Nothing on the screen answers the instruction: right is the agent that says so."""


@dataclasses.dataclass(frozen=True)
class ActionLabel:
    """The action that was taken in a recording.

    Attributes:
      action: on the 0-1000 grid of the screen.
      boxes: elements that a click may also land on, in pixels of the original image.
    """

    action: Action
    boxes: tuple[Box, ...] = ()


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of several answers is right: its name ("A", "yes") among `options`."""

    answer: str
    options: tuple[str, ...]


Target = Box | Polygon | Refusal | ActionLabel | Choice


@dataclasses.dataclass(frozen=True)
class Item:
    """One question of a benchmark.

    Attributes:
      item_id: unique within the benchmark, and the same whenever the files are read.
      instruction: what is asked, in words.
      target: what is right.
      family: device family of the screen.
      image: path below the image folder, "" for none.
      size: (width, height) of the original image as the annotations declare it, None where they do not.
      facets: name -> value by which tables are split: "platform", "application", "group", "ui_type".
      history: for items in the middle of an episode, what was done before, in words.
      more_images: paths of further images, shown behind the first: screens in sequence, or options that are images.
    """

    item_id: str
    instruction: str
    target: Target
    family: DeviceFamily
    image: str = ""
    size: tuple[int, int] | None = None
    facets: Mapping[str, str] = dataclasses.field(default_factory=dict)
    history: tuple[str, ...] = ()
    more_images: tuple[str, ...] = ()

    @property
    def images(self) -> tuple[str, ...]:
        """All paths, () for an item without an image."""
        return (self.image, *self.more_images) if self.image else ()


@dataclasses.dataclass(frozen=True)
class Problem:
    """An entry of the files that is no item, or an item that looks wrong.

    Attributes:
      where: file and entry, "excel_macos.json[3]".
      kind: short name to count by, "missing_field", "box_outside_image".
      detail: one sentence.
      fatal: the entry was left out of the items.
    """

    where: str
    kind: str
    detail: str
    fatal: bool = False


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """The items of a benchmark, in the order of its files.

    Attributes:
      name: as in `data.benchmarks.READERS`.
      items: all that could be read.
      problems: what could not be read, and what looks wrong.
    """

    name: str
    items: tuple[Item, ...]
    problems: tuple[Problem, ...] = ()

    def __post_init__(self):
        seen: set[str] = set()
        for item in self.items:
            if item.item_id in seen:
                raise DataError(f"{self.name}: item {item.item_id!r} occurs twice")
            seen.add(item.item_id)


@dataclasses.dataclass(frozen=True)
class Look:
    """One call of a model about one item: what it was shown and what it said.

    Attributes:
      response: the model's words.
      window: left, top, right, bottom of the part of the original image that was shown, in its pixels (floats).
      shown: (width, height) in pixels of the picture that the model's image processor made of it; coordinates in
        pixels of the "resized image" are meant in these.
    """

    response: str
    window: tuple[float, float, float, float]
    shown: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a policy said to one item, as it was said.

    Attributes:
      item_id: the item.
      looks: the calls in their order, the last one holds the answer; () where the item could not be asked.
      size: (width, height) of the original image as it was opened, None without an image.
      failure: why the item could not be asked (image missing or damaged, endpoint gave up), "" for not at all.
    """

    item_id: str
    looks: tuple[Look, ...] = ()
    size: tuple[int, int] | None = None
    failure: str = ""

    @property
    def opened(self) -> tuple[int, int]:
        """(width, height) of the image that was looked at: `size`, or where it is not known the first look's window."""
        left, top, right, bottom = self.looks[0].window
        return self.size or (round(right - left), round(bottom - top))


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """One question for a model: chat messages, their images by `ImageRef.step`, and what its draws are seeded by."""

    messages: Sequence[Message]
    images: Mapping[int, np.ndarray]
    seed: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Reply:
    """What a model said: its words, and the (width, height) that its processor gave the last image of the request.

    `failure` tells why there are no words ("" for none): one request that fails does not stop the others.
    """

    response: str
    shown: tuple[int, int] = (0, 0)
    failure: str = ""


class Answerer(Protocol):
    """A policy that answers a batch of questions: our engine, an endpoint, or a wrapper around either."""

    def __call__(self, requests: Sequence[Request]) -> list[Reply]:
        """One reply per request, in their order."""
        ...
