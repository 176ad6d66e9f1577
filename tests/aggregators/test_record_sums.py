"""Sums that clip where values are added, bounded and equal to TFF's; secure sums."""

import collections
import functools

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators, queries
from tff_mf.aggregators import record_sums
from tff_mf.base.errors import InputValueError

GRID = tff_mf.Grid(bits=12, max_clients=40)
SECURE = tff.aggregators.SecureSumFactory(2**12)
VALUE_TYPE = tff.to_type(collections.OrderedDict(a=(np.float32, [40]), b=(np.float64, [3]), c=(np.float16, [2, 2])))
SUMS = {"clipping": None, "plain": tff.aggregators.SumFactory(), "secure": SECURE}


def factory(**changes):
    arguments = {
        "clip_norm": 0.7,
        "noise_multiplier": 0.1,
        "clients_per_round": 3,
        "insecure_seed": 1,
        "grid": GRID,
        **changes,
    }
    return aggregators.build_mf_aggregator(tff_mf.BLT.production("b400"), **arguments)


@functools.cache
def in_floats(**changes):
    """A process without noise, so that its results are the sums."""
    plain = {"grid": None, "noise_multiplier": 0.0, "insecure_seed": None}
    return factory(**{**plain, **changes}).create(VALUE_TYPE)


@pytest.fixture(scope="module")
def processes():
    return {name: factory(record_aggregation_factory=each).create(VALUE_TYPE) for name, each in SUMS.items()}


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


def released(process, clients):
    """The bits of two rounds."""
    first = process.next(process.initialize(), clients)
    second = process.next(first.state, clients[:1])
    return [np.asarray(output.result[name]).tobytes() for output in (first, second) for name in "abc"]


def one_round(made):
    @tff.federated_computation(*made.next.type_signature.parameter)
    def computation(state, value):
        output = made.next(state, value)
        return output.state, tff.federated_zip((output.result, output.measurements))

    return computation


def test_sums_of_every_kind_and_order_are_bit_identical(processes):
    clients = values(33)
    expected = released(processes["clipping"], clients)
    assert expected == released(processes["plain"], clients)
    assert expected == released(processes["secure"], clients)
    assert expected == released(processes["clipping"], [clients[0], *clients[:0:-1]])
    assert expected != released(processes["clipping"], clients[:-2])
    types = processes["plain"].next.type_signature
    assert all(each.next.type_signature.is_equivalent_to(types) for each in processes.values())
    assert not any(name in str(types) for name in record_sums.COUNTS)


@pytest.mark.parametrize("kind", SUMS)
def test_more_clients_than_the_grid_has_room_for_are_refused(processes, kind):
    process, clients = processes[kind], values(4)
    most = [clients[0]] * GRID.max_clients
    assert np.all(np.isfinite(process.next(process.initialize(), most).result["a"]))
    with pytest.raises(Exception, match="max_clients=40"):
        process.next(process.initialize(), [*most, clients[1]])


def test_accumulate_clips_any_integers(processes):
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(one_round(processes["clipping"]))
    total = form.zero()
    hostile = ((1, 1), (5000, 1), (-(2**31), 1), (1, -(10**6)))
    for value, clients in hostile:
        leaves = (np.full(shape, value, np.int32) for shape in ([40], [3], [2, 2]))
        total = form.accumulate(total, [(collections.OrderedDict(zip("abc", leaves, strict=True)), np.int32(clients))])
    (found,) = total
    sums, clients = found["total"]
    assert (int(found["clipped"]), int(found["zeroed"]), int(clients)) == (2, 0, len(hostile))
    one = np.concatenate([np.ravel(sums[name]) for name in "abc"]) - 2
    # Two of the four were shortened to the clip norm; they point in opposite directions.
    assert np.max(np.abs(one)) <= 1
    assert not any(name in str(form.update.type_signature) for name in record_sums.COUNTS)


def test_the_server_enforces_an_adaptive_clip_norm_on_a_grid():
    adaptive = queries.AdaptiveClipping(count_stddev=1.0)
    process = factory(restart_every=2, adaptive_clipping=adaptive).create(tff.TensorType(np.float32, [3]))
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(one_round(process))
    total = form.zero()
    for sent in (10**9, 7):
        record = (np.full(3, sent, np.int32), np.int32(1)), np.int32(-(10**9))
        total = form.accumulate(total, [record])
    (found,) = total
    (sums, clients), count = found["total"]
    assert int(count) == -GRID.largest_norm
    assert int(clients) == 2
    assert int(np.sum((np.asarray(sums, np.int64) - 7) ** 2)) <= 4**GRID.bits
    assert (int(found["clipped"]), int(found["zeroed"])) == (1, 0)


