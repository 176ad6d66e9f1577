"""`check_process` passes processes that keep their claims, and finds faults in others."""

import re
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

import tff_mf
from tff_mf import aggregators, queries
from tff_mf.aggregators.process_check import _bound, _check, _clients, _noise, _probe
from tff_mf.aggregators.resident.cohort_graph import NotInOneGraphError

CLAIM = types.MappingProxyType({"clip_norm": 1.0, "noise_multiplier": 0.1, "clients_per_round": 4})
BLT = tff_mf.BLT.production("b400")
BANDED = tff_mf.BandedToeplitz.square_root(3)
SGDM = tff.learning.optimizers.build_sgdm
LOOP = tff.learning.LoopImplementation.DATASET_ITERATOR
# One layer, to save time, with so many weights that two runs are enough to measure the noise.
FEATURES = 600
SPECS = [tf.TensorSpec([FEATURES, 1]), tf.TensorSpec([1])]


def clients(count=3):
    generator = np.random.default_rng(0)
    for _ in range(count):
        features = generator.normal(size=(4, FEATURES)).astype(np.float32)
        targets = features[:, :5] @ np.ones((5, 1), np.float32)
        yield tf.data.Dataset.from_tensor_slices((features, targets)).batch(4)


def model(*layers):
    return tff.learning.models.from_keras_model(
        tf.keras.Sequential([tf.keras.layers.InputLayer(input_shape=(FEATURES,)), *layers, tf.keras.layers.Dense(1)]),
        loss=tf.keras.losses.MeanSquaredError(),
        input_spec=(tf.TensorSpec([None, FEATURES]), tf.TensorSpec([None, 1])),
    )


def dropout_model():
    return model(tf.keras.layers.Dropout(0.5))


def ours(mechanism=BLT, **changes):
    return aggregators.build_mf_aggregator(mechanism, **{**CLAIM, **changes})


def fed_avg(aggregator, model_fn=model, **changes):
    arguments = {
        "client_optimizer_fn": SGDM(0.1),
        "server_optimizer_fn": SGDM(0.5, 0.9),
        "metrics_aggregator": aggregators.withhold_metrics,
        "loop_implementation": LOOP,
        **changes,
    }
    build = tff.learning.algorithms.build_unweighted_fed_avg
    if isinstance(aggregator, tff.aggregators.WeightedAggregationFactory):
        build = tff.learning.algorithms.build_weighted_fed_avg
    return build(model_fn, model_aggregator=aggregator, **arguments)


def mime_lite(model_fn=model, **changes):
    return tff.learning.algorithms.build_unweighted_mime_lite(
        model_fn,
        base_optimizer=SGDM(0.1, 0.9),
        server_optimizer=SGDM(0.5, 0.9),
        model_aggregator=ours(),
        metrics_aggregator=aggregators.withhold_metrics,
        loop_implementation=LOOP,
        **changes,
    )


def check(process, mechanism=BLT, **changes):
    return aggregators.check_process(process, mechanism, clients=list(clients()), **{**CLAIM, **changes})


def beside_the_model(process, aggregator):
    """Makes the checks of `check_process` without large cohorts: metrics, state and fingerprint."""
    findings = _probe.Findings()
    cohorts = _clients.neighbours(list(clients()), None)
    _clients.check_leaves(
        _probe.Probe(process, None, tff.framework.get_context_stack().current),
        cohorts,
        aggregator.fingerprint,
        findings,
    )
    return findings.result()


def told(result, name):
    return [finding for finding in result.findings if finding.name == name]


def in_tffs_own_factory(clip_norm=1.0, query=queries.build_query):
    """Our query in TFF's own factory, which does not notice the factories around it."""
    return tff.aggregators.DifferentiallyPrivateFactory(
        query(BLT, record_specs=SPECS, clip_norm=clip_norm, noise_multiplier=0.1)
    )


@pytest.fixture(scope="module", autouse=True)
def resident():
    """The context of all tests that name no other: a round takes two thirds of the time."""
    with aggregators.resident_context():
        yield


@pytest.fixture(scope="module")
def process():
    return fed_avg(ours())


@pytest.fixture(scope="module")
def banded_process():
    return fed_avg(ours(BANDED))


@pytest.fixture(scope="module")
def process_state(banded_process):
    return _clients.by_path(banded_process.initialize()._replace(global_model_weights=()))


