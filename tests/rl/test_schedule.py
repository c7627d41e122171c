"""Schedules as pure functions of the step, and the state of the gradient-aware one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.rl import schedule
from gui_owl_jax.rl.schedule import ScheduleConfig, make_schedule

MOBILE, DESKTOP, WEB = np.eye(3)
EVEN = np.full(3, 1 / 3)


def weights(config, steps):
    """The schedule at steps 0.. under jit and vmap, checked to be distributions."""
    table = np.asarray(jax.jit(jax.vmap(make_schedule(config)))(jnp.arange(steps)))
    np.testing.assert_allclose(table.sum(axis=1), 1, rtol=1e-6)
    one = make_schedule(config)(steps - 1)
    np.testing.assert_array_equal(one, table[-1])
    return table


def test_alternating_stages_follow_their_order_for_ever():
    found = weights(ScheduleConfig(stage_length=2), 14)
    np.testing.assert_array_equal(found, [MOBILE, MOBILE, DESKTOP, DESKTOP, WEB, WEB] * 2 + [MOBILE, MOBILE])
    found = weights(ScheduleConfig(stage_length=1, order=("web", "mixed", "web", "mobile")), 5)
    np.testing.assert_allclose(found, [WEB, EVEN, WEB, MOBILE, WEB], rtol=1e-6)


def test_curriculum_runs_through_its_stages_and_stays_in_the_last():
    config = ScheduleConfig(kind="curriculum", stages=(("web", 2), ("mobile", 1), ("mixed", 2)))
    np.testing.assert_allclose(weights(config, 8), [WEB, WEB, MOBILE] + [EVEN] * 5, rtol=1e-6)


def test_mixed_scales_its_shares():
    found = weights(ScheduleConfig(kind="mixed", shares=(2.0, 1.0, 1.0)), 3)
    np.testing.assert_allclose(found, [[0.5, 0.25, 0.25]] * 3)


def run_stages(config, cosines, state=None):
    state = schedule.initial_stage() if state is None else state
    stages = []
    for cosine in cosines:
        stages.append(int(jnp.argmax(schedule.gradient_aware_weights(state, config))))
        state = jax.jit(schedule.next_stage, static_argnums=2)(state, jnp.float32(cosine), config)
    return stages, state


def test_gradient_aware_leaves_a_stage_that_keeps_hurting_the_others():
    config = ScheduleConfig(kind="gradient_aware", stage_length=5, patience=2)
    cosines = [0.3, -0.1, -0.2, 0.1, -0.1, 0.1, -0.1, 0.1, -0.5, -0.5, 0.0, 0.0]
    stages, _ = run_stages(config, cosines)
    #              early             full length       early    wraps round
    assert stages == [0, 0, 0] + [1, 1, 1, 1, 1] + [2, 2] + [0, 0]


def test_gradient_aware_resumes_from_its_state():
    config = ScheduleConfig(kind="gradient_aware", stage_length=4, patience=2)
    cosines = [0.1, -0.1, 0.2, -0.3, -0.3, 0.4, 0.1, -0.2]
    whole, end = run_stages(config, cosines)
    first, state = run_stages(config, cosines[:3])
    second, resumed = run_stages(config, cosines[3:], state)
    assert whole == first + second
    assert [int(x) for x in end] == [int(x) for x in resumed]


def test_gradient_aware_is_no_function_of_the_step():
    with pytest.raises(ConfigError, match="gradient_aware"):
        make_schedule(ScheduleConfig(kind="gradient_aware"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "random"}, "kind"),
        ({"stage_length": 0}, "stage_length"),
        ({"patience": 0}, "patience"),
        ({"order": ()}, "order"),
        ({"order": ("tablet",)}, "tablet"),
        ({"kind": "curriculum"}, "stages"),
        ({"kind": "curriculum", "stages": (("web", 0),)}, "at least 1"),
        ({"shares": (0.0, 0.0, 0.0)}, "shares"),
        ({"shares": (1.0, 1.0)}, "shares"),
    ],
)
def test_bad_configs_are_rejected(fields, message):
    with pytest.raises(ConfigError, match=message):
        ScheduleConfig(**fields)
