"""benchmarks/peers.py: its processes, its figures, and docs/performance.md, whose tables are of what it measured."""

import importlib
import json
import pathlib
import sys

import numpy as np
import pytest
import tensorflow as tf

HERE = pathlib.Path(__file__).parent.parent
BENCHMARKS = HERE / "benchmarks"

sys.path.insert(0, str(BENCHMARKS))
_peer, page, plain_round, peers = map(importlib.import_module, ("_peer", "_peers_page", "_plain_round", "peers"))
sys.path.pop(0)


def test_the_number_of_parameters_of_a_light_model():
    case = peers.changed(peers.CONV, vocab_size=6, embedding_size=2, units=3)
    # Embedding 10 × 2; kernel 3 × 2 × 3 and bias 3; last layer 3 × 10 and bias 10.
    assert peers.parameters(case) == 20 + 21 + 40


def test_a_plain_round_is_its_definition():
    """Against a loop without graphs: SGD of each client, clipped changes, their mean, momentum; two rounds."""
    tf.keras.utils.set_random_seed(0)
    words = np.random.default_rng(0).integers(0, 5, [2, 4, 4])
    clients = [(one[:, :-1], one[:, 1:]) for one in words]
    model = tf.keras.Sequential([tf.keras.layers.Embedding(5, 3), tf.keras.layers.Dense(5)])
    model.build([None, 3])
    server = model.get_weights()
    plain = plain_round.PlainRound(model=model, batch=2, client_rate=0.5, clip_norm=0.01, noise=0.0, momentum=0.5)
    one_round, variables = plain.build(clients)
    velocity = [np.zeros_like(weight) for weight in server]
    for _ in range(2):
        one_round(2)
    found = [variable.numpy() for variable in variables]
    for _ in range(2):
        changes = [_change(model, server, *client) for client in clients]
        mean = [sum(parts) / 2 for parts in zip(*changes, strict=True)]
        velocity = [0.5 * speed + change for speed, change in zip(velocity, mean, strict=True)]
        server = [weight + speed for weight, speed in zip(server, velocity, strict=True)]
    for one, other in zip(found, server, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-7)
    assert np.linalg.norm(velocity[0]) > 1e-3


def _change(model, server, inputs, targets):
    model.set_weights(server)
    for first in (0, 2):
        with tf.GradientTape() as tape:
            logits, following = model(inputs[first : first + 2]), targets[first : first + 2]
            chosen = following != 0
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(following[chosen], tf.boolean_mask(logits, chosen))
            )
        gradients = tape.gradient(loss, model.trainable_variables)
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
            variable.assign_sub(0.5 * tf.convert_to_tensor(gradient))
    change = [one - other for one, other in zip(model.get_weights(), server, strict=True)]
    norm = np.sqrt(sum(np.sum(part**2) for part in change))
    return [part * min(1.0, 0.01 / norm) for part in change]


RESULTS = json.loads(peers.RESULTS.read_text())


def test_the_page_has_the_tables_of_what_was_measured():
    text = peers.PAGE.read_text()
    assert page.filled(text, RESULTS) == text
    assert len(page.tables(RESULTS)) == 2


MEASURED = [(part, model) for part in ("table", "full") for model in RESULTS.get(part, ())]


@pytest.mark.parametrize(("part", "model"), MEASURED)
def test_the_models_that_were_measured_are_the_same_to_rounding(part, model):
    assert max(RESULTS[part][model]["apart"].values()) <= 1e-5
    assert set(RESULTS[part][model]["apart"]) == set(peers.TABLE)
