import itertools
import math

import numpy as np
import pytest

from gui_owl_jax.agent.actions import TOOL_KIND, Action
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.agent.trajectory import Observation, Step, Trajectory
from gui_owl_jax.evals.success_metrics import (
    EpisodeFacts,
    average_steps,
    compare_outcomes,
    facts_of,
    mean_pass_at_k,
    over_tasks,
    pass_at_k,
    tool_invocation_rate,
)


def test_pass_at_k_is_the_share_of_draws_with_a_success():
    for n in range(1, 7):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            outcomes = [1] * c + [0] * (n - c)
            draws = [any(draw) for draw in itertools.combinations(outcomes, k)]
            assert pass_at_k(c, n, k) == pytest.approx(sum(draws) / len(draws), abs=1e-12)


def test_pass_at_k_is_unbiased():
    # Over all outcomes of n attempts with chance p, its mean is 1 - (1 - p)^k.
    n, p = 5, 0.3
    for k in range(1, n + 1):
        mean = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(c, n, k) for c in range(n + 1))
        assert mean == pytest.approx(1 - (1 - p) ** k)


@pytest.mark.parametrize("counts", [(3, 2, 1), (-1, 2, 1), (1, 2, 3), (1, 2, 0)])
def test_impossible_counts_are_refused(counts):
    with pytest.raises(DataError, match="pass@"):
        pass_at_k(*counts)


def test_pass_at_k_is_averaged_over_tasks():
    outcomes = {"a": [1, 0, 0, 0], "b": [0, 0], "c": [1, 1, 1]}
    assert mean_pass_at_k(outcomes, 1).mean == pytest.approx((0.25 + 0 + 1) / 3)
    assert mean_pass_at_k(outcomes, 2).mean == pytest.approx((0.5 + 0 + 1) / 3)
    with pytest.raises(DataError, match="'b' has 2 attempts"):
        mean_pass_at_k(outcomes, 3)
    with pytest.raises(DataError, match="'a'"):
        mean_pass_at_k({"a": [2]}, 1)
    assert math.isnan(mean_pass_at_k({}, 1).mean)


def test_the_bootstrap_resamples_tasks_and_not_attempts():
    # 40 tasks that always or never succeed, 25 attempts each: 1000 attempts tell no more than 40 tasks.
    clustered = mean_pass_at_k({str(i): [i % 2] * 25 for i in range(40)}, 1)
    single = over_tasks([i % 2 for i in range(40)])
    assert clustered == single and clustered.tasks == 40
    width = clustered.interval.high - clustered.interval.low
    assert width == pytest.approx(2 * 1.96 * math.sqrt(0.25 / 40), rel=0.1)


def test_the_interval_covers_the_truth():
    rng = np.random.default_rng(0)
    hits = 0
    for seed in range(200):
        interval = over_tasks(rng.random(60), resamples=400, seed=seed).interval
        hits += interval.low <= 0.5 <= interval.high
    assert 180 <= hits <= 199


def test_runs_are_compared_on_the_tasks_that_both_tried():
    before = {"a": [0, 0], "b": [1, 0], "c": [1], "d": [1], "only before": [1]}
    after = {"a": [1], "b": [1, 1], "c": [1], "d": [0], "failed": [], "only after": [0]}
    found = compare_outcomes(before, after)
    assert (found.pairs, found.better, found.worse) == (4, 2, 1)
    assert found.mean == pytest.approx((1 + 0.5 + 0 - 1) / 4)
    assert found.t.low < found.mean < found.t.high
    by_family = compare_outcomes(before, after, {"a": "web", "b": "web", "c": "mobile", "d": "mobile"})
    assert by_family.mean == pytest.approx((0.75 - 0.5) / 2)
    assert compare_outcomes(before, after, {"a": "web", "b": "web", "c": "web", "d": "mobile"}) is None
    assert compare_outcomes({"a": [1]}, {"b": [1]}) is None


FACTS = [
    EpisodeFacts("uses a tool rightly", True, 4, 2),
    EpisodeFacts("succeeds without the tool", True, 9, 0),
    EpisodeFacts("fails with the tool", False, 15, 1),
    EpisodeFacts("needs none", True, 5, 0),
    EpisodeFacts("distracted", True, 7, 1),
]
BENEFICIAL = {"uses a tool rightly", "succeeds without the tool", "fails with the tool"}


def test_tool_invocation_rate_counts_successes_with_the_right_decision():
    assert tool_invocation_rate(FACTS, BENEFICIAL) == 2 / 5
    assert tool_invocation_rate(FACTS, {fact.task_id for fact in FACTS}) == 2 / 5
    assert tool_invocation_rate(FACTS, set()) == 2 / 5
    assert tool_invocation_rate(FACTS[:1], BENEFICIAL) == 1 and tool_invocation_rate(FACTS[:1], set()) == 0
    with pytest.raises(DataError):
        tool_invocation_rate([], BENEFICIAL)


def test_average_steps():
    assert average_steps(FACTS) == 40 / 5
    assert average_steps(FACTS, only_successes=True) == 25 / 4
    assert math.isnan(average_steps(FACTS[2:3], only_successes=True))
    with pytest.raises(DataError):
        average_steps([])


def test_facts_come_from_trajectories():
    observation = Observation(np.zeros((2, 2, 3), np.uint8))
    actions = (Action(TOOL_KIND, text="open_file"), Action("wait", time=1), None)
    steps = tuple(Step(observation, action=action, error="" if action else "bad_json") for action in actions)
    done = Trajectory("t", "calc", DeviceFamily.DESKTOP, "Do it.", steps, 1, "policy")
    broken = Trajectory("u", "calc", DeviceFamily.DESKTOP, "Do it.", steps, None, "policy", failure="died: gone")
    assert facts_of([done, broken]) == [EpisodeFacts("t", True, 3, 1)]
