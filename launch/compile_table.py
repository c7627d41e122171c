"""Writes docs/compile_for_tpu.md from the results that `launch.compile_for_tpu` stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launch import roofline

Row = Mapping[str, Any]

_HEAD = """# What the steps take on their pods

Written by `python -m launch.compile_for_tpu`, which compiles each program for its topology with the TPU compiler, on a
host without a TPU, and keeps the results in `docs/compile_for_tpu.json`. Nothing here was run on a TPU: memory and
collectives are the compiler's, times are estimates.

- Peak: the compiler's peak of HBM per chip, in GiB, of what a program may use ({memory}). `+` is what lies beside it:
  the reference weights of MRPO, fp32, split like the policy's.
- Collectives: GB per chip and step, each asynchronous one counted once, those in loops as often as the loop runs. An
  all-gather counts what it gives, an all-reduce or reduce-scatter what it takes.
- FLOPs: of the whole pod and step, counted by hand (`launch/roofline.py`) for full rows, each one text and one image:
  an upper bound for packed rows. Trained steps count 3 forward passes; what is computed again does not count.
- Step and MFU: an upper bound of what can be reached, not a forecast. The step takes as long as the longest of
  computing (with what is computed again), reading memory and sending (on a ring over all links) takes at full published
  rate, all three overlapping perfectly:
{rates}
- Level: `O0` marks results of the compiler's lowest level, which uses more or less memory than the default one.
"""


def line(name: str, row: Row) -> str:
    """One row of the table."""
    peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.2f}"
    if row["beside_bytes"]:
        peak += f" + {row['beside_bytes'] / 2**30:.2f}"
    large = {kind: value["bytes"] / 1e9 for kind, value in row["collectives"].items() if value["bytes"] >= 5e7}
    moved = ", ".join(f"{kind} {size:.1f}" for kind, size in large.items())
    estimate = row["estimate"]
    time, mfu = ("", "") if estimate is None else (_seconds(estimate), f"{estimate['mfu']:.2f}")
    level = "default" if row["level"] != "O0" else "O0"
    cells = (
        name,
        row["topology"],
        peak,
        "yes" if row["fits"] else "**no**",
        f"{row['model_flops'] / 1e15:.3g}",
        moved,
        time,
        mfu,
        f"{row['compile_seconds']:.0f}",
        level,
    )
    return "| " + " | ".join(cells) + " |"


def document(table: Mapping[str, Row]) -> str:
    """The whole page."""
    memory = ", ".join(f"{name} {chip.memory / 2**30:.2f}" for name, chip in roofline.CHIPS.items())
    rates = "\n".join(
        f"  - {name}: {chip.flops / 1e12:.0f} TFLOP/s, {chip.bandwidth / 1e9:.0f} GB/s of HBM, {chip.links / 1e9:.0f} "
        "GB/s out of a chip"
        for name, chip in roofline.CHIPS.items()
    )
    titles = "program, topology, peak GiB, fits, PFLOP, collectives GB, step s, MFU, compile s, level".split(", ")
    lines = [_HEAD.format(memory=memory, rates=rates)]
    lines += ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    lines += [line(name, row) for name, row in sorted(table.items(), key=_order)]
    refused = [f"- {name}: {row['why']}" for name, row in sorted(table.items()) if row["why"]]
    if refused:
        lines += ["", "What does not fit:", "", *refused]
    return "\n".join(lines) + "\n"


def _order(item: tuple[str, Row]) -> tuple[str, int]:
    name, program = item[0].split("/")
    return name, ("train", "prefill", "decode").index(program)


def _seconds(estimate: Mapping[str, float]) -> str:
    longest = max(("compute", "memory", "network"), key=lambda part: estimate[part])
    return f"{estimate['step']:.3g} ({longest})"
