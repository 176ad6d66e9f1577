"""Accuracy of short training runs on `pydoc` against the two figures that `tff-mf plan` and `train` print beforehand.

python benchmarks/signal_to_noise.py [--data FILE] [--out FILE.jsonl] [--only WORD] [--seconds S]

The limits of the figures come from these runs. Noise and the server's rate follow from the figures: σ from the ratio
of accumulated noise to accumulated signal, and the rate from the noise per parameter of the model. FILE.jsonl has one
line a run; runs that are in it are not repeated. A table of the finished runs is printed at the end, or after S
seconds. The data of `--data` are made if there are none.

The training is that of `tff-mf train --model conv` (one step of SGD a client, clipped updates, momentum and cooldown on
the server) in NumPy, at a quarter of TFF's time or less.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import math
import pathlib
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import tff_mf
from tff_mf.experiments.data import most_used_words, texts, write_pydoc
from tff_mf.planning import MechanismSetting, by_name

RESULTS = pathlib.Path("build") / "results"
ACCUMULATED = (0.03, 0.1, 0.3, 0.6, 1.0, 3.0)
PER_PARAMETER = (0.05, 0.15, 0.5, 1.5)
VARIED_ACCUMULATED, VARIED_PER_PARAMETER = (0.1, 0.3, 0.6, 1.0), (0.15, 0.5)
BASE = "n = 120, d = 133,364, blt"
COHORT, CLIENTS, SENTENCES, LENGTH, WORDS = 200, 10, 16, 20, 2000
MOMENTUM, COOLDOWN = 0.9, 0.25
# After padding and the words, as in TFF: unknown word, beginning and end of a sentence.
SPECIAL = 4
TEST_SENTENCES = 1000

Weights = list[np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """A run: its setting, and the two estimates from which noise and rate are chosen."""

    varied: str
    accumulated: float
    per_parameter: float
    mechanism: str = "blt"
    rounds: int = 120
    width: int = 32
    clip_norm: float = 0.3
    seed: int = 10


def points() -> Iterator[Point]:
    """All values of noise and rate for one setting, and some for settings that differ from it in one value."""
    for ratio in ACCUMULATED:
        for noise in PER_PARAMETER:
            yield Point(varied=BASE, accumulated=ratio, per_parameter=noise)
    for ratio in VARIED_ACCUMULATED:
        for noise in VARIED_PER_PARAMETER:
            at = {"accumulated": ratio, "per_parameter": noise}
            yield Point(varied="identity", mechanism="identity", **at)
            yield Point(varied="d = 34,268", width=8, **at)
            yield Point(varied="d = 414,516", width=96, **at)
            yield Point(varied="n = 40", rounds=40, **at)
            yield Point(varied="n = 360", rounds=360, **at)
            yield Point(varied="clip norm 1", clip_norm=1.0, **at)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=RESULTS / "pydoc.sqlite")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS / "signal-to-noise.jsonl")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=math.inf)
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    if not given.data.exists():
        write_pydoc(given.data)
    rows = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.is_file() else []
    fields = [field.name for field in dataclasses.fields(Point)]
    done = [{name: row[name] for name in fields} for row in rows]
    vocabulary = most_used_words(given.data, WORDS)
    clients = list(_sentences(given.data, "train", vocabulary).values())
    test = np.concatenate(list(_sentences(given.data, "test", vocabulary).values()))
    test = np.random.default_rng(0).permutation(test)[:TEST_SENTENCES]
    until = time.monotonic() + given.seconds
    for point in points():
        if given.only in point.varied and dataclasses.asdict(point) not in done and time.monotonic() < until:
            rows.append(measure(point, clients, test))
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            print(json.dumps(rows[-1]), flush=True)
    _table(rows)


def measure(point: Point, clients: list[np.ndarray], test: np.ndarray) -> dict[str, Any]:
    """Trains, and returns the point with its results."""
    start = time.perf_counter()
    schema = tff_mf.MinSep(min_sep=point.rounds // 2, max_participations=2)
    mechanism = MechanismSetting(rounds=point.rounds, participation=schema).named(point.mechanism)
    random = np.random.default_rng(point.seed)
    weights = _initial(point.width, random)
    dimension = sum(weight.size for weight in weights)
    error = tff_mf.rms_error(mechanism, point.rounds)
    sigma = point.accumulated * point.rounds * COHORT / (error * math.sqrt(dimension))
    rate = point.per_parameter * (1 - MOMENTUM) / (point.clip_norm * error * sigma / COHORT)
    z = np.random.default_rng().standard_normal((point.rounds, dimension), np.float32)
    noise = (sigma * point.clip_norm / COHORT * mechanism.inverse(point.rounds)).astype(np.float32) @ z
    velocity = np.zeros(dimension, np.float32)
    for step in range(point.rounds):
        cohort = [clients[each] for each in random.choice(len(clients), CLIENTS, replace=False)]
        mean = sum(_update(weights, random.permutation(each)[:SENTENCES], point.clip_norm) for each in cohort) / CLIENTS
        velocity = MOMENTUM * velocity + mean + noise[step]
        cooling = min(1.0, (point.rounds - step) / (COOLDOWN * point.rounds))
        flat = rate * (by_name.RAMP_FLOOR + (1 - by_name.RAMP_FLOOR) * cooling) * velocity
        ends = np.cumsum([weight.size for weight in weights])[:-1]
        for weight, change in zip(weights, np.split(flat, ends), strict=True):
            weight += change.reshape(weight.shape)
    found = {"noise_multiplier": sigma, "server_learning_rate": rate, "dimension": dimension}
    accuracy = _accuracy(weights, test)
    return dataclasses.asdict(point) | found | {"accuracy": accuracy, "seconds": time.perf_counter() - start}


def _sentences(data: pathlib.Path, split: str, vocabulary: list[str]) -> dict[str, np.ndarray]:
    """Returns the sentences of each client as numbers `[sentences, length + 1]`, as in TFF's task."""
    unknown, begin, end = (len(vocabulary) + place for place in (1, 2, 3))
    number = collections.defaultdict(lambda: unknown, {word: i + 1 for i, word in enumerate(vocabulary)})
    found: dict[str, list[list[int]]] = collections.defaultdict(list)
    query = "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ?"
    with contextlib.closing(sqlite3.connect(data)) as connection:
        clients, examples = zip(*connection.execute(query, [split]), strict=True)
    for client, text in zip(clients, texts(examples), strict=True):
        words = [begin, *(number[word] for word in text.split()), end][: LENGTH + 1]
        found[client].append(words + [0] * (LENGTH + 1 - len(words)))
    return {client: np.array(own, np.int32) for client, own in found.items()}


