"""Pre-training and SFT: next-token prediction on packed rows."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Sequence

import jax
import tqdm
from absl import logging
from ml_collections import ConfigDict

from data.agentnet import read_trajectory
from data.examples import CachedExamples, StepExamples
from data.grounding import ClickExamples, ListingExamples, LocateExamples, Phrase
from data.packing import Budget
from data.pipeline import make_pipeline
from data.store import ScreenSource, TrajectorySource
from gui_owl_jax import sharding
from gui_owl_jax.agent.context import ContextConfig
from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.hf.processor import Processor
from gui_owl_jax.models.layout import Example
from gui_owl_jax.training import lora, steps
from gui_owl_jax.training import state as train_state
from gui_owl_jax.training.checkpoints import Checkpoints
from gui_owl_jax.training.optimizer import OptimizerConfig
from launch import common, worlds

SCREEN_EXAMPLES: dict[str, Callable[..., Sequence[Example]]] = {
    "listing": lambda screens, processor, context, phrase: ListingExamples(screens, processor, context),
    "locate": LocateExamples,
    "clicks": ClickExamples,
}


def open_sources(
    data: ConfigDict, processor: Processor, context: ContextConfig, phrase: Phrase
) -> tuple[list[Sequence[Example]], list[float]]:
    """The sources of examples that data.mixture gives a share above 0, and their shares.

    Raises:
      ConfigError: no share is above 0, or a name or the format is unknown.
    """
    sources: list[Sequence[Example]] = []
    shares = {name: share for name, share in data.mixture.items() if share > 0}
    for name in shares:
        if name == "steps":
            if data.format not in ("records", "agentnet"):
                raise ConfigError(f"config.data.format: {data.format!r} is neither records nor agentnet")
            recorded = [read_trajectory(data.path)] if data.format == "agentnet" else TrajectorySource(data.path)
            trajectories = recorded[: data.limit] if data.limit else recorded
            keep = {"keep": lambda trajectory: True} if data.keep_failures else {}
            sources.append(CachedExamples(StepExamples(trajectories, processor, context, **keep)))
        elif name in SCREEN_EXAMPLES:
            screens = ScreenSource(f"{data.path}-screens")
            sources.append(CachedExamples(SCREEN_EXAMPLES[name](screens, processor, context, phrase)))
        else:
            raise ConfigError(f"config.data.mixture: {name!r} is none of steps, {', '.join(SCREEN_EXAMPLES)}")
    if not sources:
        raise ConfigError("config.data.mixture: no share is above 0")
    return sources, list(shares.values())


def train(config: ConfigDict, workdir: str) -> None:
    """Runs the stage to its end, from the latest checkpoint in `workdir` when there is one."""
    folder = pathlib.Path(workdir)
    mesh = common.make_mesh(config)
    common.check_rows(config.data.rows, mesh, "data.rows")
    policy = common.load_policy(config, config.init, mesh=mesh)
    model, params = policy.model, policy.params

    optimizer = common.build(OptimizerConfig, {**config.optimizer, "total_steps": config.steps}, "optimizer")
    compute = common.build(steps.ComputeConfig, config.compute, "compute")
    adapters = common.build(lora.LoraConfig, config.lora, "lora")
    optimizer = lora.train_adapters_only(optimizer, adapters)
    train_step = steps.supervised_step(model, optimizer, mesh, compute, adapters)
    context = common.build(ContextConfig, config.context, "context")
    sources, shares = open_sources(config.data, policy.processor, context, worlds.open_world(config.env).phrase)
    batches = iter(
        make_pipeline(
            sources,
            model,
            Budget(config.data.rows // jax.process_count(), config.data.token_budget, config.data.patch_budget),
            weights=shares,
            seed=config.seed,
            host=jax.process_index(),
            hosts=jax.process_count(),
            lanes=config.data.lanes,
            workers=config.data.workers,
        )
    )

    common.start_run(workdir, config, policy)
    hidden = jax.process_index() != 0
    with (
        Checkpoints(folder / "checkpoints", keep=config.keep_checkpoints) as checkpoints,
        common.RunMetrics(folder) as run_metrics,
        tqdm.tqdm(total=config.steps, desc=folder.name, unit="step", mininterval=2.0, disable=hidden) as bar,
    ):
        if checkpoints.latest_step is None:
            params = lora.init(adapters, params, jax.random.key(config.seed))
            state, start = train_state.create_state(model, optimizer, mesh, params, adapters), 0
        else:
            restored = checkpoints.restore(None, train_state.abstract_state(model, optimizer, mesh, adapters), batches)
            state, start = restored.state, restored.step
            logging.info("resuming %s from step %d", workdir, start)
        del policy, params  # the state has its own copy
        run_metrics.truncate_after(start)
        bar.update(start)
        clock = time.monotonic()
        for step in range(start + 1, config.steps + 1):
            state, metrics = train_step(state, sharding.put_batch(next(batches), mesh))
            logs = step % config.log_every == 0 or step == config.steps
            saves = step % config.checkpoint_every == 0 or step == config.steps
            if logs or saves:
                values = common.to_float(metrics)
                # The state counts finite steps: this also finds one that was not logged.
                values["finite"] = float(int(state.step) == step)
                last = checkpoints.latest_step
                steps.check_finite(values, step, "none" if last is None else str(checkpoints.path(last)))
            if logs:
                rate = config.log_every / (time.monotonic() - clock)
                clock = time.monotonic()
                run_metrics.write(step, values, {"steps_per_second": rate})
                bar.set_postfix(loss=f"{values['loss']:.3f}", accuracy=f"{values['accuracy']:.3f}", refresh=False)
            if saves:
                run_metrics.flush()
                checkpoints.save(step, state, data_iterator=batches)
            bar.update()
