"""The learning proof: the quickstart on three seeds, every stage better than the one before (about 50 minutes)."""

import os
import pathlib
import subprocess

import pytest

from gui_owl_jax.evals.success import average_success, compare, read_stage

ROOT = pathlib.Path(__file__).parents[2]
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module", params=SEEDS)
def results(request, tmp_path_factory):
    """The four evaluations of one seed; runs are kept, and taken up again, in the folder GUI_OWL_RUNS."""
    base = pathlib.Path(os.environ.get("GUI_OWL_RUNS", tmp_path_factory.mktemp("runs"))).absolute()
    run = base / f"seed{request.param}"
    environment = {**os.environ, "RUN": str(run), "SEED": str(request.param)}
    environment.pop("XLA_FLAGS", None)  # the tests' own ask for eight devices
    subprocess.run(["bash", "launch/quickstart.sh"], cwd=ROOT, env=environment, check=True, timeout=3600)
    return {name: read_stage(run / "evaluate" / f"{name}.json") for name in ("random", "pretrain", "sft", "mrpo")}


@pytest.mark.slow
def test_every_stage_improves_on_the_one_before(results):
    rates = [average_success(results[name].tasks) for name in ("random", "pretrain", "sft", "mrpo")]
    means = [rate.mean for rate in rates]
    assert means == sorted(means) and len(set(means)) == 4, means


@pytest.mark.slow
def test_mrpo_gains_ten_points_over_sft(results):
    difference = compare(results["sft"], results["mrpo"])
    assert difference.mean >= 0.10 and difference.t.low > 0, difference


@pytest.mark.slow
def test_the_screens_are_needed(results):
    """An agent that sees the screens of other tasks does about as badly as random weights."""
    blind = average_success(results["mrpo"].scrambled).mean
    assert blind <= average_success(results["random"].tasks).mean + 0.05, blind


@pytest.mark.slow
def test_sixty_tasks_of_each_device_family(results):
    for stage in results.values():
        families = [row.family for row in stage.tasks]
        assert min(families.count(name) for name in set(families)) >= 60 and len(set(families)) == 3
