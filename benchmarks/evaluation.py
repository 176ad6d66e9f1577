"""Sentences a second of an evaluation: ours, TFF's, and the model's matrix products alone.

    python benchmarks/evaluation.py [--data FILE] [--models conv lstm] [--turns 3]

All take turns on the test split of `pydoc`, so that the load of the machine affects all of them, and the ratios are of
one run. CPU seconds are those of this process and of TFF's worker. The last lines are of a test split that is read many
times over, as StackOverflow's of 16.6 million sentences would be: memory must not grow.
"""

import argparse
import collections
import functools
import itertools
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence

import _common
import _settings
import numpy as np
import psutil
import tensorflow as tf
import tensorflow_federated as tff

from tff_mf import aggregators
from tff_mf.experiments.runs.settings import RunSettings
from tff_mf.experiments.training import evaluation, models, task
from tff_mf.experiments.training.datasets import named_data, sentences, sqlite

MODELS = {
    "conv": _settings.of_model(model="conv", vocab_size=2000, embedding_size=32, units=32, max_examples=16),
    "lstm": _settings.of_model(),
}
GOALS = {"conv": 20_000, "lstm": 1_500}
SENTENCES = {"conv": 16_000, "lstm": 3_000}
# Of TFF's way, which takes much longer.
OF_TFF = {"conv": 4_000, "lstm": 640}
_baselines = tff.simulation.baselines


def with_tff(settings: RunSettings, vocabulary: Sequence[str], data: pathlib.Path, number: int) -> Callable[[], object]:
    """Returns the evaluation by `build_fed_eval`, on two shards of padded batches of 64, as releases before had it."""
    preprocessing = _baselines.stackoverflow.word_prediction_preprocessing
    special = preprocessing.get_special_tokens(len(vocabulary))
    known = [special.padding, *special.out_of_vocab]
    masks = dict(
        zip(evaluation.METRICS[1:], ([special.padding], known, [*known, special.end_of_sentence]), strict=True)
    )
    metrics: dict[str, Callable[[], tf.keras.metrics.Metric]] = collections.OrderedDict(
        loss=lambda: tf.keras.metrics.SparseCategoricalCrossentropy(
            "loss", from_logits=True, ignore_class=special.padding
        )
    )
    for name, masked in masks.items():
        metrics[name] = functools.partial(
            _baselines.keras_metrics.MaskedCategoricalAccuracy, name=name, masked_tokens=masked
        )
    build = functools.partial(task.build_keras_model, settings, vocabulary=vocabulary)
    words = tf.TensorSpec([None, evaluation.SEQUENCE_LENGTH], tf.int64)
    if settings.model == "lstm":

        def model() -> tff.learning.models.VariableModel:
            made = [constructor() for constructor in metrics.values()]
            return tff.learning.models.from_keras_model(
                build(), models.build_loss(), input_spec=(words, words), metrics=made
            )
    else:
        model = tff.learning.models.functional_model_from_keras(
            build(), models.build_loss(), input_spec=(words, words), metrics_constructor=metrics
        )
    process = tff.learning.algorithms.build_fed_eval(model)
    spec = _baselines.ClientSpec(num_epochs=1, batch_size=64, shuffle_buffer_size=1)
    preprocess = preprocessing.create_preprocess_fn(spec, list(vocabulary))
    texts = sqlite.load(data).test.create_tf_dataset_from_all_clients(seed=0).take(number)
    inputs, targets = (np.concatenate(part) for part in zip(*preprocess(texts).as_numpy_iterator(), strict=True))
    weights = tff.learning.models.ModelWeights.from_model(build())

    def evaluate() -> None:
        shards = [
            tf.data.Dataset.from_tensor_slices((inputs[part::2], targets[part::2])).batch(64) for part in range(2)
        ]
        state = process.set_model_weights(process.initialize(), weights)
        found = process.next(state, shards).metrics["client_work"]["eval"]["current_round_metrics"]
        assert float(found["loss"]) > 0

    return evaluate


