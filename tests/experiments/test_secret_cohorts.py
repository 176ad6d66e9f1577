"""Runs whose cohorts are secret: nothing shows them, and they state the amplified ε, also killed and resumed."""

import json

import pytest

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.data import TRAIN, client_ids
from tff_mf.experiments.runs import names

from . import secret_runs, small_runs
from .shared import drawn, invoke

RUNS = {
    "poisson": "--mechanism identity --sampling poisson",
    "cyclic-poisson": "--mechanism banded --sampling cyclic-poisson",
    "b-min-sep": "--mechanism banded --sampling b-min-sep --delta 1e-3",
}
KILLED = ["--mechanism", "blt", "--sampling", "balls-in-bins", "--secret-cohorts"]


def check(folder, word, data):
    """Nothing shows who took part, and the run states the amplified ε."""
    clients = client_ids(data, TRAIN)
    record, report = reports.read_record(folder), reports.read(folder / names.REPORT)
    # The same object drew and is accounted for; a client's ε is smaller than for whoever knows the cohorts.
    sampling = drawn(word).drawn_by(population=len(clients), clients_per_round=3)
    run = tff_mf.load(folder / names.MECHANISM), small_runs.ROUNDS, sampling
    on_grid = {"grid": record.plan.grid, "dimension": record.plan.dimension}
    found = tff_mf.guarantee(*run, noise_multiplier=6, **on_grid).at(delta=record.plan.delta)
    secret_runs.check_secret(folder, word, found, clients)
    assert found.theorem == "unamplified" or found.epsilon < report.realised.epsilon
    assert report.realised.epsilon == report.planned.epsilon
    assert "that nobody knows" in report.headline
    assert {line.split(",")[1] for line in (folder / names.METRICS).read_text().splitlines()[1:]} <= {"0.0", ""}
    summary = json.loads((folder / names.SUMMARY).read_text())
    assert (record.cohorts, record.population) == ([], len(clients))
    assert summary["seconds"] == 0
    assert invoke("report", folder, "--check").exit_code == 0


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("word", RUNS)
def test_nothing_shows_who_took_part_and_the_run_states_the_amplified_epsilon(small_data, tmp_path, word):
    small_runs.trained(tmp_path / "run", small_data, [*RUNS[word].split(), "--secret-cohorts"])
    check(tmp_path / "run", word, small_data)


def test_a_killed_run_goes_on_with_the_same_groups_and_shows_nobody(small_data, tmp_path, forks):
    folder = tmp_path / "run"
    small_runs.killed(forks, folder, small_data, KILLED)
    assert (folder / names.CHECKPOINTS / names.COHORTS).stat().st_mode & 0o777 == 0o600
    small_runs.trained(folder, small_data, [*KILLED, "--resume"])
    check(folder, "balls-in-bins", small_data)


REFUSED = [
    ("--sampling min-sep", "secret_cohorts does not go with sampling='min-sep'"),
    ("--sampling balls-in-bins --set cohort=30", "cohort=30 does not go with secret_cohorts"),
    ("--sampling balls-in-bins --epsilon 2", "epsilon=2.0 does not go with secret_cohorts"),
    ("--sampling poisson --mechanism tree-full", "amplify at most 1"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED)
def test_what_no_theorem_covers_is_refused_before_it_trains(small_data, tmp_path, flags, message):
    command = small_runs.arguments(tmp_path / "run", small_data, flags.split())
    done = invoke(*command, "--secret-cohorts", catch_exceptions=True)
    assert done.exit_code != 0
    assert message in done.output + str(done.exception)
    assert not (tmp_path / "run" / names.LEDGER).exists()
