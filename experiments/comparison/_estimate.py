"""What a comparison will cost, by its settings alone: rounds, clients, sentences, core-hours and memory."""

import pathlib
from collections.abc import Mapping
from typing import Any

from tff_mf.planning.mechanism_names import state_rows

from ..runs.settings import ALL, RunSettings
from ..training.datasets import named_data, sqlite, stackoverflow, synthetic
from . import _spec, specs

_FLOAT = 4
_TEST = "test"
# Core-seconds for each model parameter, measured with `pydoc-light`'s model and with the papers' LSTM: of a client's
# update in TFF, of a sentence that is trained on, and of one that is only evaluated.
_UPDATE, _TRAINED, _EVALUATED = 7e-8, 3e-9, 4e-10
# Core-seconds in which a run loads TensorFlow and compiles.
_START = 20.0


def estimate(spec: pathlib.Path, *, dataset: str | None = None, fraction: float | None = None) -> dict[str, Any]:
    """Returns what the runs of a specification cost; nothing is downloaded, optimized or trained.

    Core-hours are right within a factor of about two; the search for mechanisms is not in them. Of a data set that is
    not here, each client is counted with as many sentences as it may use.

    Args:
        spec: A TOML file.
        dataset: Data set of all runs, in place of the file's.
        fraction: Part of the size at which the runs are done.
    """
    runs = [run.settings for run in _spec.read(spec, dataset=dataset, fraction=fraction)]
    clients = {name: _clients_by_sentences(name, "train") for name in {run.dataset for run in runs}}
    test = {name: _test_sentences(name) for name in clients}
    trained = [_passes(run) * _sentences(run, clients[run.dataset]) for run in runs]
    evaluated = [_evaluated(run, test[run.dataset]) for run in runs]
    rows = [_rows(run) for run in runs]
    states = [count * run.dimension * _FLOAT for count, run in zip(rows, runs, strict=True) if count is not None]
    seconds = sum(
        _START + run.dimension * (_UPDATE * _passes(run) + _TRAINED * sentences + _EVALUATED * measured)
        for run, sentences, measured in zip(runs, trained, evaluated, strict=True)
    )
    return {
        "runs": len(runs),
        "rounds": sum(run.rounds for run in runs),
        "client_updates": sum(run.rounds * run.clients_per_round for run in runs),
        "sentences": round(sum(trained)),
        "core_hours": seconds / 3600,
        "parameters": max(run.dimension for run in runs),
        # That of a mechanism from a file is not known.
        "noise_state_bytes": max(states, default=None),
    }


def larger(spec: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Returns the estimates of the larger comparisons of the same table by name, the next one first."""
    name = _spec.read_grids(spec).larger
    if name is None:
        return {}
    path = specs.path_of(name)
    return {name: estimate(path), **larger(path)}


def _passes(run: RunSettings) -> int:
    """Returns how often a client passes over its sentences."""
    return run.rounds * run.clients_per_round * run.client_epochs


def _evaluated(run: RunSettings, test_sentences: int) -> int:
    """Returns the sentences of all evaluations: for validation while training, and for the test once at the end."""
    left = max(0, test_sentences - (run.evaluation_examples if run.validation_split == _TEST else 0))
    tested = left if run.test_examples == ALL else min(left, int(run.test_examples))
    return -(-run.rounds // run.evaluate_every) * run.evaluation_examples + tested


def _test_sentences(dataset: str) -> int:
    sizes = _clients_by_sentences(dataset, _TEST)
    if sizes is None:
        return stackoverflow.TEST_SENTENCES
    return round(sum(size * clients for size, clients in sizes.items()))


def _rows(run: RunSettings) -> int | None:
    return state_rows(
        run.mechanism,
        rounds=run.mechanism_setting().searched_rounds,
        bands=run.bands or run.participation().min_sep,
        buffers=run.buffers,
    )


def _sentences(run: RunSettings, clients: Mapping[int, float] | None) -> float:
    """Returns the mean number of sentences that a client trains on in a pass."""
    if clients is None:
        return run.max_examples
    return sum(number * min(size, run.max_examples) for size, number in clients.items()) / sum(clients.values())


def _clients_by_sentences(dataset: str, split: str) -> Mapping[int, float] | None:
    """Returns how many clients have each number of sentences; None if the data set is not here."""
    if dataset == "stackoverflow" and not stackoverflow.is_cached():
        return None
    path = named_data.data_file(dataset)
    if synthetic.is_synthetic(path):
        each = synthetic.read(path).split_sizes[split] / synthetic.MOST_SENTENCES
        return dict.fromkeys(range(1, synthetic.MOST_SENTENCES + 1), each)
    query = "SELECT num_examples, COUNT(*) FROM client_metadata WHERE split_name = ? GROUP BY num_examples"
    with sqlite.opened(path) as connection:
        return dict(connection.execute(query, [split]).fetchall())
