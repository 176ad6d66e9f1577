"""Mistakes around the aggregator: each is refused with its remedy, warned about, found by the check, or harmless."""

import warnings

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.aggregators.factories import factory

ALGORITHMS = tff.learning.algorithms
SGD = tff.learning.optimizers.build_sgdm
VALUE = tff.TensorType(np.float32, [2])
ONE = np.ones(2, np.float32)
AS_WEIGHTED = r"takes no weights.*as_weighted_aggregator.*counts each client equally"


def ours(mechanism=None, **changes):
    arguments = {"clip_norm": 1.0, "noise_multiplier": 1.0, "clients_per_round": 2, "grid": "auto", **changes}
    return aggregators.build_mf_aggregator(mechanism or tff_mf.Tree(4, variant="full"), **arguments)


@pytest.fixture(scope="module", autouse=True)
def resident():
    with aggregators.resident_context():
        yield


def stepped(process, state=None, clients=(ONE,), rounds=1):
    state = process.initialize() if state is None else state
    for _ in range(rounds):
        output = process.next(state, list(clients))
        state = output.state
    return output


WEIGHTED = {
    "FedAvg": lambda model: ALGORITHMS.build_weighted_fed_avg(model, SGD(0.1), model_aggregator=ours()),
    "FedProx": lambda model: ALGORITHMS.build_weighted_fed_prox(model, 0.1, SGD(0.1), model_aggregator=ours()),
    "FedSGD": lambda model: ALGORITHMS.build_fed_sgd(model, model_aggregator=ours()),
    "Mime Lite": lambda model: ALGORITHMS.build_weighted_mime_lite(model, SGD(0.1), model_aggregator=ours()),
}


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("algorithm", WEIGHTED)
def test_an_algorithm_with_weights_refuses_and_names_the_remedy(algorithm, regression):
    with pytest.raises(TypeError, match=AS_WEIGHTED):
        WEIGHTED[algorithm](regression.model)


# What is done, and the type and words of the error.
REFUSED = {
    "one round more": (lambda: stepped(ours(rounds=1).create(VALUE), rounds=2), ValueError, "rounds= to build_mf"),
    "state of other noise": (
        lambda: stepped(ours().create(VALUE), ours(noise_multiplier=2.0).create(VALUE).initialize()),
        tff_mf.InputError,
        r"^This state is of other noise .*Continue it with the arguments",
    ),
    "more clients than the grid has room for": (
        lambda: stepped(ours(grid=tff_mf.Grid(bits=16, max_clients=2)).create(VALUE), clients=[ONE] * 3),
        tff_mf.InputError,
        r"^More than max_clients=2 .*Grid of more clients",
    ),
    "update of another dimension": (
        lambda: stepped(ours().create(VALUE), clients=[np.ones(3, np.float32)]),
        TypeError,
        r"shape \(3,\)",
    ),
    "state of another dimension": (
        lambda: stepped(ours().create(VALUE), ours().create(tff.TensorType(np.float32, [3])).initialize()),
        TypeError,
        r"shape \(3,\)",
    ),
    "a dimension that is not known": (
        lambda: ours().create(tff.TensorType(np.float32, [None])),
        tff_mf.InputError,
        "shape",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_refused(name):
    call, kind, words = REFUSED[name]
    with pytest.raises(kind, match=words) as caught:
        call()
    assert "debug_error_string" not in str(caught.value)


BLT = tff_mf.BLT.production("b400")
ENDLESS = tff_mf.BLT(theta=[0.9], omega=[0.2])
# Arguments, and those that the warning names.
WARNED = {
    "no grid": (BLT, {"grid": None}, {"grid"}),
    "no rounds": (ENDLESS, {}, {"rounds"}),
    "no rounds, with restarts": (BLT, {"restart_every": 8}, {"rounds"}),
    "neither": (ENDLESS, {"grid": None}, {"grid", "rounds"}),
    "both": (ENDLESS, {"rounds": 10}, set()),
    "rounds of the optimization": (BLT, {}, set()),
    "rounds of the mechanism": (tff_mf.Tree(4, variant="full"), {}, set()),
    "seed": (ENDLESS, {"grid": None, "insecure_seed": 1}, set()),
    "no noise": (ENDLESS, {"grid": None, "noise_multiplier": 0.0}, set()),
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


def test_what_this_package_builds_for_itself_warns_of_nothing(regression):
    """`check_process` builds the claim without rounds, and of the grid as it is given."""
    factory._tell.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", aggregators.WeakGuaranteeWarning)
        with pytest.raises(TypeError, match="LearningProcess"):
            aggregators.check_process(
                None, ENDLESS, clip_norm=1.0, noise_multiplier=1.0, clients_per_round=2, clients=regression.clients
            )
