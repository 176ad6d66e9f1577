"""A data set with as many clients as StackOverflow, whose text is computed when it is read and stored nowhere.

It is for dry runs at the size of the papers' experiments: time, memory, cohorts and logs are as with the real data
set's number of clients. Words are drawn independently, so that there is nothing to learn from them, and accuracy on it
means nothing.
"""

import collections
import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from ...output import files
from . import pydoc, sqlite
from .stackoverflow import CLIENTS

if TYPE_CHECKING:
    import tensorflow as tf
    import tensorflow_federated as tff

    from .sqlite import Splits

FILE_NAME = "synthetic-stackoverflow.json"
MOST_SENTENCES = 3
WORDS_A_SENTENCE = 6

_FORMAT = "tff-mf synthetic data set 1"
_START = json.dumps({"format": _FORMAT})[:-1].encode()
_DIGITS = 7
# Words that a client writes on average.
_WORDS_A_CLIENT = WORDS_A_SENTENCE * (1 + MOST_SENTENCES) / 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntheticData:
    """A synthetic data set: a client's sentences are determined by these numbers, its split and its number.

    Each client has 1 to `MOST_SENTENCES` sentences of `WORDS_A_SENTENCE` words. The word of rank r is drawn with a
    probability proportional to log((r + 1) / r), which is close to Zipf's 1 / r.

    Attributes:
        clients: Number of training clients; validation and test clients are in StackOverflow's proportion.
        vocabulary: Number of different words.
        seed: Another seed gives other sentences.

    Example:
        >>> SyntheticData().split_sizes
        {'train': 342477, 'heldout': 38758, 'test': 204088}
        >>> SyntheticData(clients=1000).split_sizes
        {'train': 1000, 'heldout': 113, 'test': 596}
    """

    clients: int = CLIENTS["train"]
    vocabulary: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        # The test split is smaller than the other two together, and numbers are written with _DIGITS digits.
        for name, least, most in (("clients", 10, 10**_DIGITS - 1), ("vocabulary", 1, 10**6), ("seed", 0, 10**6)):
            if validation.whole(name, getattr(self, name), at_least=least) > most:
                raise InputValueError(f"{name}={getattr(self, name)} must be at most {most}.")

    @property
    def split_sizes(self) -> Mapping[str, int]:
        """Number of clients by split."""
        return {name: max(1, round(size * self.clients / CLIENTS["train"])) for name, size in CLIENTS.items()}

    def write(self, path: str | os.PathLike) -> pathlib.Path:
        """Writes the file that `load` reads, some 100 bytes, and returns its path."""
        path = pathlib.Path(path)
        files.write_atomically(path, json.dumps({"format": _FORMAT, **dataclasses.asdict(self)}) + "\n")
        return path

    def word_counts(self, vocab_size: int | None = None) -> "collections.OrderedDict[str, int]":
        """Returns the most used words, each with the expected number of training clients that use it, rounded up."""
        size = self.vocabulary if vocab_size is None else validation.whole("vocab_size", vocab_size)
        shares = _shares(self.vocabulary)
        return collections.OrderedDict(
            (word_of(rank), 1 + int(self.clients * (1 - (1 - shares[rank - 1]) ** _WORDS_A_CLIENT)))
            for rank in range(1, min(size, self.vocabulary) + 1)
        )


def cached_synthetic(cache_dir: str | os.PathLike | None = None) -> pathlib.Path:
    """Returns the path of the data set of StackOverflow's size, whose file is written if it is not there.

    Args:
        cache_dir: The folder to keep it in; as in `pydoc.cached_pydoc`.
    """
    path = pydoc.cache_folder(cache_dir) / FILE_NAME
    try:
        return path if path.is_file() else SyntheticData().write(path)
    except OSError as error:
        raise InputValueError(f"dataset='synthetic' cannot be written to {str(path)!r}: {error}.") from error


def is_synthetic(path: pathlib.Path) -> bool:
    """Returns whether the file at `path` is of a synthetic data set."""
    try:
        with path.open("rb") as file:
            return file.read(len(_START)) == _START
    except OSError:
        return False


