"""The sum that clips where values are added: it equals TFF's for honest clients, and bounds all others."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators, queries
from tff_mf.aggregators.factories import record_sums

VALUE_TYPE = tff.to_type(collections.OrderedDict(a=(np.float32, [40]), b=(np.float64, [3]), c=(np.float16, [2, 2])))


def process(**changes):
    arguments = {"clip_norm": 0.7, "noise_multiplier": 0.0, "clients_per_round": 3, **changes}
    return aggregators.build_mf_aggregator(tff_mf.Identity(), **arguments).create(VALUE_TYPE)


def values(count):
    """Values below, at and above the clip norm, and one that is not finite."""
    generator = np.random.default_rng(count)
    made = []
    for index in range(count):
        parts = [generator.normal(size=shape) for shape in ((40,), (3,), (2, 2))]
        scale = 0.7 / np.sqrt(sum(np.sum(part**2) for part in parts)) * (1, 0.1, 1 - 1e-7, 30)[index % 4]
        cast = zip(parts, (np.float32, np.float64, np.float16), strict=True)
        made.append(
            collections.OrderedDict(zip("abc", ((part * scale).astype(kind) for part, kind in cast), strict=True))
        )
    made[-1]["b"][1] = np.nan
    return made


def one_round(made):
    @tff.federated_computation(*made.next.type_signature.parameter)
    def computation(state, value):
        output = made.next(state, value)
        return output.state, tff.federated_zip((output.result, output.measurements))

    return computation


def test_sums_of_honest_clients_are_bit_identical_to_tffs():
    ours, plain = process(), process(record_aggregation_factory=tff.aggregators.SumFactory())
    for count in (1, 2, 33):
        found, expected = (each.next(each.initialize(), values(count)).result for each in (ours, plain))
        assert [found[name].tobytes() for name in "abc"] == [expected[name].tobytes() for name in "abc"]
    assert ours.next.type_signature.is_equivalent_to(plain.next.type_signature)
    assert not any(name in str(ours.next.type_signature) for name in record_sums.COUNTS)


def test_accumulate_clips_any_value():
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(one_round(process()))
    total = form.zero()
    for value in (0.01, 5.0, np.nan, np.inf):
        leaves = np.full(40, value, np.float32), np.full(3, value), np.full([2, 2], value, np.float32)
        total = form.accumulate(total, [collections.OrderedDict(zip("abc", leaves, strict=True))])
    (found,) = total
    assert (int(found["clipped"]), int(found["zeroed"])) == (1, 2)
    one = np.concatenate([np.ravel(found["total"][name]) for name in "abc"]) - 0.01
    assert np.linalg.norm(one) == pytest.approx(0.7, rel=1e-5)
    (merged,) = form.merge(total, total)
    assert (int(merged["clipped"]), int(merged["zeroed"])) == (2, 4)
    assert not any(name in str(form.report.type_signature.result) for name in record_sums.COUNTS)
    assert not any(name in str(form.update.type_signature) for name in record_sums.COUNTS)


def test_the_distribute_aggregate_form_uses_plain_sums():
    """TFF's distribute-aggregate form has only fixed sums; TFF itself refuses to compile it with our sum."""
    clipping, plain = one_round(process()), process(record_aggregation_factory=tff.aggregators.SumFactory())
    with pytest.raises((TypeError, ValueError)):
        tff.backends.mapreduce.get_distribute_aggregate_form_for_computation(clipping)
    expected = tff.backends.mapreduce.get_distribute_aggregate_form_for_computation(one_round(plain))
    form = aggregators.distribute_aggregate_form(clipping)
    for part in ("client_work", "client_to_server_aggregation", "server_result"):
        assert getattr(form, part).type_signature == getattr(expected, part).type_signature
    with pytest.raises((TypeError, ValueError)):
        # A federated_aggregate of other code is unchanged, and refused.
        aggregators.distribute_aggregate_form(other_sum())


def other_sum():
    add = tff.tensorflow.computation(lambda one, other: one + other, [np.float32, np.float32])
    whole = tff.tensorflow.computation(lambda value: value, np.float32)

    @tff.federated_computation(tff.FederatedType(np.float32, tff.SERVER), tff.FederatedType(np.float32, tff.CLIENTS))
    def summed(state, value):
        return state, tff.federated_aggregate(value, np.float32(0), add, add, whole)

    return summed


def test_only_clients_enforce_an_adaptive_clip_norm():
    adaptive = queries.AdaptiveClipping(count_stddev=1.0)
    made = process(restart_every=4, adaptive_clipping=adaptive)
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(one_round(made))
    assert not any(name in str(form.accumulate.type_signature) for name in record_sums.COUNTS)
