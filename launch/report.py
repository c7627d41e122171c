"""Writes RUN/report.html from what a run left behind, and prints its table.

    python -m launch.report --run=runs/quickstart

Reads RUN/evaluate/<stage>.json (and trajectories beside it), and run.json and metrics.jsonl of RUN/<stage>.
"""

from __future__ import annotations

from pathlib import Path

from absl import flags, logging

from data.store import TrajectorySource
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.report import Report, write_report
from gui_owl_jax.evals.success import STAGES, read_stage, text_table
from gui_owl_jax.training.metrics import FILE_NAME, read_metrics
from launch.common import read_json, run_main

RUN = flags.DEFINE_string("run", None, "Folder of the run.", required=True)
COMMANDS = flags.DEFINE_multi_string("command", ["bash launch/quickstart.sh"], "Commands that reproduce the run.")


def main(argv: list[str]) -> None:
    """Gathers, writes, prints."""
    del argv
    run = Path(RUN.value)
    evaluated = run / "evaluate"
    stages = [read_stage(evaluated / f"{s}.json") for s in STAGES if (evaluated / f"{s}.json").exists()]
    if not stages:
        raise DataError(f"{evaluated} has no {', '.join(f'{s}.json' for s in STAGES)}: run launch.evaluate first")
    runs = {s: read_json(run / s / "run.json") for s in STAGES if (run / s / "run.json").exists()}
    recorded = [s for s in STAGES if list(evaluated.glob(f"{s}-?????-of-?????.arrayrecord"))]
    report = Report(
        stages=stages,
        curves={s: list(read_metrics(run / s)) for s in STAGES if (run / s / FILE_NAME).exists()},
        trajectories={s: TrajectorySource(evaluated / s) for s in recorded},
        commands=COMMANDS.value,
        commit=stages[-1].commit,
        configs={s: saved.get("config") for s, saved in runs.items()},
    )
    path = write_report(run / "report.html", report)
    print(text_table(stages))
    logging.info("wrote %s", path)


if __name__ == "__main__":
    run_main(main)
