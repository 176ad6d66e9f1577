"""Runs that were broken on purpose, each found out by the check. The runs are folders; nothing is trained."""

import json
import pathlib
import shutil
import sys

import pytest
from click.testing import CliRunner

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.cli import cli

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "fuzz"))
import run_folders
from run_folders import change_json, cohorts, consistent, metrics, plan, run, start

RUN = {"rounds", "divisors", "clip_norms", "restarts", "twice", "killed", "ended"}


def finished(folder, **more):
    """Writes a whole run and its report, and returns the report."""
    start(folder, **{name: more.pop(name) for name in list(more) if name not in RUN})
    run(folder, **more)
    return reports.write(folder, realised=True)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A finished run with every file that there is, which was killed in rounds 5 and 8, and its report."""
    folder = tmp_path_factory.mktemp("runs") / "good"
    report = run_folders.whole(folder)
    assert [each for each in reports.check(folder) if each.severity == "critical"] == []
    return folder, report


def invoke(*arguments):
    return CliRunner().invoke(cli, ["report", *map(str, arguments)], catch_exceptions=False)


def copied(good, folder):
    shutil.copytree(good[0], folder)
    return folder


def change(index, clients):
    """Returns the cohorts with one that is another."""
    several = cohorts()
    several[index] = clients
    return several


def broken_too_soon(good, folder):
    finished(folder, rounds=change(1, cohorts()[0]), planned=change(1, cohorts()[0]))


def broken_too_often(good, folder):
    rounds = [["c0", "c1"] if t % 3 == 0 else [f"c{2 * (t % 3)}", f"c{2 * (t % 3) + 1}"] for t in range(12)]
    finished(folder, rounds=rounds, planned=rounds, privacy=plan(rounds=12))


def broken_sampler(good, folder):
    others = [[f"c{2 * (t % 4)}", f"c{2 * (t % 4) + 1}"] for t in range(9)]
    finished(folder, rounds=others)


def broken_twice(good, folder):
    finished(folder, twice=[4])


def broken_artifact(good, folder):
    copied(good, folder)
    (folder / "mechanism.safetensors").unlink()
    tff_mf.save(tff_mf.Identity(), folder / "mechanism.safetensors")
    reports.write(folder, realised=True)


def broken_seed(good, folder):
    finished(folder, privacy=plan(insecure_seed=7))


def broken_metrics(good, folder):
    finished(folder, released_without_noise=[{"name": "training loss", "of": "the training clients"}])


def broken_column(good, folder):
    copied(good, folder)
    metrics(folder, 9, ["round", "seconds", "loss", "train_accuracy"])
    reports.write(folder, realised=True)


def broken_divisor(good, folder):
    finished(folder, divisors=[2, 2, 1, 2, 2, 2, 2, 2, 2])


def broken_restart(good, folder):
    finished(folder, restarts=[5])


def broken_clip(good, folder):
    finished(folder, clip_norms=[1.0] * 4 + [0.5] * 5)


def broken_log(good, folder):
    copied(good, folder)
    lines = (folder / "participation.csv").read_text().splitlines()
    (folder / "participation.csv").write_text("\n".join(lines[:-3]) + "\n")
    reports.write(folder, realised=True)


def broken_both_logs(good, folder):
    copied(good, folder)
    lines = (folder / "participation.csv").read_text().splitlines()
    (folder / "participation.csv").write_text("\n".join(lines[:-2]) + "\n")
    lines = (folder / "ledger.jsonl").read_text().splitlines()
    (folder / "ledger.jsonl").write_text("\n".join(lines[:-3]) + "\n")
    reports.write(folder, realised=True)


def broken_ledger_line(good, folder):
    copied(good, folder)
    path = folder / "ledger.jsonl"
    path.write_text(path.read_text().replace('"clip_norm": 1.0', '"clip_norm": 1.5', 1))
    reports.write(folder, realised=True)


def broken_configuration(good, folder):
    copied(good, folder)
    path = folder / "run.json"
    path.write_text(path.read_text().replace('"noise_multiplier": 5.0', '"noise_multiplier": 50.0'))
    reports.write(folder, realised=True)


def broken_report(good, folder):
    copied(good, folder)
    report = json.loads((folder / "report.json").read_text())
    report["accountant"]["realised"]["epsilon"] = 0.1
    (folder / "report.json").write_text(json.dumps(report))


def broken_report_with_its_digest(good, folder):
    from tff_mf.experiments.reports._build import digest

    copied(good, folder)
    report = json.loads((folder / "report.json").read_text())
    report["headline"] = report["headline"].replace("ε≤", "ε≤0.")
    report["digest"] = digest(report)
    (folder / "report.json").write_text(json.dumps(report))
    (folder / "report.md").write_text(reports.markdown(report))


def broken_markdown(good, folder):
    copied(good, folder)
    text = (folder / "report.md").read_text()
    (folder / "report.md").write_text(text.replace("ε≤", "ε≤0."))


def broken_by_a_second_release(good, folder):
    """The first attempt had other clients, and left no line in participation.csv."""
    copied(good, folder)
    entries = run_folders.read_entries(folder)
    at = next(i for i, each in enumerate(entries) if each["kind"] == "released" and each["round"] == 4)
    first = run_folders.begun(4, ["c6", "c7"])
    entries[at - 1]["attempt"] = entries[at]["attempt"] = 2
    entries[at - 1 : at - 1] = [first, {"kind": "released", "round": 4, "attempt": 1}]
    run_folders.write_ledger(folder, entries)
    reports.write(folder, realised=True)


def with_entries(good, folder, change):
    copied(good, folder)
    run_folders.write_ledger(folder, change(run_folders.read_entries(folder)))
    reports.write(folder, realised=True)


def place(entries, kind, number):
    return next(i for i, each in enumerate(entries) if each["kind"] == kind and each["round"] == number)


def broken_by_a_release_of_nothing(good, folder):
    released = {"kind": "released", "round": 10, "attempt": 1}
    with_entries(good, folder, lambda entries: [*entries[:-1], released, entries[-1]])


def broken_by_order(good, folder):
    def swap(entries):
        one, other = place(entries, "released", 2), place(entries, "begin", 3)
        entries[one], entries[other] = entries[other], entries[one]
        del entries[place(entries, "released", 1)]
        return entries

    with_entries(good, folder, swap)


def broken_by_an_attempt_that_was_given_up(good, folder):
    """Attempt 1 of round 5 was followed by attempt 2, and released all the same."""

    def forge(entries):
        entries[place(entries, "released", 5)]["attempt"] = 1
        return entries

    with_entries(good, folder, forge)


def broken_by_what_follows_the_end(good, folder):
    with_entries(good, folder, lambda entries: [*entries, {"kind": "restarted", "round": 10}])


def broken_by_a_jump(good, folder):
    def skip(entries):
        return [each for each in entries if each.get("round") != 3]

    with_entries(good, folder, skip)


def broken_by_a_hidden_attempt(good, folder):
    copied(good, folder)
    lines = run_folders.read_log(folder)
    run_folders.write_log(folder, [line for line in lines if line[:2] != (5, 1)])
    reports.write(folder, realised=True)


def broken_by_a_log_of_format_1(good, folder):
    """It lists the last attempt alone, and the first one had others."""
    copied(good, folder)
    lines = [
        (n, a, "c7" if (n, a, client) == (5, 1, client) else client) for n, a, client in run_folders.read_log(folder)
    ]
    run_folders.write_log(folder, lines)
    consistent(folder)
    kept = [f"{n},{client}" for n, a, client in lines if (n, a) not in ((5, 1), (8, 1))]
    (folder / "participation.csv").write_text("round,client\n" + "\n".join(kept) + "\n")
    reports.write(folder, realised=True)


def broken_by_clients_of_an_attempt_that_was_given_up(good, folder):
    """They came back two rounds later: too soon, if anybody saw the attempt."""
    finished(folder, planned=[], killed=[4])
    lines = run_folders.read_log(folder)
    late = [client for n, _, client in lines if n == 6]
    first = iter(late)
    lines = [(n, a, next(first) if (n, a) == (4, 1) else client) for n, a, client in lines]
    run_folders.write_log(folder, lines)
    consistent(folder)


def broken_by_a_client_twice(good, folder):
    """The round was begun twice, so that a count of lines finds nothing."""
    finished(folder, planned=[], killed=[4])
    lines = run_folders.read_log(folder)
    who = iter(["c0", "c0"])
    run_folders.write_log(folder, [(n, a, next(who) if (n, a) == (4, 2) else client) for n, a, client in lines])
    consistent(folder)


def broken_by_another_plan(good, folder):
    copied(good, folder)
    other = folder.parent / "other"
    start(other, privacy=plan(noise_multiplier=50.0))
    reports.write(other, realised=False)
    for name in ("planned.json", "planned.md"):
        shutil.copy(other / name, folder / name)


def broken_by_a_plan_alone(good, folder):
    copied(good, folder)
    (folder / "planned.json").unlink()
    text = (folder / "planned.md").read_text()
    (folder / "planned.md").write_text(text.replace("ε≤", "ε≤0."))


def broken_by_the_summary(good, folder):
    copied(good, folder)
    change_json(folder / "summary.json", lambda found: {**found, "epsilon": 0.1})
    reports.write(folder, realised=True)


def broken_by_the_statement_of_the_summary(good, folder):
    copied(good, folder)
    change_json(folder / "summary.json", lambda found: {**found, "statement": "(ε=0.1, δ=1e-9)-DP for each client"})
    reports.write(folder, realised=True)


def broken_by_a_field_of_the_summary(good, folder):
    copied(good, folder)
    change_json(folder / "summary.json", lambda found: {**found, "epsilon_after_amplification": 0.1})
    reports.write(folder, realised=True)


def broken_by_the_accuracy_of_the_summary(good, folder):
    copied(good, folder)
    change_json(folder / "summary.json", lambda found: {**found, "loss": 0.25})
    reports.write(folder, realised=True)


def broken_by_a_forged_audit(good, folder):
    copied(good, folder)
    (folder / "audit.json").write_text('{"passed": true}')
    reports.write(folder, realised=True)


def broken_by_the_audit_of_another_run(good, folder):
    copied(good, folder)
    change_json(folder / "audit.json", lambda found: {**found, "run_sha256": "0" * 64})
    reports.write(folder, realised=True)


def broken_by_an_audit_of_more_noise(good, folder):
    copied(good, folder)
    change_json(folder / "audit.json", lambda found: {**found, "noise_multiplier": 50.0, "claimed_epsilon": 0.1})
    reports.write(folder, realised=True)


def broken_by_an_audit_that_had_failed(good, folder):
    copied(good, folder)

    def passed(found):
        found["tests"][3]["value"] = 50.0

    change_json(folder / "audit.json", passed)
    reports.write(folder, realised=True)


def broken_by_an_audit_with_a_test_less(good, folder):
    copied(good, folder)
    change_json(folder / "audit.json", lambda found: {**found, "tests": found["tests"][:-1]})
    reports.write(folder, realised=True)


def broken_by_better_canaries(good, folder):
    copied(good, folder)

    def better(found):
        found["canaries"]["epsilon_gaussian"] = found["tests"][6]["value"] = 0.01

    change_json(folder / "audit.json", better)
    reports.write(folder, realised=True)


def broken_by_another_model(good, folder):
    copied(good, folder)
    (folder / "model.safetensors").write_bytes(b"another")
    reports.write(folder, realised=True)


def broken_by_a_ledger_of_nothing(good, folder):
    with_entries(good, folder, lambda entries: [{**entries[0], "configuration": None}, *entries[1:]])


def broken_by_what_is_gone(good, folder):
    """What is left looks like a run that never began."""
    copied(good, folder)
    for name in ("ledger.jsonl", "report.json", "report.md"):
        (folder / name).unlink()
    reports.write(folder, realised=False)


# What is wrong with a file that no report is made of: its ε is right all the same.
NOT_IN_THE_REPORT = (broken_by_another_plan, broken_by_a_plan_alone, broken_by_what_is_gone)


@pytest.mark.parametrize(
    ("break_it", "field", "text"),
    [
        (broken_too_soon, "participation", "too soon"),
        (broken_too_often, "participation", "too often"),
        (broken_sampler, "sampler", "sampler was changed"),
        (broken_twice, "one release a round", "round 4 was released more than once"),
        (broken_artifact, "mechanism", "hash differs"),
        (broken_seed, "randomness", "fixed seed"),
        (broken_metrics, "released without noise", "training loss"),
        (broken_column, "released without noise", "train_accuracy"),
        (broken_divisor, "divisor", "not by the constant"),
        (broken_restart, "restarts", "round 5"),
        (broken_clip, "clipping", "adaptive clipping"),
        (broken_log, "log", "participation.csv"),
        (broken_both_logs, "log", "did not end|does not say that the run ended"),
        (broken_ledger_line, "log", "does not follow"),
        (broken_configuration, "log", "run.json is another"),
        (broken_report, "report", "edited"),
        (broken_report_with_its_digest, "report", "another headline"),
        (broken_markdown, "report", "report.md says something else"),
        (broken_by_a_second_release, "one release a round", "round 4 was released more than once"),
        (broken_by_a_release_of_nothing, "one release a round", "round 10 was released and never begun"),
        (broken_by_order, "one release a round", "released before round 1|out of order"),
        (broken_by_an_attempt_that_was_given_up, "one release a round", "attempt 2 was begun last"),
        (broken_by_what_follows_the_end, "one release a round", "follows the end"),
        (broken_by_a_jump, "one release a round", "out of order"),
        (broken_by_a_hidden_attempt, "log", "round 5 is in one of"),
        (broken_by_a_log_of_format_1, "log", "other clients than ledger.jsonl in round 5"),
        (broken_by_clients_of_an_attempt_that_was_given_up, "participation", "too soon"),
        (broken_by_a_client_twice, "participation", "listed twice in round 4"),
        (broken_by_another_plan, "report", "planned.json says another"),
        (broken_by_a_plan_alone, "report", "planned.json is missing"),
        (broken_by_the_summary, "summary", "epsilon=0.1"),
        (broken_by_the_statement_of_the_summary, "summary", "statement="),
        (broken_by_a_field_of_the_summary, "summary", "epsilon_after_amplification"),
        (broken_by_the_accuracy_of_the_summary, "summary", "loss=0.25"),
        (broken_by_a_forged_audit, "audit", "no audit of this run"),
        (broken_by_the_audit_of_another_run, "audit", "does not name the hash"),
        (broken_by_an_audit_of_more_noise, "audit", "noise_multiplier=50.0"),
        (broken_by_an_audit_that_had_failed, "audit", "its test repeats says that it passed"),
        (broken_by_an_audit_with_a_test_less, "audit", "it has the tests"),
        (broken_by_better_canaries, "audit", "its canaries have epsilon_gaussian"),
        (broken_by_another_model, "model", "another than the one"),
        (broken_by_a_ledger_of_nothing, "log", "does not name the run.json"),
        (broken_by_what_is_gone, "report", "report.json is missing"),
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
    if break_it not in (broken_report, broken_report_with_its_digest, broken_markdown, *NOT_IN_THE_REPORT):
        headline = json.loads((folder / "report.json").read_text())["headline"]
        assert "ε≤" not in headline
        assert headline.startswith(("NO ε CAN BE STATED", "TEST ONLY"))


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
        with pytest.raises(tff_mf.InputError, match="no digest of a report"):
            reports.check(folder, held=wrong)
    assert invoke(folder, "--digest", good[1]["digest"]).exit_code == 2


def test_a_log_of_format_1_is_read_where_it_says_who_took_part(good, tmp_path):
    """Every attempt of a round had the same clients, as with `tff-mf train`: the hashes of the ledger prove it."""
    folder = copied(good, tmp_path / "run")
    lines = [line for line in run_folders.read_log(folder) if line[:2] not in ((5, 1), (8, 1))]
    text = "round,client\n" + "".join(f"{number},{client}\n" for number, _, client in lines)
    (folder / "participation.csv").write_text(text)
    report = reports.write(folder, realised=True)
    assert [each for each in report["findings"] if each["severity"] == "critical"] == []
    assert report["accountant"] == good[1]["accountant"]


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
    assert "another answer to clients_of_one_person" in " ".join(each.text for each in reports.check(folder))


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
    realised, planned = (report["accountant"][name]["epsilon"] for name in ("realised", "planned"))
    assert realised <= planned or f"ε≤{planned:.3f}" not in report["headline"]
    assert any(each["severity"] == "critical" for each in report["findings"])


# What the author of the check had not thought of when it was written.


def broken_by_a_cohort_that_never_was(good, folder):
    """Noise for a hundred times the clients that train, in no simulation."""
    finished(folder, privacy=plan(cohort=200), simulation=False)


def broken_by_metrics_of_what_was_not_released(good, folder):
    """The model of the last round was evaluated, and its metrics are there to be seen."""

    def unreleased(entries):
        return [each for each in entries if (each["kind"], each.get("round")) != ("released", 9)]

    with_entries(good, folder, unreleased)


def broken_by_two_headlines(good, folder):
    """A person reads the first of two equal keys, a program the last."""
    copied(good, folder)
    text = (folder / "report.json").read_text()
    (folder / "report.json").write_text(text.replace("{", '{\n "headline": "ε≤0.1 at δ=1e-9",', 1))


def broken_by_spaces(good, folder):
    """The true headline is there, two hundred lines further down."""
    copied(good, folder)
    text = (folder / "report.json").read_text()
    (folder / "report.json").write_text(text.replace('"headline": ', '"headline":' + "\n" * 200))


def broken_by_a_plan_for_a_report(good, folder):
    copied(good, folder)
    for suffix in ("json", "md"):
        shutil.copy(folder / f"planned.{suffix}", folder / f"report.{suffix}")


def broken_by_true(good, folder):
    """Python takes true for 1."""
    with_entries(
        good, folder, lambda entries: [{**e, "attempt": True} if e.get("attempt") == 1 else e for e in entries]
    )


@pytest.mark.parametrize(
    ("break_it", "field", "text"),
    [
        (broken_by_a_cohort_that_never_was, "cohort", "only a simulation"),
        (broken_by_metrics_of_what_was_not_released, "log", "the model of round 9"),
        (broken_by_two_headlines, "report", "'headline' is twice"),
        (broken_by_spaces, "report", "in other bytes"),
        (broken_by_a_plan_for_a_report, "report", "of another kind"),
        (broken_by_true, "log", "none that this release knows"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_nobody_thought_of_is_found_out(good, tmp_path, break_it, field, text):
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
        ({"restart_every": 0}, "restart_every=0"),
        ({"divisor": -1}, "divisor=-1"),
        ({"adaptive_count_stddev": 0}, "adaptive_count_stddev=0"),
        ({"noise_multiplier": float("nan")}, "NaN"),
    ],
)
def test_a_configuration_that_no_run_has_is_refused(good, tmp_path, changes, field):
    folder = copied(good, tmp_path / "run")
    change_json(folder / "run.json", lambda found: {**found, **changes})
    with pytest.raises(tff_mf.InputError, match=field):
        reports.check(folder)
