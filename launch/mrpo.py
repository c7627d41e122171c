"""MRPO: rollouts in environments, collapse-aware selection, one clipped policy-gradient update (GUI-Owl-1.5, 2.4.3)."""

from __future__ import annotations

import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import tqdm
from absl import logging
from ml_collections import ConfigDict

from gui_owl_jax import sharding
from gui_owl_jax.agent.context import ContextConfig
from gui_owl_jax.agent.devices import DEVICE_FAMILIES
from gui_owl_jax.rl.advantages import AdvantageConfig
from gui_owl_jax.rl.objective import ObjectiveConfig
from gui_owl_jax.rl.schedule import ScheduleConfig, make_schedule
from gui_owl_jax.rl.strategies import SelectionConfig, make_selector, selection_statistics
from gui_owl_jax.rollout.collector import run_episodes
from gui_owl_jax.rollout.engine import SamplerConfig
from gui_owl_jax.training import lora, steps
from gui_owl_jax.training import state as train_state
from gui_owl_jax.training.checkpoints import Checkpoints
from gui_owl_jax.training.optimizer import OptimizerConfig
from launch import common, groups, worlds


def train(config: ConfigDict, workdir: str) -> None:
    """Runs MRPO to its end, from the latest checkpoint in `workdir` when there is one."""
    folder = pathlib.Path(workdir)
    mesh = common.make_mesh(config)
    for rows in config.rl.row_buckets:
        common.check_rows(rows * jax.process_count(), mesh, "rl.row_buckets (times processes)")
    policy = common.load_policy(config, config.init, mesh=mesh)
    model, reference = policy.model, policy.params

    updates = config.steps * config.rl.epochs
    optimizer = common.build(OptimizerConfig, {**config.optimizer, "total_steps": updates}, "optimizer")
    compute = common.build(steps.ComputeConfig, config.compute, "compute")
    adapters = common.build(lora.LoraConfig, config.lora, "lora")
    optimizer = lora.train_adapters_only(optimizer, adapters)
    merged = common.lora_merger(adapters)
    objective = common.build(ObjectiveConfig, config.objective, "objective")
    selection = common.build(SelectionConfig, config.selection, "selection")
    advantage = common.build(AdvantageConfig, config.advantage, "advantage")
    groups.check_wired(selection, advantage, config.rl)
    context = common.build(ContextConfig, config.context, "context")
    schedule = make_schedule(common.build(ScheduleConfig, config.schedule, "schedule"))
    select = jax.jit(jax.vmap(make_selector(selection)))
    train_step = steps.mrpo_step(model, optimizer, objective, mesh, compute, adapters)
    score = steps.score_step(model, mesh, compute)
    sampling = common.sampling_mesh(config)
    engine = common.make_engine(policy, common.build(SamplerConfig, config.sampler, "sampler"), config, sampling)
    world = worlds.open_world(config.env)
    history = groups.TaskHistory.empty(world.templates())

    common.start_run(workdir, config, policy)
    hidden = jax.process_index() != 0
    with (
        world.pool() as pool,
        Checkpoints(folder / "checkpoints", keep=config.keep_checkpoints) as checkpoints,
        common.RunMetrics(folder) as run_metrics,
        tqdm.tqdm(total=config.steps, desc=folder.name, unit="update", mininterval=2.0, disable=hidden) as bar,
    ):
        if checkpoints.latest_step is None:
            start_params = lora.init(adapters, policy.params, jax.random.key(config.seed))
            state, start = train_state.create_state(model, optimizer, mesh, start_params, adapters), 0
        else:
            restored = checkpoints.restore(None, train_state.abstract_state(model, optimizer, mesh, adapters))
            state, start = restored.state, restored.step
            history = groups.TaskHistory.from_json(restored.extra["history"])
            logging.info("resuming %s from update %d", workdir, start)
        run_metrics.truncate_after(start)
        bar.update(start)

        for update in range(start + 1, config.steps + 1):
            clock = time.monotonic()
            # 1. Which tasks: the schedule weighs device families, the history weighs templates.
            rng = np.random.default_rng([config.seed, update, jax.process_index()])
            weights = np.asarray(schedule(update - 1))
            tasks = groups.draw_tasks(world, rng, weights, history, config.rl)

            # 2. A pool of k n rollouts of each task.
            size = config.rl.oversample * selection.group_size
            actor = common.sampling_params(merged(state.params), model, mesh, sampling, compute.dtype)
            rollouts = run_episodes(
                pool,
                engine,
                actor,
                policy.processor,
                [task for task in tasks for _ in range(size)],
                context,
                seed=(config.seed, update, jax.process_index()),
            )
            engine.join(actor)
            del actor  # makes room for the update
            pools = [rollouts[i : i + size] for i in range(0, len(rollouts), size)]
            outcomes, valid = groups.outcome_arrays(pools)
            history = history.add(tasks, outcomes, valid)
            rollout_seconds = time.monotonic() - clock

            # 3. Groups that did not collapse, and what each member's actions were worth.
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(config.seed), update), jax.process_index())
            selections = select(jax.random.split(key, len(tasks)), jnp.asarray(outcomes), jnp.asarray(valid))
            advantages = groups.advantages(advantage, selections, outcomes, valid)

            # 4. One batch of the sampled ids, scored by the reference, and the update.
            batch = groups.make_batch(pools, selections, advantages, policy, config.rl)
            placed = sharding.put_batch(batch, mesh)
            if objective.kl_coefficient > 0:
                placed["ref_logps"] = score(reference, placed)
            if config.rl.epochs > 1:
                placed["old_logps"] = score(merged(state.params), placed)
            for _ in range(config.rl.epochs):
                state, metrics = train_step(state, placed)

            values = common.to_float(metrics)
            # The state counts finite steps: this also finds an epoch before the last one.
            values["finite"] = float(int(state.step) == update * config.rl.epochs)
            last = checkpoints.latest_step
            steps.check_finite(values, update, "none" if last is None else str(checkpoints.path(last)))
            values |= common.to_float(selection_statistics(groups.all_selections(selections)))
            values |= groups.rollout_metrics(pools)
            values |= {f"weight_{family}": float(w) for family, w in zip(DEVICE_FAMILIES, weights)}
            seconds = {"rollout_seconds": rollout_seconds, "update_seconds": time.monotonic() - clock}
            run_metrics.write(update, values, seconds)
            bar.set_postfix(success=f"{values['success']:.2f}", refresh=False)
            if update % config.checkpoint_every == 0 or update == config.steps:
                run_metrics.flush()
                checkpoints.save(update, state, extra={"history": history.to_json()})
            bar.update()