def test_refusals():
    with pytest.raises(TypeError, match="grid=17"):
        factory(grid=17)
    with pytest.raises(ValueError, match=r"SecureSumFactory\(4096\)"):
        factory(record_aggregation_factory=tff.aggregators.SecureSumFactory(2**13)).create(VALUE_TYPE)
    with pytest.raises(TypeError, match="wraps around before the modulus is taken"):
        factory(record_aggregation_factory=tff.aggregators.SecureModularSumFactory(2**30, symmetric_range=True))
    with pytest.raises(TypeError, match="enlarge a clipped value"):
        factory(record_aggregation_factory=type("Ours", (tff.aggregators.SumFactory,), {})())
    automatic = factory(grid="auto", insecure_seed=None)
    assert automatic.grid_for(10) == tff_mf.Grid(bits=14, max_clients=1000)
    with pytest.raises(ValueError, match='grid="auto" depends on the values'):
        _ = automatic.fingerprint
    participation = tff_mf.SingleParticipation()
    with pytest.raises(ValueError, match="pass the number of coordinates"):
        automatic.dp_event(10, participation)
    assert factory(insecure_seed=None).fingerprint != factory(insecure_seed=None, grid=None).fingerprint
    charged = automatic.dp_event(10, participation, dimension=10**6)
    plain = factory(insecure_seed=None, grid=None).dp_event(10, participation)
    assert 0.99 * plain.noise_multiplier < charged.noise_multiplier < plain.noise_multiplier


@pytest.mark.parametrize("bits", [8, 12, 26])
def test_a_secure_sum_has_exactly_the_thresholds_of_its_grid(bits):
    """With others, TFF clips or scales what was clipped, or needs more bits."""
    grid, most = tff_mf.Grid(bits=bits, max_clients=3), 2**bits
    for right in ((most,), (most, -most)):
        record_sums.check_integers(tff.aggregators.SecureSumFactory(*right), grid)
    others = [(most + more,) for more in (-1, 1, most // 2, most)] + [(float(most),), (np.int64(most),)]
    others += [(most, -most + 1), (most, -most - 1), (most, -1), (2 * most, -most), (float(most), float(-most))]
    for wrong in others:
        with pytest.raises(InputValueError, match=rf"SecureSumFactory\({most}\)"):
            record_sums.check_integers(tff.aggregators.SecureSumFactory(*wrong), grid)


def test_sums_of_honest_clients_are_bit_identical_to_tffs():
    ours, plain = in_floats(), in_floats(record_aggregation_factory=tff.aggregators.SumFactory())
    for count in (1, 2, 33):
        found, expected = (each.next(each.initialize(), values(count)).result for each in (ours, plain))
        assert [found[name].tobytes() for name in "abc"] == [expected[name].tobytes() for name in "abc"]
    assert ours.next.type_signature.is_equivalent_to(plain.next.type_signature)
    assert not any(name in str(ours.next.type_signature) for name in record_sums.COUNTS)


def test_an_adaptive_threshold_is_refused():
    adaptive = tff.aggregators.PrivateQuantileEstimationProcess.no_noise(1.0, 0.5, 0.2)
    follows = factory(record_aggregation_factory=tff.aggregators.SecureSumFactory(adaptive))
    with pytest.raises(ValueError, match="other thresholds"):
        follows.create(tff.TensorType(np.float32, [3]))
    with pytest.raises(TypeError, match="SumFactory or SecureSumFactory"):
        factory(record_aggregation_factory=tff.aggregators.clipping_factory(adaptive, tff.aggregators.SumFactory()))


def test_a_secure_sum_of_floats_is_refused():
    """It enlarges a clipped value: coordinates are rounded up to the next of 2³² numbers between the thresholds."""
    for threshold in (1e7, 1.0, 2**16):
        with pytest.raises(ValueError, match="needs grid="):
            factory(grid=None, record_aggregation_factory=tff.aggregators.SecureSumFactory(threshold))
