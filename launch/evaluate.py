"""Measures a policy on held-out tasks: success by device family, grounding accuracy, and the blind control.

  python -m launch.evaluate --config=configs/nano_sft.py --policy=runs/quickstart/sft --stage=sft \
      --out=runs/quickstart/evaluate

Writes <out>/<stage>.json (one row per task) and the trajectories as <out>/<stage>-*.array_record.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time

import jax
from absl import flags, logging
from ml_collections import config_flags

from data import store
from data.grounding import click_elements, element_phrase
from gui_owl_jax.agent.context import ContextConfig, build_messages
from gui_owl_jax.agent.elements import AnnotatedScreen
from gui_owl_jax.agent.errors import ParseError
from gui_owl_jax.agent.parsing import parse_response
from gui_owl_jax.agent.trajectory import Trajectory
from gui_owl_jax.evals.grounding import click_hits
from gui_owl_jax.rollout.collector import run_episodes
from gui_owl_jax.rollout.engine import Engine, SamplerConfig, request_seed
from launch import common, worlds

CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment whose world and context are used.")
POLICY = flags.DEFINE_string("policy", None, 'A run folder, a Hugging Face folder, or "random".')
STAGE = flags.DEFINE_string("stage", None, "Name of the result.")
OUT = flags.DEFINE_string("out", None, "Folder of the results.")
flags.mark_flags_as_required(["config", "policy", "stage", "out"])


def main(argv: list[str]) -> None:
    """Evaluates one policy."""
    del argv
    config, out = CONFIG.value, pathlib.Path(OUT.value)
    common.setup_devices(config)
    clock = time.monotonic()
    policy = common.load_policy(config, POLICY.value)
    context = common.build(ContextConfig, config.context, "context")
    sampler = common.build(SamplerConfig, {**config.sampler, "temperature": config.evaluation.temperature}, "sampler")
    engine = common.make_engine(policy, sampler, config)
    world = worlds.open_world(config.env)
    tasks = world.tasks("heldout", config.evaluation.tasks_per_family, config.evaluation.seed)
    seed = (config.evaluation.seed,)

    with world.pool() as pool:
        run = lambda **kw: run_episodes(  # noqa: E731
            pool, engine, policy.params, policy.processor, common.per_host(tasks), context, seed=seed, **kw
        )
        trajectories = run(progress=f"evaluate {STAGE.value}")
        scrambled = run(progress="  screens shuffled", scramble=True) if config.evaluation.controls else None
        screens = _screens(pool, common.per_host(tasks)[: config.evaluation.grounding_screens])
    grounding = _grounding(engine, policy, context, screens)

    if jax.process_index() != 0:
        return
    store.write_trajectories(out / STAGE.value, trajectories, shards=1)
    result = {
        "stage": STAGE.value,
        "policy": POLICY.value,
        "tasks": [_row(t) for t in trajectories],
        "scrambled": None if scrambled is None else [_row(t) for t in scrambled],
        "grounding": grounding,
        "model": {"parameters": sum(leaf.size for leaf in jax.tree.leaves(policy.params))},
        "commit": common.git_commit(),
        "seconds": round(time.monotonic() - clock, 1),
    }
    common.write_json(out / f"{STAGE.value}.json", result)
    rate = sum(t.outcome or 0 for t in trajectories) / max(1, sum(t.outcome is not None for t in trajectories))
    logging.info("%s: success %.3f on %d tasks, grounding %s", STAGE.value, rate, len(trajectories), grounding)


def _row(trajectory: Trajectory) -> dict:
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


def _screens(pool, tasks) -> list[AnnotatedScreen]:
    """The annotated first screens of some held-out tasks."""
    screens = []
    for start in range(0, len(tasks), pool.size):
        part = dict(enumerate(tasks[start : start + pool.size]))
        for slot, result in pool.reset(part).items():
            if not hasattr(result, "kind"):
                screens.append(AnnotatedScreen(part[slot].family, result.observation.image, result.elements))
    return screens


def _grounding(engine: Engine, policy: common.Policy, context: ContextConfig, screens) -> dict:
    """Share of clicks inside the right element, one question per screen."""
    greedy = dataclasses.replace(engine, sampler=dataclasses.replace(engine.sampler, temperature=0.0))
    asked = []
    for i, screen in enumerate(screens):
        elements = click_elements(screen)
        if elements:
            asked.append((screen, elements[i % len(elements)]))
    prompts = [
        policy.processor.encode_prompt(
            build_messages(element_phrase(screen.family, element), screen.family, (), context), {0: screen.image}
        )
        for screen, element in asked
    ]
    seeds = jax.device_get(jax.numpy.stack([request_seed(i) for i in range(len(prompts))]))
    families: dict[str, dict[str, int]] = {}
    for (screen, element), sample in zip(asked, greedy.generate(policy.params, prompts, seeds)):
        count = families.setdefault(str(screen.family), {"hits": 0, "trials": 0})
        count["trials"] += 1
        try:
            action = parse_response(policy.processor.decode_response(sample.token_ids), screen.family).action
        except ParseError:
            continue
        height, width = screen.image.shape[:2]
        count["hits"] += click_hits(action, element, width, height)
    totals = {key: sum(count[key] for count in families.values()) for key in ("hits", "trials")}
    return {**totals, "families": families}


if __name__ == "__main__":
    common.run_main(main)
