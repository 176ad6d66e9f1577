"""No false alarm: ordinary runs of every kind, copied and moved, are found sound.

What must alarm is in `test_broken_runs.py` and `test_reports.py`.
"""

import functools
import json
import logging
import pathlib
import shutil

import checked_elsewhere
import environments
import pytest
import run_folders

import tff_mf
from tff_mf.experiments import bundles, reports
from tff_mf.experiments.bundles import _source
from tff_mf.experiments.runs import ledger
from tff_mf.experiments.sampling.settings import SAMPLINGS
from tff_mf.planning import by_name

from .shared import critical, invoke, read_observed, states
from .small_runs import ROUNDS, trained

# Every mechanism, every kind of sampling, and every other way to train, each at least once.
KINDS = {
    "blt, a simulated cohort": "--mechanism blt --cohort 30 --epsilon 2",
    "banded, shuffled epochs": "--mechanism banded --sampling spaced-epochs --set dropout=0.3",
    "banded-toeplitz, fixed epochs": "--mechanism banded-toeplitz --sampling fixed-epochs",
    "scaled-blt, timer": "--mechanism scaled-blt --sampling timer",
    "dense, poisson": "--mechanism dense --sampling poisson",
    "tree-vanilla, cyclic poisson": "--mechanism tree-vanilla --sampling cyclic-poisson",
    "tree-full, once each": "--mechanism tree-full --sampling single",
    "tree-online, gradients": "--mechanism tree-online --set algorithm=fed-sgd",
    "production, a rate from the noise": "--mechanism production:b100 --server-learning-rate proposed",
    "blt, balls in bins": "--mechanism blt --sampling balls-in-bins",
    "banded, poisson with a separation": "--mechanism banded --sampling b-min-sep",
    "scaled-blt, min-sep": "--mechanism scaled-blt --sampling min-sep",
    "identity, min-sep": "--mechanism identity",
    "identity, a model that diverged": "--mechanism identity --server-learning-rate 1e30",
}


@pytest.fixture(scope="module")
def kept(small_data, tmp_path_factory):
    """A function from the name of a kind to its run, each made once."""
    root = tmp_path_factory.mktemp("kinds")

    @functools.cache
    def make(kind):
        trained(root / kind, small_data, KINDS[kind].split())
        return root / kind

    return make


@pytest.fixture
def run(kept, request, tmp_path):
    return pathlib.Path(shutil.copytree(kept(request.param), tmp_path / "run"))


@pytest.fixture(autouse=True)
def no_warning_is_logged(caplog):
    caplog.set_level(logging.WARNING)
    yield
    assert [record.getMessage() for record in caplog.records if record.name.startswith("tff_mf")] == []


def warnings(folder):
    """What a check warns of, but for what is always said of cohorts that could be secret, and of dropped clients."""
    usual = ("amplifies only where", "had other than")
    return [text for text in reports.check(folder).warnings if not any(part in text for part in usual)]


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("environment", environments.cases("oldest"))
@pytest.mark.parametrize("run", KINDS, indirect=True)
def test_a_run_that_was_trained_here_is_believed_on_other_machines(run, environment):
    assert environments.call(environment, checked_elsewhere.__file__, "checked", str(run.parent)) == {"run": []}


@pytest.mark.sampled(most=3)
@pytest.mark.parametrize("run", KINDS, indirect=True)
def test_ordinary_runs_do_not_alarm(run, tmp_path):
    assert (critical(run), warnings(run)) == ([], [])
    # An edit of what the report is of: it does not follow any more.
    kept = (run / "summary.json").read_bytes()
    (run / "summary.json").write_bytes(kept.replace(b"0", b"1", 1))
    assert any(text.startswith("report: files.summary.json") for text in critical(run))
    with pytest.raises(tff_mf.InputError, match="does not follow from its files"):
        _source.check_report(run)
    (run / "summary.json").write_bytes(kept)
    assert "ε≤" in invoke("report", run).stdout
    moved = tmp_path / "elsewhere" / "copy"
    moved.parent.mkdir()
    run.rename(moved)
    assert (critical(moved), warnings(moved)) == ([], [])
    checked = invoke("report", moved, "--check")
    assert checked.exit_code == 0
    assert "follows from its files; ε is stated" in checked.stdout
    # What is exported is what was run, with the whole cohort.
    source, begun = bundles.read_source(moved), reports.read_record(moved)
    assert source.privacy.mechanism == tff_mf.load(moved / "mechanism.safetensors")
    assert source.privacy.noise_multiplier == begun.noise_multiplier
    settings, privacy, _ = _source.deployed_again(moved)
    assert settings.resolved(source.privacy, settings.server_learning_rate) == source.settings
    assert privacy.participation == source.privacy.participation
    _source.check_report(moved)


