"""Collects scripted (RPA) trajectories and annotated screens in virtual environments.

python -m launch.flywheel --config=configs/nano.py --out=runs/quickstart/data/train --trajectories=3000
"""

from __future__ import annotations

import collections
import pathlib

import jax
from absl import flags
from ml_collections import config_flags
from PIL import Image

from data import store
from data.flywheel.collect import collect, with_slips
from envs.interface import EnvFailure
from gui_owl_jax.agent.elements import AnnotatedScreen
from gui_owl_jax.agent.errors import EnvError
from launch import common, worlds

CONFIG = config_flags.DEFINE_config_file("config", None, "World and seed.")
OUT = flags.DEFINE_string("out", None, "Prefix of the ArrayRecord shards.")
SPLIT = flags.DEFINE_enum("split", "train", ["train", "heldout"], "Which tasks.")
COUNT = flags.DEFINE_integer("trajectories", 3000, "How many, shared evenly by the device families.")
EXAMPLE = flags.DEFINE_string("example", None, "Prefix of one held-out screen (.png) with its instruction (.txt).")
SLIPS = flags.DEFINE_float("slips", 0.0, "Share of the moves that go wrong, as in recordings of people.")
SHARDS = flags.DEFINE_integer("shards", 4, "Files to write.")
flags.mark_flags_as_required(["config", "out"])


def main(argv: list[str]) -> None:
    """Runs the scripted policies on training tasks and writes what they did."""
    del argv
    config = CONFIG.value
    common.setup_devices(config)
    world = worlds.open_world(config.env)
    tasks = common.per_host(world.tasks(SPLIT.value, COUNT.value // 3, config.seed))
    seen: dict[bytes, AnnotatedScreen] = {}

    script = with_slips(world.script, SLIPS.value, config.seed) if SLIPS.value else world.script

    def keep(screen: AnnotatedScreen) -> None:
        seen.setdefault(screen.image.tobytes(), screen)

    with world.pool() as pool:
        trajectories = collect(pool, tasks, script, on_screen=keep, progress="scripted trajectories")
        if EXAMPLE.value and jax.process_index() == 0:
            (task,) = world.tasks("heldout", 1, config.seed)[:1]
            pathlib.Path(EXAMPLE.value).parent.mkdir(parents=True, exist_ok=True)
            first = pool.reset({0: task})[0]
            if isinstance(first, EnvFailure):
                raise EnvError(f"the example screen: {first}")
            Image.fromarray(first.observation.image).save(f"{EXAMPLE.value}.png")
            pathlib.Path(f"{EXAMPLE.value}.txt").write_text(task.instruction)
    # Screens arrive as fast as their environments answer; sorted, a second run writes the same files.
    screens = [seen[pixels] for pixels in sorted(seen)]
    prefix = str(OUT.value) if jax.process_count() == 1 else f"{OUT.value}-host{jax.process_index()}"
    store.write_screens(f"{prefix}-screens", screens, shards=SHARDS.value)
    store.write_trajectories(prefix, trajectories, shards=SHARDS.value)
    outcomes = dict(collections.Counter(t.outcome for t in trajectories))
    print(f"{prefix}: {len(trajectories)} trajectories (outcomes {outcomes}), {len(screens)} different screens")


if __name__ == "__main__":
    common.run_main(main)