def products(settings: RunSettings, known: int, kept: Sequence[evaluation.Tokens]) -> Callable[[], object]:
    """Returns the matrix products of the model alone, in batches of the same sizes."""
    units, width = settings.units, settings.embedding_size
    draw = functools.partial(tf.random.normal, seed=0)
    if settings.model == "conv":
        steps, layers = [], [(3 * width, units), (units, known)]
    else:
        steps, layers = [(width + units, 4 * units)], [(units, width), (width, known)]
    of_step = [draw(shape) for shape in steps]
    of_layer = [draw(shape) for shape in layers]

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.int32)])
    def multiply(rows: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
        total = 0.0
        for matrix in of_step:
            inputs = tf.ones([rows, matrix.shape[0]])
            for step in tf.range(length):
                # Different in each step, or the product would be computed once.
                total += tf.matmul(inputs + tf.cast(step, tf.float32), matrix)[0, 0]
        for matrix in of_layer:
            total += tf.matmul(tf.ones([rows * length, matrix.shape[0]]), matrix)[0, 0]
        return total

    sizes = [batch.shape for chunk in kept for batch in evaluation._batches(chunk, evaluation._WORDS[settings.model])]

    def run() -> None:
        for rows, columns in sizes:
            multiply(tf.constant(rows), tf.constant(columns - 1)).numpy()

    return run


def cpu_seconds() -> float:
    """Returns the CPU time of this process and its children so far."""
    own = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in (own, *own.children(recursive=True)))


def measured(steps: dict[str, tuple[int, Callable[[], object]]], turns: int) -> dict[str, tuple[float, float]]:
    """Returns the sentences a second, and a CPU second, of each way: medians of turns."""
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for turn, (name, (number, step)) in itertools.product(range(turns + 1), steps.items()):
        start, before = time.perf_counter(), cpu_seconds()
        step()
        if turn:
            rates[name].append((number / (time.perf_counter() - start), number / (cpu_seconds() - before)))
    return {name: tuple(map(statistics.median, zip(*found, strict=True))) for name, found in rates.items()}


def compare(name: str, data: pathlib.Path, turns: int) -> None:
    """Prints the rates of one model."""
    settings, number = MODELS[name], SENTENCES[name]
    vocabulary = list(sqlite.load_word_counts(data, settings.vocab_size))
    build = functools.partial(task.build_keras_model, settings, vocabulary=vocabulary)
    evaluator = evaluation.Evaluator(name, build, vocabulary)
    weights = [variable.numpy() for variable in build().trainable_variables]
    read = functools.partial(sentences.chunks, data, "test", most=number)
    kept = list(evaluator.tokens(read()))
    number = sum(len(chunk.lengths) for chunk in kept)
    known = build().output_shape[-1]
    with aggregators.resident_context():
        rates = measured(
            {
                "from the file": (number, lambda: evaluator.measure(weights, evaluator.tokens(read()))),
                "words that are there": (number, lambda: evaluator.measure(weights, kept)),
                "reading and words alone": (number, lambda: list(evaluator.tokens(read()))),
                "TFF's build_fed_eval": (OF_TFF[name], with_tff(settings, vocabulary, data, OF_TFF[name])),
                "matrix products alone": (number, products(settings, known, kept)),
            },
            turns,
        )
    own = rates["from the file"]
    for way, (wall, cpu) in rates.items():
        goal = f"≥ {GOALS[name]:,} a second on 2 free cores" if way == "from the file" else ""
        ratio = "" if way == "from the file" else f"; ours: {own[1] / cpu:.2f} times it a CPU second"
        _common.row(f"{name}: {way}", f"{wall:,.0f} a second, {cpu:,.0f} a CPU second{ratio}", goal)


def memory(data: pathlib.Path, passes: int) -> None:
    """Prints how much memory a long test split takes, in which no chunk is kept."""
    settings = MODELS["conv"]
    vocabulary = list(sqlite.load_word_counts(data, settings.vocab_size))
    language_task = task.build_task(settings, vocabulary)
    evaluator = language_task.build_evaluator()
    seen = []

    def chunks():
        for _ in range(passes):
            yield from sentences.chunks(data, "test")
            seen.append(psutil.Process().memory_info().rss)

    found = evaluator.measure(language_task.initial_weights.trainable, evaluator.tokens(chunks()))
    tenth = max(1, len(seen) // 10)
    _common.row(
        f"memory over {found.sentences:,} sentences",
        f"{seen[tenth - 1] / 1e6:,.0f} MB after a tenth, {seen[-1] / 1e6:,.0f} MB at the end",
        "must not grow",
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--passes", type=int, default=20)
    arguments = parser.parse_args()
    data = arguments.data or named_data.data_file("pydoc")
    _common.header("evaluation", "sentences")
    for name in arguments.models:
        compare(name, data, arguments.turns)
    memory(data, arguments.passes)


if __name__ == "__main__":
    main()
