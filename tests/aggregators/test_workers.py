"""A round on several workers gives the same result as on one, even if a worker dies."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.aggregators.resident import _rounds

DIMENSION = 3000


@pytest.fixture
def two_workers():
    with aggregators.running_worker() as first, aggregators.running_worker() as second:
        yield first, second


def rounds(process, cohorts):
    state, results = process.initialize(), []
    for number, cohort in enumerate(cohorts):
        generator = np.random.default_rng(number)
        values = list(generator.normal(size=(cohort, DIMENSION)).astype(np.float32))
        output = process.next(state, values)
        state = output.state
        results.append(np.asarray(output.result))
    return results


def test_one_and_two_workers_give_the_same(regression, two_workers):
    """On a grid bit for bit: there, sums are exact in any order."""
    value_type = tff.TensorType(np.float32, [DIMENSION])
    processes = [regression.aggregator(grid=grid).create(value_type) for grid in (None, "auto")]
    cohorts = [5, 2, 1, 0, 8]
    with aggregators.resident_context():
        expected = [rounds(process, cohorts) for process in processes]
    with aggregators.resident_context(workers=tuple(worker.address for worker in two_workers)):
        found = [rounds(process, cohorts) for process in processes]
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.long  # Another process is traced: the first test compares the aggregator alone.
def test_two_workers_train_the_model_of_one_bit_for_bit_on_a_grid(regression, two_workers):
    process, models = regression.process(regression.aggregator(grid="auto")), []
    for workers in ((), tuple(worker.address for worker in two_workers)):
        # Also in another order.
        clients = regression.clients[::-1] if workers else regression.clients
        with aggregators.resident_context(workers=workers):
            state = process.set_model_weights(process.initialize(), regression.weights)
            for _ in range(3):
                state = process.next(state, clients).state
            models.append([np.asarray(weight).tobytes() for weight in process.get_model_weights(state).trainable])
    assert models[0] == models[1]


@pytest.mark.long  # The first test compares the aggregator; test_recovery.py trains a model over workers in CI.
def test_a_learning_process_over_two_workers(regression, two_workers):
    process = regression.process()
    ends = []
    for workers in ((), tuple(worker.address for worker in two_workers)):
        with aggregators.resident_context(workers=workers):
            state = process.set_model_weights(process.initialize(), regression.weights)
            for _ in range(3):
                output = process.next(state, regression.clients)
                state = output.state
            ends.append((float(output.metrics["client_work"]["train"]["loss"]), process.get_model_weights(state)))
            ends[-1] = ends[-1][0], [np.asarray(weight) for weight in ends[-1][1].trainable]
    np.testing.assert_allclose(ends[0][0], ends[1][0], rtol=1e-5)
    for one, other in zip(ends[0][1], ends[1][1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("moment", ["before a round", "in a round"])
def test_clients_of_a_lost_worker_run_on_the_other_workers(regression, two_workers, monkeypatch, moment, caplog):
    first, second = two_workers
    process = regression.aggregator().create(tff.TensorType(np.float32, [DIMENSION]))
    with aggregators.resident_context():
        expected = rounds(process, [8, 8, 8])
    partial_sum, calls = _rounds._partial_sum, []

    def dying(worker, *arguments):
        calls.append(worker.address)
        if len(calls) == 2 and moment == "before a round":
            second.process.kill()
        if len(calls) == 2 and moment == "in a round":
            read = worker.read
            monkeypatch.setattr(worker, "read", lambda value: second.process.kill() or read(value))
        return partial_sum(worker, *arguments)

    monkeypatch.setattr(_rounds, "_partial_sum", dying)
    with aggregators.resident_context(workers=(first.address, second.address)):
        found = rounds(process, [8, 8, 8])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert calls == [second.address] * 2
    assert "is lost" in caplog.text


def test_losing_the_first_worker_loses_the_state(regression, two_workers):
    first, second = two_workers
    process = regression.aggregator().create(tff.TensorType(np.float32, [DIMENSION]))
    with aggregators.resident_context(workers=(first.address, second.address)):
        state = process.initialize()
        first.process.kill()
        first.process.wait()
        with pytest.raises(aggregators.WorkerLostError, match=first.address):
            process.next(state, [np.ones(DIMENSION, np.float32)] * 2)


def test_fresh_noise_is_added_once(regression, two_workers):
    process = regression.aggregator(tff_mf.Identity(), insecure_seed=None, noise_multiplier=1.0).create(
        tff.TensorType(np.float32, [DIMENSION])
    )
    zeros = [np.zeros(DIMENSION, np.float32)] * 4
    with aggregators.resident_context(workers=tuple(worker.address for worker in two_workers)):
        state, results = process.initialize(), []
        for _ in range(4):
            output = process.next(state, zeros)
            state = output.state
            results.append(np.asarray(output.result) * 8)
    # Noise added twice would have a standard deviation of 1.41; the error of the mean square is 0.013.
    assert np.mean(np.square(results)) == pytest.approx(1.0, abs=0.1)
    assert np.all(np.abs(np.corrcoef(results)[np.triu_indices(4, 1)]) < 0.1)


def test_addresses_and_ports_are_checked(two_workers):
    port = int(two_workers[0].address.rpartition(":")[2])
    with (
        pytest.raises(tff_mf.InputError, match=f"port={port} is already in use"),
        aggregators.running_worker(port=port),
    ):
        pass
    for wrong in ("localhost", "localhost:", ":80", "localhost:70000"):
        with pytest.raises(tff_mf.InputError, match="host:port"), aggregators.resident_context(workers=(wrong,)):
            pass


def test_a_worker_that_was_started_elsewhere_is_left_running(two_workers):
    with aggregators.resident_context(workers=(two_workers[0].address,)):
        assert tff.tensorflow.computation(lambda: tf.constant(3))() == 3
    assert two_workers[0].process.poll() is None
