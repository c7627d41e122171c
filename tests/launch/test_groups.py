"""From pools to a batch: who is in it, with which advantage and weight, in how many rows; and the task history."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import nano
from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.devices import DEVICE_FAMILIES, DeviceFamily
from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.agent.trajectory import Observation, Step, Trajectory
from gui_owl_jax.hf.images import ImageConfig
from gui_owl_jax.hf.processor import Processor
from gui_owl_jax.hf.tokenizer import small_tokenizer
from gui_owl_jax.models.config import get_preset
from gui_owl_jax.rl.advantages import AdvantageConfig
from gui_owl_jax.rl.selection import Selection
from gui_owl_jax.rl.strategies import SelectionConfig, make_selector
from launch import groups, worlds
from launch.common import Policy

RL = nano.get_config().rl


@pytest.fixture(scope="module")
def policy() -> Policy:
    model = get_preset("nano")
    places = {"image_pad": model.image_token_id, "video_pad": model.video_token_id}
    places |= {"vision_start": model.vision_start_token_id, "vision_end": model.vision_end_token_id}
    tokenizer = small_tokenizer(["system\nuser\nassistant\nTask: Tap Mia."], 1024, places)
    return Policy(model, None, Processor(tokenizer, ImageConfig(min_pixels=1024)))


def trajectory(policy: Policy, outcome: int | None, number: int, steps: int = 1, tokens: int = 5) -> Trajectory:
    """Steps whose sampled ids are all `number`, so that they can be found in a batch."""
    ids = policy.processor.tokenizer
    prompt = np.array([1, ids.vision_start, ids.image_pad, ids.vision_end, 2], np.int32)
    step = Step(
        Observation(np.zeros((32, 32, 3), np.uint8)),
        action=Action("wait", time=1.0),
        token_ids=np.full(tokens, number, np.int32),
        logps=np.full(tokens, -1.0, np.float32),
        sampler_logps=np.full(tokens, -2.0, np.float32),
        prompt_ids=prompt,
        image_steps=(0,),
    )
    failure = "" if outcome is not None else "crash: x"
    return Trajectory("t", "a", DeviceFamily.MOBILE, "i", (step,) * steps, outcome, "policy", failure=failure)


def pools_of(policy: Policy, outcomes: list[list[int | None]]) -> list[list[Trajectory]]:
    return [[trajectory(policy, z, 100 + 10 * i + j) for j, z in enumerate(row)] for i, row in enumerate(outcomes)]


def select(outcomes, valid, **config) -> Selection:
    selector = jax.vmap(make_selector(SelectionConfig(**config)))
    return selector(jax.random.split(jax.random.key(0), len(outcomes)), jnp.asarray(outcomes), jnp.asarray(valid))


def test_a_batch_holds_the_members_with_their_advantages(policy):
    pools = pools_of(policy, [[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, None, 0]])
    outcomes, valid = groups.outcome_arrays(pools)
    assert outcomes.tolist() == [[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0]] and not valid[2, 2] and valid.sum() == 11
    selections = select(outcomes, valid, group_size=2)
    advantages = groups.advantages(AdvantageConfig(kind="dr_grpo"), selections, outcomes, valid)
    batch = groups.make_batch(pools, selections, advantages, policy, RL)
    members = {
        100 + 10 * i + int(selections.indices[i, j]): (float(advantages[i, j]), float(selections.weights[i, j]))
        for i in (0, 2)  # pool 1 has one outcome only and gives no group
        for j in range(2)
    }
    assert len(members) == 4 and 122 not in members and sorted(a for a, _ in members.values()) == [-0.5, -0.5, 0.5, 0.5]
    sampled = batch["loss_mask"] > 0
    assert set(batch["tokens"][sampled]) == set(members)
    for number, (advantage, weight) in members.items():
        where = sampled & (batch["tokens"] == number)
        assert where.sum() == 5
        np.testing.assert_allclose(batch["advantages"][where], advantage)
        np.testing.assert_allclose(batch["weights"][where], weight, rtol=1e-6)
        assert (batch["logps"][where] == -1).all() and (batch["sampler_logps"][where] == -2).all()


def test_a_whole_pool_may_be_the_group(policy):
    """oversample_filter: G = M."""
    pools = pools_of(policy, [[1, 0, None, 0], [1, 1, 1, 1]])
    outcomes, valid = groups.outcome_arrays(pools)
    selections = select(outcomes, valid, group_size=2, strategy="oversample_filter")
    advantages = groups.advantages(AdvantageConfig(kind="dr_grpo"), selections, outcomes, valid)
    np.testing.assert_allclose(advantages, [[2 / 3, -1 / 3, 0, -1 / 3], [0] * 4], atol=1e-6)
    batch = groups.make_batch(pools, selections, advantages, policy, RL)
    assert set(batch["tokens"][batch["loss_mask"] > 0]) == {100, 101, 103}


def test_without_any_group_the_batch_has_no_weight(policy):
    pools = pools_of(policy, [[0, 0, 0, 0]])
    outcomes, valid = groups.outcome_arrays(pools)
    selections = select(outcomes, valid, group_size=2)
    batch = groups.make_batch(pools, selections, np.zeros((1, 2), np.float32), policy, RL)
    assert batch["tokens"].shape == (RL.row_buckets[0], RL.token_budget)
    assert not batch["weights"].any() and not batch["loss_mask"].any()


def test_rows_come_in_few_numbers(policy):
    counts = [groups.row_count(used, (16, 32)) for used in (1, 16, 17, 32, 33, 70)]
    assert counts == [16, 16, 32, 32, 64, 96]
    # 9 members of 3 steps of 105 tokens, one step to a row.
    pools = [[trajectory(policy, int(j == 0), 100 + j, steps=3, tokens=100) for j in range(9)]]
    outcomes, valid = groups.outcome_arrays(pools)
    selections = select(outcomes, valid, group_size=9, strategy="discard")
    batch = groups.make_batch(pools, selections, np.ones((1, 9), np.float32), policy, RL)
    assert batch["tokens"].shape[0] == groups.row_count(27, RL.row_buckets)
    assert (batch["segment_ids"].max(axis=1) > 0).sum() == 27


def test_a_stored_success_is_refused(policy):
    pools = pools_of(policy, [[0, 0, 0, 0]])
    outcomes, valid = groups.outcome_arrays(pools)
    stored = make_selector(SelectionConfig(strategy="success_replay", group_size=2))(
        jax.random.key(0), outcomes[0], valid[0], True
    )
    selections = jax.tree.map(lambda x: x[None], stored)
    assert int(selections.indices[0, 0]) == 4  # one past the pool
    with pytest.raises(ConfigError, match="success_replay"):
        groups.advantages(AdvantageConfig(), selections, outcomes, valid)
    with pytest.raises(ConfigError, match="success_replay"):
        groups.make_batch(pools, selections, np.ones((1, 2), np.float32), policy, RL)


@pytest.mark.parametrize(
    ("selection", "advantage", "named"),
    [
        ({"strategy": "success_replay"}, {}, "config.selection.strategy"),
        ({}, {"credit": "step"}, "config.advantage.credit"),
    ],
)
def test_what_is_not_wired_is_refused_at_the_start(selection, advantage, named):
    with pytest.raises(ConfigError, match=named):
        groups.check_wired(SelectionConfig(**selection), AdvantageConfig(**advantage), RL)
    groups.check_wired(SelectionConfig(), AdvantageConfig(), RL)


def test_the_history_counts_and_steers(policy):
    world = worlds.open_world(nano.get_config().env)
    history = groups.TaskHistory.empty(world.templates())
    names = world.templates()[DeviceFamily.MOBILE]
    rl = nano.get_config().rl
    rl.update({"tasks": 40, "task_weights": "unstable", "task_floor": 0.0})
    mobile = np.array([1.0, 0.0, 0.0])
    tasks = groups.draw_tasks(world, np.random.default_rng(0), mobile, history, rl)
    assert {task.family for task in tasks} == {DeviceFamily.MOBILE} and {task.split for task in tasks} == {"train"}
    assert len({task.template for task in tasks}) > 3

    first = next(task for task in tasks if task.template == names[0])
    other = next(task for task in tasks if task.template == names[1])
    outcomes = np.array([[1, 0, 1, 0], [1, 1, 1, 1]])
    history = history.add([first, other], outcomes, np.array([[True, True, True, False], [True] * 4]))
    assert history.counts[names[0]] == (2, 3) and history.counts[names[1]] == (4, 4)
    assert groups.TaskHistory.from_json(history.to_json()) == history
    # Only the first template is known to succeed sometimes.
    drawn = groups.draw_tasks(world, np.random.default_rng(1), mobile, history, rl)
    assert {task.template for task in drawn} == {names[0]}
    weights = np.array([0.0, 1.0, 1.0])
    families = {task.family for task in groups.draw_tasks(world, np.random.default_rng(2), weights, history, rl)}
    assert families == {DeviceFamily.DESKTOP, DeviceFamily.WEB}


def test_metrics_leave_failed_environments_out(policy):
    pools = pools_of(policy, [[1, 0, None, 0]])
    pools[0][3] = dataclasses.replace(pools[0][3], family=DeviceFamily.DESKTOP)
    values = groups.rollout_metrics(pools)
    assert values["success"] == pytest.approx(1 / 3) and values["environment_failures"] == 1
    assert values["success_mobile"] == 0.5 and values["success_desktop"] == 0 and "success_web" not in values
    assert values["steps_per_episode"] == 1 and values["tokens_per_step"] == 5 and values["parse_error_share"] == 0
    assert len(DEVICE_FAMILIES) == 3
