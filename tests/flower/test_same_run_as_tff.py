"""The run in TensorFlow Federated that benchmarks/flower_tff_reference.py stored, and the same one on Flower."""

import json
import pathlib

import numpy as np
import pytest

import tff_mf
import tff_mf.noise.numpy
from tff_mf.experiments import flower

from . import fleet
from .fleet import Fleet

RUN = np.load(pathlib.Path(__file__).with_name("tff_run.npz"))
ROUNDS, CLIENTS = RUN["update_w"].shape[:2]
CLIP_NORM, NOISE_MULTIPLIER = 0.5, 0.7
NAMES = [f"node {index}" for index in range(CLIENTS)]


class Negated:
    """Clients of TFF send the model that they were sent less the one that they trained; noise is added to that."""

    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def next(self, state):
        noise, after = self._stream.next(state)
        np.testing.assert_allclose(noise, RUN["noise"][int(state["round"])], rtol=1e-4, atol=1e-6)
        return -noise, after


PLAN = tff_mf.plan(
    mechanism=tff_mf.BLT.production("b100"),
    rounds=ROUNDS,
    sampling=tff_mf.MinSep(min_sep=1, max_participations=ROUNDS),
    delta=1e-3,
    clients_per_round=CLIENTS,
    noise_multiplier=NOISE_MULTIPLIER,
    insecure_seed=11,
    clip_norm=CLIP_NORM,
)


def opened(folder, arrays, replies="update", **more):
    # Other generators make other words of the same keys.
    return fleet.opened(folder, PLAN, replies=replies, generator="tensorflow", arrays=arrays, **more)


def answer(name, arrays, config):
    """From equal models, up to rounding: the updates are those that were computed in TFF."""
    number, node = config["server-round"] - 1, NAMES.index(name)
    return {"w": RUN["update_w"][number, node], "b": RUN["update_b"][number, node]}


def in_models(name, arrays, config):
    return {key: arrays[key] + value for key, value in answer(name, arrays, config).items()}


@pytest.mark.parametrize(
    ("replies", "answer", "stopped"), [("update", answer, False), ("update", answer, True), ("model", in_models, False)]
)
def test_models_are_equal_up_to_the_order_of_float32_sums(tmp_path, replies, answer, stopped):
    optimizer, models = flower.ServerOptimizer(learning_rate=0.8, momentum=0.9), {}
    for last in range(1, ROUNDS + 1) if stopped else [ROUNDS]:
        with opened(tmp_path, {"w": RUN["w"][0], "b": RUN["b"][0]}, replies, optimizer=optimizer) as strategy:
            strategy._stream = Negated(strategy._stream)
            strategy.start(Fleet(NAMES, answer), num_rounds=last, evaluate_fn=keeping(models))
    for number in range(1, ROUNDS + 1):
        for name in ("w", "b"):
            np.testing.assert_allclose(models[number][name], RUN[name][number], rtol=1e-5, atol=1e-6)
    assert json.loads((tmp_path / "plan.json").read_text())["insecure_seed"] == 11
    assert np.abs(RUN["noise"]).max() > 0.1


def keeping(models):
    return lambda number, arrays: models.update({number: fleet.arrays_of(arrays)})


def test_on_a_grid_noise_and_means_are_those_of_tff_to_the_bit(tmp_path):
    """The same updates, and the keys of the same seed: TFF's aggregator gave these means, and its stream these rows."""
    # TensorFlow sorts the names of a dictionary: so do rows of noise.
    models = {0: {"b": np.zeros_like(RUN["b"][0]), "w": np.zeros_like(RUN["w"][0])}}
    with opened(tmp_path, models[0], floating_point=False) as strategy:
        state = strategy._state.noise
        for row in RUN["grid_noise"]:
            noise, state = strategy._stream.next(state)
            np.testing.assert_array_equal(noise, row)
        strategy.start(Fleet(NAMES, answer), evaluate_fn=keeping(models))
    for number in range(ROUNDS):
        for name in ("w", "b"):
            np.testing.assert_array_equal(models[number + 1][name], models[number][name] + RUN[f"grid_{name}"][number])
    assert np.abs(RUN["grid_noise"]).max() > 1000
