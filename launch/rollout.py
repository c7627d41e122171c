"""Lets a policy act in environments and stores the trajectories.

python -m launch.rollout --config=configs/nano_mrpo.py --policy=runs/quickstart/sft --out=runs/rollouts/sft
"""

from __future__ import annotations

import collections

import jax
from absl import flags
from ml_collections import config_flags

from data import store
from gui_owl_jax.agent.context import ContextConfig
from gui_owl_jax.rollout.collector import run_episodes
from gui_owl_jax.rollout.engine import SamplerConfig
from launch import common, worlds

CONFIG = config_flags.DEFINE_config_file("config", None, "World, sampler and context.")
POLICY = flags.DEFINE_string("policy", None, 'A run folder, a Hugging Face folder, or "random".', required=True)
OUT = flags.DEFINE_string("out", None, "Prefix of the ArrayRecord shards.", required=True)
SPLIT = flags.DEFINE_enum("split", "train", ["train", "heldout"], "Which tasks.")
TASKS = flags.DEFINE_integer("tasks_per_family", 20, "Tasks of every device family.", lower_bound=1)
REPEATS = flags.DEFINE_integer("repeats", 1, "Rollouts of every task.", lower_bound=1)
flags.mark_flag_as_required("config")


def main(argv: list[str]) -> None:
    """Rolls out this host's share of the tasks and writes its shards."""
    del argv
    config = CONFIG.value
    common.setup_devices(config)
    policy, mesh = common.load_actor(config, POLICY.value)
    engine = common.make_engine(policy, common.build(SamplerConfig, config.sampler, "sampler"), config, mesh)
    world = worlds.open_world(config.env)
    tasks = common.per_host(world.tasks(SPLIT.value, TASKS.value, config.seed))
    with world.pool() as pool:
        trajectories = run_episodes(
            pool,
            engine,
            policy.params,
            policy.processor,
            [task for task in tasks for _ in range(REPEATS.value)],
            common.build(ContextConfig, config.context, "context"),
            seed=(config.seed, jax.process_index()),
            progress="rollout",
        )
        engine.join(policy.params)
    prefix = OUT.value if jax.process_count() == 1 else f"{OUT.value}-host{jax.process_index()}"
    store.write_trajectories(prefix, trajectories, shards=1)
    outcomes = dict(collections.Counter(t.outcome for t in trajectories))
    print(f"{prefix}: {len(trajectories)} trajectories (outcomes {outcomes})")


if __name__ == "__main__":
    common.run_main(main)
