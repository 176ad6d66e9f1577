"""What a comparison will cost: rounds, clients, sentences and memory by its settings, hours by a measurement."""

import contextlib
import dataclasses
import pathlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..configuration.run import RunConfiguration
from ..configuration.settings import ModelConfig
from ..datasets import named_data, stackoverflow, synthetic
from . import _spec
from ._state_rows import state_rows

_FLOAT = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelTimes:
    """A measurement of a model.

    Attributes:
        parameters: Number of its parameters d.
        train: Seconds of a client's batch.
        evaluate: Seconds of a sentence that is only evaluated.
        words: How they were measured.
    """

    parameters: int
    train: float
    evaluate: float
    words: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientSize:
    """What a client of a data set trains on in one pass.

    Attributes:
        sentences: Mean number of sentences.
        batches: Mean number of batches.
        words: How it is known.
    """

    sentences: float
    batches: float
    words: str


def estimate(
    spec: pathlib.Path,
    *,
    dataset: str | None = None,
    fraction: float | None = None,
    measure: Callable[[Sequence[tuple[ModelConfig, int]]], ModelTimes],
) -> dict[str, Any]:
    """Returns what the runs of a specification cost; nothing is downloaded, optimized or trained.

    Args:
        spec: A TOML file.
        dataset: Data set of all runs, in place of those of the file.
        fraction: Part of the size at which the runs are done.
        measure: Returns the times of the largest of some models, each with the size of its batches.

    Raises:
        InputError: If the specification is wrong.
    """
    runs = [run.configuration for run in _spec.read(spec, dataset=dataset, fraction=fraction)]
    times = measure([(run.training_settings().model, run.batch_size) for run in runs])
    sizes = {(run.dataset, run.max_examples, run.batch_size): _client_size(run) for run in runs}
    of = {id(run): sizes[run.dataset, run.max_examples, run.batch_size] for run in runs}
    updates = {id(run): run.rounds * run.clients_per_round for run in runs}
    passes = {id(run): updates[id(run)] * run.client_epochs for run in runs}
    training = sum(passes[id(run)] * of[id(run)].batches * times.train for run in runs)
    evaluating = sum(_evaluated(run) * times.evaluate for run in runs)
    rows = [_rows(run) for run in runs]
    known = [count for count in rows if count is not None]
    return {
        "runs": len(runs),
        "rounds": sum(run.rounds for run in runs),
        "client_updates": sum(updates.values()),
        "sentences": round(sum(passes[id(run)] * of[id(run)].sentences for run in runs)),
        "hours": (training + evaluating) / 3600,
        "hours_of_training": training / 3600,
        "hours_of_evaluation": evaluating / 3600,
        "seconds_per_batch": times.train,
        "parameters": times.parameters,
        "noise_state_bytes": max(known) * times.parameters * _FLOAT if known else None,
        "notes": [
            times.words,
            *sorted({size.words for size in sizes.values()}),
            "The hours are an estimate, for one run at a time: without the search for mechanisms, TFF's own work and "
            "the noise, which add to each round.",
            *(["The memory of mechanisms from files is not in it."] if len(known) < len(rows) else []),
        ],
    }


def _evaluated(run: RunConfiguration) -> int:
    """Returns the sentences of all evaluations: of test clients, and at the end of validation clients too."""
    return (-(-run.rounds // run.evaluate_every) + 1) * run.evaluation_examples


def _rows(run: RunConfiguration) -> int | None:
    return state_rows(
        run.mechanism,
        rounds=run.mechanism_setting().searched_rounds,
        bands=run.bands or run.min_sep,
        buffers=run.buffers,
    )


def _client_size(run: RunConfiguration) -> ClientSize:
    most = run.max_examples
    path = _file_without_download(run.dataset)
    if path is None:
        return ClientSize(
            sentences=most,
            batches=-(-most // run.batch_size),
            words=f"{run.dataset} is not here: each client is counted with {most} sentences, the most that it may use.",
        )
    if synthetic.is_synthetic(path):
        counts: Mapping[int, int] = dict.fromkeys(range(1, synthetic.MOST_SENTENCES + 1), 1)
    else:
        counts = _clients_by_sentences(path)
    clients = sum(counts.values())
    return ClientSize(
        sentences=sum(number * min(size, most) for size, number in counts.items()) / clients,
        batches=sum(number * -(-min(size, most) // run.batch_size) for size, number in counts.items()) / clients,
        words=f"Sentences are the mean over the training clients of {run.dataset}, at most {most} each.",
    )


def _file_without_download(dataset: str) -> pathlib.Path | None:
    if dataset == "stackoverflow" and not stackoverflow.is_cached():
        return None
    return named_data.data_file(dataset)


def _clients_by_sentences(path: pathlib.Path) -> dict[int, int]:
    query = "SELECT num_examples, COUNT(*) FROM client_metadata WHERE split_name = 'train' GROUP BY num_examples"
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        return dict(connection.execute(query).fetchall())