def read(path: pathlib.Path) -> SyntheticData:
    """Returns the data set of a file."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        del content["format"]
        return SyntheticData(**content)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputValueError(f"path={str(path)!r} is damaged ({error}).") from error


def load(path: pathlib.Path) -> "Splits":
    """Returns the three splits of a file, whose examples have the features of StackOverflow's."""
    data = read(path)
    from .sqlite import Splits

    train, heldout, test = (_client_data(data, name) for name in CLIENTS)
    return Splits(train=train, validation=heldout, test=test)


def word_of(rank: int) -> str:
    """Returns the word of a rank; words in alphabetical order are in the order of their ranks."""
    return f"w{rank:0{_DIGITS}d}"


def clients_of(data: SyntheticData, split: str) -> list[str]:
    """Returns the names of the clients of a split: `train`, `heldout` or `test`."""
    return [f"{split}-{number:0{_DIGITS}d}" for number in range(data.split_sizes[split])]


def number_of_sentences(data: SyntheticData, split: str) -> int:
    """Returns how many sentences the clients of a split have."""
    import tensorflow as tf

    clients = tf.data.Dataset.from_tensor_slices(clients_of(data, split))
    counts = clients.map(lambda client: tf.size(_sentences(data, split, client), tf.int64))
    return int(counts.reduce(tf.constant(0, tf.int64), tf.add))


def examples(data: SyntheticData, split: str, clients: Sequence[str]) -> Iterator[bytes]:
    """Yields the sentences of clients of a split as serialized examples, client after client."""
    import tensorflow as tf

    texts = tf.data.Dataset.from_tensor_slices(list(clients)).flat_map(
        lambda client: tf.data.Dataset.from_tensor_slices(_sentences(data, split, client))
    )
    for text in texts.as_numpy_iterator():
        yield sqlite.serialized({"tokens": text.decode()})


def examples_by_client(data: SyntheticData, split: str) -> Callable[[Sequence[str]], list[list[bytes]]]:
    """Returns the function from clients of a split to the sentences of each, as serialized examples."""
    import tensorflow as tf

    # Traced once: TensorFlow keeps the functions of every dataset.
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def texts(clients: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(clients).map(lambda client: _sentences(data, split, client))

    def examples_of(clients: Sequence[str]) -> list[list[bytes]]:
        return [
            [sqlite.serialized({"tokens": text.decode()}) for text in of_client]
            for of_client in texts(tf.constant(list(clients), tf.string)).as_numpy_iterator()
        ]

    return examples_of


def _shares(vocabulary: int) -> list[float]:
    import numpy as np

    ranks = np.arange(1, vocabulary + 1)
    return list(np.log1p(1 / ranks) / np.log1p(vocabulary))


def _client_data(data: SyntheticData, split: str) -> "tff.simulation.datasets.ClientData":
    import tensorflow as tf
    import tensorflow_federated as tff

    def sentences_of(client: "tf.Tensor") -> "tf.data.Dataset":
        tokens = _sentences(data, split, client)
        count = tf.size(tokens)
        return tf.data.Dataset.from_tensor_slices(
            collections.OrderedDict(
                creation_date=tf.fill([count], pydoc.NO_DATE),
                score=tf.zeros([count], tf.int64),
                tags=tf.fill([count], ""),
                title=tf.fill([count], ""),
                tokens=tokens,
                type=tf.fill([count], "question"),
            )
        )

    return tff.simulation.datasets.ClientData.from_clients_and_tf_fn(clients_of(data, split), sentences_of)


def _sentences(data: SyntheticData, split: str, client: "tf.Tensor") -> "tf.Tensor":
    import tensorflow as tf

    number = tf.strings.to_number(tf.strings.substr(client, -_DIGITS, _DIGITS), tf.int32)
    seed = tf.stack([data.seed * len(CLIENTS) + list(CLIENTS).index(split), number])
    count = tf.random.stateless_uniform([], seed, 1, MOST_SENTENCES + 1, tf.int32)
    places = tf.random.stateless_uniform([MOST_SENTENCES, WORDS_A_SENTENCE], seed, dtype=tf.float64)
    ranks = tf.cast(tf.exp(places * tf.math.log1p(tf.cast(data.vocabulary, tf.float64))), tf.int32)
    written = tf.strings.as_string(tf.clip_by_value(ranks, 1, data.vocabulary), width=_DIGITS, fill="0")
    return tf.strings.reduce_join(tf.constant("w") + written, axis=1, separator=" ")[:count]
