"""A run goes on only if its files agree with its checkpoint; what was released is never run again."""

import json

import msgspec
import pytest
import run_folders

import tff_mf
from tff_mf.base.errors import InputError
from tff_mf.experiments import reports
from tff_mf.experiments.runs import folders, ledger
from tff_mf.experiments.runs.ledger import Rules
from tff_mf.experiments.runs.settings import RunSettings

from . import small_runs
from .shared import Kept, invoke, open_loop

COHORTS = [["a", "c"], ["b", "d"], ["a", "c"], ["b", "d"], ["a", "c"]]


def opened(folder):
    return open_loop(folder, Rules.of(tff_mf.Plan.load(folder)))


@pytest.fixture
def killed(tmp_path):
    """The folder and the states of a run that was killed in round 5."""
    plan = run_folders.plan(sampling=tff_mf.MinSep(min_sep=2, max_participations=4))
    reports.write_record(tmp_path, plan)
    kept = Kept()
    with opened(tmp_path) as loop:
        loop.resume(kept)
        for clients in COHORTS:
            if loop.begin(clients) < 5:
                loop.finish(None)
    return tmp_path, kept


@pytest.fixture
def folder(killed):
    return killed[0]


def resume(folder, kept):
    with opened(folder) as loop:
        assert loop.resume(kept) == 4


def test_a_state_of_another_run_or_round_is_refused(killed):
    folder, kept = killed
    resume(folder, kept)
    state, about = kept.saved[4]
    for wrong in ({"run": "0" * 32}, {"round": 3}):
        kept.saved[4] = state, {**about, **wrong}
        with pytest.raises(InputError, match="and not of this one"):
            resume(folder, kept)


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("ledger.jsonl", '"round":2', '"round":3', "ledger"),
        ("ledger.jsonl", '"clients":["a","c"]', '"clients":["a","b"]', "was changed since"),
        ("ledger.jsonl", '"round":2', '"round":"x"', "line 4 is damaged"),
        ("run.json", '"sampler": "unknown"', '"sampler": "by hand"', "run.json.*changed"),
    ],
)
def test_what_was_changed_is_named(killed, name, old, new, reason):
    folder, kept = killed
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=reason):
        resume(folder, kept)


def test_noise_and_rate_are_those_that_the_run_began_with(folder):
    """Computed again on another machine, both could differ in last bits."""
    asked = {"rounds": 9, "clients_per_round": 2, "delta": 1e-6, "min_sep": 2, "max_participations": 4}
    settings = RunSettings(**asked, epsilon=8.0, server_learning_rate="proposed", mechanism="identity")
    record = json.loads((folder / "run.json").read_text())
    own = {"settings": msgspec.to_builtins(settings), "server_learning_rate": 0.1 + 0.2}
    (folder / "run.json").write_text(json.dumps({**record, **own}))
    found = folders.read_record(folder)
    assert found.settings == settings
    assert (found.training.epsilon, found.training.noise_multiplier) == (None, 5.0)
    assert (found.training.server_learning_rate, found.training.grid) == (0.1 + 0.2, "none")
    (folder / "run.json").write_text(json.dumps({**record, **own, "server_learning_rate": None}))
    with pytest.raises(InputError, match="server_learning_rate"):
        _ = folders.read_record(folder).training
    assert folders.begun_record(folder / "none") is None


def test_a_plan_or_an_artifact_that_was_changed_on_disk_is_refused(folder):
    """Also where whoever goes on takes both from the disk."""
    path, before = folder / "plan.json", (folder / "plan.json").read_text()
    assert '"noise_multiplier": 5.0' in before
    path.write_text(before.replace('"noise_multiplier": 5.0', '"noise_multiplier": 0.5'))
    with pytest.raises(InputError, match=r"plan\.json.* was changed since the run began"):
        reports.write_record(folder, tff_mf.Plan.load(folder))
    path.write_text(before)
    reports.write_record(folder, tff_mf.Plan.load(folder))
    tff_mf.save(tff_mf.Identity(), folder / "mechanism.safetensors")
    with pytest.raises(InputError, match=r"mechanism_sha256=.* is not the setting"):
        reports.write_record(folder, tff_mf.Plan.load(folder))


def test_a_ledger_of_a_newer_release_is_not_added_to(folder):
    path = folder / "newer.jsonl"
    path.write_text((folder / "ledger.jsonl").read_text().replace('"version":1', '"version":2'))
    assert ledger.read_ledger(path).problems == ["it has version 2, and this release reads version 1"]
    with pytest.raises(InputError, match=r"newer\.jsonl"), ledger.open_ledger(path):
        pass


def test_a_run_whose_checkpoint_is_lost_is_ended_and_what_it_released_has_its_epsilon(tmp_path, small_data, forks):
    folder = tmp_path / "run"
    small_runs.killed(forks, folder, small_data, [])
    assert "NO ε CAN BE STATED" in invoke("report", folder).stdout
    whole = sorted((folder / "checkpoints").glob("checkpoint_*"))
    refused = invoke("report", folder, "--end", catch_exceptions=True)
    assert "can go on" in refused.output + str(refused.exception)
    assert sorted((folder / "checkpoints").glob("checkpoint_*")) == whole
    for state in (folder / "checkpoints").glob("checkpoint_[1-9]*"):
        state.unlink()
    lost = invoke(*small_runs.arguments(folder, small_data, []), "--resume", catch_exceptions=True)
    assert "tff-mf report FOLDER --end" in lost.output + str(lost.exception)
    done = invoke("report", folder, "--end")
    assert (done.exit_code, "ε≤" in done.stdout) == (0, True)
    made, book = reports.read(folder / "report.json"), ledger.read_ledger(folder / "ledger.jsonl")
    # The round that was begun last has no model.
    assert made.log.released == made.claim.rounds == book.last_released < book.position
    assert f"all {made.log.released} models" in made.headline
    assert not list((folder / "checkpoints").iterdir())
    checked = invoke("report", folder, "--check", "--json")
    assert (checked.exit_code, json.loads(checked.stdout)["state"]) == (0, "stated")
    assert "has ended" in str(invoke(*small_runs.arguments(folder, small_data, []), "--resume", catch_exceptions=True))


def test_nothing_ends_where_nothing_began(tmp_path):
    refused = invoke("report", tmp_path, "--end", catch_exceptions=True)
    assert "no round of it has begun" in refused.output + str(refused.exception)
