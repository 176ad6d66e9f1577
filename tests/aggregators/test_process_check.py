"""What a privacy reviewer runs first: it passes what keeps its promise, and names what does not."""

import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

import tff_mf
from tff_mf import aggregators, queries

CLAIM = types.MappingProxyType({"clip_norm": 1.0, "noise_multiplier": 0.1, "clients_per_round": 4})
BLT = tff_mf.BLT.production("b400")
SGDM = tff.learning.optimizers.build_sgdm
LOOP = tff.learning.LoopImplementation.DATASET_ITERATOR
SPECS = [tf.TensorSpec([5, 40]), tf.TensorSpec([40]), tf.TensorSpec([40, 1]), tf.TensorSpec([1])]


def clients(count=3):
    generator = np.random.default_rng(0)
    for _ in range(count):
        features = generator.normal(size=(16, 5)).astype(np.float32)
        targets = features @ np.ones((5, 1), np.float32)
        yield tf.data.Dataset.from_tensor_slices((features, targets)).batch(16)


def model():
    layers = [tf.keras.layers.InputLayer(input_shape=(5,)), tf.keras.layers.Dense(40), tf.keras.layers.Dense(1)]
    return tff.learning.models.from_keras_model(
        tf.keras.Sequential(layers),
        loss=tf.keras.losses.MeanSquaredError(),
        input_spec=(tf.TensorSpec([None, 5]), tf.TensorSpec([None, 1])),
    )


def ours(mechanism=BLT, **changes):
    return aggregators.build_mf_aggregator(mechanism, **{**CLAIM, **changes})


def fed_avg(aggregator, **changes):
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
    return build(model, model_aggregator=aggregator, **arguments)


def fed_sgd(aggregator):
    return tff.learning.algorithms.build_fed_sgd(
        model,
        server_optimizer_fn=SGDM(0.5, 0.9),
        model_aggregator=aggregator,
        metrics_aggregator=aggregators.withhold_metrics,
        loop_implementation=LOOP,
    )


def check(process, mechanism=BLT, **changes):
    return aggregators.check_process(process, mechanism, clients=list(clients()), **{**CLAIM, **changes})


def in_tffs_own_factory(clip_norm=1.0, query=queries.build_query):
    """The sum of our query in TFF's own factory: nothing of ours can notice what is built around it."""
    return tff.aggregators.DifferentiallyPrivateFactory(
        query(BLT, record_specs=SPECS, clip_norm=clip_norm, noise_multiplier=0.1)
    )


