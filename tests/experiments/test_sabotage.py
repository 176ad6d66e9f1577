"""Runs that were broken on purpose, each found out by the check. The runs are folders; nothing is trained."""

import json
import pathlib
import sys

import pytest
from click.testing import CliRunner

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.cli import cli
from tff_mf.experiments.output.digits import rounded_up

sys.path.extend(str(pathlib.Path(__file__).parents[1] / name) for name in ("machines", "fuzz", "experiments"))
import broken_files as files
import broken_logs as logs
import checked_elsewhere
import environments
import run_folders
from broken_logs import copied, finished
from run_folders import change_json, cohorts, consistent, plan, run, start


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A finished run with every file that there is, which was killed in rounds 5 and 8, and its report."""
    folder = tmp_path_factory.mktemp("runs") / "good"
    report = run_folders.whole(folder)
    assert [each for each in reports.check(folder) if each.severity == "critical"] == []
    return folder, report


def invoke(*arguments):
    return CliRunner().invoke(cli, ["report", *map(str, arguments)], catch_exceptions=False)


# What is wrong with a file that no report is made of: its ε is right all the same.
NOT_IN_THE_REPORT = (files.broken_by_another_plan, files.broken_by_a_plan_alone, files.broken_by_what_is_gone)


@pytest.mark.parametrize(
    ("break_it", "field", "text"),
    [
        (logs.broken_too_soon, "participation", "too soon"),
        (logs.broken_too_often, "participation", "too often"),
        (logs.broken_sampler, "sampler", "sampler was changed"),
        (logs.broken_twice, "one release a round", "round 4 was released more than once"),
        (logs.broken_artifact, "mechanism", "hash differs"),
        (logs.broken_seed, "randomness", "fixed seed"),
        (logs.broken_metrics, "released without noise", "training loss"),
        (logs.broken_column, "released without noise", "train_accuracy"),
        (logs.broken_divisor, "divisor", "not by the constant"),
        (logs.broken_restart, "restarts", "round 5"),
        (logs.broken_clip, "clipping", "adaptive clipping"),
        (logs.broken_log, "log", "participation.csv"),
        (logs.broken_both_logs, "log", "did not end|does not say that the run ended"),
        (logs.broken_ledger_line, "log", "does not follow"),
        (logs.broken_configuration, "log", "run.json was edited"),
        (logs.broken_report, "report", "edited"),
        (logs.broken_report_with_its_digest, "report", "`headline` in"),
        (logs.broken_markdown, "report", "report.md does not match"),
        (logs.broken_by_a_second_release, "one release a round", "round 4 was released more than once"),
        (logs.broken_by_a_release_of_nothing, "one release a round", "round 10 was released and never begun"),
        (logs.broken_by_order, "one release a round", "released before round 1|out of order"),
        (logs.broken_by_an_attempt_that_was_given_up, "one release a round", "attempt 2 was begun last"),
        (logs.broken_by_what_follows_the_end, "one release a round", "follows the end"),
        (logs.broken_by_a_jump, "one release a round", "out of order"),
        (logs.broken_by_a_hidden_attempt, "log", "round 5 is in one of"),
        (logs.broken_by_clients_of_an_attempt_that_was_given_up, "participation", "too soon"),
        (logs.broken_by_a_client_twice, "participation", "listed twice in round 4"),
        (files.broken_by_another_plan, "report", "in planned.json does not match"),
        (files.broken_by_a_plan_alone, "report", "planned.json is missing"),
        (files.broken_by_the_summary, "summary", "another epsilon"),
        (files.broken_by_a_question_that_the_summary_forgets, "summary", "another claim"),
        (files.broken_by_the_statement_of_the_summary, "summary", "another statement"),
        (files.broken_by_a_field_of_the_summary, "summary", "epsilon_after_amplification"),
        (files.broken_by_the_accuracy_of_the_summary, "summary", "another validation_accuracy"),
        (files.broken_by_a_forged_audit, "audit", "not an audit of this run"),
        (files.broken_by_the_audit_of_another_run, "audit", "does not name the hash"),
        (files.broken_by_an_audit_of_more_noise, "audit", "noise_multiplier=50.0"),
        (files.broken_by_an_audit_that_had_failed, "audit", "its test repeats says that it passed"),
        (files.broken_by_an_audit_with_a_test_less, "audit", "it has the tests"),
        (files.broken_by_better_canaries, "audit", "its canaries have epsilon_gaussian"),
        (files.broken_by_another_model, "model", "its hash is not the one"),
        (logs.broken_by_a_ledger_of_nothing, "log", "does not contain the hash"),
        (files.broken_by_what_is_gone, "report", "report.json is missing"),
        (logs.broken_by_more_reports_than_clients, "one release a round", "counts 3 reports of 2 clients"),
        (logs.broken_by_counts_that_do_not_add_up, "log", "an entry that this release does not know"),
        (logs.broken_by_a_reason_that_is_a_text, "log", "an entry that this release does not know"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_broken_run_is_found_out(good, tmp_path, break_it, field, text):
    folder = tmp_path / "run"
    break_it(good, folder)
    done = invoke(folder, "--check", "--json")
    assert done.exit_code == 1
    found = [each for each in json.loads(done.stdout)["findings"] if each["severity"] == "critical"]
    assert field in {each["field"] for each in found}
    named = " ".join(each["text"] for each in found if each["field"] == field)
    assert any(part in named for part in text.split("|"))
    if break_it not in (
        logs.broken_report,
        logs.broken_report_with_its_digest,
        logs.broken_markdown,
        *NOT_IN_THE_REPORT,
    ):
        headline = json.loads((folder / "report.json").read_text())["headline"]
        assert "ε≤" not in headline
        assert headline.startswith(("NO ε CAN BE STATED", "TEST ONLY"))


@pytest.mark.parametrize("environment", ["haswell", "skylakex", "oldest"])
def test_a_run_with_its_audit_is_believed_on_other_machines(good, environment):
    assert environments.call(environment, checked_elsewhere.__file__, "checked", str(good[0].parent)) == {"good": []}


def test_what_is_written_anew_as_a_whole_is_found_by_the_digest_that_was_held(good, tmp_path):
    """Ten times the noise, with every hash and every file that follows from it."""
    folder, digest = copied(good, tmp_path / "run"), good[1]["digest"]
    assert invoke(folder, "--check", "--digest", digest).exit_code == 0
    (folder / "audit.json").unlink()
    change_json(folder / "run.json", lambda found: {**found, "noise_multiplier": 50.0})
    consistent(folder, planned=True)
    run_folders.summarise(folder)
    reports.write(folder, realised=True)
    assert invoke(folder, "--check").exit_code == 0
    found = invoke(folder, "--check", "--digest", digest, "--json")
    assert found.exit_code == 1
    assert {each["field"] for each in json.loads(found.stdout)["findings"]} == {"digest"}


def test_the_digest_is_printed_and_no_other_text_is_one(good, tmp_path):
    folder = copied(good, tmp_path / "run")
    done = CliRunner().invoke(cli, ["report", str(folder)], catch_exceptions=False)
    assert done.stderr == f"digest: {good[1]['digest']}\n"
    for wrong in ("", "ab", good[1]["digest"].upper()):
        with pytest.raises(tff_mf.InputError, match="is not a SHA-256 digest"):
            reports.check(folder, held=wrong)
    assert invoke(folder, "--digest", good[1]["digest"]).exit_code == 2


def test_rounds_that_were_given_up_do_not_hide_that_a_run_was_stopped(tmp_path):
    """All nine rounds were begun; then it went back to the fifth, and ended there."""
    folder = tmp_path / "run"
    start(folder)
    run(folder)
    entries = [each for each in run_folders.read_entries(folder) if each["kind"] != "released" or each["round"] < 5]
    again = run_folders.begun(5, cohorts()[4], attempt=2)
    released = {"kind": "released", "round": 5, "attempt": 2}
    run_folders.write_ledger(folder, [*entries[:-1], again, released, run_folders.end_of(5)])
    run_folders.write_log(folder, [*run_folders.read_log(folder), *((5, 2, client) for client in cohorts()[4])])
    run_folders.metrics(folder, 5)
    report = reports.write(folder, realised=True)
    assert [each for each in report["findings"] if each["severity"] == "critical"] == []
    assert f"ε≤{rounded_up(report['accountant']['planned']['epsilon'])}" in report["headline"]
    assert "stopped after 5 of 9" in " ".join(each["text"] for each in report["findings"])


def test_an_empty_cohort_is_no_truncation(tmp_path):
    rounds = [[] if t in (2, 8) else clients for t, clients in enumerate(cohorts())]
    report = finished(tmp_path / "run", rounds=rounds, planned=rounds, killed=(3,))
    assert [each for each in report["findings"] if each["severity"] == "critical"] == []
    assert report["rounds"]["smallest_cohort"] == 0
    assert reports.check(tmp_path / "run") == [reports.Finding(**each) for each in report["findings"]]


def test_a_plan_that_is_older_than_the_answers_is_checked_with_its_own(tmp_path):
    folder = tmp_path / "run"
    start(folder, answers={})
    reports.write(folder, realised=False)
    (folder / "answers.json").write_text(json.dumps(run_folders.ANSWERS))
    run(folder)
    reports.write(folder, realised=True)
    assert [each for each in reports.check(folder) if each.severity == "critical"] == []
    (folder / "answers.json").write_text(json.dumps({**run_folders.ANSWERS, "clients_of_one_person": 3}))
    reports.write(folder, realised=False)
    (folder / "answers.json").write_text(json.dumps(run_folders.ANSWERS))
    assert "answer clients_of_one_person differently" in " ".join(each.text for each in reports.check(folder))


FIXED = tff_mf.FixedEpoch(min_sep=4, max_participations=2)


def test_fixed_epochs_outside_of_their_pattern_are_found(tmp_path):
    """Rounds 0 and 8 have the same place in epochs of 4, and are no two of j and j + 4."""
    rounds = [["a"] if t in (0, 8) else [f"b{t}"] for t in range(9)]
    report = finished(tmp_path / "run", rounds=rounds, planned=rounds, privacy=plan(participation=FIXED))
    assert "participation" in {each["field"] for each in report["findings"] if each["severity"] == "critical"}


def test_a_stopped_run_never_states_less_than_it_realised(tmp_path):
    """Of this matrix the fixed epochs planned are cheaper than what a client did, who was seen in another pattern."""
    rounds = [["a"] if t in (0, 8) else [f"b{t}"] for t in range(9)]
    privacy = plan(rounds=12, participation=FIXED, mechanism=tff_mf.Tree(12))
    report = finished(tmp_path / "run", rounds=rounds, planned=[*rounds, *rounds[1:4]], privacy=privacy)
    assert report["claim"]["epsilon"] is None
    assert any(each["severity"] == "critical" for each in report["findings"])


@pytest.mark.parametrize(
    ("break_it", "field", "text"),
    [
        (files.broken_by_a_cohort_that_never_was, "cohort", "only a simulation"),
        (logs.broken_by_metrics_of_what_was_not_released, "log", "an evaluation of round 9"),
        (files.broken_by_two_headlines, "report", "'headline' is twice"),
        (files.broken_by_spaces, "report", "in other bytes"),
        (files.broken_by_a_plan_for_a_report, "report", "the wrong kind"),
        (logs.broken_by_true, "log", "an entry that this release does not know"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_nobody_thought_of_is_found_out(good, tmp_path, break_it, field, text):
    """What the author of the check had not thought of when it was written."""
    break_it(good, tmp_path / "run")
    found = [each for each in reports.check(tmp_path / "run") if each.severity == "critical" and each.field == field]
    assert any(text in each.text for each in found)


def test_an_answer_is_no_part_of_the_report(good, tmp_path):
    folder = copied(good, tmp_path / "run")
    change_json(folder / "answers.json", lambda found: {**found, "trusted": "us\n\n# Privacy report\n\n**ε≤0.001**"})
    reports.write(folder, realised=True)
    lines = (folder / "report.md").read_text().splitlines()
    assert sum(line.startswith("# ") for line in lines) == 1
    assert sum(line.startswith("**") for line in lines) == 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"participation": "SingleParticipation"}, "min_sep=3"),
        ({"participation": "SingleParticipation", "min_sep": 1}, "max_participations=3"),
        ({"noise_multiplier": float("nan")}, "NaN"),
    ],
)
def test_a_configuration_that_no_run_has_is_refused(good, tmp_path, changes, field):
    folder = copied(good, tmp_path / "run")
    change_json(folder / "run.json", lambda found: {**found, **changes})
    with pytest.raises(tff_mf.InputError, match=field):
        reports.check(folder)


def test_nobody_who_did_not_answer_has_an_epsilon_of_a_person(good, tmp_path):
    folder = copied(good, tmp_path / "run")
    for name in ("answers.json", "summary.json"):
        (folder / name).unlink()
    claim = reports.build(folder, realised=True)["claim"]
    assert claim["epsilon"] is not None
    assert claim["epsilon_of_a_person"] is None
