"""What a comparison will cost, by its settings alone: rounds, clients, sentences, core-hours and memory."""

import pathlib
from collections.abc import Mapping
from typing import Any

from tff_mf.planning.mechanism_names import state_rows

from ..runs.settings import ALL
from ..training.datasets import named_data, sqlite, stackoverflow
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
    known = {
        name: [_clients_by_sentences(name, split) for split in ("train", _TEST)]
        for name in {run.dataset for run in runs}
    }
    sentences, seconds, states = 0.0, 0.0, []
    for run in runs:
        clients, test = known[run.dataset]
        passes = run.rounds * run.clients_per_round * run.client_epochs
        trained = passes * (run.max_examples if clients is None else _mean(clients, run.max_examples))
        tested = (
            stackoverflow.TEST_SENTENCES if test is None else round(sum(size * each for size, each in test.items()))
        )
        tested = max(0, tested - (run.evaluation_examples if run.validation_split == _TEST else 0))
        if run.test_examples != ALL:
            tested = min(tested, int(run.test_examples))
        # For validation while training, and for the test once at the end.
        evaluated = -(-run.rounds // run.evaluate_every) * run.evaluation_examples + tested
        sentences += trained
        seconds += _START + run.dimension * (_UPDATE * passes + _TRAINED * trained + _EVALUATED * evaluated)
        rows = state_rows(
            run.mechanism,
            rounds=run.mechanism_setting().searched_rounds,
            bands=run.bands or run.participation().min_sep,
            buffers=run.buffers,
        )
        # Unknown of a mechanism from a file.
        states += [] if rows is None else [rows * run.dimension * _FLOAT]
    return {
        "runs": len(runs),
        "rounds": sum(run.rounds for run in runs),
        "client_updates": sum(run.rounds * run.clients_per_round for run in runs),
        "sentences": round(sentences),
        "core_hours": seconds / 3600,
        "parameters": max(run.dimension for run in runs),
        "noise_state_bytes": max(states, default=None),
    }


def _mean(clients: Mapping[int, float], most: int) -> float:
    """Returns the mean number of sentences that a client trains on in a pass."""
    return sum(number * min(size, most) for size, number in clients.items()) / sum(clients.values())


def larger(spec: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Returns the estimates of the larger comparisons of the same table by name, the next one first."""
    name = _spec.read_grids(spec).larger
    if name is None:
        return {}
    path = specs.path_of(name)
    return {name: estimate(path), **larger(path)}


def _clients_by_sentences(dataset: str, split: str) -> Mapping[int, float] | None:
    """Returns how many clients have each number of sentences; None if the data set is not here."""
    if dataset == "stackoverflow" and not stackoverflow.is_cached():
        return None
    path = named_data.data_file(dataset)
    query = "SELECT num_examples, COUNT(*) FROM client_metadata WHERE split_name = ? GROUP BY num_examples"
    with sqlite.opened(path) as connection:
        return dict(connection.execute(query, [split]).fetchall())
