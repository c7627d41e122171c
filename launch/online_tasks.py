"""Says which tasks of an interactive benchmark can be judged without its live world, and why not the others.

python -m launch.online_tasks --benchmark=osworld --path=evaluation_examples/examples
"""

from __future__ import annotations

from absl import flags

from data.benchmarks.online_tasks import ONLINE_READERS, read_online_tasks
from gui_owl_jax.evals.online.evaluators import coverage
from launch import common

BENCHMARK = flags.DEFINE_enum("benchmark", None, list(ONLINE_READERS), "Whose files they are.", required=True)
PATH = flags.DEFINE_string("path", None, "Its task file, or the folder with them.", required=True)
JUDGE = flags.DEFINE_bool("judge", False, "Count as if there were a judge of free answers.")


def main(argv: list[str]) -> None:
    """Reads the tasks and prints the counts."""
    del argv
    print(coverage(read_online_tasks(BENCHMARK.value, PATH.value), judge=JUDGE.value).report())


if __name__ == "__main__":
    common.run_main(main)
