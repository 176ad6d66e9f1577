"""Only the user who started an isolated worker can reach it, and it leaves nothing behind."""

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import click.testing
import numpy as np
import psutil
import pytest
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.aggregators.workers import _isolated_worker, worker
from tff_mf.experiments.cli import cli

DIMENSION = 3000
NOBODY = 65534
# The capability lets it read the Python installation, which may be in a folder of root.
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
AS_NOBODY += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
# A worker sends the first bytes; the forwarder closes a refused connection without sending any.
GREETED = """
import socket, sys
with socket.socket({family}) as probe:
    probe.settimeout(20)
    try:
        probe.connect({address!r})
        print(len(probe.recv(100)))
    except OSError as error:
        print(type(error).__name__)
"""
# Runs Python as root of a user namespace in which no further namespaces may be created.
WITHOUT_NAMESPACES = """#!/bin/sh
exec unshare --user --map-root-user sh -c '
echo 0 > /proc/sys/user/max_user_namespaces
echo 0 > /proc/sys/user/max_net_namespaces
exec {python} "$@"' sh "$@"
"""


def _namespaces():
    return (
        subprocess.run(["unshare", "--user", "--map-root-user", "--net", "true"], capture_output=True).returncode == 0
    )


pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="other systems have no network namespaces"),
    pytest.mark.skipif(not _namespaces(), reason="this system allows no network namespace"),
]
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


@pytest.fixture(scope="module")
def isolated():
    with aggregators.running_worker(isolated=True, port=_free_port()) as started:
        yield started


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _port(started):
    return int(started.address.rpartition(":")[2])


