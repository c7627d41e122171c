"""Many environments at once, each in a process of its own, none able to harm another.

    with EnvPool("envs.virtual.world:make", size=96, deadline_s=10.0) as pool:
        results = pool.reset({slot: task for slot, task in enumerate(tasks)})
        results = pool.step({0: action, 5: None})          # {slot: StepResult or EnvFailure}

A slot whose environment raises (crash), gives no answer in time (timeout) or ends (died) answers with an
`EnvFailure`, is counted in `stats`, and its process is killed and replaced; the caller marks that trajectory as an
infrastructure failure and may reset the slot. Results of other slots come back regardless.

`reset` and `step` wait for all slots they are given. A caller that must not wait for a slow one uses `submit` and
`ready` instead.
"""

from __future__ import annotations

import abc
import collections
import os
import pickle
import selectors
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Self

from absl import logging

from envs import nursery
from envs.interface import EnvFailure, Environment, FailureKind, StepResult, TaskSpec
from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.errors import EnvError

Factory = str | Callable[[], Environment]
_METHODS = ("reset", "step", "snapshot", "restore")
_RUNNING_ONLY = ("step", "snapshot")
_REMEMBERED_STATES = 65_536
_CHUNK = 1 << 20
_NURSERY_DEADLINE_S = 120.0  # it imports the environment's module, then forks and kills: nothing that hangs


