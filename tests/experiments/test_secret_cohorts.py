"""Runs whose cohorts are secret: nothing shows them, they state the amplified ε, and a forged claim states nothing."""

import contextlib
import functools
import json
import pathlib
import shutil
import sqlite3
import types

import pytest
import run_folders

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.runs import amplification, folders, names
from tff_mf.experiments.sampling.settings import PARAMETERS
from tff_mf.experiments.training.datasets import sqlite

from . import secret_runs, stand_in
from .shared import critical, drawn, invoke, violated

RUNS = {
    "poisson": "--mechanism identity --sampling poisson",
    "cyclic-poisson": "--mechanism banded --sampling cyclic-poisson",
    "balls-in-bins": "--mechanism blt --sampling balls-in-bins",
    "b-min-sep": "--mechanism banded --sampling b-min-sep --delta 1e-3",
}


@pytest.fixture(scope="module")
def kept(small_data, tmp_path_factory):
    """A function from a sampling to its run, stopped and resumed, and the cohorts whose data it read."""
    root = tmp_path_factory.mktemp("secret")

    @functools.cache
    def make(word):
        read = []

        def build_task(settings, vocabulary):
            task = stand_in.build_task(settings, vocabulary)
            task.build_batches = lambda sentences: types.SimpleNamespace(of=lambda clients: read.append(clients) or [])
            return task

        with pytest.MonkeyPatch.context() as patch:
            stand_in.put_in_place(patch, build_task=build_task)
            done = stand_in.trained(root / word, small_data, [*RUNS[word].split(), "--secret-cohorts"])
        assert done.exit_code == 0, done.output + repr(done.exception)
        return root / word, read

    return make


@pytest.fixture
def run(kept, request, tmp_path):
    return pathlib.Path(shutil.copytree(kept(request.param)[0], tmp_path / "run"))


@pytest.mark.parametrize("word", RUNS)
def test_nothing_shows_who_took_part_and_the_run_states_the_amplified_epsilon(kept, small_data, word):
    folder, read = kept(word)
    clients = sqlite.load(small_data).train.client_ids
    record, report = reports.read_record(folder), json.loads((folder / names.REPORT).read_text())
    # The same object drew and is accounted for; a client's ε is smaller than for whoever knows the cohorts.
    sampling = drawn(word).drawn_by(population=len(clients), clients_per_round=3)
    run = tff_mf.load(folder / names.MECHANISM), stand_in.ROUNDS, sampling
    on_grid = {"grid": record.grid, "dimension": record.dimension}
    found = tff_mf.guarantee(*run, noise_multiplier=6, **on_grid).at(delta=record.delta)
    secret_runs.check_secret(folder, word, found, clients)
    assert found.theorem == "unamplified" or found.epsilon < report["accountant"]["realised"]["epsilon"]
    assert report["accountant"]["realised"]["epsilon"] == report["accountant"]["planned"]["epsilon"]
    assert "that nobody knows" in reports.headline(report)
    assert {line.split(",")[1] for line in (folder / names.METRICS).read_text().splitlines()[1:]} <= {"0.0", ""}
    summary = json.loads((folder / names.SUMMARY).read_text())
    assert (record.cohorts, record.population) == ([], len(clients))
    assert (summary["seconds"], report["participation"]["observed_max_participations"]) == (0, None)
    # Cohorts outlast an interruption: those that were read again are the same, and they keep the schema.
    assert len(read) > stand_in.ROUNDS
    assert invoke("report", folder, "--check").exit_code == 0


@pytest.mark.parametrize("word", ["balls-in-bins"])
def test_a_resumed_run_goes_on_with_the_same_groups(kept, word):
    _, read = kept(word)
    first, rest = read[: stand_in.STOPPED_IN], read[-(stand_in.ROUNDS - 4) :]
    assert [sorted(each) for each in first[:4]] == [sorted(each) for each in rest[:4]]


def forged(folder, **changes):
    """A forger who knows every format rewrites what follows from run.json."""
    record = json.loads((folder / names.RUN_JSON).read_text())
    (folder / names.RUN_JSON).write_text(json.dumps({**record, **changes}))
    (folder / names.SUMMARY).unlink()
    run_folders.consistent(folder, planned=True)
    return json.loads((folder / names.REPORT).read_text())


@pytest.mark.parametrize("run", ["balls-in-bins"], indirect=True)
def test_a_forged_claim_states_nothing(run, tmp_path):
    record = json.loads((run / names.RUN_JSON).read_text())
    epsilon, settings = record["amplified_epsilon"], {**record["settings"], **dict.fromkeys(PARAMETERS)}
    for number, changes in enumerate(
        (
            {"amplified_epsilon": 0.9 * epsilon},
            {"noise_multiplier": 0.9 * record["noise_multiplier"]},
            {"settings": {**settings, "sampling": "balls-in-bins", "groups": 2}},
            {"settings": {**settings, "sampling": "cyclic-poisson", "groups": 4}},
            {"settings": {**record["settings"], "secret_cohorts": False}},
            {"amplified_epsilon": None},
            {"sampler": "tff_mf.Poisson"},
        )
    ):
        copy = pathlib.Path(shutil.copytree(run, tmp_path / f"forged{number}"))
        report = forged(copy, **changes)
        assert reports.headline(report).startswith("NO ε CAN BE STATED"), changes
        assert critical(copy)
    copy = pathlib.Path(shutil.copytree(run, tmp_path / "no secret"))
    known = {**settings, "sampling": "min-sep", "min_sep": 4, "max_participations": 2}
    with pytest.raises(tff_mf.InputError, match=r"run\.json.*secret_cohorts does not go with sampling='min-sep'"):
        forged(copy, settings=known)