def _greeted(family, address, *, by=()):
    family = f"socket.{family.name}"
    command = [*by, sys.executable, "-S", "-c", GREETED.format(family=family, address=address)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def _all_of(process):
    return [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]


def _round(addresses, **arguments):
    process = aggregators.build_mf_aggregator(
        tff_mf.BLT.production("b400"), clip_norm=1.0, noise_multiplier=0.5, clients_per_round=8, insecure_seed=3
    ).create(tff.TensorType(np.float32, [DIMENSION]))
    values = list(np.random.default_rng(0).normal(size=(5, DIMENSION)).astype(np.float32))
    with aggregators.resident_context(workers=addresses, **arguments):
        output = process.next(process.next(process.initialize(), values).state, values)
        return np.asarray(output.result)


def test_isolated_and_other_workers_give_the_same_rounds(isolated):
    with aggregators.running_worker(isolated=True) as other:
        found = _round((isolated.address, other.address))
    np.testing.assert_allclose(found, _round(()), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(_round((), isolated=True), _round(()))


def test_an_isolated_worker_listens_only_on_loopback_in_its_own_network(isolated):
    port = _port(isolated)
    assert _greeted(socket.AF_INET, ("127.0.0.1", port)) not in ("0", "ConnectionRefusedError")
    # All of 127.0.0.0/8 is this machine: an unbound address is answered only by a listener on every interface.
    assert _greeted(socket.AF_INET, ("127.0.0.2", port)) == "ConnectionRefusedError"
    (inside,) = psutil.Process(isolated.process.pid).children()
    interfaces = pathlib.Path(f"/proc/{inside.pid}/net/dev").read_text().splitlines()[2:]
    assert [line.partition(":")[0].strip() for line in interfaces] == ["lo"]
    with aggregators.running_worker() as public:
        # A worker that is not isolated can be reached at any address.
        assert _greeted(socket.AF_INET, ("127.0.0.2", _port(public))) not in ("0", "ConnectionRefusedError")


@AS_ROOT
def test_connections_of_other_users_are_closed(isolated):
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        if host == "::1" and _greeted(family, (host, _port(isolated))) == "OSError":
            continue
        assert _greeted(family, (host, _port(isolated))) != "0"
        assert _greeted(family, (host, _port(isolated)), by=AS_NOBODY) in ("0", "ConnectionResetError")
    with aggregators.running_worker(isolated=True) as other:
        path = other.address.removeprefix("unix:")
        assert _greeted(socket.AF_UNIX, path) != "0"
        # It may read and search every folder here, but may not connect.
        assert _greeted(socket.AF_UNIX, path, by=AS_NOBODY) == "PermissionError"
    with aggregators.running_worker() as public:
        assert _greeted(socket.AF_INET, ("127.0.0.1", _port(public)), by=AS_NOBODY) not in ("0", "ConnectionResetError")


@AS_ROOT
def test_without_root_a_user_namespace_is_used_and_connections_of_root_are_closed():
    if subprocess.run([*AS_NOBODY[:4], "test", "-x", worker._BINARY]).returncode != 0:
        pytest.skip("the worker's program is in a folder of root's")
    port = _free_port()
    program = [*AS_NOBODY, sys.executable, "-I", "-S", worker._ISOLATED, str(os.getpid()), str(port), worker._BINARY]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as started:
        assert started.stdout.readline() == f"ready 127.0.0.1:{port}\n"
        everything = _all_of(started)
        assert {process.uids().effective for process in everything} == {NOBODY}
        assert _greeted(socket.AF_INET, ("127.0.0.1", port)) in ("0", "ConnectionResetError")
        assert _greeted(socket.AF_INET, ("127.0.0.1", port), by=AS_NOBODY) not in ("0", "ConnectionResetError")
        started.kill()
    assert psutil.wait_procs(everything, timeout=100)[1] == []


@pytest.mark.parametrize("caller", [socket.AF_INET, socket.AF_INET6])
def test_a_closed_connection_belongs_to_no_user(caller):
    """The system lists a socket without an owner as root's; and gRPC connects to IPv4 by IPv6 sockets."""
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as ends:
        is_own = _isolated_worker._OwnUser(ends)
        host, port = server.getsockname()
        client = socket.socket(caller)
        client.connect((host if caller == socket.AF_INET else f"::ffff:{host}", port))
        connection, _ = server.accept()
        assert is_own(connection)
        client.close()
        assert not is_own(connection)
        connection.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("end", ["forwarder", "worker"])
def test_neither_end_outlives_the_other(end, number):
    with aggregators.running_worker(isolated=True) as started:
        everything = _all_of(started.process)
        folder = pathlib.Path(started.address.removeprefix("unix:")).parent
        assert len(everything) == 2
        assert folder.stat().st_mode & 0o777 == 0o700
        everything[end == "worker"].send_signal(number)
        started.process.wait(100)
        assert psutil.wait_procs(everything, timeout=100)[1] == []
    assert not folder.exists()


def test_a_terminal_interrupt_does_not_end_the_worker(capfd):
    with aggregators.running_worker(isolated=True) as started:
        for each in _all_of(started.process):
            each.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert started.process.poll() is None
        assert _greeted(socket.AF_UNIX, started.address.removeprefix("unix:")) not in ("0", "ConnectionRefusedError")
    assert "Traceback" not in capfd.readouterr().err


STARTS = """
import sys, time
from tff_mf import aggregators
with aggregators.running_worker(isolated=True) as started:
    print(started.address, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_killed_program_leaves_neither_processes_nor_files(number, forks, processes_left, tmp_path):
    with (tmp_path / "log").open("w") as log:
        program = forks.start(STARTS, [], stdout=log.fileno(), stderr=log.fileno())
        deadline = time.monotonic() + 60
        while "unix:" not in (tmp_path / "log").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        started = processes_left()
        program.send_signal(number)
        program.wait(60)
    # The program itself is not among them: a fork keeps the environment of its parent.
    assert len(started) == 2
    folder = pathlib.Path(re.search("unix:(.*)/socket\n", (tmp_path / "log").read_text())[1])
    assert folder.name.startswith("tff-mf-worker-")
    deadline = time.monotonic() + 100
    while (left := processes_left()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == set()
    assert not folder.exists()


def test_a_port_that_is_taken_is_refused(isolated):
    for host in ("127.0.0.1", "0.0.0.0"):
        with socket.socket() as other:
            other.bind((host, 0))
            other.listen()
            port = other.getsockname()[1]
            taken = aggregators.running_worker(isolated=True, port=port)
            with pytest.raises(tff_mf.InputError, match=f"port={port} is already in use"), taken:
                pass
    with pytest.raises(tff_mf.InputError, match="is already in use"), aggregators.running_worker(port=_port(isolated)):
        pass


def test_without_namespaces_the_error_names_the_remedy(monkeypatch, tmp_path):
    program = tmp_path / "python"
    program.write_text(WITHOUT_NAMESPACES.format(python=sys.executable))
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    arguments = ["worker", "--port", str(_free_port())]
    result = click.testing.CliRunner().invoke(cli, arguments)
    assert isinstance(result.exception, tff_mf.InputError)
    assert "does not allow (unshare: No space left on device)" in str(result.exception)
    assert "--public" in str(result.exception)
    assert result.stdout == ""


@pytest.mark.parametrize("public", [False, True])
def test_the_command_isolates_by_default(public, monkeypatch):
    asked = []

    def stopped(**arguments):
        asked.append(arguments["isolated"])
        raise tff_mf.InputError("stopped")

    monkeypatch.setattr(aggregators, "running_worker", stopped)
    click.testing.CliRunner().invoke(cli, ["worker", "--port", "7000", *["--public"] * public])
    assert asked == [not public]
