import fcntl
import json
import logging.handlers
import os
import pathlib
import pickle
import shutil
import signal
import sys
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

# Programs and builders of run folders that tests share with other environments.
sys.path.extend(
    str(pathlib.Path(__file__).parents[1] / name) for name in ("machines", "forks", "experiments", "faults")
)


@pytest.fixture(scope="session")
def once_for_all(tmp_path_factory) -> Callable[[str, Callable[[pathlib.Path], Any]], Any]:
    """What makes something in a new folder of a name, once for all processes of pytest-xdist, which share the result.

    Nothing may be written into that folder afterwards: tests change copies.
    """
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared

    def made_once(name: str, make: Callable[[pathlib.Path], Any]) -> Any:
        result = shared / f"{name}.pickle"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not result.exists():
                # Where making it fails, the next process tries, and fails for the same reason.
                shutil.rmtree(shared / name, ignore_errors=True)
                (shared / name).mkdir()
                result.write_bytes(pickle.dumps(make(shared / name)))
            return pickle.loads(result.read_bytes())

    return made_once


@pytest.fixture(scope="session")
def whole_run(once_for_all) -> tuple[pathlib.Path, dict[str, Any]]:
    """A finished run, killed twice on its way, and its report."""
    import run_folders

    return once_for_all("whole", lambda root: (root / "run", run_folders.whole(root / "run")))


@pytest.fixture(scope="session")
def small_data(once_for_all) -> pathlib.Path:
    """A small data set of real text, made as the whole one is."""
    from tff_mf.experiments.data import write_pydoc

    def write(folder: pathlib.Path) -> pathlib.Path:
        write_pydoc(folder / "small.sqlite", ["scipy"])
        return folder / "small.sqlite"

    return once_for_all("small", write)


@pytest.fixture(scope="session")
def of_stackoverflow(tmp_path_factory) -> pathlib.Path:
    """TFF's own three synthetic StackOverflow clients, one in each split, written by TFF."""
    import tensorflow_federated as tff

    path = tmp_path_factory.mktemp("stackoverflow") / "file.sqlite"
    data = tff.simulation.datasets.stackoverflow.get_synthetic()
    splits = dict(zip(sorted(data.client_ids), ("train", "heldout", "test"), strict=True))
    tff.simulation.datasets.save_to_sql_client_data(
        data.client_ids, data.create_tf_dataset_for_client, str(path), split_names_by_client_id=splits
    )
    return path


@pytest.fixture(scope="session")
def bundle(small_data, once_for_all) -> types.SimpleNamespace:
    """A deployment of 200 rounds, of a cohort of 4 that its simulation trained 2 of: what was exported, and how."""
    return once_for_all("deployed", lambda root: _exported(small_data, root))


def _exported(small_data: pathlib.Path, root: pathlib.Path) -> types.SimpleNamespace:
    from tff_mf.experiments import reports, train
    from tff_mf.experiments.data import most_used_words
    from tff_mf.experiments.runs.settings import RunSettings

    sizes = {"vocab_size": 60, "embedding_size": 4, "units": 4, "batch_size": 2, "max_examples": 4}
    settings = RunSettings(
        dataset=f"sqlite:{small_data}",
        mechanism="tree-full",
        rounds=200,
        clients_per_round=2,
        cohort=4,
        delta=1e-6,
        min_sep=10,
        max_participations=12,
        noise_multiplier=8.0,
        grid="auto",
        model="conv",
        **sizes,
    )
    # As a run that was stopped before its first round.
    run, plan = root / "run", settings.privacy_plan(settings.build_mechanism())
    reports.write_record(run, plan, settings=settings, server_learning_rate=settings.chosen_rate(plan))
    (run / "vocabulary.json").write_text(json.dumps(most_used_words(small_data, 60)))
    handler = logging.handlers.BufferingHandler(10**6)
    handler.setLevel(logging.WARNING)
    logging.getLogger("tff_mf").addHandler(handler)
    made = train.write(run, root / "bundle", longest_round=15.0, population=80)
    logging.getLogger("tff_mf").removeHandler(handler)
    warnings = [record.getMessage() for record in handler.buffer]
    return types.SimpleNamespace(folder=root / "bundle", run=run, warnings=warnings, graphs=made.graphs)


@pytest.fixture
def typed(tmp_path, monkeypatch, capfd):
    """A function that runs a command line in this process, and returns its status, output and errors."""
    from tff_mf.experiments import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    # `python -m pytest` is another program name than `pytest`.
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None, raising=False)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["tff-mf", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, *capfd.readouterr()

    # What the command sets for its own process must not reach the tests after it.
    with mock.patch.dict(os.environ):
        yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)
