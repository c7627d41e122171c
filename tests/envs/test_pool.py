"""The pool with environments that really raise, hang and die, beside healthy ones."""

import functools
import gc
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envs import testing
from envs.interface import EnvFailure, FailureKind, StepResult
from envs.pool import EnvPool, LocalPool
from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.errors import EnvError

ROOT = Path(__file__).parents[2]
ACT = Action(kind="click", coordinate=(1, 1))
FACTORY = "envs.testing:make"
KINDS = {
    "raise": FailureKind.CRASH,
    "garbage": FailureKind.CRASH,
    "unpicklable": FailureKind.CRASH,
    "damaged_image": FailureKind.CRASH,
    "sys_exit": FailureKind.CRASH,
    "hang": FailureKind.TIMEOUT,
    "exit": FailureKind.DIED,
    "sigkill": FailureKind.DIED,
}


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pids, patience_s=10.0) -> bool:
    end = time.monotonic() + patience_s
    while any(alive(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture(params=["processes", "local"])
def pool(request):
    make = EnvPool if request.param == "processes" else LocalPool
    with make(FACTORY, 3) as pool:
        yield pool


def test_episode(pool):
    task = testing.make_task(target=2)
    results = pool.reset({0: task, 2: testing.make_task(target=1)})
    assert list(results) == [0, 2] and not results[0].done and results[0].subtasks == (False, False)
    results = pool.step({2: ACT, 0: ACT})
    assert list(results) == [2, 0]
    assert results[2].success and results[2].done and not results[0].done
    assert results[0].observation.image[0, 0, 0] == 20 and results[0].elements[0].text == "1"
    assert not pool.step({0: None})[0].success
    assert pool.step({0: ACT})[0].success
    assert pool.stats == {"reset": 2, "step": 4}


def test_snapshot_moves_between_slots(pool):
    pool.reset({0: testing.make_task(target=3)})
    pool.step({0: ACT})
    saved = pool.snapshot([0])[0]
    after = pool.step({0: ACT})[0]
    restored = pool.restore({1: saved})
    assert restored[1].observation.image[0, 0, 0] == 20
    assert pool.step({1: ACT})[1].state_hash == after.state_hash


def test_callers_mistakes_are_refused(pool):
    task = testing.make_task()
    with pytest.raises(EnvError, match="slot 3 is not"):
        pool.reset({3: task})
    with pytest.raises(EnvError, match="runs no task"):
        pool.step({0: ACT})
    with pytest.raises(EnvError, match="method"):
        pool.submit("close", {0: None})
    pool.submit("reset", {0: task})
    with pytest.raises(EnvError, match="busy"):
        pool.reset({0: task})
    assert isinstance(pool.ready()[0], StepResult)


@pytest.mark.parametrize("moment", ["reset", "2"])
def test_every_fault_costs_its_own_slot_only(moment):
    faults = [*KINDS, None, None]
    with EnvPool(FACTORY, len(faults), deadline_s=1.0) as pool:
        first_pids = pool.pids
        results = pool.reset(
            {i: testing.make_task(faults={moment: fault} if fault else None) for i, fault in enumerate(faults)}
        )
        running = {slot for slot, result in results.items() if isinstance(result, StepResult)}
        while running:
            results |= pool.step(dict.fromkeys(running, ACT))
            running = {s for s in running if isinstance(results[s], StepResult) and not results[s].done}
        for slot, fault in enumerate(faults):
            if fault is None:
                assert results[slot].success
                assert pool.pids[slot] == first_pids[slot]
            else:
                assert isinstance(results[slot], EnvFailure) and results[slot].kind == KINDS[fault], results[slot]
                assert pool.pids[slot] != first_pids[slot]
        assert "told to misbehave" in results[faults.index("raise")].message
        assert gone([pid for pid, fault in zip(first_pids, faults) if fault])
        assert pool.stats["crash"] == 5 and pool.stats["timeout"] == 1 and pool.stats["died"] == 2
        assert pool.stats["replaced"] == 8
        with pytest.raises(EnvError, match="reset it first"):
            pool.step({0: ACT})
        again = pool.reset({slot: testing.make_task(target=1) for slot in range(len(faults))})
        assert all(isinstance(result, StepResult) for result in again.values())
        assert all(result.success for result in pool.step(dict.fromkeys(again, ACT)).values())
    assert gone(pool.pids)


@pytest.mark.parametrize("fault", ["raise", "garbage", "damaged_image"])
def test_local_pool_isolates_crashes(fault):
    with LocalPool(FACTORY, 2) as pool:
        results = pool.reset({0: testing.make_task(faults={"reset": fault}), 1: testing.make_task()})
        assert results[0].kind == FailureKind.CRASH and isinstance(results[1], StepResult)
        assert isinstance(pool.reset({0: testing.make_task()})[0], StepResult)


def test_a_slow_slot_does_not_hold_up_others():
    with EnvPool(FACTORY, 3, deadline_s=1.0) as pool:
        pool.reset({slot: testing.make_task(faults={"1": "hang"} if slot == 1 else None) for slot in range(3)})
        pool.submit("step", dict.fromkeys(range(3), ACT))
        quick = pool.ready(at_least=2)
        assert set(quick) == {0, 2}
        pool.submit("step", {0: ACT})
        assert set(pool.ready()) == {0}  # slot 1 is still hanging meanwhile
        assert pool.ready()[1].kind == FailureKind.TIMEOUT
        assert pool.ready() == {}


def test_an_answer_that_waited_for_the_caller_is_not_late():
    with EnvPool(FACTORY, 1, deadline_s=0.5) as pool:
        pool.reset({0: testing.make_task()})
        pool.submit("step", {0: ACT})
        time.sleep(1.0)
        assert isinstance(pool.ready()[0], StepResult)


def test_an_argument_that_cannot_be_sent_leaves_the_slot_usable():
    with EnvPool(FACTORY, 1) as pool:
        pool.reset({0: testing.make_task()})
        with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
            pool.step({0: Action(kind="type", text=lambda: "")})
        assert isinstance(pool.step({0: ACT})[0], StepResult)


def test_large_screens_pass_whole():
    with EnvPool("envs.testing:make_large", 2) as pool:
        results = pool.reset({0: testing.make_task(), 1: testing.make_task()})
        assert results[0].observation.image.shape == (1440, 1080, 3)
        assert (results[0].observation.image == results[1].observation.image).all()


def test_an_environment_that_hangs_in_its_start():
    with EnvPool("envs.testing:make_that_hangs", 2, start_deadline_s=0.5) as pool:
        failure = pool.reset({0: testing.make_task()})[0]
        assert failure.kind == FailureKind.TIMEOUT and "0.5 s" in failure.message


def test_death_between_calls_is_seen_at_the_next():
    with EnvPool(FACTORY, 2) as pool:
        pool.reset({0: testing.make_task(), 1: testing.make_task()})
        os.kill(pool.pids[0], 9)
        assert gone([pool.pids[0]])
        results = pool.step({0: ACT, 1: ACT})
        assert results[0].kind == FailureKind.DIED and isinstance(results[1], StepResult)


def test_the_pool_survives_the_death_of_its_nursery():
    with EnvPool(FACTORY, 3) as pool:
        pool.reset({slot: testing.make_task() for slot in range(3)})
        orphans = pool.pids
        os.kill(pool._nursery._process.pid, 9)
        assert gone(orphans)  # the kernel takes them along
        results = pool.step(dict.fromkeys(range(3), ACT))
        assert {result.kind for result in results.values()} == {FailureKind.DIED}
        again = pool.reset({slot: testing.make_task() for slot in range(3)})
        assert all(isinstance(result, StepResult) for result in again.values())
    assert gone(pool.pids)


def test_an_environment_that_leaks_between_resets_is_caught():
    with EnvPool("envs.testing:make_leaky", 1) as pool:
        task = testing.make_task()
        assert isinstance(pool.reset({0: task})[0], StepResult)
        pool.step({0: ACT})
        failure = pool.reset({0: task})[0]
        assert failure.kind == FailureKind.CRASH and "earlier reset" in failure.message
        assert pool.stats["reset_mismatch"] == 1
        assert isinstance(pool.reset({0: task})[0], StepResult)  # a fresh process starts clean


def test_recycling():
    with EnvPool(FACTORY, 1, recycle_after=2) as pool:
        pids = []
        for _ in range(5):
            pool.reset({0: testing.make_task()})
            pids += pool.pids
        assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]
        assert pool.stats["recycled"] == 2 and pool.stats["replaced"] == 0


def test_memory_limit():
    with EnvPool("envs.testing:make_hungry", 1, memory_limit_mb=2048) as pool:
        failure = pool.reset({0: testing.make_task()})[0]
        assert failure.kind == FailureKind.CRASH and "MemoryError" in failure.message


def test_factories():
    with EnvPool(functools.partial(testing.make), 1) as pool:
        assert isinstance(pool.reset({0: testing.make_task()})[0], StepResult)
    with EnvPool("envs.testing:make_that_raises", 1) as pool:
        failure = pool.reset({0: testing.make_task()})[0]
        assert failure.kind == FailureKind.CRASH and "no display" in failure.message
    with pytest.raises(EnvError, match="envs.nowhere"):
        EnvPool("envs.nowhere:make", 1)
    with pytest.raises(EnvError, match="cannot be sent"):
        EnvPool(lambda: testing.make(), 1)
    with pytest.raises(EnvError, match="at least 1"):
        EnvPool(FACTORY, 0)


def test_nothing_leaks_over_many_replacements():
    with EnvPool(FACTORY, 2, deadline_s=5.0) as pool:
        task = testing.make_task(faults={"reset": "exit"})
        pool.reset({0: task})
        gc.collect()  # what earlier tests left
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(30):
            assert pool.reset({0: task})[0].kind == FailureKind.DIED
        assert len(os.listdir("/proc/self/fd")) <= before
        assert pool.stats["replaced"] == 31
        nursery = pool._nursery._process.pid
        children = Path(f"/proc/{nursery}/task/{nursery}/children").read_text().split()
        assert sorted(map(int, children)) == sorted(pool.pids)  # no zombies
        assert len(os.listdir(f"/proc/{nursery}/fd")) <= 8


SCRIPT = """
import os, signal, sys
from envs import testing
from envs.pool import EnvPool
pool = EnvPool("envs.testing:make", 3, deadline_s=60)
pool.reset({0: testing.make_task(faults={"1": "hang"}), 1: testing.make_task(), 2: testing.make_task()})
pool.submit("step", {0: None})
print(pool._nursery._process.pid, *pool.pids, flush=True)
if sys.argv[1] == "sigkill":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "raise":
    raise ValueError
if sys.argv[1] == "close":
    pool.close()
    pool.close()
"""


@pytest.mark.parametrize("end", ["return", "raise", "sigkill", "close"])
def test_no_orphan_however_the_caller_ends(end):
    done = subprocess.run([sys.executable, "-c", SCRIPT, end], cwd=ROOT, capture_output=True, text=True, timeout=60)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 4
    assert gone(pids), done.stderr
