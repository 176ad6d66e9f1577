"""Aggregators of ours and of TFF, judged by the conformance check."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators, conformance
from tff_mf.conformance import adapters

LIKE = [np.zeros((20, 10)), np.zeros(10)]
TYPE = tff.types.to_type([(np.float32, part.shape) for part in LIKE])
CLAIM = {"clip_norm": 1.0, "noise_multiplier": 0.5}
BLT = tff_mf.BLT(theta=[0.9, 0.4], omega=[0.2, 0.5])


@pytest.fixture(scope="module", autouse=True)
def resident():
    with aggregators.resident_context():
        yield


def judged(factory, claim, **more):
    return conformance.check(adapters.of_process(factory.create(TYPE)), claim, like=LIKE, effort=0.01, **more)


@pytest.mark.parametrize("grid", [None, tff_mf.Grid(bits=12, max_clients=40)], ids=["floats", "grid"])
def test_our_aggregator_keeps_its_claim(grid):
    factory = aggregators.build_mf_aggregator(BLT, **CLAIM, clients_per_round=20, rounds=6, grid=grid)
    claim = conformance.Claim(
        mechanism=BLT, **CLAIM, divisor=20.0, rounds=6, grid=grid, not_promised=() if grid else ("low_bits",)
    )
    verdict = judged(factory, claim)
    assert verdict.status != "failed", str(verdict)
    assert [outcome.law for outcome in verdict.outcomes if outcome.status == "not judged"] == ["processes"]


def test_measurements_of_clients_are_found():
    factory = tff.aggregators.add_measurements(
        aggregators.build_mf_aggregator(BLT, **CLAIM, clients_per_round=10, rounds=6),
        client_measurement_fn=lambda value: {"clients": tff.federated_sum(tff.federated_map(one, value))},
    )
    claim = conformance.Claim(mechanism=BLT, **CLAIM, divisor=10.0, rounds=6)
    verdict = judged(factory, claim, laws=["beside"])
    assert "/clients changes if one client is absent" in verdict["beside"].text


one = tff.tensorflow.computation(lambda update: tf.constant(1))
