"""Ratios of our speed to a peer's, from runs in turns."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The same work done by us and by a peer.

    Attributes:
      name: of the work.
      ours: does it once, to its end.
      theirs: likewise.
      agreement: says in words how the two results agree; raises where they do not.
      units: how many things of interest one run deals with, for rates: (their number, their name).
    """

    name: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    agreement: Callable[[Any, Any], str]
    units: tuple[float, str]


@dataclasses.dataclass(frozen=True)
class Result:
    """Figures of a comparison: seconds of each run, pairwise."""

    name: str
    agreement: str
    units: tuple[float, str]
    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """The peer's time over ours, of each pair, ascending."""
        return sorted(theirs / ours for ours, theirs in zip(self.ours, self.theirs))

    def row(self) -> str:
        """A row of the table."""
        count, unit = self.units
        ours, theirs = statistics.median(self.ours), statistics.median(self.theirs)
        ratio = f"**{statistics.median(self.ratios):.2f}x** ({self.ratios[0]:.2f} to {self.ratios[-1]:.2f})"
        rates = f"{count / ours:,.0f} | {count / theirs:,.0f}"
        return f"| {self.name} | {ratio} | {ours:.2f} s | {theirs:.2f} s | {rates} {unit}/s | {self.agreement} |"


HEADER = """| work | ratio: median (smallest to largest) | ours | theirs | our rate | their rate | results |
|---|---|---|---|---|---|---|"""


def compare(comparison: Comparison, repeats: int, clock: Callable[[], float] = time.perf_counter) -> Result:
    """Runs each side once for warmth and to compare what they find, then in turns; the first of a pair alternates."""
    agreement = comparison.agreement(comparison.ours(), comparison.theirs())
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for repeat in range(repeats):
        for side in ("ours", "theirs") if repeat % 2 else ("theirs", "ours"):
            start = clock()
            getattr(comparison, side)()
            seconds[side].append(clock() - start)
    ours, theirs = tuple(seconds["ours"]), tuple(seconds["theirs"])
    return Result(comparison.name, agreement, comparison.units, ours, theirs)
