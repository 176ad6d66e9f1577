"""Makes the cases of `peers.py`: words of clients, and a first model. JSON `{folder: case}` in."""

import json
import pathlib
import sys

import _peer
import _settings
import numpy as np

from tff_mf.experiments.data import data_file, most_used_words
from tff_mf.experiments.runs.settings import RunSettings
from tff_mf.experiments.training import evaluation, task


def words_of(case: _peer.Case, settings: RunSettings) -> np.ndarray:
    """Returns words `[clients, sentences, length + 1]`: sentences of `pydoc` in their order, or random words."""
    number, shape = case.most_clients * case.sentences, (case.most_clients, case.sentences, -1)
    if case.full:
        length = evaluation.SEQUENCE_LENGTH + 1
        return np.random.default_rng(0).integers(1, case.vocab_size + 1, (number, length)).reshape(shape)
    data = data_file("pydoc")
    vocabulary = most_used_words(data, case.vocab_size)
    chunks = evaluation.Evaluator(settings, data, vocabulary).tokens("train", most=number)
    return np.concatenate([chunk.words for chunk in chunks]).astype(np.int64).reshape(shape)


def main() -> None:
    for folder, values in json.load(sys.stdin).items():
        case = _peer.Case(**values)
        settings = _settings.of_case(case)
        names = [f"word{number}" for number in range(case.vocab_size)]
        model = task.build_keras_model(settings, vocabulary=names)
        weights = [variable.numpy() for variable in model.trainable_variables]
        case.write(pathlib.Path(folder), words_of(case, settings), weights)


if __name__ == "__main__":
    main()
