"""Runs, bundles, deployments and comparisons of earlier versions go on and are checked, or are refused by version.

Everything here goes through the command line and the documented interface, so that it stays as modules are moved.
"""

import csv
import importlib.util
import json
import sys

import click.testing
import numpy as np
import pytest

import tff_mf
from tff_mf.experiments import bundles, guard, reports
from tff_mf.experiments.bundles._device_file import default_task_name
from tff_mf.experiments.cli import cli
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


def refused(stored, findings):
    """Raises unless each critical finding names the version that wrote what it is about."""
    texts = [each["text"] for each in findings if each["severity"] == "critical"]
    assert all(stored.about["version"] in text for text in texts), texts


def assert_checks(stored, run, *more):
    """Checks reports as they are, and then as this version writes them: with the same figures and no finding."""
    before = accountants(run)
    findings = json.loads(invoke("report", run, "--check", *more).stdout)["findings"]
    refused(stored, findings)
    for planned in ([], ["--planned"]):
        call("report", run, *planned)
    for one, other in zip(before, accountants(run), strict=True):
        assert (one["planned"], one["realised"]) == (other["planned"], other["realised"])
    assert call("report", run, "--check")[0]["critical"] == 0


def accountants(run):
    return [json.loads((run / name).read_text())["accountant"] for name in ("report.json", "planned.json")]


def test_the_report_of_a_finished_run_is_checked(stored, here):
    run = stored.unpack("finished", here)
    report = json.loads((run / "report.json").read_text())
    assert report["accountant"]["realised"]["epsilon"] > 0
    assert reports.other_version(report) in ("", f"tff-mf {stored.about['version']}")
    assert_checks(stored, run, "--digest", report["digest"])


def test_a_report_in_other_words_is_refused_by_the_version_that_wrote_it(stored, here):
    run = stored.unpack("finished", here)
    report = json.loads((run / "report.json").read_text())
    report["statement"] = "Something else."
    report["digest"] = reports.digest(report)
    (run / "report.json").write_text(reports.as_text(report))
    (run / "report.md").write_text(reports.markdown(report))
    found, _ = call("report", run, "--check", code=1)
    refused(stored, found["findings"])
    assert any("`statement` in report.json does not match" in each["text"] for each in found["findings"])


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
    assert_checks(stored, run)


def test_a_finished_run_is_a_source_of_bundles(stored, here):
    run = stored.unpack("finished", here)
    source = bundles.read_source(run)
    assert source.privacy.rounds == stored.about["rounds"]
    assert source.privacy.mechanism == tff_mf.load(run / "mechanism.safetensors")
    assert source.vocabulary == json.loads((run / "vocabulary.json").read_text())


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
    assert_checks(stored, run)
    assert accountants(run)[0]["realised"]["epsilon"] > 0
