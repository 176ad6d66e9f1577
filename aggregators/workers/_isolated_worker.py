"""A program that runs TFF's worker in its own network namespace, reachable only by the user who started it.

TFF's worker listens on every interface, and has no option for another address. This program, which `worker.py` starts,
therefore opens its listening sockets, moves into a network namespace with nothing but loopback, starts the worker
there, and forwards connections to it; the sockets stay in the namespace in which they were opened. They are either on
loopback, where the system tells the user of each connection, or in a folder that is closed to others.

It is a separate program in one file, and uses only the standard library, because a process with threads may not create
a user namespace, and importing TensorFlow starts threads.
"""

import contextlib
import ctypes
import errno
import fcntl
import io
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

# From linux/sched.h, linux/prctl.h and linux/if.h.
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_ESTABLISHED = b"01"
_NO_INODE = b"0"

_LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_NO_SUCH_LOOPBACK = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
# Inside the namespace, where every port is free.
_INSIDE = ("127.0.0.1", 7000)
_START_SECONDS = 60.0
_POLL_SECONDS = 0.05
_CHUNK_BYTES = 2**20
_STDOUT, _STDERR = 1, 2

_Allows = Callable[[socket.socket], bool]
_Listeners = list[tuple[socket.socket, _Allows]]


def main(parent: int, port: int, command: Sequence[str]) -> None:
    """Runs a worker until it or the process that started this one ends.

    The first line on standard output is `ready` and the address; `taken` if the port is in use; or `refused` and the
    reason why the system does not allow isolation. No line at all means that the worker did not answer.

    Args:
        parent: Process id of the process that started this one; this one ends with it.
        port: Port on loopback to forward from; 0 for a Unix socket in a temporary folder.
        command: The worker's command line, without its port.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # A terminal interrupts every process it runs; this one is ended by the process that started it, in due order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.ExitStack() as ends:
        try:
            listeners, address = _on_loopback(port, ends) if port else _in_a_folder(ends)
        except OSError as error:
            _end("taken" if error.errno == errno.EADDRINUSE else f"refused {error.strerror or error}")
        try:
            _leave_the_network()
        except OSError as error:
            _end(f"refused {error.strerror}")
        except AttributeError:
            _end("refused unshare: not on this system")
        # Only now, since creating a user namespace clears the parent-death signal.
        _end_with(parent, signal.SIGTERM)
        worker = _started(command)
        ends.callback(worker.wait)
        ends.callback(worker.kill)
        try:
            for listener, _ in listeners:
                listener.listen()
        except OSError:
            _end("taken")
        for listener, allows in listeners:
            threading.Thread(target=_serve, args=(listener, allows), daemon=True).start()
        print(f"ready {address}", flush=True)
        os.dup2(_STDERR, _STDOUT)
        worker.wait()


def _end(said: str) -> NoReturn:
    print(said, flush=True)
    sys.exit(1)


def _on_loopback(port: int, ends: contextlib.ExitStack) -> tuple[_Listeners, str]:
    """Returns sockets on a port of this machine's loopback addresses, and the first address."""
    listeners: _Listeners = []
    allows = _OwnUser(ends)
    for family, host in _LOOPBACKS:
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            if not listeners or error.errno not in _NO_SUCH_LOOPBACK:
                raise
            continue
        listeners.append((listener, allows))
    return listeners, f"{_LOOPBACKS[0][1]}:{port}"


def _in_a_folder(ends: contextlib.ExitStack) -> tuple[_Listeners, str]:
    """Returns a Unix socket in a folder that is closed to others, and its address."""
    path = pathlib.Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="tff-mf-worker-"))) / "socket"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    path.chmod(0o600)
    return [(listener, lambda connection: True)], f"unix:{path}"


class _OwnUser:
    """Tells whether a loopback connection belongs to this user, by the system's tables of connections."""

    def __init__(self, ends: contextlib.ExitStack) -> None:
        # Opened before the namespace changes, so that they keep describing this network.
        self._tables = [ends.enter_context(io.FileIO(name)) for name in _TABLES if os.path.exists(name)]
        self._lock = threading.Lock()
        self._user = str(os.getuid()).encode()

    def __call__(self, connection: socket.socket) -> bool:
        peer, own = (end[:2] for end in (connection.getpeername(), connection.getsockname()))
        ends = [[_as_in_table(*end) for end in (peer, own)]]
        if connection.family == socket.AF_INET:
            # An IPv6 socket can connect to an IPv4 address, as those of gRPC do.
            ends.append([_as_in_table(f"::ffff:{host}", port) for host, port in (peer, own)])
        with self._lock:
            rows = [line.split() for table in self._tables for line in _lines(table)]
        # A socket that its owner has closed is listed as root's; it is then no longer established and has no inode.
        return any(
            row[1:3] in ends and row[3] == _ESTABLISHED and row[7] == self._user and row[9] != _NO_INODE for row in rows
        )


def _lines(table: io.FileIO) -> list[bytes]:
    table.seek(0)
    return table.read().splitlines()


def _as_in_table(host: str, port: int) -> bytes:
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return b"".join(b"%08X" % word for word in words) + b":%04X" % port


def _leave_the_network() -> None:
    """Moves this process into a new network namespace, with nothing but loopback.

    Raises:
        OSError: If the system does not allow it.
        AttributeError: If the system has no namespaces.
    """
    user, group = os.getuid(), os.getgid()
    try:
        _system("unshare", _CLONE_NEWNET)
    except PermissionError:
        _system("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
        # Users and groups keep their numbers inside.
        for name, content in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            try:
                pathlib.Path("/proc/self", name).write_text(content)
            except OSError as error:
                raise OSError(error.errno, f"{name}: {error.strerror}") from error
    with socket.socket() as any_socket:
        try:
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
        except OSError as error:
            raise OSError(error.errno, f"loopback: {error.strerror}") from error


def _end_with(parent: int, number: int) -> None:
    """Has the system send this process a signal when its parent ends."""
    _system("prctl", _PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def _system(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _started(command: Sequence[str]) -> subprocess.Popen:
    """Returns the worker once it answers, or exits if it never does. The worker ends with this process."""
    here = os.getpid()
    worker = subprocess.Popen(
        [*command, f"--port={_INSIDE[1]}"],
        stdin=subprocess.DEVNULL,
        stdout=_STDERR,
        # Safe, since this process has no threads yet.
        preexec_fn=lambda: _end_with(here, signal.SIGKILL),
    )
    deadline = time.monotonic() + _START_SECONDS
    while worker.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), contextlib.closing(_inside()):
            return worker
        time.sleep(_POLL_SECONDS)
    worker.kill()
    sys.exit(1)


def _inside() -> socket.socket:
    connection = socket.socket()
    try:
        connection.connect(_INSIDE)
    except OSError:
        connection.close()
        raise
    return connection


def _serve(listener: socket.socket, allows: _Allows) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            # For example too many open files, until some are closed.
            time.sleep(_POLL_SECONDS)
            continue
        try:
            if not allows(connection):
                raise PermissionError
            inside = _inside()
        except OSError:
            connection.close()
            continue
        for each in (connection, inside):
            if each.family != socket.AF_UNIX:
                # As gRPC itself does: small messages must not wait.
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, sink in ((connection, inside), (inside, connection)):
            threading.Thread(target=_forward, args=(source, sink), daemon=True).start()


def _forward(source: socket.socket, sink: socket.socket) -> None:
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with contextlib.suppress(OSError):
        while length := source.recv_into(buffer):
            sink.sendall(buffer[:length])
    for end in (source, sink):
        # When either end closes, both directions end, as without a forwarder.
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
