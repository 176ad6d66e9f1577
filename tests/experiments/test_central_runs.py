"""`tff-mf train-central`: data sets, networks, presets, and a run in its folder."""

import json
import pathlib
import shutil
import stat

import numpy as np
import pytest

import tff_mf
from tff_mf.base import checkpoint_files
from tff_mf.experiments import central
from tff_mf.experiments.central import CentralSettings
from tff_mf.experiments.runs import ledger, results

from . import shared

DIGITS = {"batch_size": 256, "delta": 1e-5, "validation_examples": 220, "epsilon": 8.0}


def invoke(*arguments):
    return shared.invoke("train-central", *arguments, standalone_mode=False)


@pytest.mark.parametrize(
    ("flags", "groups"),
    [
        ({"mechanism": "banded"}, None),
        ({"mechanism": "tree-full"}, None),
        ({"mechanism": "identity", "sampling": "poisson"}, 1),
        ({"mechanism": "banded", "sampling": "cyclic-poisson", "groups": 2}, 2),
    ],
)
def test_sigma_is_the_smallest_for_the_epsilon_that_is_stated(flags, groups):
    settings = CentralSettings(epochs=4, **DIGITS, **flags)
    plan = settings.plan(settings.build_mechanism())
    assert 0.99 * 8 < plan.epsilon <= 8
    figures = central.summary_of(plan, settings.examples)
    assert (figures.epsilon, figures.reasons, figures.rounds) == (plan.epsilon, [], 20)
    schema = tff_mf.FixedEpoch(min_sep=figures.min_sep, max_participations=figures.max_participations)
    known = tff_mf.epsilon(plan.mechanism, 20, schema, noise_multiplier=plan.noise_multiplier, delta=1e-5)
    assert figures.epsilon_if_batches_are_known == known
    assert figures.amplified == (groups is not None)
    if groups is None:
        assert (schema.min_sep, schema.max_participations) == (5, 4)
        assert figures.epsilon == known
    else:
        assert getattr(plan.sampling, "groups", None) == groups == schema.min_sep
        assert known > 8


SAMPLED = {"poisson": {"mechanism": "identity"}, "cyclic-poisson": {"mechanism": "banded", "groups": 2}}


@pytest.mark.parametrize("word", SAMPLED)
def test_the_sampling_that_draws_is_the_one_whose_epsilon_is_stated(word):
    own = {**DIGITS, "epsilon": None, "noise_multiplier": 4.0, **SAMPLED[word]}
    settings = CentralSettings(epochs=4, sampling=word, **own)
    settings.check()
    order, plan = settings.order, settings.plan(settings.build_mechanism())
    assert order.sampling == plan.sampling == tff_mf.Order.of(plan, examples=1280).sampling
    assert order.sampling == settings.sampling_settings.drawn_by(population=1280, clients_per_round=256)
    level = {"noise_multiplier": 4.0, "delta": 1e-5}
    assert plan.epsilon == tff_mf.epsilon(plan.mechanism, settings.rounds, order.sampling, **level)
    assert plan.epsilon <= tff_mf.epsilon(plan.mechanism, settings.rounds, order.participation, **level)
    rows = order.batches(0, settings.rounds, secret=tff_mf.CohortSecret.drawn())
    assert 0.7 * 256 < np.mean(np.sum(rows >= 0, axis=1)) < 1.3 * 256


def test_digits_are_split_into_parts_that_share_no_example():
    data = central.split("digits", 220)
    parts = [data.train, data.validation, data.test]
    assert [len(labels) for _, labels in parts] == [1280, 220, 297]
    images = [{image.tobytes() for image in part} for part, _ in parts]
    # Digits are distinct in this data set, so that equal ones would be one example twice.
    assert sum(map(len, images)) == len(set.union(*images)) == 1797
    again = central.split("digits", 220)
    np.testing.assert_array_equal(again.train[0], data.train[0])