def _initial(width: int, random: np.random.Generator, words: int = WORDS) -> Weights:
    """Embedding, causal convolution over three words, and dense layer, initialized as Keras does it."""

    def glorot(shape: tuple[int, ...], fans: int) -> np.ndarray:
        return random.uniform(-1, 1, shape).astype(np.float32) * np.float32(math.sqrt(6 / fans))

    embedding = random.uniform(-0.05, 0.05, (words + SPECIAL, width)).astype(np.float32)
    convolution = glorot((3 * width, width), 3 * width + 3 * width)
    dense = glorot((width, words + SPECIAL), width + words + SPECIAL)
    return [embedding, convolution, np.zeros(width, np.float32), dense, np.zeros(words + SPECIAL, np.float32)]


def _hidden(weights: Weights, words: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The three words before each known target, their embeddings, and the hidden layer."""
    embedding, convolution, bias = weights[:3]
    before = np.pad(words[:, :-1], ((0, 0), (2, 0)), constant_values=-1)
    context = np.stack([before[:, i : i + LENGTH] for i in range(3)], -1)[known]
    embedded = np.where((context >= 0)[..., None], embedding[context], 0).reshape(len(context), -1)
    return context, embedded, np.maximum(embedded @ convolution + bias, 0)


def _update(weights: Weights, words: np.ndarray, clip_norm: float) -> np.ndarray:
    """Returns the clipped update of one step of SGD at rate 1 on the mean loss per word."""
    embedding, convolution, _, dense, out = weights
    known = words[:, 1:] > 0
    targets = words[:, 1:][known]
    context, embedded, hidden = _hidden(weights, words, known)
    logits = hidden @ dense + out
    logits -= logits.max(1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= len(targets) * logits.sum(1, keepdims=True)
    logits[np.arange(len(targets)), targets] -= 1 / len(targets)
    of_hidden = (logits @ dense.T) * (hidden > 0)
    of_embedded = (of_hidden @ convolution.T).reshape(*context.shape, -1)
    of_embedding = np.zeros_like(embedding)
    np.add.at(of_embedding, context[context >= 0], of_embedded[context >= 0])
    parts = [of_embedding, embedded.T @ of_hidden, of_hidden.sum(0), hidden.T @ logits, logits.sum(0)]
    update = -np.concatenate([part.ravel() for part in parts])
    return update * min(1.0, clip_norm / float(np.linalg.norm(update)))


def _accuracy(weights: Weights, words: np.ndarray) -> float:
    """Returns the accuracy over words of the vocabulary, without padding, ends and unknown words."""
    targets = words[:, 1:]
    known = (targets > 0) & (targets <= len(weights[0]) - SPECIAL)
    guesses = np.argmax(_hidden(weights, words, known)[2] @ weights[3] + weights[4], 1)
    return float(np.mean(guesses == targets[known]))


def _table(rows: list[dict[str, Any]]) -> None:
    """Prints accuracies in percent: of the base by both estimates, and of all settings at the better of two rates."""
    found = {(row["varied"], row["accumulated"], row["per_parameter"]): row["accuracy"] for row in rows}
    print("| noise / signal | " + " | ".join(f"{noise} a parameter" for noise in PER_PARAMETER) + " |")
    print("|--:|" + "--:|" * len(PER_PARAMETER))
    for ratio in ACCUMULATED:
        print(
            f"| {ratio} | " + " | ".join(_percent([found.get((BASE, ratio, noise))]) for noise in PER_PARAMETER) + " |"
        )
    print("\n| | " + " | ".join(map(str, VARIED_ACCUMULATED)) + " |")
    print("|---|" + "--:|" * len(VARIED_ACCUMULATED))
    for varied in dict.fromkeys(row["varied"] for row in rows):
        cells = [
            _percent([found.get((varied, ratio, noise)) for noise in VARIED_PER_PARAMETER])
            for ratio in VARIED_ACCUMULATED
        ]
        print(f"| {varied} | " + " | ".join(cells) + " |")


def _percent(accuracies: list[float | None]) -> str:
    known = [each for each in accuracies if each is not None]
    return f"{100 * max(known):.1f}" if known else ""


if __name__ == "__main__":
    main()
