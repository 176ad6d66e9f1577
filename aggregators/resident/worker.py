"""TFF's worker process: starts one, and ends it with a block or the program, as it would outlive Python."""

import atexit
import contextlib
import functools
import gc
import os
import pathlib
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

import grpc
import psutil
import tensorflow_federated as tff

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from . import tff_insides

_NAME = "worker_binary"
_BINARY = pathlib.Path(tff.__file__).parent / "data" / _NAME
# TensorFlow's variable, and the level at which only fatal errors are written: the others report sessions, devices, and
# errors that are raised in Python too.
LOG_LEVEL, FATAL = "TF_CPP_MIN_LOG_LEVEL", "3"
_PATIENCE_SECONDS = 10.0
_POLL_SECONDS = 0.05
_START_SECONDS = 60.0
_STDERR = 2
_MOST_THREADS = 1024
_LOOPBACK = "localhost"

# Assertions of `tff_mf.noise.tensorflow` and `tff_mf.queries` in the graph, as TensorFlow prints them.
_PAST_THE_END = re.compile(r"The [^\[\]]+ is defined for \d+ rounds, and all of them have run\.")
_OTHERS = re.compile(r"(This state is of other noise|More than max_clients=\d+ clients of the grid)[^\[\]]+")
_REMEDY = (
    " Nothing of this round was released. To train longer, calibrate the noise for all rounds of the run, with a "
    "mechanism that is defined for them, and pass rounds= to build_mf_aggregator."
)


class NoRoundsLeftError(InputValueError):
    """The mechanism is not defined for this round; nothing of the round was computed."""


class WorkerLostError(RuntimeError):
    """TFF's worker has died or does not answer, and the values that it held are lost."""

    def __init__(self) -> None:
        super().__init__(
            "TFF's worker has died or does not answer (killed, or out of memory), and the state that it held is lost. "
            "Continue from the last checkpoint."
        )


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """Raises an error with the sentence of our assertion in place of the gRPC error that contains it.

    `TF_CPP_MIN_LOG_LEVEL=0`, which asks for all that TensorFlow writes, shows gRPC's error as well. All other errors
    are passed on.

    Raises:
        NoRoundsLeftError: After the last round.
        InputValueError: If a state is of other noise, or a round has more clients than the grid has room for.
    """
    try:
        yield
    except grpc.RpcError as error:
        shown = error if os.environ.get(LOG_LEVEL) == "0" else None
        if ended := _PAST_THE_END.search(str(error)):
            raise NoRoundsLeftError(ended.group() + _REMEDY) from shown
        if refused := _OTHERS.search(str(error)):
            raise InputValueError(refused.group()) from shown
        raise


def cores() -> int:
    """Returns the number of cores that this process, and thus a worker that it starts, may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def ending_workers() -> Iterator[None]:
    """Ends every worker that was started in the block when the block ends, or at the latest with the program.

    Their log is kept off the screen, unless the environment has a level.
    """
    end_with_program()
    earlier, had_level = {worker.pid for worker in _workers()}, LOG_LEVEL in os.environ
    os.environ.setdefault(LOG_LEVEL, FATAL)
    try:
        yield
    finally:
        if not had_level:
            os.environ.pop(LOG_LEVEL, None)
        _end([worker for worker in _workers() if worker.pid not in earlier])


@functools.cache
def end_with_program() -> None:
    """Registers, once, that every worker which this process has started ends with the program.

    TFF's own context starts its worker with the first computation and reports that to nobody. What computes in that
    context therefore calls this beforehand.
    """
    atexit.register(_end_all)


def _workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if _runs(child)]


def _runs(process: psutil.Process) -> bool:
    # A worker that has ended stays a zombie: TFF signals and reaps it when its context is collected, and would fail if
    # it had been reaped already.
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name().startswith(_NAME) and process.status() != psutil.STATUS_ZOMBIE
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
    # Of contexts that something else holds. Their workers have ended.
    tff_insides.leave_managers()
    # Python would look through all of TensorFlow's objects for garbage as it ends, which takes a second and more.
    gc.freeze()


@contextlib.contextmanager
def running_worker(*, threads: int | None) -> Iterator[str]:
    """Runs a worker of TFF on this machine for a block, and yields its address once it answers.

    The worker prints to standard error, since standard output belongs to the program; without `TF_CPP_MIN_LOG_LEVEL` in
    the environment, only what ends it, since all other errors are raised here. The system ends it when the thread that
    started it ends, even by SIGKILL, where util-linux is installed. It listens on every interface, without access
    control and without encryption, and has no option for another address.
    """
    if threads is not None and validation.whole("threads", threads, at_least=1) > _MOST_THREADS:
        raise InputValueError(
            f"threads={threads} must be at most {_MOST_THREADS:,}, of which no machine has more cores."
        )
    # A worker has no flags for its threads and its log.
    settings = {} if threads is None else {"TF_NUM_INTRAOP_THREADS": str(threads)}
    port = _free_port()
    command = [str(_BINARY), f"--port={port}", "--max_concurrent_computation_calls=-1"]
    guard = shutil.which("setpriv")
    if guard is not None:
        command = [guard, "--pdeathsig", "KILL", *command]
    end_with_program()
    environment = {LOG_LEVEL: FATAL, **os.environ, **settings}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=_STDERR, stderr=_STDERR, env=environment)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise WorkerLostError
            time.sleep(_POLL_SECONDS)
        yield f"{_LOOPBACK}:{port}"
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            _end([psutil.Process(process.pid)])
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return probe.getsockname()[1]


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((_LOOPBACK, port)) == 0