class Pool(abc.ABC):
    """What `EnvPool` and `LocalPool` share. Not thread-safe: one thread calls it.

    Attributes:
      size: number of slots.
      stats: counts since the start: calls by method, failures by kind, "replaced", "recycled", "reset_mismatch".
    """

    def __init__(self, size: int, verify_resets: bool):
        if size < 1:
            raise EnvError(f"pool size is {size}, must be at least 1")
        self.size = size
        self.stats: collections.Counter[str] = collections.Counter()
        self._verify_resets = verify_resets
        self._tasks: list[str | None] = [None] * size  # the task that runs in each slot, None before a reset
        self._pending: dict[int, tuple[str, str | None]] = {}  # slot -> (method, task id if it is a reset)
        self._finished: dict[int, StepResult | bytes | EnvFailure] = {}
        self._start_states: collections.OrderedDict[str, str] = collections.OrderedDict()  # task id -> state hash

    def reset(self, tasks: Mapping[int, TaskSpec]) -> dict[int, StepResult | EnvFailure]:
        """Starts a task in each given slot and waits for all of them."""
        return self._call("reset", tasks)  # type: ignore[return-value]

    def step(self, actions: Mapping[int, Action | None]) -> dict[int, StepResult | EnvFailure]:
        """Does an action in each given slot and waits for all of them.

        Raises:
          EnvError: a slot runs no task (never reset, or not since it failed).
        """
        return self._call("step", actions)  # type: ignore[return-value]

    def snapshot(self, slots: Iterable[int]) -> dict[int, bytes | EnvFailure]:
        """Returns the saved state of each given slot."""
        return self._call("snapshot", dict.fromkeys(slots))  # type: ignore[return-value]

    def restore(self, snapshots: Mapping[int, bytes]) -> dict[int, StepResult | EnvFailure]:
        """Puts each given slot into a saved state; it may come from another slot."""
        return self._call("restore", snapshots)  # type: ignore[return-value]

    def submit(self, method: str, arguments: Mapping[int, object]) -> None:
        """Starts "reset", "step", "snapshot" or "restore" in the given slots; `ready` returns the results.

        Raises:
          EnvError: an unknown method or slot, a slot that is busy, or one that runs no task; nothing was started.
        """
        if method not in _METHODS:
            raise EnvError(f"method is {method!r}, must be one of {_METHODS}")
        for slot in arguments:
            if not 0 <= slot < self.size:
                raise EnvError(f"slot {slot} is not in a pool of {self.size}")
            if slot in self._pending or slot in self._finished:
                raise EnvError(f"slot {slot} is busy: take its result from ready() first")
            if method in _RUNNING_ONLY and self._tasks[slot] is None:
                raise EnvError(f"slot {slot} runs no task: reset it first (also after a failure)")
        for slot, argument in arguments.items():
            self.stats[method] += 1
            task_id = argument.task_id if isinstance(argument, TaskSpec) else None
            self._pending[slot] = (method, task_id)
            try:
                self._start(slot, method, argument)
            except BaseException:  # an argument that cannot be sent, say
                self._pending.pop(slot, None)
                raise

    def ready(self, at_least: int = 1) -> dict[int, StepResult | bytes | EnvFailure]:
        """Returns the results that are there, waiting until at least `at_least` of the submitted calls have one."""
        while self._pending and len(self._finished) < at_least:
            self._wait()
        finished, self._finished = self._finished, {}
        return finished

    @abc.abstractmethod
    def close(self) -> None:
        """Ends all environments; the pool is not used afterwards. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def _call(self, method: str, arguments: Mapping[int, object]) -> dict[int, StepResult | bytes | EnvFailure]:
        self.submit(method, arguments)
        while any(slot in self._pending for slot in arguments):
            self._wait()
        return {slot: self._finished.pop(slot) for slot in arguments}

    def _settle(self, slot: int, outcome: object) -> None:
        """Books the outcome of a slot's pending call; replaces the slot if it is a failure."""
        method, task_id = self._pending.pop(slot)
        if method == "reset" and isinstance(outcome, StepResult):
            outcome = self._verify(task_id or "", outcome)
        if isinstance(outcome, EnvFailure):
            self.stats[str(outcome.kind)] += 1
            self._tasks[slot] = None
            logging.warning("environment slot %d, %s: %s", slot, method, outcome)
            self._replace(slot)
            self.stats["replaced"] += 1
        elif method == "reset":
            self._tasks[slot] = task_id
        elif method == "restore":
            self._tasks[slot] = ""
        self._finished[slot] = outcome  # type: ignore[assignment]

    def _verify(self, task_id: str, result: StepResult) -> StepResult | EnvFailure:
        """Compares a task's start state with that of its earlier resets: rollouts must not leak into each other."""
        if not (self._verify_resets and result.state_hash):
            return result
        first = self._start_states.setdefault(task_id, result.state_hash)
        self._start_states.move_to_end(task_id)
        if len(self._start_states) > _REMEMBERED_STATES:
            self._start_states.popitem(last=False)
        if first == result.state_hash:
            return result
        self.stats["reset_mismatch"] += 1
        message = f"reset of task {task_id} gave state {result.state_hash}, an earlier reset gave {first}"
        return EnvFailure(FailureKind.CRASH, message)

    @abc.abstractmethod
    def _start(self, slot: int, method: str, argument: object) -> None:
        """Starts one call; its end is told to `_settle`, now or in `_wait`."""

    @abc.abstractmethod
    def _wait(self) -> None:
        """Waits for some pending call to go on; calls `_settle` for each that ends."""

    @abc.abstractmethod
    def _replace(self, slot: int) -> None:
        """Puts a new environment in the place of a failed one."""


class LocalPool(Pool):
    """A pool in the calling process, one slot after the other.

    For tests, notebooks and debugging: a crash is isolated as in `EnvPool`, but nothing guards against an
    environment that hangs or ends the process.

    Args:
      factory: "module:function" or a callable that makes one environment.
      size: number of slots.
      verify_resets: whether a task whose start state differs between resets counts as a crash.
    """

    def __init__(self, factory: Factory, size: int, *, verify_resets: bool = True):
        super().__init__(size, verify_resets)
        self._make = nursery.resolve_factory(factory)
        self._environments: list[Environment | None] = [None] * size

    def close(self) -> None:
        """Closes all environments."""
        for slot in range(self.size):
            self._drop(slot)

    def _start(self, slot: int, method: str, argument: object) -> None:
        try:
            environment = self._environments[slot]
            if environment is None:
                environment = self._environments[slot] = self._make()
            outcome = nursery.call_environment(environment, method, argument)
        except Exception as error:
            outcome = EnvFailure(FailureKind.CRASH, nursery.describe(error))
        self._settle(slot, outcome)

    def _wait(self) -> None:
        raise AssertionError("calls of a LocalPool end at once")

    def _replace(self, slot: int) -> None:
        self._drop(slot)

    def _drop(self, slot: int) -> None:
        environment, self._environments[slot] = self._environments[slot], None
        if environment is not None:
            try:
                environment.close()
            except Exception as error:
                logging.warning("environment slot %d, close: %s", slot, nursery.describe(error))


