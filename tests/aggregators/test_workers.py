"""A round on several workers gives the same result as on one, even if a worker dies."""

import contextlib
import socket
import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.aggregators.resident import context

DIMENSION = 3000


@pytest.fixture(scope="module")
def two_workers():
    """For tests that leave them running."""
    with aggregators.running_worker() as first, aggregators.running_worker() as second:
        yield first, second


@pytest.fixture
def doomed():
    with aggregators.running_worker() as first, aggregators.running_worker() as second:
        yield first, second


@pytest.fixture(scope="module")
def process(regression):
    return regression.aggregator().create(tff.TensorType(np.float32, [DIMENSION]))


def rounds(process, cohorts):
    state, results = process.initialize(), []
    for number, cohort in enumerate(cohorts):
        generator = np.random.default_rng(number)
        values = list(generator.normal(size=(cohort, DIMENSION)).astype(np.float32))
        output = process.next(state, values)
        state = output.state
        results.append(np.asarray(output.result))
    return results


def test_one_and_two_workers_give_the_same(regression, process, two_workers):
    """On a grid bit for bit: there, sums are exact in any order."""
    value_type = tff.TensorType(np.float32, [DIMENSION])
    processes = [process, regression.aggregator(grid="auto").create(value_type)]
    cohorts = [5, 1, 0]
    with aggregators.resident_context():
        expected = [rounds(each, cohorts) for each in processes]
    with aggregators.resident_context(workers=tuple(worker.address for worker in two_workers)):
        found = [rounds(each, cohorts) for each in processes]
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("moment", ["before a round", "in a round"])
def test_clients_of_a_lost_worker_run_on_the_other_workers(process, doomed, monkeypatch, moment, caplog):
    first, second = doomed
    with aggregators.resident_context():
        expected = rounds(process, [8, 8, 8])
    partial_sum, calls = context._partial_sum, []

    def dying(worker, *arguments):
        calls.append(worker.address)
        if len(calls) == 2 and moment == "before a round":
            second.process.kill()
        if len(calls) == 2 and moment == "in a round":
            read = worker.read
            monkeypatch.setattr(worker, "read", lambda value: second.process.kill() or read(value))
        return partial_sum(worker, *arguments)

    monkeypatch.setattr(context, "_partial_sum", dying)
    with aggregators.resident_context(workers=(first.address, second.address)):
        found = rounds(process, [8, 8, 8])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert calls == [second.address] * 2
    assert "is lost" in caplog.text


def test_losing_the_first_worker_loses_the_state(process, doomed):
    first, second = doomed
    with aggregators.resident_context(workers=(first.address, second.address)):
        state = process.initialize()
        first.process.kill()
        first.process.wait()
        with pytest.raises(aggregators.WorkerLostError, match=first.address):
            process.next(state, [np.ones(DIMENSION, np.float32)] * 2)


def test_addresses_and_ports_are_checked(two_workers):
    port = int(two_workers[0].address.rpartition(":")[2])
    with (
        pytest.raises(tff_mf.InputError, match=f"port={port}"),
        aggregators.running_worker(port=port),
    ):
        pass
    for wrong in ("localhost", "localhost:", ":80", "localhost:70000"):
        with pytest.raises(tff_mf.InputError, match="host:port"), aggregators.resident_context(workers=(wrong,)):
            pass


def test_tffs_worker_listens_on_every_interface(two_workers):
    """As the pages say: all of 127.0.0.0/8 is this machine, and nothing binds to this address by itself."""
    port = int(two_workers[0].address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.2", port), timeout=20) as probe:
        assert probe.recv(1)


def _forward(source, sink):
    with contextlib.suppress(OSError):
        while part := source.recv(2**16):
            sink.sendall(part)


def test_a_worker_is_reached_by_a_unix_socket_and_left_running(two_workers, tmp_path):
    host, port = two_workers[0].address.split(":")
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as ends:
        listener.bind(str(tmp_path / "own.sock"))
        listener.listen()

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    outside = ends.enter_context(listener.accept()[0])
                    inside = ends.enter_context(socket.create_connection((host, int(port))))
                    for pair in ((outside, inside), (inside, outside)):
                        threading.Thread(target=_forward, args=pair, daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        with aggregators.resident_context(workers=(f"unix:{tmp_path / 'own.sock'}",)):
            assert tff.tensorflow.computation(lambda: tf.constant(3))() == 3
    assert two_workers[0].process.poll() is None


LOOPBACK, OUTSIDE = ("127.0.0.1", "::1"), ("192.0.2.2", "fe80::1%eth0")