MECHANISMS = {
    "blt": BLT,
    "banded": tff_mf.BandedToeplitz.square_root(3),
    "tree": tff_mf.Tree(8, variant="full"),
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_our_own_process_passes(name):
    result = check(fed_avg(ours(MECHANISMS[name])), MECHANISMS[name])
    assert result.passed, str(result)
    assert set(result.statuses.values()) == {"passed"}
    assert str(result).startswith("passed")


def test_it_passes_in_a_resident_context():
    with aggregators.resident_context():
        result = check(fed_avg(ours()))
    assert result.passed, str(result)


def test_fed_sgd_passes_and_so_do_wrappers_that_change_nothing():
    result = check(fed_sgd(tff.aggregators.as_weighted_aggregator(ours())))
    assert result.passed, str(result)
    result = check(fed_avg(tff.aggregators.as_weighted_aggregator(ours())))
    assert result.passed, str(result)


def test_measurements_that_are_withheld_are_none():
    zeroing = tff.aggregators.zeroing_factory(0.01, ours())
    loud, silent = check(fed_avg(zeroing)), check(fed_avg(aggregators.withhold_measurements(zeroing)))
    assert loud.statuses["metrics"] == "failed"
    assert any("withhold_measurements" in finding.remedy for finding in loud.findings)
    assert silent.statuses["metrics"] == "passed"


def test_the_rate_is_found_where_the_process_does_not_say_it():
    def rate(step):
        return 0.05 + 0.1 * tf.cast(step, tf.float32)

    server = tff.learning.optimizers.schedule_learning_rate(SGDM(1.0, 0.9), rate)
    result = check(fed_avg(ours(), server_optimizer_fn=server))
    assert result.passed, str(result)
    result = check(fed_avg(ours(noise_multiplier=0.05), server_optimizer_fn=server))
    assert result.statuses["noise"] == "failed"


class ExamplesCountTwice(tff.aggregators.WeightedAggregationFactory):
    """Clips, weighs what was clipped by the number of examples, and adds the noise of a query that clips no more."""

    def create(self, value_type, weight_type):
        clip = tff.tensorflow.computation(lambda value: tf.clip_by_global_norm(value, 1.0)[0], value_type)
        noised = in_tffs_own_factory(clip_norm=1e6, query=quietly).create(value_type)

        @tff.federated_computation(
            noised.state_type, tff.FederatedType(value_type, tff.CLIENTS), tff.FederatedType(weight_type, tff.CLIENTS)
        )
        def advance(state, value, weight):
            clipped = tff.federated_map(clip, value)
            weighted = tff.tensorflow.computation(
                lambda value, weight: tf.nest.map_structure(lambda leaf: leaf * weight, value)
            )
            return noised.next(state, tff.federated_map(weighted, (clipped, weight)))

        return tff.templates.AggregationProcess(noised.initialize, advance)


class LeavesTheKernelsWithoutNoise(tff.aggregators.UnweightedAggregationFactory):
    def create(self, value_type):
        noised = ours().create(value_type)
        plain = tff.aggregators.clipping_factory(1.0, tff.aggregators.SumFactory()).create(value_type)
        mixed = tff.tensorflow.computation(
            lambda exact, private: type(private)([exact[0] / 4, private[1], exact[2] / 4, private[3]])
        )

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


def quietly(mechanism, **arguments):
    return queries.build_query(mechanism, **{**arguments, "noise_multiplier": 0.1 / 4e6})


def tree_with_a_seed_of_the_clock():
    query = tfp.TreeResidualSumQuery.build_l2_gaussian_query(1.0, 0.1, SPECS)
    return tff.aggregators.DifferentiallyPrivateFactory(tfp.NormalizedQuery(query, denominator=4.0))


# What is wrong: how to build it, the check that has to fail, what its remedy names, and what else the claim is.
FAULTS = {
    "exact metrics": (lambda: fed_avg(ours(), metrics_aggregator=None), "metrics", "metrics_aggregator"),
    "mean around": (
        lambda: fed_avg(tff.aggregators.MeanFactory(in_tffs_own_factory())),
        "divisor",
        "MeanFactory",
    ),
    "unweighted mean around": (
        lambda: fed_avg(tff.aggregators.UnweightedMeanFactory(in_tffs_own_factory())),
        "divisor",
        "MeanFactory",
    ),
    "no clipping": (lambda: fed_avg(ours(clip_norm=1e4, noise_multiplier=1e-5)), "clipping", "clip_norm"),
    "half the noise": (lambda: fed_avg(ours(noise_multiplier=0.05)), "noise", "noise_multiplier"),
    "a tenth less noise": (lambda: fed_avg(ours(noise_multiplier=0.09)), "noise", "noise_multiplier"),
    "independent noise": (lambda: fed_avg(ours(tff_mf.Identity())), "noise", "mechanism"),
    "repeated noise": (lambda: fed_avg(ours(insecure_seed=3)), "fresh_noise", "insecure_seed"),
    "seed of the clock": (lambda: fed_avg(tree_with_a_seed_of_the_clock()), "fresh_noise", "build_mf_aggregator"),
    "debug measurement": (
        lambda: fed_avg(tff.learning.add_debug_measurements(ours())),
        "metrics",
        "add_debug_measurements",
    ),
    "noise on a part": (lambda: fed_avg(LeavesTheKernelsWithoutNoise()), "noise", "all trainable weights"),
    "weights": (lambda: fed_avg(ExamplesCountTwice()), "weights", "as_weighted_aggregator"),
    "no noise": (lambda: fed_avg(tff.aggregators.UnweightedMeanFactory()), "noise", "build_mf_aggregator"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_the_argument_named(name):
    build, failed, remedy = FAULTS[name]
    mechanism = tff_mf.Tree(8) if name == "seed of the clock" else BLT
    result = check(build(), mechanism)
    assert not result.passed
    assert result.statuses[failed] == "failed", str(result)
    found = [finding for finding in result.findings if finding.name == failed]
    assert any(remedy in finding.remedy for finding in found), str(result)
    assert "critical" in {finding.severity for finding in found}
    assert str(result).startswith("NOT passed")


def test_weights_are_found_where_no_bound_is_known():
    server = tff.learning.optimizers.schedule_learning_rate(SGDM(1.0), one)
    result = check(fed_avg(ExamplesCountTwice(), server_optimizer_fn=server))
    assert result.statuses["weights"] == "failed", str(result)
    assert not result.passed


def one(step):
    return 1.0 + 0.0 * tf.cast(step, tf.float32)


def test_what_cannot_be_seen_does_not_pass():
    adam = tff.learning.optimizers.build_adam(0.1)
    result = check(fed_avg(ours(), server_optimizer_fn=adam))
    assert not result.passed
    assert result.statuses["metrics"] == "passed"
    assert {result.statuses[name] for name in ("noise", "clipping", "divisor")} == {"not judged"}
    assert all("build_sgdm" in finding.remedy for finding in result.findings)


def test_bad_arguments_are_refused():
    process, arguments = fed_avg(ours()), {**CLAIM, "clients": list(clients())}
    for name, value in (("clip_norm", 0), ("noise_multiplier", 0), ("clients", []), ("server_learning_rate", -1.0)):
        with pytest.raises(ValueError, match=name):
            aggregators.check_process(process, BLT, **{**arguments, name: value})
    for given, mechanism, name in ((ours(), BLT, "LearningProcess"), (process, 3, "mechanism")):
        with pytest.raises(TypeError, match=name):
            aggregators.check_process(given, mechanism, **arguments)
