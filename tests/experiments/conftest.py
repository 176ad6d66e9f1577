import dataclasses
import logging.handlers
import os
import pathlib
import shutil
import subprocess
import sys

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
    """A small data set of real text, made as the whole one is."""
    from tff_mf.experiments.datasets.pydoc import write_pydoc

    path = tmp_path_factory.mktemp("data") / "small.sqlite"
    write_pydoc(path, ["scipy"], progress=False)
    return path


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


@pytest.fixture(scope="session")
def exported_again(bundle, tmp_path_factory) -> pathlib.Path:
    """The same deployment, exported by a command in a process whose sets have another order, of a run's folder."""
    root = tmp_path_factory.mktemp("again")
    run = root / "a run"
    run.mkdir()
    for name in ("configuration.toml", "vocabulary.json", "mechanism.safetensors"):
        shutil.copyfile(bundle.folder / name, run / name)
    program = "from tff_mf.experiments.cli import main; main()"
    command = [sys.executable, "-c", program, "export", run, "--out", root / "deep" / "er"]
    with (root / "log").open("w") as log:
        subprocess.run(
            [*map(str, command), "--round-minutes", "15", "--population", "80", "--json"],
            env={**os.environ, "PYTHONHASHSEED": "4321"},
            stdout=log,
            stderr=log,
            check=True,
        )
    return root / "deep" / "er"
