"""Misbehaving clients and mistakes around the aggregator: refused with the remedy, warned about, or harmless."""

import collections
import functools
import warnings

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.aggregators import factory

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
    return aggregator().create(VALUE_TYPE)


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
    for one, other in zip(found, expected, strict=True):
        for leaf, same in zip(one.result.values(), other.result.values(), strict=True):
            np.testing.assert_array_equal(leaf, same)
        assert one.measurements["dp_query_metrics"] == other.measurements["dp_query_metrics"]
    np.testing.assert_array_equal(
        found[-1].state.query_state.numerator_state.noise.keys,
        expected[-1].state.query_state.numerator_state.noise.keys,
    )


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


ONE = np.ones(2, np.float32)


def ours(mechanism=None, **changes):
    arguments = {"clip_norm": 1.0, "noise_multiplier": 1.0, "clients_per_round": 2, "grid": "auto", **changes}
    return aggregators.build_mf_aggregator(mechanism or tff_mf.Tree(4, variant="full"), **arguments)


@pytest.fixture(scope="module", autouse=True)
def resident():
    with aggregators.resident_context():
        yield


@functools.cache
def created(size=2, **changes):
    return ours(**changes).create(tff.TensorType(np.float32, [size]))


def stepped(process, state=None, client=ONE):
    return process.next(process.initialize() if state is None else state, [client])


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: stepped(created(), client=np.ones(3, np.float32)),
        lambda: stepped(created(), created(3).initialize()),
        lambda: created(None),
    ],
    ids=["update of another dimension", "state of another dimension", "a dimension that is not known"],
)
def test_another_shape_is_refused(mistake):
    with pytest.raises((TypeError, tff_mf.InputError), match="shape") as caught:
        mistake()
    assert "debug_error_string" not in str(caught.value)


BLT = tff_mf.BLT.production("b400")
ENDLESS = tff_mf.BLT(theta=[0.9], omega=[0.2])
# Arguments, and those that the warning names.
WARNED = {
    "no grid": (BLT, {"grid": None}, {"grid"}),
    "no rounds, with restarts": (BLT, {"restart_every": 8}, {"rounds"}),
    "neither": (ENDLESS, {"grid": None}, {"grid", "rounds"}),
    "both": (ENDLESS, {"rounds": 10}, set()),
    "seed": (ENDLESS, {"grid": None, "insecure_seed": 1}, set()),
}


@pytest.mark.parametrize("name", WARNED)
def test_what_is_left_out_is_told_once_in_one_line(name):
    mechanism, given, expected = WARNED[name]
    factory._tell.cache_clear()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            ours(mechanism, **given)
    told = [one for one in found if one.category is aggregators.WeakGuaranteeWarning]
    assert len(told) == bool(expected)
    for one in told:
        assert "\n" not in str(one.message)
        assert one.filename == __file__
        assert {name for name in ("grid", "rounds") if f"Without {name}=" in str(one.message)} == expected
