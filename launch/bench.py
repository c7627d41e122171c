"""Compares speed with a named peer, in one process and in turns, as ratios with their spread.

  python -m launch.bench model                      forward, training and generation against transformers (needs torch)
  python -m launch.bench model --only=train,packed  some of them
  python -m launch.bench model --size=tiny          tiny shapes, to see that it runs

A ratio above 1 says that we are faster. Ours and the peer's runs alternate, so that what else the machine does disturbs
both; the figures are the median over the pairs, and the smallest and largest of them.
"""

from __future__ import annotations

import dataclasses
import json
import time

from absl import flags

from gui_owl_jax.agent.errors import ConfigError
from launch import common
from launch.comparison import HEADER, compare

REPEATS = flags.DEFINE_integer("repeats", 5, "Pairs of runs per comparison.")
ONLY = flags.DEFINE_list("only", [], "Names of the comparisons to make; all by default.")
SIZE = flags.DEFINE_enum("size", "anchor", ["anchor", "tiny"], "Shapes: those of docs/bench.md, or tiny ones.")
CLOCK = flags.DEFINE_enum("clock", "wall", ["wall", "cpu"], "cpu: CPU seconds of this process, for a busy machine.")
OUT = flags.DEFINE_string("out", None, "A JSON file for the figures.")


def main(argv: list[str]) -> None:
    """Makes the comparisons and prints a table."""
    if argv[1:] != ["model"]:
        raise ConfigError(f"bench: say what to compare: model; got {argv[1:]}")
    from launch import bench_model  # here, because it needs torch

    comparisons = bench_model.comparisons(bench_model.SIZES[SIZE.value])
    unknown = sorted(set(ONLY.value) - set(comparisons))
    if unknown:
        raise ConfigError(f"--only: no comparison {unknown[0]!r}; choose of {', '.join(comparisons)}")
    clock = time.process_time if CLOCK.value == "cpu" else time.perf_counter
    print(bench_model.surroundings(), HEADER, sep="\n\n", flush=True)
    results = []
    for name, make in comparisons.items():
        if name in ONLY.value or not ONLY.value:
            results.append(compare(make(), REPEATS.value, clock))
            print(results[-1].row(), flush=True)
    if OUT.value:
        common.write_json(OUT.value, [json.loads(json.dumps(dataclasses.asdict(result))) for result in results])


if __name__ == "__main__":
    common.run_main(main)
