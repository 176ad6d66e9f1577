"""Runs with a forged file other than the logs, each a function that writes one into a folder."""

import shutil

from broken_logs import copied, finished
from run_folders import change_json, plan, start

from tff_mf.experiments import reports


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


def broken_by_a_question_that_the_summary_forgets(good, folder):
    copied(good, folder)
    change_json(folder / "answers.json", lambda found: {**found, "unit": None})
    reports.write(folder, realised=True)


def broken_by_a_field_of_the_summary(good, folder):
    copied(good, folder)
    change_json(folder / "summary.json", lambda found: {**found, "epsilon_after_amplification": 0.1})
    reports.write(folder, realised=True)


def broken_by_the_accuracy_of_the_summary(good, folder):
    copied(good, folder)
    change_json(folder / "summary.json", lambda found: {**found, "validation_accuracy": 0.25})
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


def broken_by_what_is_gone(good, folder):
    """The remaining files look like a run that never began."""
    copied(good, folder)
    for name in ("ledger.jsonl", "report.json", "report.md"):
        (folder / name).unlink()
    reports.write(folder, realised=False)


def broken_by_a_cohort_that_never_was(good, folder):
    """Noise for a hundred times the clients that train, in no simulation."""
    finished(folder, privacy=plan(cohort=200), simulation=False)


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
