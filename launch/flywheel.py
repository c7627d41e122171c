"""Collects scripted (RPA) trajectories and annotated screens in virtual environments.

python -m launch.flywheel --config=configs/nano.py --out=runs/quickstart/data/train --trajectories=3000
"""

from __future__ import annotations

import collections

from absl import flags, logging
from data.flywheel.collect import collect
from ml_collections import config_flags

from data import store
from launch import common, worlds

CONFIG = config_flags.DEFINE_config_file("config", None, "World and seed.")
OUT = flags.DEFINE_string("out", None, "Prefix of the ArrayRecord shards.")
SPLIT = flags.DEFINE_enum("split", "train", ["train", "heldout"], "Which tasks.")
COUNT = flags.DEFINE_integer("trajectories", 3000, "How many, shared evenly by the device families.")
SHARDS = flags.DEFINE_integer("shards", 4, "Files to write.")
flags.mark_flags_as_required(["config", "out"])


def main(argv: list[str]) -> None:
    """Runs the scripted policies on training tasks and writes what they did."""
    del argv
    config = CONFIG.value
    common.setup_devices(config)
    world = worlds.open_world(config.env)
    tasks = common.per_host(world.tasks(SPLIT.value, COUNT.value // 3, config.seed))
    with world.pool() as pool:
        trajectories, screens = collect(pool, tasks, world.script)
    paths = store.write_trajectories(OUT.value, trajectories, shards=SHARDS.value)
    outcomes = collections.Counter(t.outcome for t in trajectories)
    logging.info("%d trajectories, outcomes %s, %d screens: %s", len(trajectories), dict(outcomes), len(screens), paths)


if __name__ == "__main__":
    common.run_main(main)
