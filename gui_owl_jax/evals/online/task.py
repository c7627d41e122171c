"""One task description for all interactive worlds: OSWorld, AndroidWorld, WebArena, and those to come.

How a task is judged is data: an `Evaluation` joins `Check`s, each of which compares what an `Operation` fetches with
what another one fetches. `evaluators.evaluate` runs it with whatever getter there is for these operations.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import DataError, GuiOwlError

JOINS = ("and", "or")
GATES = ("", "not_failed", "declared")


class Unsupported(GuiOwlError):
    """A task cannot be judged with what there is.

    Attributes:
      kind: name of the evaluator that is missing or misses something.
    """

    def __init__(self, kind: str, why: str):
        super().__init__(f"{kind}: {why}")
        self.kind = kind


@dataclasses.dataclass(frozen=True)
class Operation:
    """Something that a world can do or tell: a step of the setup, or where a value of a check comes from.

    Attributes:
      kind: its name in the benchmark, "download", "vm_file", "rule".
      arguments: values that JSON can hold, as the task's file has them.
    """

    kind: str
    arguments: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @property
    def key(self) -> str:
        """A name that equal operations share: its recorded outcome is found by it."""
        return f"{self.kind} {json.dumps(self.arguments, sort_keys=True, ensure_ascii=False)}"


@dataclasses.dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes:
      kind: "<benchmark>.<evaluator>", "osworld.compare_csv", "webarena.must_include".
      result: fetches what the agent left behind.
      expected: fetches what is right, None where the evaluator needs nothing else.
      options: keyword arguments of the evaluator.
    """

    kind: str
    result: Operation
    expected: Operation | None = None
    options: Mapping[str, object] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """How a finished episode is judged.

    Attributes:
      checks: at least one.
      join: "and" is the mean of the scores, 0 as soon as one is 0 (a product, for scores of 0 and 1); "or" is the
        largest score.
      gate: what the agent must have said, else the score is 0 whatever the world looks like. "not_failed": it did not
        give up (OSWorld); "declared": it ended the episode itself (AndroidWorld); "": nothing.
      before: operations that the world does before it is looked at, saving open files, say.
    """

    checks: tuple[Check, ...]
    join: str = "and"
    gate: str = ""
    before: tuple[Operation, ...] = ()

    def __post_init__(self):
        if self.join not in JOINS or self.gate not in GATES:
            raise DataError(f"evaluation: join {self.join!r} must be in {JOINS}, gate {self.gate!r} in {GATES}")
        if not self.checks:
            raise DataError("evaluation: it has no check")


@dataclasses.dataclass(frozen=True)
class OnlineTask:
    """One task of an interactive benchmark.

    Attributes:
      task_id: unique within its source.
      source: the benchmark, "osworld".
      instruction: what the agent is asked to do, in words.
      family: device family.
      evaluation: how its end is judged.
      apps: the apps or sites that it plays in; () where the files do not say.
      setup: what is done before the agent starts, in order.
      max_steps: step budget, None where the files do not say.
      infeasible: right is the agent that says it cannot be done.
      tags: words to split tables by.
      difficulty: "" where the files do not say.
      template: what tasks of one kind share, with its parameters in braces; "" where there is none.
      details: what only this benchmark has, as the file has it.
    """

    task_id: str
    source: str
    instruction: str
    family: DeviceFamily
    evaluation: Evaluation
    apps: tuple[str, ...] = ()
    setup: tuple[Operation, ...] = ()
    max_steps: int | None = None
    infeasible: bool = False
    tags: tuple[str, ...] = ()
    difficulty: str = ""
    template: str = ""
    details: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if not self.task_id or not self.instruction:
            raise DataError(f"{self.source} task {self.task_id!r}: task_id and instruction must not be empty")
        if self.max_steps is not None and self.max_steps < 1:
            raise DataError(f"{self.source} task {self.task_id!r}: max_steps is {self.max_steps}, must be at least 1")
