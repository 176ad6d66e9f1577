"""Starts TFF's own worker binary, whose life ends with ours."""

import contextlib
import dataclasses
import pathlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

import tensorflow_federated as tff

from tff_mf.errors import InputValueError

from . import session
from ._connection import WorkerLostError

_BINARY = pathlib.Path(tff.__file__).parent / "data" / "worker_binary"
_START_SECONDS = 60.0
_POLL_SECONDS = 0.05
_STDERR = 2
_LOOPBACK = "localhost"


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
def running_worker(*, port: int | None = None, max_concurrent_computation_calls: int = -1) -> Iterator[Worker]:
    """Runs a worker of TFF on this machine for a block, and yields it once it answers.

    What the worker prints goes to standard error: standard output belongs to the program. Where
    util-linux is installed, the system kills the worker when the thread that started it ends,
    however it ends, SIGKILL included.

    Args:
        port: Port to listen on; a free one if `None`.
        max_concurrent_computation_calls: Computations (clients of a round, mostly) that the worker
            runs at once; no bound if not positive.

    Example:
        >>> with running_worker() as worker:
        ...     worker.process.poll() is None
        True

    Raises:
        InputValueError: If the port is taken.
        WorkerLostError: If the worker does not answer.
    """
    if port is None:
        port = _free_port()
    elif _answers(port):
        raise InputValueError(f"port={port} is taken: name another one.")
    command = [
        str(_BINARY),
        f"--port={port}",
        f"--max_concurrent_computation_calls={max_concurrent_computation_calls}",
    ]
    guard = shutil.which("setpriv")
    if guard is not None:
        command = [guard, "--pdeathsig", "KILL", *command]
    with session.ending_workers():
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=_STDERR, stderr=_STDERR)
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise WorkerLostError(f"{_LOOPBACK}:{port}")
            time.sleep(_POLL_SECONDS)
        yield Worker(address=f"{_LOOPBACK}:{port}", process=process)
    process.wait()


def check_address(address: str) -> str:
    """Returns an address of the form `host:port`.

    Raises:
        InputValueError: If it is of another form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InputValueError(f"workers has the address {address!r}, which is not of the form host:port.")
    return address


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return probe.getsockname()[1]


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((_LOOPBACK, port)) == 0
