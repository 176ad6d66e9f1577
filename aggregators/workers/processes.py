"""Ends TFF's worker processes, which would otherwise outlive Python and hold its output and memory."""

import atexit
import contextlib
import functools
import gc
import os
import subprocess
import time
from collections.abc import Iterator

import psutil
import tensorflow_federated as tff

_WORKER = "worker_binary"
# Each context of TFF has a class of its own.
_MANAGER = "local_cpp_executor_factory.<locals>.ServiceManager"
# TensorFlow's variable, and the level at which only fatal errors are written: the others report sessions, devices, and
# errors that are raised in Python too.
LOG_LEVEL, FATAL = "TF_CPP_MIN_LOG_LEVEL", "3"
_PATIENCE_SECONDS = 10.0
_POLL_SECONDS = 0.05


def cores() -> int:
    """Returns the number of cores that this process, and thus a worker that it starts, may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def ending_workers() -> Iterator[None]:
    """Ends every worker that was started in the block when the block ends, or at the latest with the program."""
    end_with_program()
    others = {worker.pid for worker in _workers()}
    try:
        yield
    finally:
        _end([worker for worker in _workers() if worker.pid not in others])


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends one worker, and no other one: contexts of several workers may end in any order."""
    with contextlib.suppress(psutil.NoSuchProcess):
        _end([psutil.Process(process.pid)])
    process.wait()


@functools.cache
def end_with_program() -> None:
    """Registers, once, that every worker which this process has started ends with the program.

    TFF's own context starts its worker with the first computation and reports that to nobody. What computes in that
    context therefore calls this beforehand.
    """
    atexit.register(_end_all)


@contextlib.contextmanager
def quiet_workers() -> Iterator[None]:
    """Keeps the log of workers that are started in the block off the screen, unless the environment has a level."""
    given = LOG_LEVEL in os.environ
    os.environ.setdefault(LOG_LEVEL, FATAL)
    try:
        yield
    finally:
        if not given:
            os.environ.pop(LOG_LEVEL, None)


def _workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if _runs(child)]


def _runs(process: psutil.Process) -> bool:
    # A worker that has ended stays a zombie: TFF signals and reaps it when its context is collected, and would fail if
    # it had been reaped already.
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name().startswith(_WORKER) and process.status() != psutil.STATUS_ZOMBIE
    return False


def _end(workers: list[psutil.Process]) -> None:
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                end(worker)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while (workers := [worker for worker in workers if _runs(worker)]) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)


class _Ended(tff.framework.SyncContext):
    """Replaces TFF's default context at exit, so that it is destroyed before the modules that it needs."""

    def invoke(self, comp: object, arg: object) -> object:
        raise RuntimeError("The program has ended, and TFF's context with it.")


def _end_all() -> None:
    _end(_workers())
    tff.framework.get_context_stack().set_default_context(_Ended())
    gc.collect()
    for left in gc.get_objects():
        # Of a context that something else holds. Its worker has ended, and there is nothing to do when it is destroyed;
        # TFF would look for modules that are gone, and Python would print the error.
        if type(left).__qualname__ == _MANAGER:
            del type(left).__del__