TREE = ["--preset", "digits", "--epochs", 2, "--set", "batch_size=256", "--mechanism", "tree-full"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run, and what it printed."""
    out = tmp_path_factory.mktemp("central") / "run"
    done = invoke(*TREE, "--out", out, "--json")
    return out, json.loads(done.stdout)


def test_a_run_writes_what_it_states(finished):
    out, printed = finished
    assert not list((out / "checkpoints").iterdir())
    assert (out / "model.weights.h5").is_file()
    found = json.loads((out / "summary.json").read_text())
    assert tff_mf.Plan.load(out).noise_multiplier == found["noise_multiplier"]
    assert found == printed
    assert (found["rounds"], found["min_sep"], found["max_participations"], found["amplified"]) == (10, 5, 2, False)
    assert (found["adjacency"], found["examples"]) == ("zero-out", 1280)
    mechanism = tff_mf.load(out / "mechanism.safetensors")
    schema = tff_mf.FixedEpoch(min_sep=5, max_participations=2)
    level = {"noise_multiplier": found["noise_multiplier"], "delta": 1e-5}
    assert found["epsilon"] == tff_mf.epsilon(mechanism, 10, schema, **level) <= 8
    rows = results.read_metrics(out / "metrics.csv").rows
    assert [row["round"] for row in rows] == ["5", "10"]
    # No metric of the examples that were trained on.
    assert set(rows[0]) == {"round", "seconds", "loss", "accuracy"}
    assert float(rows[1]["accuracy"]) == found["validation_accuracy"]


def test_a_run_that_has_ended_is_neither_resumed_nor_overwritten(finished):
    out, _ = finished
    with pytest.raises(tff_mf.InputError, match="has ended"):
        invoke(*TREE, "--out", out, "--resume")
    with pytest.raises(tff_mf.InputError, match="holds a run"):
        invoke(*TREE, "--out", out)


LINE = ["--preset", "digits", "--epochs", 3, "--mechanism", "identity"]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a run that ended between its second checkpoint and its row, and a copy of the first checkpoint."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    kept, written = out.with_name("kept"), results.write_metrics

    def stop(path, rows):
        if len(rows) == 1:
            shutil.copytree(out / "checkpoints", kept)
        if len(rows) == 2:
            raise shared.StoppedError
        written(path, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "write_metrics", stop)
        with pytest.raises(shared.StoppedError):
            invoke(*LINE, "--out", out)
    return out, kept


def test_a_run_that_was_stopped_continues_with_its_noise_and_its_metrics(stopped, tmp_path):
    out = pathlib.Path(shutil.copytree(stopped[0], tmp_path / "run"))
    line, checkpoints = [*LINE, "--out", out], out / "checkpoints"
    assert checkpoint_files.saved_rounds(checkpoints) == [2]
    secret = [checkpoints, *checkpoints.iterdir()]
    assert [stat.S_IMODE(path.stat().st_mode) for path in secret] == [0o700, 0o600]
    assert not (out / "summary.json").exists()
    (checkpoints / ".0.tff-mf.tmp").write_bytes(b"keys")
    with pytest.raises(tff_mf.InputError, match=r"learning_rate=0\.5 is not the setting"):
        invoke(*line, "--set", "learning_rate=0.5", "--resume")
    found = json.loads(invoke(*line, "--resume", "--json").stdout)
    assert found["amplified"]
    assert found["epsilon"] < found["epsilon_if_batches_are_known"]
    rows = results.read_metrics(out / "metrics.csv").rows
    assert [row["round"] for row in rows] == ["5", "10", "15"]
    assert all(row["accuracy"] for row in rows)
    assert not list(checkpoints.iterdir())
    book = ledger.read_ledger(out / "ledger.jsonl")
    assert [(each.round, each.attempt, each.clients) for each in book.begun] == [(1, 1, ()), (2, 1, ()), (3, 1, ())]
    assert (book.released, book.ended, book.impossible) == ({1: 1, 2: 1, 3: 1}, True, [])


@pytest.mark.parametrize(
    ("back", "wrong"),
    [("none", "of round 0"), ("older", "of round 1"), ("renamed", "is of round 1 of run"), ("foreign", "checkpoint=")],
)
def test_a_run_that_lost_its_newest_checkpoint_releases_no_epoch_again(stopped, back, wrong, tmp_path):
    out = pathlib.Path(shutil.copytree(stopped[0], tmp_path / "run"))
    checkpoints, kept = out / "checkpoints", stopped[1]
    if back == "renamed":
        shutil.copy(checkpoint_files.path_of(kept, 1), checkpoint_files.path_of(checkpoints, 2))
    elif back == "foreign":
        weights = {"kernel": np.zeros(2)}
        checkpoint_files.write(checkpoint_files.path_of(checkpoints, 2), weights, {"examples": ""}, replaces=True)
    else:
        shutil.rmtree(checkpoints)
    if back == "older":
        shutil.copytree(kept, checkpoints)
    with pytest.raises(tff_mf.InputError, match=wrong):
        invoke(*LINE, "--out", out, "--resume")


def test_a_run_whose_weights_are_published_does_not_train_again_without_its_ledger(finished, tmp_path):
    folder = pathlib.Path(shutil.copytree(finished[0], tmp_path / "run"))
    for name in ("ledger.jsonl", "summary.json", "metrics.csv"):
        (folder / name).unlink()
    with pytest.raises(tff_mf.InputError, match="of round 0"):
        invoke(*TREE, "--out", folder, "--resume")


def changed(folder, **fields):
    """Changes the plan of a run."""
    path = folder / "plan.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_run_whose_sigma_was_changed_is_not_resumed(stopped, tmp_path):
    """Neither one that had saved a state, nor one that was stopped in its first epoch."""
    out = pathlib.Path(shutil.copytree(stopped[0], tmp_path / "run"))
    sigma = tff_mf.Plan.load(out).noise_multiplier
    changed(out, noise_multiplier=sigma / 2)
    with pytest.raises(tff_mf.InputError, match=r"plan\.json was changed since the run began"):
        invoke(*LINE, "--out", out, "--resume", "--without-epsilon")
    changed(out, noise_multiplier=sigma * (1 + 2**-50))
    first = (out / "ledger.jsonl").read_text().splitlines(keepends=True)[:2]
    (out / "ledger.jsonl").write_text("".join(first))
    shutil.rmtree(out / "checkpoints")
    with pytest.raises(tff_mf.InputError, match="was changed since the run began"):
        invoke(*LINE, "--out", out, "--resume")
    assert not (out / "summary.json").exists()


def test_a_resumed_run_has_the_noise_multiplier_that_it_began_with_and_calibrates_none(tmp_path):
    settings = CentralSettings(**{**DIGITS, "epochs": 2, "mechanism": "identity"})
    how = {"resume": True, "without_epsilon": False}
    plan = central.plan_of_run(settings, tmp_path, **how)
    # Another machine may calibrate another in the last digit.
    plan.save(tmp_path)
    other = float(np.nextafter(plan.noise_multiplier, 100))
    changed(tmp_path, noise_multiplier=other)
    assert central.plan_of_run(settings, tmp_path, **how).noise_multiplier == other


@pytest.mark.parametrize(
    "flags", [{"noise_multiplier": 0.0}, {"noise_multiplier": 1e-160}, {"noise_multiplier": 3.0, "delta": 1e-3}]
)
def test_what_has_no_epsilon_states_none(flags, tmp_path):
    settings = CentralSettings(**{**DIGITS, "epsilon": None, "epochs": 2, "mechanism": "identity", **flags})
    with pytest.raises(tff_mf.InputError, match="without_epsilon"):
        central.plan_of_run(settings, tmp_path, resume=False, without_epsilon=False)
    plan = central.plan_of_run(settings, tmp_path, resume=False, without_epsilon=True)
    figures = central.summary_of(plan, settings.examples)
    assert figures.reasons
    assert (figures.epsilon, figures.epsilon_if_batches_are_known) == (None, None)
