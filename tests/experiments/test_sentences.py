"""What clients train on, and what a model is measured on: batches, sentences and metrics are those of TFF's task."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.experiments import data as data_files
from tff_mf.experiments import next_word
from tff_mf.experiments.guard.inputs import ClientDatasets, DataOfClients, read_datasets
from tff_mf.experiments.runs.results import smoothed

from .shared import by_tff, small_settings, write_sentences

baselines = tff.simulation.baselines
preprocessing = baselines.stackoverflow.word_prediction_preprocessing
VOCABULARY = [*(f"w{number}" for number in range(12)), "é", "a\0b"]
PLAN = {"rounds": 4, "clients_per_round": 6, "delta": 1e-6, "noise_multiplier": 1.0}
PLAN["sampling"] = tff_mf.SingleParticipation()
SIZES = (1, 2, 3, 5, 7, 20)
LENGTHS = (0, 1, 2, 18, 19, 20, 21, 30)
# Two of the first 14 are unknown; an empty word makes two spaces.
WORDS = (*(f"w{number}" for number in range(14)), "", "é", "日本", "a\0b", "w1\tw2")


def text(rng):
    length = rng.choice(LENGTHS)
    return " ".join(WORDS[number] for number in rng.integers(0, len(WORDS), length)) + ("  w1" if length == 2 else "")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Training clients with 1 to 20 sentences each, one that only validates, and test clients with 1 to 9."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "data.sqlite"
    sizes = {(f"c{size}", "train"): size for size in SIZES}
    sizes |= {("it's", "heldout"): 7, **{(f"t{size}", "test"): size for size in range(1, 10)}}
    write_sentences(path, sizes, lambda: text(rng))
    return path


def batches_of_tff(data, clients, *, seed, batch_size, max_examples, client_epochs):
    spec = baselines.ClientSpec(
        num_epochs=client_epochs, batch_size=batch_size, max_elements=max_examples, shuffle_buffer_size=max_examples
    )
    tf.random.set_seed(seed)
    preprocess = preprocessing.create_preprocess_fn(spec, VOCABULARY, num_parallel_calls=1)
    of_client = by_tff(data, "train").preprocess(preprocess).serializable_dataset_fn
    traced = tf.function(of_client, input_signature=[tf.TensorSpec([], tf.string)])
    return [list(traced(client).as_numpy_iterator()) for client in clients]


def check_equal(one, other):
    """Elements of clients are equal, with their types."""

    def check(found, expected):
        assert found.dtype == expected.dtype if isinstance(expected, np.ndarray) else type(found) is type(expected)
        np.testing.assert_array_equal(found, expected)

    tf.nest.map_structure(check, list(one), list(other))


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize(
    "given",
    [
        {"seed": 0, "batch_size": 4, "max_examples": 4, "client_epochs": 1},
        {"seed": 7, "batch_size": 3, "max_examples": 8, "client_epochs": 3},
        {"seed": 1, "batch_size": 2, "max_examples": 1, "client_epochs": 1},
        {"seed": 2**31, "batch_size": 16, "max_examples": 256, "client_epochs": 2},
    ],
    ids=str,
)
def test_batches_are_those_of_tffs_preprocessing(data, given):
    clients = [f"c{size}" for size in SIZES]
    expected = dict(zip(clients, batches_of_tff(data, clients, **given), strict=True))
    batches = next_word.ClientBatches(small_settings(**given), data, VOCABULARY)
    # Twice, since an order must not go on where it ended; in another order, alone and together, and one client twice.
    for chosen in (clients, clients[::-1], clients[2:3], clients[3:4] * 2):
        # Another seed of the program does not matter.
        tf.random.set_seed(99)
        check_equal(batches.read(chosen), [expected[client] for client in chosen])


def test_private_training_reads_the_same_cohorts(data):
    """Both doors read by one pipeline: that of `tff-mf train`, and that of `private_fed_avg`."""
    clients = [f"c{size}" for size in SIZES]
    settings = small_settings(max_examples=4, batch_size=3, vocab_size=len(VOCABULARY))
    batches = next_word.ClientBatches(settings, data, VOCABULARY)
    taken = tff.types.tensorflow_to_type(next_word.build_task(settings, VOCABULARY).model.input_spec)
    plan = tff_mf.plan(mechanism=tff_mf.Identity(), **PLAN)
    with DataOfClients(plan, taken) as checked:
        checked.begin(batches, clients)
        check_equal(checked.of_cohort(batches, clients, 1), batches.read(clients))
        with pytest.raises(InputValueError, match="lacks 1 clients"):
            checked.of_cohort(batches, ["c1", "t1"], 2)
    with DataOfClients(plan, tff.TensorType(np.int64)) as other, pytest.raises(InputTypeError, match="the model takes"):
        other.of_cohort(batches, clients, 1)


@pytest.mark.parametrize(
    "examples",
    [
        lambda size: (np.arange(size, dtype=np.int32),),
        lambda size: collections.OrderedDict(label=np.arange(size), pixels=np.ones([size, 2, 2], np.float32)),
        lambda size: (np.array([f"word {index}" for index in range(size)]),),
    ],
    ids=["one array", "names", "texts"],
)
def test_clients_that_are_read_together_have_the_elements_of_their_datasets(examples):
    clients = {"ann": examples(5), "bob": examples(1), "eve": examples(4)}
    client_data = tff.simulation.datasets.TestClientData(clients).preprocess(lambda each: each.batch(2))
    for names in (["eve", "ann", "eve"], ["bob"], []):
        datasets = [client_data.create_tf_dataset_for_client(name) for name in names]
        expected = [list(dataset.as_numpy_iterator()) for dataset in datasets]
        check_equal(ClientDatasets(client_data).read(names), expected)
        check_equal(read_datasets(datasets), expected)


def evaluator(data, architecture):
    settings = small_settings(model=architecture, vocab_size=len(VOCABULARY), embedding_size=3, units=4)
    return next_word.Evaluator(settings, data, VOCABULARY)


def test_sentences_are_in_the_order_of_the_papers_code_as_words_of_tffs_preprocessing(data):
    of_tff = by_tff(data, "test").create_tf_dataset_from_all_clients(seed=0)
    expected = [example["tokens"].decode() for example in of_tff.as_numpy_iterator()]
    assert len(set(expected)) > 20
    assert data_files.number_of_sentences(data, "test") == len(expected) == 45
    for size, skip, most in ((1, 0, None), (7, 10, 20), (100, 0, 30), (16, 5, None)):
        chunks = list(data_files.chunks(data, "test", skip=skip, most=most, size=size))
        assert [text for chunk in chunks for text in data_files.texts(chunk)] == expected[skip:][:most]
        assert all(len(chunk) == size for chunk in chunks[:-1])
    assert list(data_files.chunks(data, "test", skip=45)) == []
    spec = baselines.ClientSpec(num_epochs=1, batch_size=45, shuffle_buffer_size=1)
    words, targets = preprocessing.create_preprocess_fn(spec, VOCABULARY)(of_tff).get_single_element()
    (found,) = evaluator(data, "conv").tokens("test")
    np.testing.assert_array_equal(found.words[:, :-1], words)
    np.testing.assert_array_equal(found.words[:, 1:], targets)
    np.testing.assert_array_equal(found.lengths, np.count_nonzero(targets, axis=1))
    assert {2, 19, 20} <= set(found.lengths)


def by_keras(model, words):
    """Returns TFF's own metrics on padded sentences."""
    special = preprocessing.get_special_tokens(len(VOCABULARY))
    masks = ([special.padding], [special.padding, *special.out_of_vocab])
    masks += ([*masks[1], special.end_of_sentence],)
    logits, targets = model(words[:, :-1]), words[:, 1:]
    loss = tf.keras.metrics.SparseCategoricalCrossentropy(from_logits=True, ignore_class=special.padding)
    found = [loss, *(baselines.keras_metrics.MaskedCategoricalAccuracy(masked_tokens=mask) for mask in masks)]
    for metric in found:
        metric.update_state(targets, logits)
    return dict(zip(next_word.METRICS, (float(metric.result()) for metric in found), strict=True))


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("architecture", ["conv", "lstm"])
def test_metrics_are_those_of_tff(data, architecture):
    tested = evaluator(data, architecture)
    kept = list(tested.tokens("test"))
    model, rng = tested._model, np.random.default_rng(1)
    shapes = [variable.shape for variable in model.trainable_variables]
    kinds = {
        "random": [rng.normal(size=shape, scale=2.0).astype(np.float32) for shape in shapes],
        # All logits are equal, and the first one is taken: padding, which is never right.
        "constant": [np.zeros(shape, np.float32) for shape in shapes],
        "not finite": [np.full(shape, np.nan, np.float32) for shape in shapes],
    }
    # The bias alone decides, and two known words share the largest logit: the first of them is taken.
    bias = np.zeros(shapes[-1], np.float32)
    bias[[3, 5]] = 4.0
    kinds["far from zero"] = [*kinds["random"][:-1], kinds["random"][-1] - 2000.0]
    kinds["tied"] = [*kinds["constant"][:-1], bias]
    often = np.zeros(shapes[-1], np.float32)
    often[np.bincount(kept[0].words[:, 1:].ravel())[1 : len(VOCABULARY) + 1].argmax() + 1] = 4.0
    kinds["most frequent"] = [*kinds["constant"][:-1], often]
    for kind, weights in kinds.items():
        found = tested.measure(weights, kept)
        expected = by_keras(model, kept[0].words)
        assert found.sentences == 45
        assert found.metrics == pytest.approx(expected, rel=1e-5, nan_ok=True), kind
        if kind == "most frequent":
            assert 0 < found.baseline == pytest.approx(found.metrics[next_word.ACCURACY])
        if kind in ("random", "tied"):
            assert 0 < found.metrics["accuracy"] < 1
    parts = [next_word.Tokens(*(part[start : start + 4] for part in kept[0])) for start in range(0, 45, 4)]
    several = tested.measure(kinds["random"], parts)
    assert several.metrics == pytest.approx(tested.measure(kinds["random"], kept).metrics, rel=1e-6)
    assert tested.measure(kinds["random"], []).metrics == dict.fromkeys(next_word.METRICS, 0.0)


def test_the_papers_smooth_over_400_rounds_of_2052():
    curve = [(number, float(number > 1652)) for number in (*range(20, 2052, 20), 2052)]
    assert smoothed(curve) == 1.0
    assert smoothed([(1652, 0.0), (1653, 1.0), (2052, 1.0)]) == 1.0
    # Shorter runs: the last fifth; a single round is its own mean.
    assert smoothed([(80, 0.0), (81, 1.0), (100, 1.0)]) == 1.0
    assert smoothed([(1, 0.25)]) == 0.25
