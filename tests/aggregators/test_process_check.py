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
from tff_mf.aggregators.process_check import check as checking
from tff_mf.aggregators.process_check import laws, rounds

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


def beside_the_model(process, aggregator, examples=None):
    """Makes the checks of `check_process` without large cohorts: metrics, state and fingerprint."""
    findings = laws.Findings()
    examples = list(clients()) if examples is None else examples
    laws.metrics_and_state(rounds.Probe(process), examples, fingerprint=aggregator.fingerprint, findings=findings)
    return findings.result()


def told(checked, name):
    return [finding for finding in checked.findings if finding.name == name]


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
    return laws.by_path(banded_process.initialize()._replace(global_model_weights=()))


def test_without_the_servers_rate_what_the_model_shows_is_not_judged():
    def rate(step):
        return 0.05 + 0.1 * tf.cast(step, tf.float32)

    scheduled = fed_avg(
        ours(), server_optimizer_fn=tff.learning.optimizers.schedule_learning_rate(SGDM(1.0, 0.9), rate)
    )
    checked = check(scheduled)
    assert checked.verdict == "not judged"
    assert {name for name, status in checked.statuses.items() if status == "passed"} == {
        *("metrics", "state", "fresh_noise"),
    }
    assert all("server_learning_rate=" in finding.remedy for finding in checked.findings)
    checked = check(scheduled, server_learning_rate=0.05)
    assert checked, str(checked)
    checked = check(scheduled, server_learning_rate=0.1)
    assert any("whitened" in finding.text for finding in told(checked, "noise")), str(checked)


def test_what_needs_more_clients_than_the_grid_has_room_for_is_not_judged_and_passes_with_more_room():
    claim = {"noise_multiplier": 0.5, "grid": tff_mf.Grid(bits=14, max_clients=10)}
    checked = check(fed_avg(ours(**claim)), **claim)
    assert (checked.verdict, checked.failed, checked.passed, bool(checked)) == ("not judged", False, False, False)
    # What rounds without clients show is judged all the same.
    unjudged = ["clipping", "divisor", "weights"]
    assert [name for name, status in checked.statuses.items() if status != "passed"] == unjudged
    assert str(checked).startswith("NOT JUDGED: clipping, divisor, weights ")
    larger = tff_mf.Grid(bits=14, max_clients=20)
    (told_once,) = [line for line in str(checked).splitlines() if repr(larger) in line]
    assert told_once.startswith("not judged: clipping, divisor, weights: A round of 20 clients")
    claim["grid"] = larger
    checked = check(fed_avg(ours(**claim)), **claim)
    assert (checked.verdict, checked.failed, checked.passed, bool(checked)) == ("passed", False, True, True), str(
        checked
    )
    assert str(checked).startswith("PASSED (")


def test_what_would_let_a_noisy_process_be_judged_does():
    for dimension, noise_multiplier in ((4_000_000, 20.0), (2, 1e4), (601, 101.0)):
        count = laws.count_for(noise_multiplier, dimension)
        text, remedy = checking.more_room(count, noise_multiplier, tff_mf.Grid(bits=14, max_clients=10))
        assert f"{count} clients" in text
        less = float(re.search(r"noise_multiplier=([^ ]+)", remedy).group(1))
        assert 0.9 * 4000 < laws.count_for(less, dimension) <= 4000
        assert "max_clients=4000)" in remedy
        assert "grid" not in checking.more_room(count, noise_multiplier, None)[1]


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
            total = tff.federated_map(mixed, (exact.result, output.result))
            states = tff.federated_zip((output.state, exact.state))
            return tff.templates.MeasuredProcessOutput(states, total, output.measurements)

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
    checked = check(build())
    assert (checked.verdict, checked.failed, checked.passed, bool(checked)) == ("failed", True, False, False)
    assert str(checked).startswith("FAILED: ")
    for which, remedy in failed.items():
        assert checked.statuses[which] == "failed", str(checked)
        assert any(remedy in finding.remedy for finding in told(checked, which)), str(checked)
        assert "critical" in {finding.severity for finding in told(checked, which)}


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
        findings = laws.Findings()
        laws.one_release(process_state, aggregator.fingerprint, findings)
        checked = findings.result()
        assert checked.statuses["noise"] == status, str(checked)
    assert "restart_every" in told(checked, "noise")[0].remedy


def test_foreign_noise_is_not_judged_and_seeds_from_the_clock_are_found():
    checked = check(fed_avg(tree_with_a_seed_of_the_clock()), tff_mf.Tree(8))
    (foreign,) = [finding for finding in told(checked, "noise") if "no noise of tff_mf" in finding.text]
    assert foreign.severity == "not judged"
    assert checked.statuses["fresh_noise"] == "failed", str(checked)
    assert any("build_mf_aggregator" in finding.remedy for finding in told(checked, "fresh_noise"))


def count_zeros(value):
    none = tff.tensorflow.computation(lambda update: tf.cast(tf.equal(tf.linalg.global_norm(update), 0), tf.int32))
    return {"zeros": tff.federated_sum(tff.federated_map(none, value))}


def test_metrics_that_change_only_with_invalid_clients_do_not_pass():
    """TFF makes the update of a client that is not finite zero, before an aggregator sees it."""
    counted = tff.aggregators.add_measurements(ours(), client_measurement_fn=count_zeros)
    (zeros, *_) = told(beside_the_model(fed_avg(counted), ours()), "metrics")
    assert zeros.severity == "critical"
    assert "NaN" in zeros.text


def of_integers():
    """A model of integers, of which no client with NaN can be made, with dropout."""
    layers = [tf.keras.layers.InputLayer(input_shape=(FEATURES,), dtype=tf.int32), tf.keras.layers.Rescaling(0.1)]
    return tff.learning.models.from_keras_model(
        tf.keras.Sequential([*layers, tf.keras.layers.Dropout(0.5), tf.keras.layers.Dense(1)]),
        loss=tf.keras.losses.MeanSquaredError(),
        input_spec=(tf.TensorSpec([None, FEATURES], tf.int32), tf.TensorSpec([None, 1], tf.int32)),
    )


def test_exact_state_that_also_varies_by_itself_does_not_pass():
    integers = [
        each.map(lambda x, y: (tf.cast(10 * x, tf.int32), tf.cast(10 * y, tf.int32))).cache() for each in clients()
    ]
    checked = beside_the_model(mime_lite(of_integers), ours(), integers)
    assert checked.statuses["state"] == "not judged", str(checked)
    (finding,) = told(checked, "state")
    assert "client_work/0/accumulator" in finding.text
    assert "full_gradient_aggregator" in finding.remedy


def test_two_noised_releases_do_not_pass():
    checked = beside_the_model(mime_lite(full_gradient_aggregator=ours()), ours())
    critical = [finding for finding in told(checked, "state") if finding.severity == "critical"]
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
    findings = laws.Findings()
    laws.one_release(laws.by_path({"aggregator": state}), ours().fingerprint, findings)
    checked = findings.result()
    assert checked.statuses["state"] == "failed", str(checked)
    (finding,) = [finding for finding in told(checked, "state") if finding.severity == "critical"]
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
