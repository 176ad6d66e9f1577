"""What sampling, drop-out and other data sets do to a run, from end to end but for its rounds."""

import pytest
import run_folders
import tensorflow_federated as tff

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.runs import names
from tff_mf.experiments.training import program
from tff_mf.experiments.training.datasets import named_data

from . import stand_in
from .shared import rows, small_settings

SMALL = {"client_learning_rate": 0.5, "max_examples": 4, "batch_size": 4, "evaluate_every": 2}


def privacy(rounds, min_sep, max_participations, clients_per_round=2, noise_multiplier=4.0):
    schema = tff_mf.MinSep(min_sep=min_sep, max_participations=max_participations)
    own = {"clients_per_round": clients_per_round, "noise_multiplier": noise_multiplier}
    return run_folders.plan(mechanism=tff_mf.Identity(), rounds=rounds, sampling=schema, **own)


def test_sampled_cohorts_of_any_size_with_dropped_clients(small_data, tmp_path, monkeypatch):
    """One client a round on average, so that some rounds have none. TFF's are in tests/aggregators/test_resident.py."""
    stand_in.put_in_place(monkeypatch)
    plan = privacy(8, 1, 8, clients_per_round=1)
    poisson = {"sampling": "poisson", "min_sep": None, "max_participations": None}
    settings = small_settings(plan, **SMALL, **poisson, dropout=0.5)
    result = program.run(settings, plan, data=small_data, out=tmp_path)
    logged = [int(row["round"]) for row in rows(tmp_path / names.PARTICIPATION)]
    assert set(logged) < set(range(1, 9))
    assert len(rows(tmp_path / names.METRICS)) == 8
    assert result.holds
    assert 0 < result.summary["dropped_participations"] < len(logged)
    assert result.report["covered"]["sampling_in_secret"] == "poisson"
    assert 0 <= result.summary["validation_accuracy"] <= 1
    # Rounds without clients are no truncation, and every figure of the summary can be computed again.
    critical = {each.field for each in reports.check(tmp_path) if each.severity == "critical"}
    assert critical & {"log", "summary", "model", "report", "one release a round", "sampler"} == set()


def test_a_timer_that_was_too_short_withholds_the_guarantee(small_data, tmp_path, monkeypatch):
    stand_in.put_in_place(monkeypatch)
    plan = privacy(4, 4, 1, clients_per_round=30)
    settings = small_settings(plan, **SMALL, sampling="timer", hours=1.0, round_minutes=60.0)
    with pytest.raises(tff_mf.InputError, match="max_participations=1"):
        program.run(settings, plan, data=small_data, out=tmp_path)
    # Nothing was written, so that the folder can be used.
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    result = program.run(settings, plan, data=small_data, out=tmp_path, without_epsilon=True)
    assert not result.holds
    assert result.statement.startswith("NO ε CAN BE STATED: participation: ")
    assert "ε≤" not in result.statement
    assert (result.report["claim"]["epsilon"], result.report["claim"]["zcdp_rho"]) == (None, None)
    with pytest.raises(tff_mf.InputError, match="is not empty"):
        program.run(settings, plan, data=small_data, out=tmp_path, without_epsilon=True)


def test_tffs_synthetic_stackoverflow_goes_through_the_same_path(of_stackoverflow, tmp_path, monkeypatch):
    """TFF's clients, written by TFF; the vocabulary is counted from the file."""
    vocabularies = []

    def build_task(settings, vocabulary):
        vocabularies.append(vocabulary)
        return stand_in.build_task(settings, vocabulary)

    stand_in.put_in_place(monkeypatch, build_task=build_task)
    data = tff.simulation.datasets.stackoverflow.get_synthetic()
    (tmp_path / "run").mkdir()
    plan = privacy(2, 1, 2, clients_per_round=1)
    named = named_data.data_file(f"sqlite:{of_stackoverflow}")
    program.run(small_settings(plan, **SMALL), plan, data=named, out=tmp_path / "run")
    assert [row["client"] for row in rows(tmp_path / "run" / names.PARTICIPATION)] == ["synthetic_1"] * 2
    words = {
        word
        for example in data.create_tf_dataset_for_client("synthetic_1").as_numpy_iterator()
        for word in example["tokens"].decode().split()
    }
    assert [set(each) for each in vocabularies] == [words]
