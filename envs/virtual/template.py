"""Task templates: parameters, start states, instructions, predicates and the script that solves them."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from envs.virtual.app import App
from gui_owl_jax.agent.actions import Action

Params = Mapping[str, Any]  # values are words and numbers, as strings
Move = tuple[str, Action]  # (conclusion, action)

HELDOUT_SHARE = 0.25


class Moment(Protocol):
    """What predicates look at.

    Attributes:
      state: state of the app.
      answer: what the agent answered, None before it did.
    """

    @property
    def state(self) -> Any:
        """State of the app."""
        ...

    @property
    def answer(self) -> str | None:
        """What the agent answered, None before it did."""
        ...


Predicate = Callable[[Params, Any, Moment], bool]  # (parameters, start state, now)


@dataclasses.dataclass(frozen=True)
class Template:
    """A kind of task.

    Attributes:
      name: unique name, "app.what".
      app: the app it plays in.
      instruction: format string over the parameters.
      choices: the values of each parameter, by name.
      start: (parameters, rng) -> start state.
      goal: the predicate of the whole task: the asked change and no other.
      milestones: predicates on the way, in order; each is reached once and for all.
      script: (parameters, hand) -> moves that solve it, each made for the screen it is asked for on.
      length: actions of the script, the fewest that solve the task.
      allowed: which combinations of parameters make sense.
    """

    name: str
    app: App
    instruction: str
    choices: Mapping[str, tuple[str, ...]]
    start: Callable[[Params, random.Random], Any]
    goal: Predicate
    script: Callable[[Params, Any], Iterator[Move]]
    length: int
    milestones: tuple[Predicate, ...] = ()
    allowed: Callable[[Params], bool] = lambda params: True


def splits(template: Template) -> dict[str, list[Params]]:
    """All combinations of a template's parameters, by the split they belong to.

    The quarter with the smallest hashes is "heldout", the rest "train": disjoint, neither is empty, and neither depends
    on a seed. Tasks differ from those of the other split in what is asked for, not merely in the layout of the screen.
    """
    names = list(template.choices)
    found = [dict(zip(names, values)) for values in itertools.product(*template.choices.values())]
    found = sorted((params for params in found if template.allowed(params)), key=lambda p: _digest(template.name, p))
    count = max(1, round(HELDOUT_SHARE * len(found)))
    return {"heldout": list(found[:count]), "train": list(found[count:])}


def _digest(name: str, params: Params) -> bytes:
    text = "/".join([name, *(f"{key}={params[key]}" for key in sorted(params))])
    return hashlib.sha256(text.encode()).digest()


def content_is(app: App, first: Any, now: Any, **changes: Any) -> bool:
    """Whether the content of state `now` is that of `first` but for `changes`; navigation is left aside."""
    fields = [field.name for field in dataclasses.fields(first) if field.name not in app.navigation]
    return all(getattr(now, name) == changes.get(name, getattr(first, name)) for name in fields)