def test_repeated_rounds_are_those_of_the_process(monkeypatch):
    """With equal keys, one computation for all runs adds the noise of the process called round by round."""
    probe = _probe.Probe(fed_avg(ours(insecure_seed=3)), None, tff.framework.get_context_stack().current)
    run = [seen.change for seen in probe.noise(3)]
    expected = np.concatenate([run, run], axis=1)
    assert np.all(np.std(expected, axis=1) > 0)
    np.testing.assert_array_equal(probe.noise_of_runs(2, 3), expected)

    def refuse(*_, **__):
        raise NotInOneGraphError("a variable may be read before it has a value")

    monkeypatch.setattr(_probe._chains, "changes", refuse)
    np.testing.assert_array_equal(probe.noise_of_runs(2, 3), expected)


@pytest.mark.parametrize("grid", [None, tff_mf.Grid(bits=16, max_clients=4)])
def test_digits_recognize_floating_point_and_another_grid(grid):
    query = queries.build_query(
        tff_mf.Identity(), record_specs=tf.TensorSpec([40_000]), clip_norm=0.3, noise_multiplier=7.379, grid=grid
    )
    sample = query.initial_sample_state()
    row, _, _ = query.get_noised_result(sample, query.initial_global_state())
    # As a model of weights 0 changes.
    change = (row.numpy() / np.float32(7)) * np.float32(0.1)
    unit = float(query.derive_sample_params(None)) / 7 * float(np.float32(0.1))
    for bits in (15, 16, 17):
        findings, claimed = _probe.Findings(), tff_mf.Grid(bits=bits, max_clients=4)
        _noise.check_digits(change.astype(np.float64), unit=unit, grid=claimed, findings=findings)
        criticals = [finding for finding in findings.result().findings if finding.severity == "critical"]
        # Multiples of 2⁻¹⁶ are multiples of 2⁻¹⁷.
        assert bool(criticals) == (grid is None or bits < grid.bits)


# Long: processes of a known rate take the same path, but for one division.
@pytest.mark.long
def test_an_unknown_server_rate_is_estimated():
    def rate(step):
        return 0.05 + 0.1 * tf.cast(step, tf.float32)

    scheduled = fed_avg(
        ours(), server_optimizer_fn=tff.learning.optimizers.schedule_learning_rate(SGDM(1.0, 0.9), rate)
    )
    result = check(scheduled)
    assert result, str(result)
    result = check(scheduled, noise_multiplier=0.2)
    assert any("whitened" in finding.text for finding in told(result, "noise")), str(result)


def test_what_needs_more_clients_than_the_grid_has_room_for_is_not_judged_and_passes_with_more_room():
    claim = {"noise_multiplier": 0.5, "grid": tff_mf.Grid(bits=14, max_clients=10)}
    result = check(fed_avg(ours(**claim)), **claim)
    assert (result.verdict, result.failed, result.passed, bool(result)) == ("not judged", False, False, False)
    # What rounds without clients show is judged all the same.
    unjudged = ["clipping", "divisor", "weights"]
    assert [name for name, status in result.statuses.items() if status != "passed"] == unjudged
    assert str(result).startswith("NOT JUDGED: clipping, divisor, weights ")
    larger = tff_mf.Grid(bits=14, max_clients=20)
    (told_once,) = [line for line in str(result).splitlines() if repr(larger) in line]
    assert told_once.startswith("not judged: clipping, divisor, weights: A round of 20 clients")
    claim["grid"] = larger
    result = check(fed_avg(ours(**claim)), **claim)
    assert (result.verdict, result.failed, result.passed, bool(result)) == ("passed", False, True, True), str(result)
    assert str(result).startswith("PASSED (")


def test_what_would_let_a_noisy_process_be_judged_does():
    for dimension, noise_multiplier in ((4_000_000, 20.0), (2, 1e4), (601, 101.0)):
        count = _bound.count_for(noise_multiplier, dimension)
        text, remedy = _check._more_room(count, noise_multiplier, tff_mf.Grid(bits=14, max_clients=10))
        assert f"{count} clients" in text
        less = float(re.search(r"noise_multiplier=([^ ]+)", remedy).group(1))
        assert 0.9 * 4000 < _bound.count_for(less, dimension) <= 4000
        assert "max_clients=4000)" in remedy
        assert "grid" not in _check._more_room(count, noise_multiplier, None)[1]


