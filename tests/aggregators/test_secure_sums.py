"""Secure sums run as simulations, and their measurements of clients are withheld."""

import collections
import logging

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.aggregators.resident import secure as secure_computations

CONTEXTS = {"session": aggregators.tff_session, "resident": aggregators.resident_context}
GRID = tff_mf.Grid(bits=16, max_clients=10)
AT_CLIENTS = tff.FederatedType(np.int32, tff.CLIENTS)


@pytest.fixture(scope="module", params=CONTEXTS)
def running(request):
    """One session and one resident context for all tests; the session is that of the layer's tests."""
    if request.param == "session":
        yield request.param
    else:
        with aggregators.resident_context():
            yield request.param


def secure(**changes):
    arguments = {
        "clip_norm": 1.0,
        "noise_multiplier": 0.0,
        "clients_per_round": 2,
        "record_aggregation_factory": tff.aggregators.SecureSumFactory(2**GRID.bits),
        "grid": GRID,
        **changes,
    }
    return aggregators.build_mf_aggregator(tff_mf.BLT.production("b400"), **arguments)


def test_each_intrinsic_gives_the_result_of_its_secure_sum(running):
    @tff.federated_computation(AT_CLIENTS)
    def sums(values):
        return collections.OrderedDict(
            bitwidth=tff.federated_secure_sum_bitwidth(values, 8),
            bounded=tff.federated_secure_sum(values, 100),
            modular=tff.backends.mapreduce.federated_secure_modular_sum(values, 10),
            plain=tff.federated_sum(values),
        )

    for clients in ([3, 4, 8], [7], [9, 9]):
        found = {name: int(value) for name, value in sums(clients).items()}
        expected = sum(clients)
        assert found == {"bitwidth": expected, "bounded": expected, "modular": expected % 10, "plain": expected}


def test_a_modular_sum_wraps_around(running):
    process = tff.aggregators.SecureModularSumFactory(4, symmetric_range=True).create(tff.TensorType(np.int32))
    # Modulo 7; results from 4 on stand for negative numbers.
    for clients, expected in (([1, 3, 6], 3), ([1, 3, 1], -2), ([1], 1)):
        assert int(process.next(process.initialize(), clients).result) == expected


@pytest.mark.sampled(most=1)
def test_measurements_of_a_secure_sum_are_withheld(running):
    value_type = tff.TensorType(np.float32, [3])
    exact = tff.aggregators.SecureSumFactory(0.1).create(value_type)
    clients = [np.full(3, value, np.float32) for value in (0.05, 0.3)]
    assert int(exact.next(exact.initialize(), clients).measurements["secure_upper_clipped_count"]) == 1
    process = secure().create(value_type)
    measurements = process.next(process.initialize(), clients).measurements
    assert list(measurements) == ["dp_query_metrics", "dp"]
    assert measurements["dp"] == ()
    assert list(measurements["dp_query_metrics"]) == ["round", "noise_stddev", "rows_in_use"]


def test_an_adaptive_threshold_is_refused():
    adaptive = tff.aggregators.PrivateQuantileEstimationProcess.no_noise(1.0, 0.5, 0.2)
    follows = secure(record_aggregation_factory=tff.aggregators.SecureSumFactory(adaptive))
    with pytest.raises(ValueError, match="other thresholds"):
        follows.create(tff.TensorType(np.float32, [3]))
    with pytest.raises(TypeError, match="SumFactory or SecureSumFactory"):
        secure(record_aggregation_factory=tff.aggregators.clipping_factory(adaptive, tff.aggregators.SumFactory()))


def test_a_secure_sum_of_floats_is_refused_as_it_enlarges_a_clipped_value():
    """Each coordinate is rounded up to the next of 2³² numbers between the thresholds."""
    size = 170_000
    clipped = np.full(size, size**-0.5, np.float32)
    process = tff.aggregators.SecureSumFactory(1e7).create(tff.TensorType(np.float32, [size]))
    found = np.asarray(process.next(process.initialize(), [clipped]).result)
    assert np.linalg.norm(found.astype(np.float64)) > 1.9
    for threshold in (1e7, 1.0, 2**16):
        with pytest.raises(ValueError, match="needs grid="):
            secure(grid=None, record_aggregation_factory=tff.aggregators.SecureSumFactory(threshold))


def test_the_simulation_is_logged_once(running, caplog):
    total = tff.federated_computation(lambda values: tff.federated_secure_sum_bitwidth(values, 8), AT_CLIENTS)
    secure_computations._say_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert [int(total([1, 2])), int(total([1, 3]))] == [3, 4]
    assert [record.message for record in caplog.records if "no cryptography" in record.message] == [
        "Secure sums are simulated: the numbers equal a secure sum's, and there is no cryptography."
    ]
