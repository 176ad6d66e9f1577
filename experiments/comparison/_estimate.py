"""What a comparison will cost: rounds, clients, sentences and memory by its settings, hours by a measurement."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tff_mf.planning.mechanism_names import state_rows

from ..runs.settings import ALL, RunSettings
from ..training.datasets import named_data, sqlite, stackoverflow, synthetic
from . import _spec

_FLOAT = 4
_TEST = "test"


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
    measure: Callable[[Sequence[RunSettings]], ModelTimes],
) -> dict[str, Any]:
    """Returns what the runs of a specification cost; nothing is downloaded, optimized or trained.

    Args:
        spec: A TOML file.
        dataset: Data set of all runs, in place of the file's.
        fraction: Part of the size at which the runs are done.
        measure: Returns the times of the largest of the models of some settings.

    Raises:
        InputError: If the specification is wrong.
    """
    runs = [run.configuration for run in _spec.read(spec, dataset=dataset, fraction=fraction)]
    times = measure(runs)
    sizes = {(run.dataset, run.max_examples, run.batch_size): _client_size(run) for run in runs}
    of = {id(run): sizes[run.dataset, run.max_examples, run.batch_size] for run in runs}
    updates = {id(run): run.rounds * run.clients_per_round for run in runs}
    passes = {id(run): updates[id(run)] * run.client_epochs for run in runs}
    training = sum(passes[id(run)] * of[id(run)].batches * times.train for run in runs)
    test = {name: _test_sentences(name) for name in {run.dataset for run in runs}}
    evaluating = sum(_evaluated(run, test[run.dataset]) * times.evaluate for run in runs)
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


def _evaluated(run: RunSettings, test_sentences: int) -> int:
    """Returns the sentences of all evaluations: for validation while training, and for the test once at the end."""
    left = max(0, test_sentences - (run.evaluation_examples if run.validation_split == _TEST else 0))
    tested = left if run.test_examples == ALL else min(left, int(run.test_examples))
    return -(-run.rounds // run.evaluate_every) * run.evaluation_examples + tested


def _test_sentences(dataset: str) -> int:
    path = _file_without_download(dataset)
    if path is None:
        return stackoverflow.TEST_SENTENCES
    if synthetic.is_synthetic(path):
        return synthetic.read(path).expected_sentences(_TEST)
    return sum(size * clients for size, clients in _clients_by_sentences(path, _TEST).items())


def _rows(run: RunSettings) -> int | None:
    return state_rows(
        run.mechanism,
        rounds=run.mechanism_setting().searched_rounds,
        bands=run.bands or run.participation().min_sep,
        buffers=run.buffers,
    )


def _client_size(run: RunSettings) -> ClientSize:
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
        counts = _clients_by_sentences(path, "train")
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


def _clients_by_sentences(path: pathlib.Path, split: str) -> dict[int, int]:
    query = "SELECT num_examples, COUNT(*) FROM client_metadata WHERE split_name = ? GROUP BY num_examples"
    with sqlite.opened(path) as connection:
        return dict(connection.execute(query, [split]).fetchall())