class LeavesTheKernelsWithoutNoise(tff.aggregators.UnweightedAggregationFactory):
    def create(self, value_type):
        noised = ours().create(value_type)
        plain = tff.aggregators.clipping_factory(1.0, tff.aggregators.SumFactory()).create(value_type)
        mixed = tff.tensorflow.computation(lambda exact, private: type(private)([exact[0] / 4, private[1]]))

        @tff.federated_computation
        def start():
            return tff.federated_zip((noised.initialize(), plain.initialize()))

        @tff.federated_computation(start.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS))
        def advance(state, value):
            output, exact = noised.next(state[0], value), plain.next(state[1], value)
            result = tff.federated_map(mixed, (exact.result, output.result))
            states = tff.federated_zip((output.state, exact.state))
            return tff.templates.MeasuredProcessOutput(states, result, output.measurements)

        return tff.templates.AggregationProcess(start, advance)


def tree_with_a_seed_of_the_clock():
    query = tfp.TreeResidualSumQuery.build_l2_gaussian_query(1.0, 0.1, SPECS)
    return tff.aggregators.DifferentiallyPrivateFactory(tfp.NormalizedQuery(query, denominator=4.0))


# Faults: how to build the process, and the checks that have to fail, with a word of the remedy.
FAULTS = {
    "exact metrics, no clipping": (
        lambda: fed_avg(ours(clip_norm=1e4, noise_multiplier=1e-5), metrics_aggregator=None),
        {"metrics": "metrics_aggregator", "clipping": "clip_norm"},
    ),
    "mean around": (lambda: fed_avg(tff.aggregators.MeanFactory(ours())), {"divisor": "MeanFactory"}),
    "unweighted mean around": (
        lambda: fed_avg(tff.aggregators.UnweightedMeanFactory(ours())),
        {"divisor": "MeanFactory"},
    ),
    "debug measurement, repeated noise": (
        lambda: fed_avg(tff.learning.add_debug_measurements(ours(insecure_seed=3))),
        {"metrics": "add_debug_measurements", "fresh_noise": "insecure_seed"},
    ),
    "zeroing, with its counts": (
        lambda: fed_avg(tff.aggregators.zeroing_factory(1e-3, ours())),
        {"metrics": "withhold_measurements"},
    ),
    "noise on a part": (lambda: fed_avg(LeavesTheKernelsWithoutNoise()), {"noise": "all trainable weights"}),
    "no noise": (lambda: fed_avg(tff.aggregators.UnweightedMeanFactory()), {"noise": "build_mf_aggregator"}),
}


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_the_remedy_names_the_argument(name):
    build, failed = FAULTS[name]
    result = check(build())
    assert (result.verdict, result.failed, result.passed, bool(result)) == ("failed", True, False, False)
    assert str(result).startswith("FAILED: ")
    for which, remedy in failed.items():
        assert result.statuses[which] == "failed", str(result)
        assert any(remedy in finding.remedy for finding in told(result, which)), str(result)
        assert "critical" in {finding.severity for finding in told(result, which)}


# Claims that neither the rounds nor the fingerprint of our process keep.
CLAIMS = {
    # By a ninth more, χ² of these few rounds is passed once in 40,000 times.
    "a seventh more noise": {"noise_multiplier": 0.1 / 0.875},
    "independent noise": {"mechanism": tff_mf.Identity()},
}


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("name", CLAIMS)
def test_noise_that_differs_from_the_claim_is_found(process, name):
    found = told(check(process, **CLAIMS[name]), "noise")
    assert {finding.severity for finding in found} == {"critical"}
    assert "mechanism" in found[0].remedy
    assert "noise_multiplier" in found[0].remedy
    for seen in ("whitened", "fingerprint"):
        assert any(seen in finding.text for finding in found), found


@pytest.mark.parametrize("claim", ["restarts", "fifth round"])
def test_noise_that_differs_after_the_measured_rounds_is_found(process_state, claim):
    later = tff_mf.BandedToeplitz(column=[*BANDED.column, 0.0, 0.1])
    other = ours(BANDED, restart_every=4) if claim == "restarts" else ours(later)
    for aggregator, status in ((ours(BANDED), "not judged"), (other, "failed")):
        findings = _probe.Findings()
        _noise.check(process_state, aggregator.fingerprint, findings)
        result = findings.result()
        assert result.statuses["noise"] == status, str(result)
    assert "restart_every" in told(result, "noise")[0].remedy


