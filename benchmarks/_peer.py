"""What the processes of `peers.py` share, in any Python with NumPy: a case in a folder, and rounds on request."""

import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Callable, Sequence

import numpy as np

_CASE, _WORDS, _WEIGHTS = "case.json", "words.npy", "weights.npz"
PADDING = 0
# The environment variable with the number of the pipe's descriptor.
ANSWERS = "PEERS_ANSWERS"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A model, and what all peers do with it in a round.

    Attributes:
        architecture: `lstm`, the model of the papers, or `conv`, a causal convolution over three words.
        vocab_size: Words the model knows, besides four special ones.
        embedding_size: Width of the word embedding.
        units: LSTM units, or filters of the convolution.
        clients: Clients of a round.
        sentences: Sentences of a client, a multiple of the batch.
        full: Whether sentences are random words without padding, rather than those of `pydoc`.
        batch: Sentences of a step.
        client_rate: Rate of the clients' SGD.
        clip_norm: Bound on the norm of a client's update.
        momentum: Momentum of the server, whose rate is 1.
        noise_multiplier: Standard deviation of the noise over the clip norm. So small that models stay comparable;
            the time of noise does not depend on it.
    """

    architecture: str
    vocab_size: int
    embedding_size: int
    units: int
    clients: int
    sentences: int
    full: bool = False
    batch: int = 16
    client_rate: float = 1.0
    clip_norm: float = 1.0
    momentum: float = 0.9
    noise_multiplier: float = 1e-9

    def write(self, folder: pathlib.Path, words: np.ndarray, weights: Sequence[np.ndarray]) -> None:
        """Writes the case.

        Args:
            folder: A new folder.
            words: `[clients, sentences, length + 1]`.
            weights: The first model, in Keras' order and shapes.
        """
        folder.mkdir(parents=True)
        (folder / _CASE).write_text(json.dumps(dataclasses.asdict(self)))
        np.save(folder / _WORDS, words)
        np.savez(folder / _WEIGHTS, *weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Given:
    """A case as a peer reads it.

    Attributes:
        case: The case.
        inputs: int64 `[clients, sentences, length]`.
        targets: The words that follow, of the same shape.
        weights: The first model.
    """

    case: Case
    inputs: np.ndarray
    targets: np.ndarray
    weights: list[np.ndarray]


def read(folder: pathlib.Path) -> Given:
    words = np.load(folder / _WORDS)
    return Given(
        case=Case(**json.loads((folder / _CASE).read_text())),
        inputs=np.ascontiguousarray(words[:, :, :-1]),
        targets=np.ascontiguousarray(words[:, :, 1:]),
        weights=read_model(folder / _WEIGHTS),
    )


def read_model(file: pathlib.Path) -> list[np.ndarray]:
    with np.load(file) as arrays:
        return list(arrays.values())


class Requests:
    """Requests on standard input, one line of JSON each, which are answered on a pipe of their own.

    `{"round": 1}` is for a round, and `{"model": FILE}` for the model as a file.

    Args:
        model: Returns the current model, in Keras' order and shapes.
    """

    def __init__(self, model: Callable[[], Sequence[np.ndarray]]) -> None:
        self._model = model
        self._answers = os.fdopen(int(os.environ[ANSWERS]), "w", buffering=1)

    def wants_round(self) -> bool:
        """Answers the request before, which is done, and returns whether there is another round."""
        self._answers.write("done\n")
        for line in sys.stdin:
            request = json.loads(line)
            if "round" in request:
                return True
            np.savez(request["model"], *self._model())
            self._answers.write("done\n")
        return False


def serve(model: Callable[[], Sequence[np.ndarray]], one_round: Callable[[], object]) -> None:
    """Runs rounds until there are no more requests."""
    requests = Requests(model)
    while requests.wants_round():
        one_round()
