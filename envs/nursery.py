"""The process that environments are forked from, and the loop that each of them runs.

A pool's caller may hold JAX and its threads, so it must never fork; starting a fresh interpreter per environment
is slow and heavy. Instead one fresh interpreter, the nursery, imports the environment's module once and forks a
worker for every request, a few milliseconds each, sharing the imported pages. (The fork server of
`multiprocessing` would import the caller's main module, and so JAX, in every child.)

Who ends whom: the nursery kills and reaps its own children only, each by its process id, so an id is never
signalled after it was reaped. It sees its control socket close when the caller ends, however it ends, and takes
its workers along; a worker is killed by the kernel when the nursery dies.

    caller --control socket--> nursery --fork--> worker 0 .. n-1
    caller <--------------- one socket each ---------> worker
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import pickle
import resource
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from envs.interface import Environment, check_result
from gui_owl_jax.agent.errors import EnvError

_HEADER = struct.Struct("!Q")
_PR_SET_PDEATHSIG = 1


def encode(message: object) -> bytes:
    """Returns the frame of a message: its pickled length in 8 bytes, then the pickle."""
    payload = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _HEADER.pack(len(payload)) + payload


def decode_all(buffer: bytearray) -> Iterator[Any]:
    """Takes the whole messages out of `buffer`; leaves the bytes of one that is still to come."""
    while len(buffer) >= _HEADER.size:
        end = _HEADER.size + _HEADER.unpack_from(buffer)[0]
        if len(buffer) < end:
            return
        payload = bytes(memoryview(buffer)[_HEADER.size : end])
        del buffer[:end]
        yield pickle.loads(payload)


def send(sock: socket.socket, message: object) -> None:
    """Sends one message on a blocking socket."""
    sock.sendall(encode(message))


def receive(sock: socket.socket) -> Any:
    """Receives one message from a blocking socket.

    Raises:
      EOFError: the other side closed it.
    """
    (length,) = _HEADER.unpack(_receive_exactly(sock, _HEADER.size))
    return pickle.loads(_receive_exactly(sock, length))


def _receive_exactly(sock: socket.socket, count: int) -> bytearray:
    buffer = bytearray(count)
    view = memoryview(buffer)
    while view:
        received = sock.recv_into(view)
        if not received:
            raise EOFError("the other side closed the socket")
        view = view[received:]
    return buffer


def resolve_factory(factory: str | Callable[[], Environment]) -> Callable[[], Environment]:
    """Returns the function that makes an environment.

    Args:
      factory: the function itself, or "module:function".

    Raises:
      EnvError: the name does not lead to a callable.
    """
    if not isinstance(factory, str):
        return factory
    module_name, _, function_name = factory.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise EnvError(f"environment factory {factory!r}: {error}; give it as 'module:function'") from error
    if not callable(function):
        raise EnvError(f"environment factory {factory!r} is not callable")
    return function


def call_environment(environment: Environment, method: str, argument: object) -> object:
    """Calls one method of an environment and checks what it returns.

    Raises:
      EnvError: it returned something else than the interface says.
      Exception: whatever the environment raises.
    """
    if method == "snapshot":
        snapshot = environment.snapshot()
        if not isinstance(snapshot, bytes):
            raise EnvError(f"snapshot() returned {type(snapshot).__name__}, not bytes")
        return snapshot
    return check_result(getattr(environment, method)(argument))


def describe(error: BaseException) -> str:
    """Returns an exception's name, text and the place it was raised at, for a one-line log."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def serve(sock: socket.socket, make: Callable[[], Environment]) -> None:
    """Runs one environment: says whether it could be made, then answers calls until told to close.

    A call is (method, argument), an answer (True, value) or (False, message). The environment is made at once, so
    that a slow start passes while other slots work.
    """
    try:
        environment = make()
    except Exception as error:
        send(sock, (False, f"the factory raised {describe(error)}"))
        return
    send(sock, (True, None))
    while True:
        try:
            method, argument = receive(sock)
        except (EOFError, ConnectionError):
            method, argument = "close", None
        if method == "close":
            environment.close()
            return
        try:
            answer = encode((True, call_environment(environment, method, argument)))
        except BaseException as error:  # SystemExit too: leaving is no answer
            answer = encode((False, describe(error)))
        sock.sendall(answer)


def _become_worker(sock: socket.socket, make: Callable[[], Environment], nursery: int, memory_limit: int) -> None:
    """What a forked child does; never returns."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != nursery:  # it died between the fork and the line above
            return
        os.setsid()  # a group of its own, so that what the environment starts goes with it
        if memory_limit:
            resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
        serve(sock, make)
        code = 0
    except BrokenPipeError:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _kill(pid: int, patience_s: float = 5.0) -> bool:
    """Kills a child and its process group; returns whether it was reaped."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    end = time.monotonic() + patience_s
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def run(control: socket.socket) -> None:
    """Serves a pool: ("spawn", None) with a file descriptor -> pid; ("kill", pid) -> whether it was reaped."""
    factory, memory_limit = receive(control)
    try:
        make = resolve_factory(pickle.loads(factory))
    except Exception as error:
        send(control, describe(error))
        return
    send(control, "")
    gc.freeze()  # keeps the collector from touching, and so copying, shared pages
    children: set[int] = set()
    try:
        while True:
            method, pid = receive(control)
            if method == "spawn":
                _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
                sock = socket.socket(fileno=descriptors[0])
                nursery = os.getpid()
                child = os.fork()
                if child == 0:
                    control.close()
                    _become_worker(sock, make, nursery, memory_limit)
                sock.close()
                children.add(child)
                send(control, child)
            elif pid in children:
                reaped = _kill(pid)
                if reaped:
                    children.discard(pid)
                send(control, reaped)
            else:
                send(control, False)
    except (EOFError, ConnectionError):
        pass
    finally:
        for child in children:
            _kill(child, patience_s=1.0)


if __name__ == "__main__":
    run(socket.socket(fileno=int(sys.argv[1])))