def test_foreign_noise_is_not_judged_and_seeds_from_the_clock_are_found():
    result = check(fed_avg(tree_with_a_seed_of_the_clock()), tff_mf.Tree(8))
    (foreign,) = [finding for finding in told(result, "noise") if "no noise of tff_mf" in finding.text]
    assert foreign.severity == "not judged"
    assert result.statuses["fresh_noise"] == "failed", str(result)
    assert any("build_mf_aggregator" in finding.remedy for finding in told(result, "fresh_noise"))


def count_zeros(value):
    none = tff.tensorflow.computation(lambda update: tf.cast(tf.equal(tf.linalg.global_norm(update), 0), tf.int32))
    return {"zeros": tff.federated_sum(tff.federated_map(none, value))}


def test_metrics_that_change_only_with_invalid_clients_do_not_pass():
    """TFF makes the update of a client that is not finite zero, before an aggregator sees it."""
    rejected = beside_the_model(fed_avg(aggregators.count_rejected(ours())), ours())
    assert rejected.statuses["metrics"] == "not judged"
    counted = tff.aggregators.add_measurements(ours(), client_measurement_fn=count_zeros)
    (zeros, *_) = told(beside_the_model(fed_avg(counted), ours()), "metrics")
    assert zeros.severity == "critical"
    assert "NaN" in zeros.text


def test_exact_state_that_also_varies_by_itself_does_not_pass(monkeypatch):
    """As with data of integers, of which no client with NaN can be made."""
    monkeypatch.setattr(_clients, "poisoned", lambda client: None)
    result = beside_the_model(mime_lite(dropout_model), ours())
    assert result.statuses["state"] == "not judged", str(result)
    (finding,) = told(result, "state")
    assert "client_work/0/accumulator" in finding.text
    assert "full_gradient_aggregator" in finding.remedy
    assert "metrics_aggregator" not in finding.remedy


def test_two_noised_releases_do_not_pass():
    result = beside_the_model(mime_lite(full_gradient_aggregator=ours()), ours())
    critical = [finding for finding in told(result, "state") if finding.severity == "critical"]
    assert any("client_work/1" in finding.text and "full_gradient" in finding.remedy for finding in critical)


def adaptive_clipping():
    return ours(restart_every=4, adaptive_clipping=queries.AdaptiveClipping(count_stddev=0.01))


def far_and_exact():
    # No made-up update is as long, so that the estimate would seem constant.
    quantile = tff.aggregators.PrivateQuantileEstimationProcess.no_noise(1e6, 0.98, 0.2)
    return aggregators.withhold_measurements(tff.aggregators.zeroing_factory(quantile, ours()))


def noised_quantile():
    query = tfp.QuantileEstimatorQuery(10.0, 0.5, 0.2, 0.01, 4, geometric_update=True)
    quantile = tff.aggregators.PrivateQuantileEstimationProcess(query)
    return aggregators.withhold_measurements(tff.aggregators.clipping_factory(quantile, ours()))


# Aggregators that release more than the model's noised aggregate: words of the finding and of its remedy.
ADAPTIVE = {
    "ours": (adaptive_clipping, "clip_norm and noise_multiplier alone", "adaptive_clipping"),
    "exact zeroing": (far_and_exact, "zeroing_norm", "constant bound"),
    "noised clipping": (noised_quantile, "clipping_norm", "constant bound"),
}


@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive_bounds_are_found_in_the_state(name):
    build, seen, remedy = ADAPTIVE[name]
    state = build().create(tff.types.to_type([(np.float32, [3])])).initialize()
    findings = _probe.Findings()
    _noise.check(_clients.by_path({"aggregator": state}), ours().fingerprint, findings)
    result = findings.result()
    assert result.statuses["state"] == "failed", str(result)
    (finding,) = [finding for finding in told(result, "state") if finding.severity == "critical"]
    assert seen in finding.text
    assert remedy in finding.remedy


def test_bad_arguments_are_refused(process):
    arguments = {**CLAIM, "clients": list(clients())}
    for name, value in (("clip_norm", 0), ("noise_multiplier", 0), ("clients", []), ("server_learning_rate", -1.0)):
        with pytest.raises(ValueError, match=name):
            aggregators.check_process(process, BLT, **{**arguments, name: value})
    for given, mechanism, name in ((ours(), BLT, "LearningProcess"), (process, 3, "mechanism")):
        with pytest.raises(TypeError, match=name):
            aggregators.check_process(given, mechanism, **arguments)
