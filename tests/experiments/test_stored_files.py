"""Runs, bundles, deployments and comparisons of earlier versions go on and are checked, or are refused by version.

Everything here goes through the command line and the documented interface, so that it stays as modules are moved.
"""

import csv
import importlib.util
import json
import shlex
import sys

import click.testing
import numpy as np
import pytest

import tff_mf
from tff_mf.experiments import bundles, guard, reports
from tff_mf.experiments.bundles._device_file import default_task_name
from tff_mf.experiments.cli import cli
from tff_mf.experiments.output import agreement
from tff_mf.experiments.privacy import plan_privacy

pytestmark = pytest.mark.usefixtures("traced_once")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder: what is stored names its data set by a relative path."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*arguments):
    return click.testing.CliRunner().invoke(cli, [*map(str, arguments), "--json"])


def call(*arguments, code=0):
    result = invoke(*arguments)
    assert result.exit_code == code, f"{result.output}\n{result.stderr}"
    return json.loads(result.stdout), result.stderr


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def assert_checks(run, *more):
    """Checks that reports are refused by their version, and then as this version writes them: with the same figures."""
    before = accountants(run)
    findings = json.loads(invoke("report", run, "--check", *more).stdout)["findings"]
    assert all("write it again" in each["text"] for each in findings if each["severity"] == "critical"), findings
    for planned in ([], ["--planned"]):
        call("report", run, *planned)
    for one, other in zip(before, accountants(run), strict=True):
        for name in ("planned", "realised"):
            assert agreement.agrees(name, one[name], other[name])
    assert call("report", run, "--check")[0]["critical"] == 0


def accountants(run):
    return [json.loads((run / name).read_text())["accountant"] for name in ("report.json", "planned.json")]


def test_the_report_of_a_finished_run_is_checked(stored, here):
    run = stored.unpack("finished", here)
    report = json.loads((run / "report.json").read_text())
    assert report["accountant"]["realised"]["epsilon"] > 0
    assert_checks(run, "--digest", report["digest"])


def test_a_finished_run_that_was_changed_is_refused(stored, here):
    run = stored.unpack("finished", here)
    log = run / "participation.csv"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:-1]))
    found, _ = call("report", run, "--check", code=1)
    assert found["critical"]


def test_a_finished_run_is_audited(stored, here):
    run = stored.unpack("finished", here)
    before = json.loads((run / "audit.json").read_text())
    after, _ = call("audit", run)
    assert after.keys() >= before.keys()
    assert_checks(run)


def test_a_finished_run_is_a_source_of_bundles(stored, here):
    run = stored.unpack("finished", here)
    source = bundles.read_source(run)
    assert source.privacy.rounds == stored.about["rounds"]
    assert source.privacy.mechanism == tff_mf.load(run / "mechanism.safetensors")
    assert source.vocabulary == json.loads((run / "vocabulary.json").read_text())


def resumed(stored, here, name):
    """Resumes a run by its command line, and returns its folder: what the ledger said of its rounds still stands."""
    stored.unpack("data.sqlite", here)
    run = stored.unpack(name, here)
    before = (run / "ledger.jsonl").read_text()
    call(*shlex.split(stored.about["stopped"][name]), "--resume")
    assert (run / "ledger.jsonl").read_text().startswith(before)
    return run


# CI draws the past of a banded mechanism again in tests/aggregators/test_stored_checkpoints.py.
@pytest.mark.parametrize("name", ["stopped-blt", pytest.param("stopped-banded", marks=pytest.mark.long)])
def test_a_stopped_run_ends_as_if_it_had_not_been_stopped(stored, here, name):
    run = resumed(stored, here, name)
    found, whole = rows(run / "metrics.csv"), rows(stored.folder / f"{name}-metrics.csv")
    assert [each["round"] for each in found] == [each["round"] for each in whole]
    # Had past noise not been drawn again from its keys, or had future keys been others, the losses would differ.
    for one, other in zip(found, whole, strict=True):
        assert (one["loss"] == "") == (other["loss"] == "")
        assert not one["loss"] or float(one["loss"]) == pytest.approx(float(other["loss"]), rel=1e-4)
    critical = {each.field for each in reports.check(run) if each.severity == "critical"}
    assert critical == {"noise", "randomness"}, "what is wrong with a seeded run is its seed"


