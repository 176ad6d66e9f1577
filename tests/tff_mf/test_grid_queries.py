"""Queries whose sums and noise are integers: exact, and accounted for with what their arithmetic costs."""

import numpy as np
import pytest

import tff_mf

tf = pytest.importorskip("tensorflow")

from tff_mf import queries  # noqa: E402
from tff_mf.accounting import grid_charge  # noqa: E402

GRID = tff_mf.Grid(bits=16, max_clients=6)
PARTICIPATION = tff_mf.MinSep(min_sep=4, max_participations=2)
SPECS = {"a": tf.TensorSpec([3]), "b": tf.TensorSpec([2], tf.float64)}


def build(grid=GRID, mechanism=None, **changes):
    arguments = {"record_specs": SPECS, "clip_norm": 0.3, "noise_multiplier": 2.0, **changes}
    return queries.build_query(mechanism or tff_mf.BLT.production("b400"), grid=grid, **arguments)


def adaptive(grid=GRID, **changes):
    clipping = queries.AdaptiveClipping(count_stddev=0.01, **changes)
    arguments = {"record_specs": SPECS, "clip_norm": 0.3, "noise_multiplier": 2.0, "clients_per_round": 2}
    return queries.AdaptiveClippingQuery(tff_mf.Tree(4), clipping=clipping, grid=grid, **arguments)


def records(count, scale=1.0):
    generator = np.random.default_rng(count)
    return [
        {"a": tf.constant(scale * generator.normal(size=3), tf.float32), "b": tf.constant(generator.normal(size=2))}
        for _ in range(count)
    ]


def sampled(query, state, sent):
    params, sample = query.derive_sample_params(state), query.initial_sample_state(SPECS)
    for record in sent:
        sample = query.accumulate_record(params, sample, record)
    return sample


def test_more_records_than_the_grid_has_room_for_are_refused():
    query = build()
    state = query.initial_global_state()
    with pytest.raises(tf.errors.InvalidArgumentError, match="max_clients=6"):
        query.get_noised_result(sampled(query, state, records(7)), state)


def test_a_result_without_assertions_is_nan():
    query = build()
    state = query.initial_global_state()
    graph = tf.function(lambda sample, state: query.get_noised_result(sample, state)[0]).get_concrete_function(
        sampled(query, state, records(1)), state
    )
    operations = [each.name for each in graph.graph.get_operations() if each.type == "Assert"]
    assert operations or "Assert" in str(graph.graph.as_graph_def())
    total, unit = None, None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf.debugging, "assert_less_equal", lambda *_, **__: None)
        total, unit = query._summands.opened(sampled(query, state, records(7)), np.float32(0.3))
    assert np.isnan(unit)
    assert np.all(np.isnan(query._summands.noised(total["a"], tf.zeros([3], tf.float64), unit, tf.float32)))


def test_the_charge_is_in_every_guarantee():
    plain, charged = (build(grid).guarantee(8, PARTICIPATION) for grid in (None, GRID))
    expected = grid_charge.charge(tff_mf.BLT.production("b400"), 8, 2, noise_multiplier=2.0, grid=GRID, dimension=5)
    assert charged.mu == pytest.approx(plain.mu + 2 * expected.mu, rel=1e-12)
    assert charged.mu > plain.mu
    assert charged.tail == expected.tail > 0
    assert charged == tff_mf.guarantee(
        tff_mf.BLT.production("b400"), 8, PARTICIPATION, noise_multiplier=2.0, grid=GRID, dimension=5
    )
    restarted = queries.RestartedQuery(build(mechanism=tff_mf.Tree(4)), restart_every=4)
    without = queries.RestartedQuery(build(None, mechanism=tff_mf.Tree(4)), restart_every=4)
    assert restarted.dp_event(8, PARTICIPATION).noise_multiplier < without.dp_event(8, PARTICIPATION).noise_multiplier
    counted = adaptive().guarantee(8, PARTICIPATION, restart_every=4)
    assert counted.mu > adaptive(None).guarantee(8, PARTICIPATION, restart_every=4).mu
    sums = build(mechanism=tff_mf.Tree(4)).guarantee(8, PARTICIPATION, restart_every=4)
    # Also that of the counts.
    assert counted.tail > sums.tail


def test_the_clip_norm_adapts_on_a_grid_as_in_floating_point():
    norms = {}
    for grid in (None, GRID):
        query = queries.RestartedQuery(adaptive(grid, learning_rate=0.7), restart_every=2)
        state = query.initial_global_state()
        for _ in range(2):
            result, state, _ = query.get_noised_result(sampled(query, state, records(2, 100.0)), state)
        norms[grid] = float(state.inner_query_state.clip_norm)
        # The next sums are in units of the new norm.
        sample = sampled(query, state, records(1, 100.0))
        result, state, _ = query.get_noised_result(sample, state)
        metrics = query.derive_metrics(state)
        assert float(metrics["noise_stddev"]) == pytest.approx(2 * norms[grid])
    # No record was below the norm: exp(0.7·0.5).
    assert norms[None] == pytest.approx(0.3 * np.exp(0.35), rel=0.02)
    assert norms[GRID] == pytest.approx(norms[None], rel=0.02)
    assert np.all(np.isfinite(result["b"]))


def test_only_a_grid_lets_the_server_enforce_an_adaptive_clip_norm():
    with pytest.raises(ValueError, match="only clients can enforce"):
        adaptive(None).clip_again(({"a": tf.zeros([3]), "b": tf.zeros([2])}, tf.constant(0.5)))
