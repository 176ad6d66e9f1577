import dataclasses
import fcntl
import functools
import logging.handlers
import os
import pathlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bundle:
    """A bundle that was exported, what was exported, the digest that was printed, and what was warned of."""

    folder: pathlib.Path
    config: pathlib.Path
    digest: str
    warnings: list[str]


@pytest.fixture(scope="session")
def small_data(tmp_path_factory) -> pathlib.Path:
    """A small data set of real text, made as the whole one is, once for all processes of pytest-xdist."""
    from tff_mf.experiments.datasets.pydoc import write_pydoc

    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with (folder / "small.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_pydoc(folder / "small.sqlite", ["scipy"], progress=False)
    return folder / "small.sqlite"


@pytest.fixture(scope="session")
def bundle(small_data, tmp_path_factory) -> Bundle:
    """A deployment of 200 rounds, of a cohort of 4 that its simulation trained 2 of."""
    from tff_mf.experiments.bundles import building, read_source

    root = tmp_path_factory.mktemp("bundle")
    config = root / "settings.toml"
    config.write_text(
        f'[run]\ndataset = "sqlite:{small_data}"\nmechanism = "tree-full"\nrounds = 200\nclients_per_round = 2\n'
        "cohort = 4\ndelta = 1e-6\nmin_sep = 10\nmax_participations = 12\nnoise_multiplier = 8.0\n"
        'model = "conv"\nvocab_size = 60\nembedding_size = 4\nunits = 4\nbatch_size = 2\nmax_examples = 4\n'
    )
    handler = logging.handlers.BufferingHandler(10**6)
    handler.setLevel(logging.WARNING)
    logging.getLogger("tff_mf").addHandler(handler)
    digest = building.export(read_source(config), root / "bundle", round_minutes=15.0, population=80)
    logging.getLogger("tff_mf").removeHandler(handler)
    warnings = [record.getMessage() for record in handler.buffer]
    return Bundle(folder=root / "bundle", config=config, digest=digest, warnings=warnings)


class _Traced:
    """What TFF traces for a run, which takes most of the time of a small one: kept for the next of the same settings.

    Tasks are kept as long as this is, so that none gets the place, and so the process, of another.
    """

    def __init__(self) -> None:
        from tff_mf.aggregators import _forms
        from tff_mf.experiments import training

        self._build_task, self._build_process = training.build_task, training.build_process
        self.take_apart: Callable = functools.cache(_forms.take_apart)
        self._kept: dict[tuple, Any] = {}

    def build_task(self, settings: Any, vocabulary: list[str]) -> Any:
        return self._once((pickle.dumps((settings, vocabulary)),), lambda: self._build_task(settings, vocabulary))

    def build_process(self, settings: Any, privacy: Any, task: Any) -> Any:
        key = (pickle.dumps((settings, privacy)), id(task))
        return self._once(key, lambda: self._build_process(settings, privacy, task))

    def _once(self, key: tuple, build: Callable[[], Any]) -> Any:
        if key not in self._kept:
            self._kept[key] = build()
        return self._kept[key]


@pytest.fixture(scope="session")
def _traced() -> _Traced:
    return _Traced()


@pytest.fixture(scope="module")
def traced_once(_traced: _Traced) -> Iterator[None]:
    """Runs in this process share what TFF traces for the same settings, as the restarts of one run do."""
    from tff_mf.aggregators import _forms
    from tff_mf.experiments import training

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "build_task", _traced.build_task)
        patch.setattr(training, "build_process", _traced.build_process)
        patch.setattr(_forms, "take_apart", _traced.take_apart)
        yield
