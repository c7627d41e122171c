"""Text of the kind that is read and said in the virtual world, to train a small tokenizer on."""

from __future__ import annotations

import random
from collections.abc import Iterator

from envs.virtual import tasks
from envs.virtual.policies import plan
from envs.virtual.world import make
from gui_owl_jax.agent.context import ContextConfig, build_messages
from gui_owl_jax.agent.parsing import render_response
from gui_owl_jax.agent.prompts import render_chat
from gui_owl_jax.agent.trajectory import Step


def lines(per_template: int = 30) -> Iterator[str]:
    """Prompts, responses and screen listings of training tasks of every template; the same at every call.

    Punctuation, digits and white space come in all the ways that listings and coordinates join them.
    """
    world, rng = make(), random.Random(0)
    for name in tasks.TEMPLATES:
        for seed in range(per_template):
            task = tasks.sample_task(name, seed, "train")
            screen = world.reset(task)
            yield "".join(f" {element.text}\n" for element in screen.elements)
            steps: list[Step] = []
            for conclusion, action in plan(task):
                yield render_response(conclusion, action, task.family)
                steps.append(Step(screen.observation, conclusion=conclusion, action=action))
            context = ContextConfig(history_n=rng.randrange(2), style="compact")
            yield render_chat(build_messages(task.instruction, task.family, steps, context))
            yield render_chat(build_messages("List the elements.", task.family, (), context))
