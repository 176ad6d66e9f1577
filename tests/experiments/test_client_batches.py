"""Cohorts that are read together: the batches of TFF's preprocessing, which makes them client by client."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_mf.experiments.sampling import data_source
from tff_mf.experiments.training import client_batches
from tff_mf.experiments.training.datasets import sentences, sqlite, synthetic

from .shared import write_sentences

VOCABULARY = [*(f"w{number}" for number in range(12)), "é", "a\0b"]
SIZES = (1, 2, 3, 5, 7, 20)
LENGTHS = (0, 1, 2, 18, 19, 20, 21, 30)
# Two of the first 14 are unknown; an empty word makes two spaces.
WORDS = (*(f"w{number}" for number in range(14)), "", "é", "日本", "a\0b", "w1\tw2")


def text(rng):
    length = rng.choice(LENGTHS)
    return " ".join(WORDS[number] for number in rng.integers(0, len(WORDS), length)) + ("  w1" if length == 2 else "")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Training clients with 1 to 20 sentences each, one that has no sentence in this split, and other splits."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "data.sqlite"
    sizes = {**{(f"c{size}", "train"): size for size in SIZES}, ("it's", "heldout"): 2, ("b", "test"): 2}

    write_sentences(path, sizes, lambda: text(rng))
    return path


def read(data, *, seed, batch_size, max_examples, client_epochs):
    return client_batches.ClientBatches(
        sentences.ClientSentences(data, "train"),
        client_batches.build_word_ids(VOCABULARY),
        batch_size=batch_size,
        max_examples=max_examples,
        client_epochs=client_epochs,
        seed=seed,
    )


def of_tff(data, clients, *, seed, batch_size, max_examples, client_epochs):
    spec = tff.simulation.baselines.ClientSpec(
        num_epochs=client_epochs, batch_size=batch_size, max_elements=max_examples, shuffle_buffer_size=max_examples
    )
    preprocessing = tff.simulation.baselines.stackoverflow.word_prediction_preprocessing
    tf.random.set_seed(seed)
    found = data_source.ClientDatasets(
        sqlite.load(data).train, preprocessing.create_preprocess_fn(spec, VOCABULARY, num_parallel_calls=1)
    )
    return [[tuple(each.numpy() for each in batch) for batch in dataset] for dataset in found.of(clients)]


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
    expected, batches = of_tff(data, clients, **given), read(data, **given)
    # Twice, since an order must not go on where it ended; in another order, alone and together, and one client twice.
    for chosen in (clients, clients[::-1], clients[2:3], clients[3:4] * 2):
        # Another seed of the program does not matter.
        tf.random.set_seed(99)
        found = batches.of(chosen)
        for client, of_client in zip(chosen, found, strict=True):
            for one, other in zip(of_client, expected[clients.index(client)], strict=True):
                for array, wanted in zip(one, other, strict=True):
                    assert array.dtype == wanted.dtype
                    np.testing.assert_array_equal(array, wanted)


def test_clients_without_sentences_have_no_batches(data):
    batches = read(data, seed=0, batch_size=4, max_examples=4, client_epochs=1)
    assert batches.of(["it's", "nobody"]) == [[], []]
    assert [len(each) for each in batches.of(["nobody", "c5", "it's"])] == [0, 1, 0]
    assert batches.of([]) == []


def test_sentences_of_a_synthetic_data_set_are_those_of_its_clients(tmp_path):
    path = synthetic.SyntheticData(clients=20, vocabulary=30).write(tmp_path / "synthetic.json")
    clients = synthetic.load(path).train
    found = sentences.ClientSentences(path, "train").of(clients.client_ids[:3], most=2)
    expected = [
        [element["tokens"].numpy() for element in clients.create_tf_dataset_for_client(client)]
        for client in clients.client_ids[:3]
    ]
    assert [[sqlite.strings(each, "tokens")[0] for each in of_client] for of_client in found] == [
        each[:2] for each in expected
    ]
    assert max(map(len, expected)) > 2


@pytest.mark.parametrize(
    "examples",
    [
        lambda size: (np.arange(size, dtype=np.int32),),
        lambda size: (np.arange(2 * size, dtype=np.float32).reshape(size, 2), np.arange(size)),
        lambda size: collections.OrderedDict(label=np.arange(size), pixels=np.ones([size, 2, 2], np.float32)),
        lambda size: (np.array([f"word {index}" for index in range(size)]),),
    ],
    ids=["one array", "pairs", "names", "texts"],
)
def test_clients_that_are_read_together_have_the_elements_of_their_datasets(examples):
    clients = {"ann": examples(5), "bob": examples(1), "eve": examples(4)}
    found = data_source.ClientDatasets(tff.simulation.datasets.TestClientData(clients), lambda each: each.batch(2))
    for names in (["eve", "ann", "eve"], ["bob"], []):
        together = found.read(names)
        assert len(together) == len(names)
        for one, alone in zip(together, found.of(names), strict=True):
            read = one.as_numpy_iterator() if isinstance(one, tf.data.Dataset) else one
            tf.nest.map_structure(np.testing.assert_array_equal, list(read), list(alone.as_numpy_iterator()))
