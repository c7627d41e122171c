"""Tasks of the virtual world: all templates, and sampling from them by seed."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

from envs.interface import SPLITS, TaskSpec
from envs.virtual.template import Params, Template, splits
from envs.virtual.templates import desktop, mobile, web
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import EnvError

TEMPLATES: dict[str, Template] = {
    template.name: template for template in (*mobile.TEMPLATES, *desktop.TEMPLATES, *web.TEMPLATES)
}

SLACK = 1  # actions allowed beyond the fewest that solve a task: too few to repair a wrong click


def template_names(family: DeviceFamily | None = None) -> tuple[str, ...]:
    """Names of the templates of a device family, or of all."""
    return tuple(name for name, template in TEMPLATES.items() if family in (None, template.app.family))


@functools.cache
def combinations(template: str, split: str) -> tuple[Params, ...]:
    """The combinations of parameters that the tasks of a template and split are drawn from."""
    return tuple(splits(TEMPLATES[template])[split])


def sample_task(template: str, seed: int, split: str = "train") -> TaskSpec:
    """The task of a template for a seed; equal arguments give equal tasks.

    Raises:
      EnvError: unknown template or split.
    """
    if template not in TEMPLATES:
        raise EnvError(f"template {template!r} is none of {', '.join(TEMPLATES)}")
    if split not in SPLITS:
        raise EnvError(f"split is {split!r}, must be one of {SPLITS}")
    kind = TEMPLATES[template]
    rng = random.Random(f"params/{template}/{split}/{seed}")
    params = dict(rng.choice(combinations(template, split)))
    filled = ",".join(f"{name}={value}" for name, value in params.items())
    return TaskSpec(
        task_id=f"{template}/{filled}/{seed}",
        app=kind.app.name,
        family=kind.app.family,
        instruction=kind.instruction.format(**params),
        seed=seed,
        split=split,
        max_steps=kind.length + SLACK,
        template=template,
        params=params,
    )


def tasks(
    family: DeviceFamily, split: str, count: int, seed: int, templates: Sequence[str] | None = None
) -> list[TaskSpec]:
    """`count` different tasks of a device family, its templates in turn.

    Args:
      family: device family.
      split: "train" or "heldout".
      count: how many.
      seed: tasks of different seeds differ as long as fewer than 1,000,000 are drawn from one.
      templates: names to draw from, by default all of the family.

    Raises:
      EnvError: a template of another family, or none.
    """
    names = template_names(family) if templates is None else tuple(templates)
    strangers = [name for name in names if name not in template_names(family)]
    if strangers or not names:
        raise EnvError(f"templates {strangers or names} are not of family {family}")
    return [sample_task(names[i % len(names)], seed * 1_000_000 + i, split) for i in range(count)]