class _Worker:
    """The caller's end of one environment process and of its call in flight."""

    def __init__(self, sock: socket.socket, pid: int):
        self.sock = sock
        self.pid = pid
        self.starting = True  # has not said yet that its environment is made
        self.resets = 0
        self.outgoing = memoryview(b"")
        self.incoming = bytearray()
        self.allow(0.0)

    def allow(self, seconds: float) -> None:
        """Sets the deadline so many seconds from now."""
        self.allowed_s = seconds
        self.deadline = time.monotonic() + seconds


class EnvPool(Pool):
    """A pool with one process per slot, deadlines, and failure isolation.

    Args:
      factory: "module:function", or a callable that can be pickled (its module must be importable by name).
      size: number of slots.
      deadline_s: seconds that a call may take.
      reset_deadline_s: seconds for `reset` and `restore`; None means `deadline_s`.
      start_deadline_s: seconds that a new process may take to make its environment; its first call waits for that.
      recycle_after: a process is replaced after so many resets, against slow leaks; None for never.
      memory_limit_mb: address space of a process; beyond it allocations raise MemoryError. None for no limit.
      verify_resets: whether a task whose start state differs between resets counts as a crash.

    Raises:
      EnvError: the factory cannot be loaded.
    """

    def __init__(
        self,
        factory: Factory,
        size: int,
        *,
        deadline_s: float = 30.0,
        reset_deadline_s: float | None = None,
        start_deadline_s: float = 60.0,
        recycle_after: int | None = None,
        memory_limit_mb: int | None = None,
        verify_resets: bool = True,
    ):
        super().__init__(size, verify_resets)
        self._deadlines = {method: deadline_s for method in _METHODS} | {"start": start_deadline_s}
        if reset_deadline_s is not None:
            self._deadlines |= {"reset": reset_deadline_s, "restore": reset_deadline_s}
        self._recycle_after = recycle_after
        try:
            self._nursery_arguments = (pickle.dumps(factory), (memory_limit_mb or 0) << 20)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise EnvError(f"environment factory {factory!r} cannot be sent to a process: {error}") from error
        if getattr(factory, "__module__", "") == "__main__":
            raise EnvError(f"environment factory {factory!r} is in __main__; move it to a module")
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        self._nursery = _Nursery(*self._nursery_arguments)
        self._finalizer = weakref.finalize(self, _Nursery.stop, self._nursery)
        for _ in range(size):
            self._workers.append(self._spawn())

    @property
    def pids(self) -> tuple[int, ...]:
        """The process id of each slot's environment."""
        return tuple(worker.pid for worker in self._workers)

    def close(self) -> None:
        """Asks idle environments to close, then ends all processes; returns when they are gone."""
        if not self._finalizer.alive:
            return
        asked = []
        for slot, worker in enumerate(self._workers):
            if slot not in self._pending:
                try:
                    worker.sock.send(nursery.encode(("close", None)))
                    asked.append(worker.sock)
                except OSError:
                    pass
        end = time.monotonic() + 2.0
        for sock in asked:  # a worker that closed its environment ends, which closes its socket
            sock.settimeout(max(end - time.monotonic(), 0.001))
            try:
                sock.recv(1)
            except OSError:
                pass
        self._finalizer()
        for worker in self._workers:
            worker.sock.close()
        self._selector.close()
        self._pending.clear()

    def _spawn(self) -> _Worker:
        try:
            return _Worker(*self._nursery.spawn())
        except (OSError, EOFError):  # the nursery was killed, and its workers with it
            logging.warning("the environment nursery ended; starting a new one")
            self._finalizer()
            self._nursery = _Nursery(*self._nursery_arguments)
            self._finalizer = weakref.finalize(self, _Nursery.stop, self._nursery)
            return _Worker(*self._nursery.spawn())

    def _replace(self, slot: int) -> None:
        worker = self._workers[slot]
        worker.sock.close()
        self._nursery.kill(worker.pid)
        self._workers[slot] = self._spawn()

    def _start(self, slot: int, method: str, argument: object) -> None:
        worker = self._workers[slot]
        if method == "reset":
            if self._recycle_after is not None and worker.resets >= self._recycle_after:
                self._replace(slot)
                self.stats["recycled"] += 1
                worker = self._workers[slot]
            worker.resets += 1
        worker.allow(self._deadlines["start" if worker.starting else method])
        worker.outgoing = memoryview(nursery.encode((method, argument)))
        worker.incoming = bytearray()
        self._selector.register(worker.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, slot)
        self._advance(slot)  # most requests fit the socket's buffer at once

    def _wait(self) -> None:
        nearest = min(self._workers[slot].deadline for slot in self._pending)
        moved = [key.data for key, _ in self._selector.select(max(nearest - time.monotonic(), 0.0))]
        for slot in moved:
            self._advance(slot)
        now = time.monotonic()
        # A slot whose answer is on its way is not late: the caller may just not have looked for a while.
        for slot in [slot for slot in self._pending if self._workers[slot].deadline <= now and slot not in moved]:
            message = f"no answer within {self._workers[slot].allowed_s:g} s"
            self._end(slot, EnvFailure(FailureKind.TIMEOUT, message))

    def _advance(self, slot: int) -> None:
        """Sends and receives what the slot's socket takes and gives without waiting; ends the call if it is over."""
        worker = self._workers[slot]
        try:
            if worker.outgoing:
                worker.outgoing = worker.outgoing[worker.sock.send(worker.outgoing) :]
                if not worker.outgoing:
                    self._selector.modify(worker.sock, selectors.EVENT_READ, slot)
                return
            received = worker.sock.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            return self._end(slot, EnvFailure(FailureKind.DIED, f"the process ended ({error})"))
        if not received:
            return self._end(slot, EnvFailure(FailureKind.DIED, "the process ended"))
        worker.incoming += received
        try:
            messages = list(nursery.decode_all(worker.incoming))
        except Exception as error:  # an answer that does not unpickle
            return self._end(slot, EnvFailure(FailureKind.CRASH, nursery.describe(error)))
        for good, value in messages:
            if not good:
                return self._end(slot, EnvFailure(FailureKind.CRASH, value))
            if not worker.starting:
                return self._end(slot, value)
            worker.starting = False
            worker.allow(self._deadlines[self._pending[slot][0]])

    def _end(self, slot: int, outcome: object) -> None:
        worker = self._workers[slot]
        self._selector.unregister(worker.sock)
        worker.incoming = bytearray()
        self._settle(slot, outcome)


