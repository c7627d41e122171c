"""What a compiled TPU program sends between chips, read from its text.

Two things make counting lines wrong: a collective that runs beside other work is spread over several computations (its
start, the work, its end), and what stands in a loop runs as often as the loop does.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Iterator

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "collective-permute", "all-to-all", "ragged-all-to-all")

_BITS = {"pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "bf16": 16, "f16": 16, "s32": 32}
_BITS |= {"u32": 32, "f32": 32, "s64": 64, "u64": 64, "f64": 64, "f8e4m3fn": 8, "f8e5m2": 8}
_ARRAY = re.compile(r"\b(pred|[suf]\d+|bf16|f8e4m3fn|f8e5m2)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_OPERATION = re.compile(r"(?:^|[\s)}\]])([a-z][a-z\-]*)\(")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective operation of a program.

    Attributes:
      kind: one of `KINDS`.
      bytes: per chip and execution: of what an all-gather, all-to-all or permute gives, of what an all-reduce or
        reduce-scatter takes.
      times: how often it runs.
      group: chips that take part together; 0 where the text does not say.
      dtype: of the largest array.
    """

    kind: str
    bytes: int
    times: int
    group: int
    dtype: str

    @property
    def total(self) -> int:
        """Bytes of all executions."""
        return self.bytes * self.times

    @property
    def wire(self) -> float:
        """Bytes that leave a chip in all executions, if the group is a ring."""
        share = (self.group - 1) / self.group if self.group else 1.0
        return self.total * (2 * share if self.kind == "all-reduce" else share)


@dataclasses.dataclass(frozen=True)
class _Instruction:
    name: str
    shape: str
    operation: str
    rest: str


def collectives(text: str) -> list[Collective]:
    """Lists the collectives of a program's text, each once; an empty text has none."""
    computations, entry = _parse(text)
    if not entry:
        return []
    runs = _executions(computations, entry)
    loops = {entry} | {_named("body", i.rest) for body in computations.values() for i in body if i.operation == "while"}
    found: dict[tuple[str, str], Collective] = {}
    for name, times in runs.items():
        for instruction in computations[name]:
            kind = instruction.operation.removesuffix("-start")
            if kind not in KINDS:
                continue
            # The parts of one asynchronous collective lie in fusions and share a channel.
            channel = re.search(r"channel_id=(\d+)", instruction.rest)
            key = f"channel {channel[1]}" if channel and name not in loops else instruction.name
            one = _collective(instruction, kind, times, in_scatter="scatter" in name)
            if one.group == 1:
                continue  # a chip alone sends nothing
            known = found.get((kind, key))
            found[kind, key] = one if known is None or known.total < one.total else known
    return list(found.values())


def summary(found: list[Collective]) -> dict[str, dict[str, int]]:
    """Adds collectives up by kind: {kind: {"count": executions, "bytes": bytes}}."""
    table: dict[str, dict[str, int]] = collections.defaultdict(lambda: {"count": 0, "bytes": 0})
    for one in found:
        table[one.kind]["count"] += one.times
        table[one.kind]["bytes"] += one.total
    return dict(sorted(table.items()))


def _collective(instruction: _Instruction, kind: str, times: int, in_scatter: bool) -> Collective:
    sizes = [(_bytes(dtype, dims), dtype) for dtype, dims in _ARRAY.findall(instruction.shape)]
    # The start of an asynchronous one gives its operand along with its result.
    size = max(sizes)[0] if instruction.operation.endswith("-start") else sum(size for size, _ in sizes)
    group = _group(instruction.rest)
    if kind == "reduce-scatter":
        size *= max(group, 1)
    elif kind == "all-reduce" and in_scatter:  # fused with taking one's own part of the sum
        kind = "reduce-scatter"
    return Collective(kind, size, times, group, max(sizes)[1])


def _bytes(dtype: str, dims: str) -> int:
    return math.prod(int(d) for d in dims.split(",") if d) * _BITS[dtype] // 8


def _group(rest: str) -> int:
    if found := re.search(r"replica_groups=\[\d+,(\d+)\]", rest):
        return int(found[1])
    if found := re.search(r"replica_groups=\{\{([\d,]*)\}", rest):
        return len(found[1].split(","))
    if found := re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", rest):
        sizes = {name: int(size) for name, size in re.findall(r"'?(\w+)'?=(\d+)", found[1])}
        return math.prod(sizes.get(name, 1) for name in re.findall(r"\w+", found[2]))
    return 0


def _parse(text: str) -> tuple[dict[str, list[_Instruction]], str]:
    """Returns the instructions of each computation, and the name of the one where the program starts."""
    computations: dict[str, list[_Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if not line.startswith(" ") and (head := _COMPUTATION.match(line)):
            current = computations[head[2]] = []
            entry = head[2] if head[1] else entry
        elif current is not None and (found := _INSTRUCTION.match(line)):
            shape, rest = _split_shape(found[2])
            operation = _OPERATION.search(rest)
            current.append(_Instruction(found[1], shape, operation[1] if operation else "", rest))
    return computations, entry


def _split_shape(text: str) -> tuple[str, str]:
    """Cuts "(f32[2], s32[]) while(...)" behind the shape."""
    if not text.startswith("("):
        shape, _, rest = text.partition(" ")
        return shape, " " + rest
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[: place + 1], text[place + 1 :]
    return text, ""


def _named(attribute: str, rest: str) -> str:
    found = re.search(rf"{attribute}=%?([\w.\-]+)", rest)
    return found[1] if found else ""


def _executions(computations: dict[str, list[_Instruction]], entry: str) -> dict[str, int]:
    """How often each computation runs that the program reaches."""
    runs: dict[str, int] = collections.defaultdict(int)

    def visit(name: str, times: int) -> None:
        runs[name] += times
        for instruction in computations[name]:
            for inner, count in _calls(computations, instruction):
                visit(inner, times * count)

    visit(entry, 1)
    return dict(runs)


def _calls(computations: dict[str, list[_Instruction]], instruction: _Instruction) -> Iterator[tuple[str, int]]:
    """The computations that an instruction runs, each with how often."""
    rest = instruction.rest
    if instruction.operation == "while":
        body = _named("body", rest)
        trips = _trips(computations, instruction)
        if "windowed_dot_general" in body and _permutes(computations[body]) >= 4:
            trips = -(-trips // 2)  # unrolled by two
        yield body, trips
        return
    names = re.findall(r"(?:calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)", rest)
    if branches := re.search(r"branch_computations=\{([^}]*)\}", rest):
        names += re.findall(r"%?([\w.\-]+)", branches[1])
    for name in names:
        if name in computations:
            yield name, 1


def _trips(computations: dict[str, list[_Instruction]], loop: _Instruction) -> int:
    """How often a loop runs: what the compiler noted, else the bound it compares its counter with, else once."""
    if noted := re.search(r'known_trip_count"?\s*[:=]\s*\{\s*"?n"?\s*[:=]\s*"?(\d+)', loop.rest):
        return int(noted[1])
    condition = computations.get(_named("condition", loop.rest), [])
    bounds = [re.match(r"\s*constant\((\d+)\)", i.rest) for i in condition if re.match(r"[su]32\[\]", i.shape)]
    return max((int(bound[1]) for bound in bounds if bound), default=1)


def _permutes(body: list[_Instruction]) -> int:
    return sum(instruction.operation == "collective-permute-start" for instruction in body)