@pytest.mark.parametrize("run", ["balls-in-bins"], indirect=True)
def test_a_log_that_shows_cohorts_is_not_of_a_secret_run(run):
    run_folders.write_log(run, [(number, 1, f"client{number}") for number in range(1, 9)])
    report = forged(run)
    assert "sampler" in violated(report)
    assert reports.headline(report).startswith("NO ε CAN BE STATED")


@pytest.mark.parametrize("run", ["balls-in-bins"], indirect=True)
def test_of_a_person_with_several_clients_the_epsilon_for_known_cohorts_is_stated(run):
    assert json.loads((run / names.REPORT).read_text())["claim"]["mu"] is None
    report = forged(run, clients_per_person=2)
    assert report["claim"]["mu"] == report["accountant"]["planned"]["mu"]
    assert report["claim"]["epsilon_of_a_person"] > report["claim"]["epsilon"] > 0
    assert "that nobody knows" not in reports.headline(report)


@pytest.mark.parametrize("run", ["b-min-sep"], indirect=True)
def test_a_certificate_by_samples_is_stated_with_room_for_those_who_check(run):
    record = reports.read_record(run)
    plan = record.plan(tff_mf.load(run / names.MECHANISM))
    level = amplification.own(plan, drawn("b-min-sep"), record.population)
    assert amplification.stated_epsilon(level) >= (1.02 if level.bound == "certified" else 1) * level.epsilon


REFUSED = [
    ("--sampling min-sep", "secret_cohorts does not go with sampling='min-sep'"),
    ("--sampling balls-in-bins --set dropout=0.1", "dropout=0.1 does not go with secret_cohorts"),
    ("--sampling balls-in-bins --set tensorboard=true", "tensorboard=True does not go with secret_cohorts"),
    ("--sampling balls-in-bins --restart-every 4", "restart_every=4 does not go with secret_cohorts"),
    ("--sampling balls-in-bins --cohort 30", "cohort=30 does not go with secret_cohorts"),
    ("--sampling balls-in-bins --epsilon 2", "epsilon=2.0 does not go with secret_cohorts"),
    ("--sampling poisson --mechanism tree-full", "amplify at most 1"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED)
def test_what_no_theorem_covers_is_refused_before_it_trains(small_data, tmp_path, monkeypatch, flags, message):
    stand_in.put_in_place(monkeypatch)
    command = stand_in.arguments(tmp_path / "run", small_data, flags.split())
    done = invoke(*command, "--secret-cohorts", catch_exceptions=True)
    assert done.exit_code != 0
    assert message in done.output + str(done.exception)
    assert not (tmp_path / "run" / names.LEDGER).exists()


def test_a_resumed_run_whose_clients_were_changed_does_not_go_on(small_data, tmp_path, monkeypatch):
    """Under other ids, the same people would come into other groups, and take part in the rounds of both."""
    stand_in.put_in_place(monkeypatch)
    data = tmp_path / "data.sqlite"
    shutil.copy(small_data, data)

    def rename():
        with contextlib.closing(sqlite3.connect(data)) as connection, connection:
            for table in ("examples", "client_metadata"):
                connection.execute(f"UPDATE {table} SET client_id = client_id || '.'")

    flags = [*RUNS["balls-in-bins"].split(), "--secret-cohorts"]
    done = stand_in.trained(tmp_path / "run", data, flags, between=rename)
    assert done.exit_code != 0
    assert "clients are not those" in done.output + str(done.exception)


def test_the_secret_is_deleted_if_the_end_of_the_run_was_interrupted(kept, tmp_path):
    folder = pathlib.Path(shutil.copytree(kept("balls-in-bins")[0], tmp_path / "run"))
    left = folder / names.CHECKPOINTS / names.COHORTS
    left.write_bytes(b"secret")
    with pytest.raises(tff_mf.InputError, match="has ended"):
        folders.resumable_folder(folder)
    assert not left.exists()


def test_a_run_whose_secret_is_lost_does_not_go_on(small_data, tmp_path, monkeypatch):
    stand_in.put_in_place(monkeypatch)
    flags = [*RUNS["balls-in-bins"].split(), "--secret-cohorts"]
    lost = tmp_path / "run" / names.CHECKPOINTS / names.COHORTS

    def lose():
        assert lost.stat().st_mode & 0o777 == 0o600
        lost.unlink()

    done = stand_in.trained(tmp_path / "run", small_data, flags, between=lose)
    assert "cohorts.key' is lost" in done.output + str(done.exception)
    assert folders.resumable_folder(tmp_path / "run") == tmp_path / "run"
