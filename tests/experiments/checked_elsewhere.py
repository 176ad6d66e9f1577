"""Runs that are made in one environment and checked in another, without TensorFlow: see `environments`."""

import hashlib
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import numpy as np
import run_folders

import tff_mf
from tff_mf.experiments import reports

ROUNDS, SCHEMA = 24, tff_mf.MinSep(min_sep=4, max_participations=5)
GRID = {"grid": tff_mf.Grid.auto(dimension=1000, max_clients=2), "dimension": 1000}


def make(root: str) -> None:
    """Makes finished runs, of a noise that was calibrated here, with their reports; one was stopped early."""
    setting = {"rounds": ROUNDS, "participation": SCHEMA}
    cohorts = [[f"c{t % 6}", f"d{t % 5}"] for t in range(ROUNDS)]
    for mechanism, ran in ((tff_mf.optimize_blt(buffers=2, **setting), 20), (tff_mf.optimize_dense(**setting), ROUNDS)):
        level = {"noise_multiplier": None, "epsilon": 8.0, "cohort": 20}
        plan = run_folders.plan(mechanism=mechanism, rounds=ROUNDS, sampling=SCHEMA, **level, **GRID)
        folder = pathlib.Path(root) / mechanism.kind
        run_folders.start(folder, privacy=plan, planned=cohorts, simulation=True, clients_per_person=2)
        reports.write(folder, realised=False)
        run_folders.run(folder, cohorts[:ran])
        run_folders.summarise(folder)
        reports.write(folder, realised=True)


def product() -> str:
    """Returns a hash of all bits of a product of matrices by BLAS, and of exponentials by NumPy."""
    matrix = np.random.default_rng(0).normal(size=(200, 200))
    return hashlib.sha256((matrix @ matrix.T).tobytes() + np.exp(matrix).tobytes()).hexdigest()


def checked(root: str) -> dict[str, list[str]]:
    """Returns what is wrong with every run."""
    return {folder.name: reports.check(folder).problems for folder in sorted(pathlib.Path(root).iterdir())}
