"""kill -9 at random moments of training: the resumed run ends as if nothing had happened, bit for bit."""

from __future__ import annotations

import pathlib
import random
import time

import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests.launch.conftest import TINY, Main

KILLS = 3


def lines(folder: pathlib.Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def arrays(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Parameters and optimizer state of the latest checkpoint."""
    checkpoints = folder / "checkpoints"
    latest = max(int(path.name) for path in checkpoints.iterdir() if path.name.isdigit())
    found = {}
    for item in ("params", "optimizer"):
        tree = ocp.PyTreeCheckpointer().restore(checkpoints / str(latest) / item)
        found |= {f"{item}.{name}": np.asarray(leaf) for name, leaf in tree.items()}
    return found


def train(stage: str, folder: pathlib.Path, name: str) -> Main:
    return Main("train", f"--config={TINY}:{stage},{folder}", f"--workdir={folder / name}")


def check_resume(stage: str, folder: pathlib.Path, undisturbed: str, seed: int) -> list[int]:
    """Trains with kills and compares with the undisturbed run; returns the lines of metrics at each kill."""
    rng = random.Random(seed)
    disturbed = folder / f"{undisturbed}-killed"
    whole = lines(folder / undisturbed)
    # Moments in rising order, else a kill would have to wait for a moment that has passed.
    moments = sorted(rng.sample(range(whole - 2), KILLS))
    found = []
    for moment in moments:
        main = train(stage, folder, disturbed.name)
        seen, gap, clock = lines(disturbed), 0.1, time.monotonic()
        while seen <= moment and main.running:
            time.sleep(0.005)
            if lines(disturbed) > seen:
                seen, gap, clock = lines(disturbed), time.monotonic() - clock, time.monotonic()
        time.sleep(rng.uniform(0, min(gap, 0.3)))  # up to the next line or so: in a step, in a checkpoint
        assert main.running, f"the run ended before it was killed: {main.end()}"
        main.kill()
        found.append(lines(disturbed))
    train(stage, folder, disturbed.name).succeed()

    assert (disturbed / "metrics.jsonl").read_bytes() == (folder / undisturbed / "metrics.jsonl").read_bytes()
    expected, resumed = arrays(folder / undisturbed), arrays(disturbed)
    assert expected.keys() == resumed.keys() and len(expected) > 50
    for name, value in expected.items():
        assert value.dtype == resumed[name].dtype
        np.testing.assert_array_equal(value, resumed[name], err_msg=name)
    return found


pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")


def test_sft_survives_kills(coin_folder):
    found = check_resume("supervised", coin_folder, "sft", seed=0)
    assert 0 < found[0] < found[-1]


def test_mrpo_survives_kills(coin_folder):
    train("mrpo", coin_folder, "mrpo").succeed()
    written = (coin_folder / "mrpo" / "metrics.jsonl").read_text().splitlines()
    learned = [line for line in written if '"grad_norm": 0.0' not in line]
    assert len(learned) > len(written) / 2  # groups with both outcomes: there is something to be equal in
    check_resume("mrpo", coin_folder, "mrpo", seed=1)