class _Nursery:
    """The caller's end of the nursery process."""

    def __init__(self, factory: bytes, memory_limit: int):
        self._control, theirs = socket.socketpair()
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "OPENBLAS_NUM_THREADS": "1",  # many small processes; also no threads at the time of a fork
            "OMP_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "envs.nursery", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # an interrupt from the terminal reaches the caller only
        )
        theirs.close()
        self._control.settimeout(_NURSERY_DEADLINE_S)
        try:
            nursery.send(self._control, (factory, memory_limit))
            error = nursery.receive(self._control)
        except (OSError, EOFError) as failure:
            self.stop()
            raise EnvError(f"the environment nursery did not start: {failure!r}") from failure
        if error:
            self.stop()
            raise EnvError(f"the environment nursery could not load the factory: {error}")

    def spawn(self) -> tuple[socket.socket, int]:
        """Returns a non-blocking socket to a new worker, and its process id."""
        ours, theirs = socket.socketpair()
        try:
            nursery.send(self._control, ("spawn", None))
            socket.send_fds(self._control, [b"+"], [theirs.fileno()])
            pid = nursery.receive(self._control)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return ours, pid  # type: ignore[return-value]

    def kill(self, pid: int) -> None:
        """Kills a worker; does nothing if the nursery, and so the worker, is gone."""
        try:
            nursery.send(self._control, ("kill", pid))
            if not nursery.receive(self._control):
                logging.error("environment process %d did not end after SIGKILL", pid)
        except (OSError, EOFError):
            pass

    def stop(self) -> None:
        """Ends the nursery and all its workers."""
        self._control.close()  # the nursery sees it, kills its workers and ends
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
