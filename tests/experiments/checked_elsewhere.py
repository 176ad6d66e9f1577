"""Runs that are made in one environment and checked in another, without TensorFlow: see `environments`."""

import hashlib
import pathlib
import sys
from collections.abc import Callable, Sequence

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import numpy as np
import run_folders

import tff_mf
from tff_mf.experiments import reports

ROUNDS, SCHEMA = 24, tff_mf.MinSep(min_sep=4, max_participations=5)
GRID = {"grid": tff_mf.Grid.auto(dimension=1000, max_clients=2), "dimension": 1000}


MECHANISMS: dict[str, Callable[[], tff_mf.Mechanism]] = {
    "blt": lambda: tff_mf.optimize_blt(rounds=ROUNDS, participation=SCHEMA, buffers=2),
    "banded": lambda: tff_mf.optimize_banded(rounds=ROUNDS, bands=4),
    "banded-toeplitz": lambda: tff_mf.optimize_banded_toeplitz(rounds=ROUNDS, bands=4, participation=SCHEMA),
    "dense": lambda: tff_mf.optimize_dense(rounds=ROUNDS, participation=SCHEMA),
    "tree": lambda: tff_mf.Tree(ROUNDS, variant="full"),
    "identity": tff_mf.Identity,
}
# In floats, and on a grid.
RUNS = [f"{name}{ending}" for name in MECHANISMS for ending in ("", "-grid")]


def make(root: str, runs: Sequence[str] = tuple(RUNS)) -> None:
    """Makes finished runs, of a noise that was calibrated here, with their reports."""
    for run in runs:
        name = run.removesuffix("-grid")
        plan = run_folders.plan(
            mechanism=MECHANISMS[name](),
            rounds=ROUNDS,
            sampling=SCHEMA,
            noise_multiplier=None,
            epsilon=8.0,
            cohort=20,
            **(GRID if run.endswith("-grid") else {}),
        )
        folder, cohorts = pathlib.Path(root) / run, _cohorts()
        run_folders.start(folder, privacy=plan, planned=cohorts, simulation=True, clients_per_person=2)
        reports.write(folder, realised=False)
        # One of them was stopped early.
        run_folders.run(folder, cohorts if name != "identity" else cohorts[:20])
        run_folders.summarise(folder)
        reports.write(folder, realised=True)


def _cohorts() -> list[list[str]]:
    return [[f"c{t % 6}", f"d{t % 5}"] for t in range(ROUNDS)]


def product() -> str:
    """Returns a hash of all bits of a product of matrices by BLAS, and of exponentials by NumPy."""
    matrix = np.random.default_rng(0).normal(size=(200, 200))
    return hashlib.sha256((matrix @ matrix.T).tobytes() + np.exp(matrix).tobytes()).hexdigest()


def checked(root: str) -> dict[str, list[str]]:
    """Returns what is wrong with every run."""
    return {folder.name: reports.check(folder).problems for folder in sorted(pathlib.Path(root).iterdir())}