FIXED = ["banded-toeplitz, fixed epochs"]


@pytest.mark.parametrize("run", FIXED, indirect=True)
def test_runs_in_fixed_epochs_are_accounted_as_such(run):
    record, report = reports.read_record(run), json.loads((run / "report.json").read_text())
    assert record.schema == tff_mf.FixedEpoch(min_sep=4, max_participations=2)
    assert states(report)["participation"] == "holds"
    mechanism = tff_mf.load(run / "mechanism.safetensors")
    on_grid = {"grid": record.grid, "dimension": record.dimension}
    expected = tff_mf.guarantee(mechanism, ROUNDS, record.schema, noise_multiplier=6, **on_grid).epsilon(1e-6)
    assert report["accountant"]["planned"]["epsilon"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("run", FIXED, indirect=True)
@pytest.mark.parametrize("late", [5, 6])
def test_a_log_that_breaks_fixed_epochs_states_nothing(run, late):
    """A client comes back after b + 1 or more rounds: min-sep and the number of rounds are kept, the place is not."""
    lines = run_folders.read_log(run)
    came = next(client for number, _, client in lines if number == 1)
    moved = [
        (number, attempt, f"nobody{number}" if client == came and number == 5 else client)
        for number, attempt, client in lines
    ]
    place = next(index for index, (number, *_) in enumerate(moved) if number == 1 + late)
    moved[place] = (1 + late, moved[place][1], came)
    run_folders.write_log(run, moved)
    observed = read_observed(run / "ledger.jsonl")
    assert observed.within(tff_mf.MinSep(min_sep=4, max_participations=2))
    assert not observed.within(tff_mf.FixedEpoch(min_sep=4, max_participations=2))
    # With all that follows from the log, and other planned cohorts.
    record = json.loads((run / "run.json").read_text())
    by_round = {}
    for number, _, client in moved:
        by_round.setdefault(number, {})[client] = None
    record["cohorts"] = [ledger.cohort_digest(list(by_round[number])) for number in range(1, ROUNDS + 1)]
    (run / "run.json").write_text(json.dumps(record))
    run_folders.consistent(run, planned=True)
    assert any("participation: " in each and "does not allow" in each for each in critical(run))
    assert reports.headline(json.loads((run / "report.json").read_text())).startswith("NO ε CAN BE STATED")


@pytest.mark.parametrize("run", ["identity, min-sep"], indirect=True)
@pytest.mark.parametrize("version", ["0.2.0", "0.1.0.dev240+g699c5e88f.d20261124", "0.1.0.dev0"])
def test_another_release_of_this_package_is_no_alarm(run, monkeypatch, version):
    """Another installed version, or a commit, is not an edit."""
    with monkeypatch.context() as patch:
        patch.setattr(tff_mf, "__version__", version)
        (run / "report.json").unlink()
        reports.write(run, realised=True)
    assert f'"tff-mf {version}"' in (run / "report.json").read_text()
    assert (critical(run), warnings(run)) == ([], [])


@pytest.mark.parametrize("run", ["identity, min-sep"], indirect=True)
def test_a_report_of_another_version_is_refused_by_its_version(run):
    report = json.loads((run / "report.json").read_text())
    (run / "report.json").write_text(json.dumps({**report, "report": 1}))
    assert critical(run) == ["report: report.json has version 1, and this release checks 4: write it again"]
    reports.write(run, realised=True)
    assert critical(run) == []


def test_every_mechanism_and_sampling_is_among_the_runs():
    words = " ".join(KINDS.values()).split()
    assert {*by_name.names(), *SAMPLINGS} - {*words} <= {"min-sep"}


@pytest.mark.parametrize("run", ["identity, a model that diverged"], indirect=True)
def test_a_model_that_diverged_has_no_loss(run):
    assert json.loads((run / "summary.json").read_text())["loss"] is None
    assert critical(run) == []
