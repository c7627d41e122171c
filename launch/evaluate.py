"""Measures a policy on held-out tasks: success by device family, grounding accuracy, and the blind control.

  python -m launch.evaluate --config=configs/nano_sft.py --policy=runs/quickstart/sft --stage=sft \
      --out=runs/quickstart/evaluate

Writes <out>/<stage>.json (one row per task) and the trajectories as <out>/<stage>-*.arrayrecord. With --suite the tasks
are those of a fixed benchmark instead of sampled ones; with --attempts=k each task is tried k times, and the file holds
all outcomes for pass@k (`launch.compare` prints it). Rows, rates and the control read the first attempt.

With --benchmark a published benchmark is evaluated instead: see `launch.benchmark`.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Sequence

import jax
import numpy as np
from absl import flags, logging
from ml_collections import config_flags

from data import store
from data.grounding import click_elements
from envs.interface import TaskSpec
from envs.pool import Pool
from gui_owl_jax.agent.context import ContextConfig, build_messages
from gui_owl_jax.agent.elements import AnnotatedScreen
from gui_owl_jax.agent.errors import ConfigError, ParseError
from gui_owl_jax.agent.parsing import parse_response
from gui_owl_jax.agent.trajectory import Trajectory
from gui_owl_jax.evals.grounding import GroundingTrial, accuracy
from gui_owl_jax.evals.success import GroundingScore
from gui_owl_jax.rollout.collector import run_episodes
from gui_owl_jax.rollout.engine import Engine, SamplerConfig, request_seed
from launch import benchmark, common, worlds

CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment whose world and context are used.")
POLICY = flags.DEFINE_string("policy", "", 'A run folder, a Hugging Face folder, or "random".')
STAGE = flags.DEFINE_string("stage", "", "Name of the result.")
OUT = flags.DEFINE_string("out", None, "Folder of the results.", required=True)
SUITE = flags.DEFINE_string("suite", "", 'A fixed benchmark of the world ("pc_eval_v1"); "" samples held-out tasks.')
ATTEMPTS = flags.DEFINE_integer("attempts", 1, "Episodes of every task.", lower_bound=1)


def main(argv: list[str]) -> None:
    """Evaluates one policy."""
    del argv
    if benchmark.BENCHMARK.value:
        benchmark.run(CONFIG.value, POLICY.value, pathlib.Path(OUT.value))
        return
    for flag in (CONFIG, POLICY, STAGE):
        if not flag.value:
            raise ConfigError(f"--{flag.name} is missing; only with --benchmark it need not be stated")
    config, out = CONFIG.value, pathlib.Path(OUT.value)
    common.setup_devices(config)
    clock = time.monotonic()
    policy, mesh = common.load_actor(config, POLICY.value)
    context = common.build(ContextConfig, config.context, "context")
    sampler = common.build(SamplerConfig, {**config.sampler, "temperature": config.evaluation.temperature}, "sampler")
    engine = common.make_engine(policy, sampler, config, mesh)
    world = worlds.open_world(config.env)
    sizes = (config.evaluation.tasks_per_family, config.evaluation.seed)
    tasks = common.per_host(world.suite(SUITE.value) if SUITE.value else world.tasks("heldout", *sizes))
    # Other tasks than those above, and as many of each device family.
    asked = -(-config.evaluation.grounding_screens // 3)
    shown = common.per_host(world.tasks("heldout", asked, config.evaluation.seed + 1))

    with world.pool() as pool:

        def episodes(progress: str, attempts: int = 1, scramble: bool = False) -> list[Trajectory]:
            arguments = (pool, engine, policy.params, policy.processor, tasks * attempts, context)
            seed = (config.evaluation.seed,)
            trajectories = run_episodes(*arguments, seed=seed, scramble=scramble, progress=progress)
            engine.join(policy.params)
            return trajectories

        trajectories = episodes(f"evaluate {STAGE.value}", ATTEMPTS.value)
        scrambled = episodes("  screens shuffled", scramble=True) if config.evaluation.controls else None
        screens = _screens(pool, shown)
    trials = _grounding(engine, policy, context, screens, world.phrase)

    rows = _joined([_row(t) for t in trajectories[: len(tasks)]])
    attempts = _joined([[t.outcome for t in trajectories[i :: len(tasks)]] for i in range(len(tasks))])
    scrambled_rows = None if scrambled is None else _joined([_row(t) for t in scrambled])
    grounding = _sum(common.gather_hosts(accuracy(trials).to_json())) if asked else None
    if jax.process_index() != 0:
        return
    store.write_trajectories(out / STAGE.value, trajectories, shards=1)
    result = {
        "stage": STAGE.value,
        "policy": POLICY.value,
        "suite": SUITE.value,
        "tasks": rows,
        "attempts": {row["task_id"]: outcomes for row, outcomes in zip(rows, attempts)},
        "scrambled": scrambled_rows,
        "grounding": grounding,
        "model": {"parameters": sum(leaf.size for leaf in jax.tree.leaves(policy.params))},
        "commit": common.git_commit(),
        "seconds": round(time.monotonic() - clock, 1),
    }
    common.write_json(out / f"{STAGE.value}.json", result)
    rate = sum(row["outcome"] or 0 for row in rows) / max(1, sum(row["outcome"] is not None for row in rows))
    logging.info("%s: success %.3f on %d tasks, grounding %s", STAGE.value, rate, len(rows), grounding)


def _row(trajectory: Trajectory) -> dict:
    """A `gui_owl_jax.evals.success.TaskRow` as JSON."""
    return {
        "task_id": trajectory.task_id,
        "family": str(trajectory.family),
        "app": trajectory.app,
        "template": trajectory.metadata["template"],
        "outcome": trajectory.outcome,
        "failure": trajectory.failure,
        "steps": len(trajectory.steps),
        "parse_errors": sum(bool(step.error) for step in trajectory.steps),
    }


def _joined(own: list) -> list:
    """The lists of all hosts in the order of the whole: the opposite of `common.per_host`."""
    shares = common.gather_hosts(own)
    return [shares[i % len(shares)][i // len(shares)] for i in range(sum(map(len, shares)))]


def _sum(scores: Sequence[dict]) -> dict:
    """Adds up the grounding counts of all hosts."""
    families: dict[str, tuple[int, int]] = {}
    for name, count in (item for score in scores for item in score["families"].items()):
        hits, trials = families.get(name, (0, 0))
        families[name] = (hits + count["hits"], trials + count["trials"])
    return GroundingScore(sum(s["hits"] for s in scores), sum(s["trials"] for s in scores), families).to_json()


def _screens(pool: Pool, tasks: Sequence[TaskSpec]) -> list[AnnotatedScreen]:
    """The annotated first screens of some tasks; those of environments that failed are left out."""
    screens = []
    for start in range(0, len(tasks), pool.size):
        part = dict(enumerate(tasks[start : start + pool.size]))
        for slot, result in pool.reset(part).items():
            if not hasattr(result, "kind"):
                task = part[slot]
                screens.append(AnnotatedScreen(result.observation.image, result.elements, task.family, task.app))
    return screens


def _grounding(
    engine: Engine, policy: common.Policy, context: ContextConfig, screens: Sequence[AnnotatedScreen], phrase
) -> list[GroundingTrial]:
    """Asks for one click per screen, in the words of the scripts, and samples the answers greedily."""
    greedy = dataclasses.replace(engine, sampler=dataclasses.replace(engine.sampler, temperature=0.0))
    asked = []
    for i, screen in enumerate(screens):
        elements = click_elements(screen, phrase)
        if elements:
            asked.append((screen, elements[i % len(elements)]))
    prompts = [
        policy.processor.encode_prompt(
            build_messages(phrase(screen.family, element), screen.family, (), context), {0: screen.image}
        )
        for screen, element in asked
    ]
    seeds = np.stack([request_seed(i) for i in range(len(prompts))]) if prompts else np.zeros((0, 2), np.uint32)
    trials = []
    for (screen, element), sample in zip(asked, greedy.generate(policy.params, prompts, seeds)):
        try:
            action = parse_response(policy.processor.decode_response(sample.token_ids), screen.family).action
        except ParseError:
            action = None
        height, width = screen.image.shape[:2]
        trials.append(GroundingTrial(screen.family, action, element, width, height))
    return trials


if __name__ == "__main__":
    common.run_main(main)
