"""TFF's worker processes: starts one, and ends them with a block or the program, as they would outlive Python."""

import atexit
import contextlib
import dataclasses
import functools
import gc
import os
import pathlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

import psutil
import tensorflow_federated as tff

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

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
    for signalled in (psutil.Process.terminate, psutil.Process.kill):
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                signalled(worker)
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


_BINARY = pathlib.Path(tff.__file__).parent / "data" / "worker_binary"
_START_SECONDS = 60.0
_STDERR = 2
_MOST_THREADS = 1024
_LOOPBACK = "localhost"


class WorkerLostError(RuntimeError):
    """A worker has died or cannot be reached, and the values that it held are lost.

    Attributes:
        address: Host and port of the worker, or its Unix socket.
    """

    def __init__(self, address: str) -> None:
        super().__init__(
            f"TFF's worker at {address} has died or cannot be reached (killed, out of memory, or a network failure), "
            "and the state that it held is lost. Continue from the last checkpoint."
        )
        self.address = address


@dataclasses.dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker of TFF on this machine.

    Attributes:
        address: Its host and port.
        process: Its process.
    """

    address: str
    process: subprocess.Popen


@contextlib.contextmanager
def running_worker(
    *,
    port: int | None = None,
    max_concurrent_computation_calls: int = -1,
    threads: int | None = None,
) -> Iterator[Worker]:
    """Runs a worker of TFF on this machine for a block, and yields it once it answers.

    The worker prints to standard error, since standard output belongs to the program; without `TF_CPP_MIN_LOG_LEVEL` in
    the environment, only what ends it, since all other errors are raised here. The system ends it when the thread that
    started it ends, even by SIGKILL, where util-linux is installed.

    TFF's worker listens on every interface, without access control and without encryption, and has no option for
    another address. To keep others out, start the program in a network of its own: see `docs/tff-programs.md`.

    Args:
        port: Port to listen on; a free one if `None`.
        max_concurrent_computation_calls: Number of computations (mostly clients of a round) that the worker runs at
            once; unlimited if not positive.
        threads: Number of threads inside an operation of TensorFlow, such as a matrix product; as many as the machine
            has cores if `None`. Sums inside operations may be added in another order, and so be rounded in another way.

    Yields:
        The worker.

    Example:
        >>> with running_worker() as worker:
        ...     worker.process.poll() is None
        True

    Raises:
        InputValueError: If the port is taken, or the number of threads is not positive.
        WorkerLostError: If the worker does not answer.
    """
    if threads is not None and validation.whole("threads", threads, at_least=1) > _MOST_THREADS:
        raise InputValueError(
            f"threads={threads} must be at most {_MOST_THREADS:,}, of which no machine has more cores."
        )
    # A worker has no flags for its threads and its log.
    given = {} if threads is None else {"TF_NUM_INTRAOP_THREADS": str(threads)}
    environment = {LOG_LEVEL: FATAL, **os.environ, **given}
    command = [str(_BINARY), f"--max_concurrent_computation_calls={max_concurrent_computation_calls}"]
    if port is None:
        port = _free_port()
    elif _answers(port):
        raise InputValueError(f"port={port} is already in use: choose another one.")
    command.append(f"--port={port}")
    guard = shutil.which("setpriv")
    if guard is not None:
        command = [guard, "--pdeathsig", "KILL", *command]
    end_with_program()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=_STDERR, stderr=_STDERR, env=environment)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise WorkerLostError(f"{_LOOPBACK}:{port}")
            time.sleep(_POLL_SECONDS)
        yield Worker(address=f"{_LOOPBACK}:{port}", process=process)
    finally:
        end(process)


def check_address(address: str) -> None:
    """Raises unless an address has the form `host:port`, or `unix:/path` for a Unix socket."""
    if address.startswith("unix:/"):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InputValueError(f"workers has the address {address!r}, which is not of the form host:port or unix:/path.")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return probe.getsockname()[1]


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((_LOOPBACK, port)) == 0
