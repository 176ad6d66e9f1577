"""Misbehaving clients: their updates count as zero or are clipped, and change neither noise nor guarantee."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators

VALUE_TYPE = tff.to_type(collections.OrderedDict(kernel=(np.float32, [3, 2]), bias=(np.float32, [2])))
LARGEST = np.finfo(np.float32).max


def value(number):
    return collections.OrderedDict(kernel=np.full((3, 2), number, np.float32), bias=np.full(2, number, np.float32))


def mixed(*numbers):
    bias = np.array(numbers, np.float32)
    return collections.OrderedDict(kernel=np.full((3, 2), 0.1, np.float32), bias=bias)


def aggregator(**changes):
    arguments = {"clip_norm": 1.0, "noise_multiplier": 2.0, "clients_per_round": 3, "insecure_seed": 5, **changes}
    return aggregators.build_mf_aggregator(tff_mf.BLT.production("b400"), **arguments)


@pytest.fixture(scope="module")
def process():
    return aggregators.count_rejected(aggregator()).create(VALUE_TYPE)


HONEST = [value(0.2), value(-0.1)]
NOT_FINITE = {
    "nan": value(np.nan),
    "one nan": mixed(0.0, np.nan),
    "infinite": value(np.inf),
    "opposite infinities": mixed(np.inf, -np.inf),
    "nan beside the largest": mixed(np.nan, LARGEST),
}


def released(process, *rounds):
    state, outputs = process.initialize(), []
    for clients in rounds:
        outputs.append(process.next(state, clients))
        state = outputs[-1].state
    return outputs


def flat(structure):
    return np.concatenate([np.ravel(leaf) for leaf in structure.values()]).astype(np.float64)


@pytest.mark.parametrize("bad", NOT_FINITE.values(), ids=NOT_FINITE)
def test_a_value_that_is_not_finite_counts_as_zero(process, bad):
    expected = released(process, HONEST, HONEST)
    found = released(process, [*HONEST, bad], [bad, *HONEST, bad])
    for one, other, rejected in zip(found, expected, (1, 2), strict=True):
        for leaf, same in zip(one.result.values(), other.result.values(), strict=True):
            np.testing.assert_array_equal(leaf, same)
        assert one.measurements["rejected_clients"] == rejected
        assert other.measurements["rejected_clients"] == 0
        assert one.measurements["dp_query_metrics"] == other.measurements["dp_query_metrics"]
    np.testing.assert_array_equal(
        found[-1].state.query_state.numerator_state.noise.keys,
        expected[-1].state.query_state.numerator_state.noise.keys,
    )


@pytest.mark.parametrize("bad", [value(LARGEST), value(-1e20), value(1e3), mixed(LARGEST, 0.0)])
def test_a_huge_value_moves_the_sum_by_at_most_the_clip_norm(process, bad):
    (without,), (with_it,) = released(process, HONEST), released(process, [*HONEST, bad])
    moved = 3 * np.linalg.norm(flat(with_it.result) - flat(without.result))
    # The tolerance is that of float32 sums with noise of about 10.
    assert moved <= 1 + 1e-5
    assert with_it.measurements["rejected_clients"] == 0


def test_dropouts_change_neither_divisor_nor_noise(process):
    (none,), (everyone,) = released(process, []), released(process, HONEST)
    moved = 3 * (flat(everyone.result) - flat(none.result))
    np.testing.assert_allclose(moved, flat(value(0.1)), atol=1e-5)
    assert np.abs(flat(none.result)).min() > 0


def test_an_update_of_another_shape_stops_the_round_before_noise_is_drawn(process):
    state = process.initialize()
    for wrong in ({"kernel": np.zeros((2, 2), np.float32), "bias": np.zeros(2, np.float32)}, [1.0], "text"):
        with pytest.raises((TypeError, ValueError)):
            process.next(state, [*HONEST, wrong])
    np.testing.assert_array_equal(flat(process.next(state, HONEST).result), flat(released(process, HONEST)[0].result))


def test_count_rejected_refuses_anything_but_an_aggregator():
    with pytest.raises(TypeError, match="aggregator="):
        aggregators.count_rejected(3)


def test_the_bound_holds_in_tffs_worker():
    """The worker has another build of TensorFlow, which may differ in the order of sums and in subnormal numbers."""
    factory = aggregator(noise_multiplier=0.0, clients_per_round=1, insecure_seed=None)
    size = 2**16
    process = factory.create(tff.TensorType(np.float32, [size]))
    lost = np.full(size, 2.0**-12.25 * 0.9995, np.float32)
    lost[0] = 1
    with aggregators.resident_context():
        state = process.initialize()
        for record in (lost * np.float32(50), np.full(size, LARGEST), np.full(size, 1e-40, np.float32), lost):
            found = np.asarray(process.next(state, [record.astype(np.float32)]).result, np.float64)
            assert np.linalg.norm(found) <= 1.0
