"""Runs on Flower on a grid: integers of nodes, exact sums, integer noise, and what their files say of it."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod

import tff_mf
from tff_mf.experiments import flower
from tff_mf.experiments.flower import clipping, mods
from tff_mf.experiments.runs import ledger
from tff_mf.experiments.runs.names import LEDGER

from . import fleet
from .fleet import (
    ARRAYS,
    BITS,
    CLIP,
    COHORT,
    NAMES,
    ROUNDS,
    Fleet,
    arrays_of,
    flat,
    in_integers,
    plan_of,
    record,
    rows,
    sent,
    steps,
    trained,
)

UNIT = CLIP * 2.0**-BITS


def opened(folder, plan=None, replies="integers", floating_point=False, **more):
    return fleet.opened(folder, plan, replies=replies, floating_point=floating_point, **more)


def test_a_cohort_without_integers_stops_the_run_before_its_round_is_released(tmp_path):
    with opened(tmp_path) as strategy:
        with pytest.raises(RuntimeError, match=r"3 of 3 replies were refused \(dtype: 3\).*integers_mod"):
            strategy.start(Fleet(NAMES, trained))
        assert strategy.rounds_released == 0
    assert ledger.read_ledger(tmp_path / LEDGER).reports == {}
    with opened(tmp_path) as strategy:
        strategy.start(Fleet(NAMES, in_integers), num_rounds=2)
        assert strategy.rounds_released == 2


def exact_square(leaves):
    return sum(int(value) ** 2 for leaf in leaves for value in np.ravel(leaf))


def test_released_models_are_exact_integers_of_the_definition(tmp_path):
    """Each mean is (sum of the nodes' integers + the row of the stream's integers)·g/m, to the bit; then momentum."""
    models, plan = {0: ARRAYS}, plan_of(insecure_seed=5).for_model(15)
    optimizer, velocity = flower.ServerOptimizer(learning_rate=0.5, momentum=0.75), np.zeros(15, np.float32)
    chosen = {}

    def answer(name, arrays, config):
        chosen.setdefault(config["server-round"], []).append(name)
        return in_integers(name, arrays, config)

    for life in (2, ROUNDS):
        with opened(tmp_path, plan, draw=fleet.repeatable, optimizer=optimizer) as strategy:
            strategy.start(
                Fleet(NAMES, answer, life=life),
                num_rounds=life,
                evaluate_fn=lambda number, arrays: models.update({number: arrays_of(arrays)}),
            )
    stream = tff_mf.noise.numpy.build_stream(
        plan.mechanism, dimension=15, stddev=4.0, insecure_seed=5, grid=plan.grid, generator="aes"
    )
    state, norms = stream.init(), []
    for number in range(1, ROUNDS + 1):
        row, state = stream.next(state)
        each = [sent(name, ARRAYS) for name in chosen[number]]
        norms += [exact_square(leaves.values()) for leaves in each]
        total = [sum(int(leaf) for leaf in column) for column in zip(*(flat(leaves) for leaves in each), strict=True)]
        exact = np.array([one + int(other) for one, other in zip(total, row, strict=True)], np.float64)
        mean = (exact * UNIT).astype(np.float32) / np.float32(COHORT)
        velocity = np.float32(0.75) * velocity - mean
        np.testing.assert_array_equal(flat(models[number]), flat(models[number - 1]) - np.float32(0.5) * velocity)
    assert 0.5 * 4**BITS < max(norms) <= 4**BITS


@pytest.mark.parametrize("replies", ["model", "update"])
def test_floats_become_the_same_integers_on_the_server(tmp_path, replies):
    def answer(name, arrays, config):
        assert not set(config) & {mods.BITS, mods.TYPE, mods.CLIP_NORM}
        return steps(name, arrays) if replies == "update" else trained(name, arrays, config)

    draw, found = fleet.repeatable, {}
    for kind, reply in ((replies, answer), ("integers", in_integers)):
        folder = tmp_path / kind
        with opened(folder, plan_of(insecure_seed=2, rounds=1), kind, draw=draw) as strategy:
            found[kind] = arrays_of(strategy.start(Fleet(NAMES, reply)).arrays)
    for name in ARRAYS:
        # The difference of two models has rounding errors that the update itself has not.
        np.testing.assert_allclose(
            found[replies][name], found["integers"][name], atol=UNIT if replies == "model" else 0
        )


@pytest.mark.parametrize("replies", ["integers", "model"])
def test_a_stopped_run_keeps_its_arithmetic_and_goes_on_with_the_same_noise_and_rules(tmp_path, replies):
    answer = in_integers if replies == "integers" else trained
    floats = {"replies": replies, "floating_point": replies == "model"}
    whole, parts = fleet.lives(tmp_path, plan_of(insecure_seed=1), answer, **floats)
    assert [array.data for array in parts.values()] == [array.data for array in whole.values()]
    assert rows(tmp_path / "whole") == rows(tmp_path / "parts")


def ask(app, config, arrays=ARRAYS):
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.node_id = 7
    content = RecordDict({"arrays": record(**arrays), "config": ConfigRecord(config)})
    message = Message(content, 7, "train")
    message.metadata.__dict__["_message_id"] = "one"
    return app(message, Context(run_id=1, node_id=7, node_config={}, state=RecordDict(), run_config={}))


def test_the_mod_sends_what_the_server_would_make_of_the_model():
    app = ClientApp(mods=[mods.integers_mod, fixedclipping_mod])

    @app.train()
    def train(message, context):
        model = {name: array.numpy() for name, array in message.content["arrays"].items()}
        return Message(
            RecordDict(
                {"arrays": record(**{name: value + 10 * steps("node 3", model)[name] for name, value in model.items()})}
            ),
            reply_to=message,
        )

    plain = {"clipping_norm": 0.9999 * CLIP}
    asked = {**plain, mods.BITS: BITS, mods.TYPE: "int32", mods.CLIP_NORM: CLIP}
    found = {name: array.numpy() for name, array in ask(app, asked).content["arrays"].items()}
    assert {value.dtype for value in found.values()} == {np.dtype("int32")}
    assert 0.99 * 4**BITS < exact_square(found.values()) <= 4**BITS
    floats = {name: array.numpy() - ARRAYS[name] for name, array in ask(app, plain).content["arrays"].items()}
    again = clipping.as_integers(floats, np.float32(CLIP), bits=BITS, dtype=np.dtype("int32"))
    for name, value in again.items():
        np.testing.assert_array_equal(found[name], value)