# Long: the test before resumes the same run with its seed.
@pytest.mark.long
def test_a_stopped_run_is_resumed_with_fresh_keys_and_its_report_is_clean(stored, here):
    run = resumed(stored, here, "stopped-secure")
    assert [int(each["round"]) for each in rows(run / "metrics.csv")] == [*range(1, stored.about["rounds"] + 1)]
    assert_checks(run)
    report, planned = accountants(run)
    assert report["planned"] == planned["planned"]
    assert 0 < report["realised"]["epsilon"] <= planned["planned"]["epsilon"]


def test_a_bundle_is_verified_by_its_files(stored, here):
    bundle = stored.unpack("bundle", here)
    digest = (stored.folder / "bundle-digest.txt").read_text().strip()
    assert bundles.read_manifest(bundle)[1] == digest
    assert bundles.read_policy(bundle).min_sep == 2
    reasons = [each.reason for each in bundles.refusals(bundle, digest=digest)]
    assert reasons == ["planned.json has version 1, and this release checks 2: write it again with tff-mf report"]
    # The name of its task, by which devices keep their history, is that of a new export too.
    assert bundles.read_device_policy(bundle).task_name == default_task_name(reports.read_configuration(bundle))
    (bundle / "vocabulary.json").write_text("[]")
    assert [each.file for each in bundles.refusals(bundle, digest=digest)][:1] == ["vocabulary.json"]


# Exports it again, which takes half a minute; CI compares its files alone.
@pytest.mark.long
def test_a_bundle_is_verified_or_refused_by_version(stored, here):
    bundle = stored.unpack("bundle", here)
    result = invoke("verify", bundle)
    found = json.loads(result.stdout)
    assert result.exit_code == (1 if found["refused"] else 0)
    assert all(stored.about["version"] in each["reason"] for each in found["refused"]), found["refused"]


def test_a_deployment_goes_on_with_its_own_runner(stored, here, monkeypatch, capsys):
    bundle, deployment = (stored.unpack(name, here) for name in ("bundle", "deployment"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec = importlib.util.spec_from_file_location("stored_runner", bundle / "runner.py")
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    sent, about = runner.decoded((deployment / "sent.safetensors").read_bytes())
    words = np.random.default_rng(0).integers(1, 20, size=(3, 20))
    update = runner.Stages(bundle).work({"examples__0": words, "examples__1": np.roll(words, -1, axis=-1)}, sent)
    content = runner.encoded({key: np.asarray(value) for key, value in update.items()}, about)
    for name in ("device2-1", "device2-2", "device1-0"):
        (deployment / "updates" / f"{name}.safetensors").write_bytes(content)
    assert runner.main(["accumulate", str(deployment)]) == 0
    counts = json.loads(capsys.readouterr().out)["counts"]
    assert (counts["counted"], counts["refused"]) == (3, {"not chosen": 1})
    assert runner.main(["update", str(deployment)]) == 0
    assert json.loads(capsys.readouterr().out)["released"] == 2
    (deployment.parent / "chosen").write_text("device2-0\n")
    assert runner.main(["prepare", str(deployment), "--devices", "chosen"]) == 2
    assert "device2-0" in capsys.readouterr().err


def test_a_comparison_does_none_of_its_runs_again(stored, here):
    stored.unpack("data.sqlite", here)
    out = stored.unpack("comparison", here)
    before = json.loads((out / "comparison.json").read_text())
    (here / "comparison.toml").write_bytes((stored.folder / "comparison.toml").read_bytes())
    after, said = call("compare", "comparison.toml", "--out", "comparison")
    assert "2 runs, 2 done already" in said
    assert after["runs_done"] == before["runs_done"] == 2
    for one, other in zip(before["levels"], after["levels"], strict=True):
        assert one["accuracy"] == other["accuracy"]


def test_a_guarded_run_goes_on(stored, here):
    run = stored.unpack("guarded", here)
    plan = plan_privacy(
        mechanism=tff_mf.BLT.production("b100"),
        rounds=6,
        participation=tff_mf.MinSep(min_sep=2, max_participations=3),
        delta=1e-6,
        clients_per_round=2,
        noise_multiplier=5.0,
    )
    with guard.open_guard(run, plan, clip_norm=1.0, sampler="by hand") as guarded:
        guarded.goes_on_after(3)
        assert guarded.next_round == 4
        with pytest.raises(guard.RefusedCohortError, match="ann"):
            guarded.begin(["carol", "ann"])
        for clients in (["carol", "dan"], ["ann", "bob"], ["carol", "dan"]):
            guarded.released(guarded.begin(clients))
        guarded.end()
    assert_checks(run)
    assert accountants(run)[0]["realised"]["epsilon"] > 0
