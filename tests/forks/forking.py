"""Programs in processes of their own that start with TFF imported, which takes ten seconds otherwise.

Run as a program, this file imports TFF, computes nothing with it, and forks for each request. The fork runs what it was
asked to, and ends as Python does. Commands that need no TFF have a process of the same kind, without it.
"""

import functools
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence

_LARGEST_REQUEST = 2**17
_IMPORTED = (
    "tensorflow_federated",
    "tff_mf.aggregators",
    "tff_mf.experiments.train",
    "tff_mf.experiments.cli",
)
# What nearly every command without TFF imports: half a second each.
_IMPORTED_BY_COMMANDS = (
    "tff_mf.experiments.cli",
    "scipy.optimize",
    "scipy.stats",
    "dp_accounting",
    "safetensors.numpy",
)
COMMAND = "import sys\nsys.argv[0] = 'tff-mf'\nfrom tff_mf.experiments.cli import main\nmain()"


class Fork:
    """A program that runs, one at a time: the next starts when this has been waited for."""

    def __init__(self, pid: int, ends: socket.socket) -> None:
        self.pid, self._ends = pid, ends

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float) -> int:
        """Returns its exit status, or raises a TimeoutError after so many seconds and kills it."""
        self._ends.settimeout(timeout)
        try:
            return int(self._ends.recv(64))
        except TimeoutError:
            self.send_signal(signal.SIGKILL)
            self._ends.settimeout(None)
            self._ends.recv(64)
            raise


class Server:
    """The process that has TFF imported, or what is named."""

    def __init__(self, imported: Sequence[str] = _IMPORTED, *, python: str | os.PathLike[str] = sys.executable) -> None:
        self._ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        descriptor = theirs.fileno()
        self._process = subprocess.Popen(
            [python, __file__, str(descriptor), *imported],
            # As the process that builds the graphs of a bundle has them, and commands, which a fork may stand for.
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONHASHSEED": "0"},
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()

    def start(
        self,
        code: str,
        arguments: list[str],
        *,
        stdout: int,
        stderr: int,
        folder: str | os.PathLike[str] | None = None,
        environment: dict[str, str] | None = None,
    ) -> Fork:
        """Starts a program.

        Args:
            code: The program.
            arguments: Those after its name.
            stdout: File descriptor of its standard output.
            stderr: File descriptor of what it says beside.
            folder: Where it runs; by default here.
            environment: Its environment; by default ours.
        """
        request = {
            "code": code,
            "arguments": arguments,
            "environment": dict(os.environ if environment is None else environment),
            "folder": os.path.abspath(folder or os.getcwd()),
        }
        self._ours.settimeout(None)
        socket.send_fds(self._ours, [json.dumps(request).encode()], [stdout, stderr])
        return Fork(int(self._ours.recv(64)), self._ours)

    def close(self) -> None:
        self._ours.close()
        self._process.wait()


@functools.cache
def _commands() -> Server:
    return Server(_IMPORTED_BY_COMMANDS)


def run_command(
    arguments: list[str], *, folder: str | os.PathLike[str] | None, environment: dict[str, str], timeout: float = 180
) -> subprocess.CompletedProcess[str]:
    """Runs `tff-mf` in a process of its own, and returns its exit status and what it printed."""
    return run_program(COMMAND, arguments, folder=folder, environment=environment, timeout=timeout)


def run_program(
    code: str,
    arguments: list[str],
    *,
    server: Server | None = None,
    folder: str | os.PathLike[str] | None,
    environment: dict[str, str],
    timeout: float = 180,
) -> subprocess.CompletedProcess[str]:
    """Runs a program in a fork of a server's process, and returns its exit status and what it printed.

    The server is by default the one without TFF.
    """
    server = server or _commands()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        started = server.start(
            code, arguments, stdout=out.fileno(), stderr=errors.fileno(), folder=folder, environment=environment
        )
        status = started.wait(timeout)
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(["tff-mf", *arguments], status, out.read(), errors.read())


def _next_request(requests: socket.socket) -> dict | None:
    """Returns, in a fork, what it is asked to run; None at the end of all requests."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST, 2)
        if not message:
            return None
        pid = os.fork()
        if pid == 0:
            requests.close()
            for number, descriptor in enumerate(descriptors, start=1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            return json.loads(message)
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        requests.send(str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    # Imports make no garbage to speak of, and forks need not look at what all of them share.
    gc.disable()
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    # As in the tests' own process, for the reason given there.
    os.fsync = lambda descriptor: None
    asked = _next_request(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["folder"])
        sys.argv[1:] = asked["arguments"]
        exec(compile(asked["code"], "program", "exec"), {"__name__": "__main__"})
