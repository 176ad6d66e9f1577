"""benchmarks/peers.py: its processes, its figures, and docs/performance.md, whose tables are of what it measured."""

import importlib
import itertools
import json
import pathlib
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

HERE = pathlib.Path(__file__).parent.parent
BENCHMARKS = HERE / "benchmarks"

sys.path.insert(0, str(BENCHMARKS))
_peer, page, plain_round, peers = map(importlib.import_module, ("_peer", "_peers_page", "_plain_round", "peers"))
sys.path.pop(0)

# A peer that counts its rounds, and whose model is that number times its argument.
COUNTING = f"""
import pathlib, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
import _peer, numpy as np
given = _peer.read(pathlib.Path(sys.argv[1]))
rounds = []
print("this is no answer")
_peer.serve(lambda: [given.weights[0] + float(sys.argv[2]) * len(rounds)], rounds.append)
"""
ENDING = "raise SystemExit(3)"


@pytest.fixture
def small(tmp_path):
    """Returns the folder of a case, with words 0, 1, … and one weight."""
    case = peers.changed(peers.CONV, clients=2, most_clients=3, sentences=2)
    words = np.arange(3 * 2 * 4).reshape(3, 2, 4)
    case.write(tmp_path / "case", words, [np.zeros([2, 3], np.float32)])
    for name, text in {"counting.py": COUNTING, "ending.py": ENDING}.items():
        (tmp_path / name).write_text(text)
    return tmp_path / "case"


def test_a_case_is_read_as_it_was_written(small):
    given = _peer.read(small)
    assert given.case == peers.changed(peers.CONV, clients=2, most_clients=3, sentences=2)
    np.testing.assert_array_equal(given.inputs[1], [[8, 9, 10], [12, 13, 14]])
    np.testing.assert_array_equal(given.targets[1], [[9, 10, 11], [13, 14, 15]])


def test_peers_take_turns_and_their_models_are_compared(small, monkeypatch):
    """Their times are of clocks of the test: those of a busy machine may stand still, or run backwards for children."""
    program = str(small.parent / "counting.py")
    walls, seconds = (itertools.accumulate(itertools.repeat(step)) for step in (0.5, 0.25))
    monkeypatch.setattr(peers, "time", types.SimpleNamespace(perf_counter=lambda: next(walls)))
    monkeypatch.setattr(peers.Process, "cpu_seconds", lambda self: next(seconds))
    monkeypatch.setattr(peers, "PEERS", {"one": (program, "1.0"), "other": (program, "1.5")})
    processes = [peers.Process(name, small, pathlib.Path(), [0]) for name in peers.PEERS]
    try:
        for process in processes:
            process.wait()
        found = peers.rotate(processes, 2, 3, untimed=1)
        assert peers.apart(processes) == {"one": 0.0, "other": 2.0}
    finally:
        for process in processes:
            process.end()
    assert found == {"one": [(0.5, 0.25)] * 3, "other": [(0.5, 0.25)] * 3}


def test_a_peer_that_ends_is_named_with_its_log(small, monkeypatch):
    monkeypatch.setattr(peers, "PEERS", {"lost": (str(small.parent / "ending.py"),)})
    process = peers.Process("lost", small, pathlib.Path(), [0])
    with pytest.raises(RuntimeError, match=r"lost ended: see .*lost\.log"):
        process.wait()
    process.end()


def test_ratios_are_of_turns():
    # The second turn was disturbed for both.
    ours, plain = [(1.0, 2.0), (10.0, 2.0), (1.0, 2.0)], [(2.0, 1.0), (20.0, 1.0), (2.0, 1.0)]
    part = {"cores": 2, "load": [0.4, 1.2], "apart": {"ours": 0.0, page.PLAIN: 2e-8}, "times": {"ours": ours}}
    part["times"][page.PLAIN] = plain
    (table,) = page.tables({"table": {"conv": part}}).values()
    assert "| ours | 1.00 (least 1.00) | 2.00 (least 2.00) | 0.50 | 2.00 | 0 |" in table
    assert f"| {page.PLAIN} | 2.00 (least 2.00) | 1.00 (least 1.00) | 1.00 | 1.00 | 2e-08 |" in table


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
    assert len(page.tables(RESULTS)) >= 2


def test_the_tables_of_a_page_are_replaced_and_nothing_else():
    text = "one\n<!-- measured -->\nold\n<!-- until here -->\nother\n"
    found = page.filled(text, RESULTS)
    assert found.startswith("one\n<!-- measured -->\n\n**LSTM")
    assert found.endswith("|\n\n<!-- until here -->\nother\n")
    assert "old" not in found


MEASURED = [(part, model) for part in ("table", "full") for model in RESULTS.get(part, ())]


@pytest.mark.parametrize(("part", "model"), MEASURED)
def test_the_models_that_were_measured_are_the_same_to_rounding(part, model):
    assert max(RESULTS[part][model]["apart"].values()) <= 1e-5
    assert set(RESULTS[part][model]["apart"]) == set(peers.TABLE)


def test_the_picture_is_drawn_of_what_was_measured(tmp_path):
    page.draw(RESULTS, tmp_path / "drawn.svg")
    drawn = (tmp_path / "drawn.svg").read_text()
    assert all(text in drawn for text in ("clients a round", *peers.CURVES))
    for part, text in {"size": "parameters", "workers": "workers on", "memory": "memory, MB"}.items():
        assert (text in drawn) == (part in RESULTS)
