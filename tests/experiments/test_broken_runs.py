"""Runs with a mistake in their files, each found out by the check. The runs are folders; nothing is trained."""

import json
import pathlib
import shutil

import pytest
from run_folders import (
    change_json,
    consistent,
    finished,
    metrics,
    read_entries,
    read_log,
    with_reports,
    write_ledger,
    write_log,
)

import tff_mf
from tff_mf.experiments import reports

from .shared import critical, invoke


@pytest.fixture(scope="module")
def good(whole_run):
    """A finished run with every file that there is, which was killed in rounds 5 and 8, and its report."""
    assert critical(whole_run[0]) == []
    return whole_run


@pytest.fixture
def run(good, tmp_path):
    return pathlib.Path(shutil.copytree(good[0], tmp_path / "run"))


def in_json(name, **changes):
    """A file whose fields were changed, and the report that follows."""
    return lambda folder: (change_json(folder / name, lambda found: {**found, **changes}), report_anew(folder))


def text_of(name, text):
    """A file with another text, and the report that follows."""
    return lambda folder: ((folder / name).write_text(text), report_anew(folder))


def replaced(name, old, new, *, anew=False):
    """A file in which a text was replaced."""

    def edit(folder):
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))
        if anew:
            report_anew(folder)

    return edit


def report_anew(folder):
    reports.write(folder, realised=True)


def what_is_gone(folder):
    """The remaining files look like a run that never began."""
    for name in ("ledger.jsonl", "report.json", "report.md"):
        (folder / name).unlink()
    reports.write(folder, realised=False)


def another_model(folder):
    (folder / "model.safetensors").write_bytes(b"another")
    report_anew(folder)


HEAD, ROWS = "round,seconds,loss\n", "".join(f"{number},0.5,0.5\n" for number in range(1, 10))
# What is broken in a run, and a text of what is found, by the field of it.
METRICS = {
    "4 cells": HEAD + ROWS.replace("3,0.5,0.5", "3,0.5,0.5,0.731"),
    "name of its own, and they are ['round', 'seconds', 'loss', '']": "round,seconds,loss,\n" + ROWS,
    "name of its own, and they are ['round', 'seconds', 'loss', 'loss']": "round,seconds,loss,loss\n" + ROWS,
    "'round', which is no whole number": HEAD + ROWS + "round,seconds,train_loss\n",
    "'9.5'": HEAD + ROWS + "9.5,0.1,0.2\n",
    "could not convert": HEAD + ROWS.replace("3,0.5", "3,loss of ann"),
    "no column 'round'": "seconds,loss\n0.5,0.5\n",
}
OTHER_NOISE = replaced("plan.json", '"noise_multiplier": 5.0', '"noise_multiplier": 50.0', anew=True)
BROKEN = {
    "log": {
        "line 2 is damaged": replaced("ledger.jsonl", '"clip_norm":1.0', '"clip_norm":"1.5"', anew=True),
        **{text: text_of("metrics.csv", content) for text, content in METRICS.items()},
    },
    "plan": {"plan.json was edited": OTHER_NOISE},
    "model": {"its hash is not the one": another_model},
    # The field is that of what is released.
    "": {
        name: text_of(name, "round,train_loss\n1,0.7\n")
        for name in ("train_metrics.csv", "metrics.CSV", "Participation.Csv")
    },
}


def found_out(folder, field, text):
    """Asserts that the check names a field and says a text of it."""
    done = invoke("report", folder, "--check", "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    said = [f"{each['field']}: {each['text']}" for each in found["reasons"]]
    said += [f"report: {name}" for name in found["differs"]]
    named = " ".join(each for each in said if each.startswith(f"{field}: ") or not field)
    assert any(part in named for part in text.split("|")), said


def states_nothing(folder):
    headline = reports.read(folder / "report.json").headline
    assert "ε≤" not in headline
    assert headline.startswith(("NO ε CAN BE STATED", "TEST ONLY"))


@pytest.mark.parametrize(("field", "text"), [(field, text) for field, several in BROKEN.items() for text in several])
def test_a_file_that_is_another_is_found_out_and_no_epsilon_stated(run, field, text):
    BROKEN[field][text](run)
    found_out(run, field, text)
    states_nothing(run)


def in_report(change):
    """A report that does not follow from the files."""
    return lambda folder: change_json(folder / "report.json", change)


# The field that differs in a report, and its mistake.
REPORTS = {
    "claim.epsilon": in_report(lambda found: found["claim"].update(epsilon=0.1 * found["claim"]["epsilon"])),
    "accountant.realised.epsilon": in_report(lambda found: found["accountant"]["realised"].update(epsilon=0.1)),
    "claim.delta": in_report(lambda found: found["claim"].update(delta=1e-7)),
    "noise.noise_multiplier": in_report(lambda found: found["noise"].update(noise_multiplier=5.000001)),
    "rounds.released": in_report(lambda found: found["rounds"].update(released=8)),
    "files.ledger.jsonl": in_report(lambda found: found["files"].update({"ledger.jsonl": "0" * 64})),
    "checks": in_report(lambda found: found["checks"][0].update(state="assumed")),
    "headline": in_report(lambda found: found.update(headline="ε≤0.1")),
    "report.json is damaged": replaced("report.json", "{", '{\n "kind": "planned",'),
    "kind": lambda folder: shutil.copy(folder / "planned.json", folder / "report.json"),
    "report.json is missing": what_is_gone,
}


@pytest.mark.parametrize("text", REPORTS)
def test_a_report_that_does_not_follow_from_the_files_is_found_out(run, text):
    REPORTS[text](run)
    found_out(run, "report", text)


@pytest.mark.parametrize(
    "change", [lambda text: text.replace("ε≤", "ε≤0."), lambda text: text[:-300], lambda text: "", None]
)
def test_a_page_that_is_not_the_report_s_is_named(run, change):
    page = run / "report.md"
    if change is None:
        page.unlink()
    else:
        page.write_text(change(page.read_text()))
    assert reports.check(run).differs == ["report.md"]
    reports.write(run, realised=True)
    assert reports.check(run).differs == []


def test_a_page_in_html_that_states_another_epsilon_is_named(run):
    assert invoke("report", run).exit_code == 0
    page = run / "report.html"
    page.write_text(page.read_text().replace("ε≤", "ε≤0."))
    done = invoke("report", run, "--check")
    assert (done.exit_code, "Differs: report.html" in done.stdout) == (1, True)


def place(entries, kind, number):
    return next(i for i, each in enumerate(entries) if (each["kind"], each.get("round")) == (kind, number))


def in_ledger(change):
    """A ledger with other lines, hashes and all, and the report that follows."""
    return lambda folder: (write_ledger(folder, change(read_entries(folder))), report_anew(folder))


def inserted(number, entry):
    """An entry before one of the ledger, counted from its end."""
    return in_ledger(lambda entries: [*entries[:number], entry, *entries[number:]] if number else [*entries, entry])


def a_second_release(entries):
    at = place(entries, "released", 4)
    first = entries[at - 1]
    entries[at - 1] = {**first, "attempt": 2}
    return [*entries[: at - 1], first, {"kind": "released", "round": 4}, *entries[at - 1 :]]


def another_order(entries):
    one, other = place(entries, "released", 2), place(entries, "begun", 3)
    entries[one], entries[other] = entries[other], entries[one]
    del entries[place(entries, "released", 1)]
    return entries


def without_first_attempt(entries):
    del entries[place(entries, "begun", 5)]
    return entries


def of_reports(**changes):
    """Releases that count two reports each, one of them changed."""
    return in_ledger(lambda entries: with_reports(entries, **changes))


def a_run_begun_twice(change):
    """A run whose fourth round was begun twice, with other clients in the log, and all that follows from that."""

    def edit(folder):
        shutil.rmtree(folder)
        finished(folder, planned=[], killed=[4])
        write_log(folder, change(read_log(folder)))
        consistent(folder)

    return edit


def too_soon(lines):
    """Clients of the attempt that was given up come back two rounds later."""
    late = iter([client for number, _, client in lines if number == 6])
    return [(n, a, next(late) if (n, a) == (4, 1) else client) for n, a, client in lines]


def cut(names, lines):
    def edit(folder):
        for name in names:
            kept = (folder / name).read_text().splitlines()[:-lines]
            (folder / name).write_text("\n".join(kept) + "\n")
        report_anew(folder)

    return edit


def another_artifact(folder):
    (folder / "mechanism.safetensors").unlink()
    tff_mf.save(tff_mf.Identity(), folder / "mechanism.safetensors")
    report_anew(folder)


DAMAGED = "is damaged ("
BEGUN_AGAIN = {"kind": "begun", "round": 9, "attempt": 2, "clients": ["c0"], "divisor": 2, "clip_norm": 1.0}
# Runs whose logs do not fit, with every hash as it follows.
LOGS = [
    ("mechanism", "hash differs", another_artifact),
    (
        *("released without noise", "train_accuracy"),
        lambda folder: (metrics(folder, 9, ["round", "seconds", "loss", "train_accuracy"]), report_anew(folder)),
    ),
    ("log", "did not end|does not say that the run ended", cut(["ledger.jsonl"], 2)),
    ("log", DAMAGED, in_ledger(lambda found: [{**found[0], "bound_to": None}, *found[1:]])),
    ("one release a round", "attempt 2 of round 5 follows 0", in_ledger(without_first_attempt)),
    (
        *("log", "an evaluation of round 9"),
        in_ledger(lambda entries: [e for e in entries if (e["kind"], e.get("round")) != ("released", 9)]),
    ),
    # Python takes true for 1.
    ("log", DAMAGED, in_ledger(lambda found: [{**e, "attempt": True} if e.get("attempt") == 1 else e for e in found])),
    ("log", DAMAGED, of_reports(came=2)),
    ("log", DAMAGED, of_reports(refused={"ε≤0.01": 1})),
    ("one release a round", "counts 3 reports of 2 clients", of_reports(came=4, counted=3)),
    ("one release a round", "round 4 was released more than once", in_ledger(a_second_release)),
    (
        *("one release a round", "round 10 was released and never begun"),
        inserted(-1, {"kind": "released", "round": 10}),
    ),
    ("one release a round", "released before round 1|out of order", in_ledger(another_order)),
    ("one release a round", "begun again after it was released", inserted(-1, BEGUN_AGAIN)),
    ("one release a round", "ended after 8 rounds", in_ledger(lambda found: [*found[:-1], {**found[-1], "rounds": 8}])),
    (
        *("one release a round", "attempt 2 of round 3 follows 0 attempts"),
        in_ledger(lambda found: [{**e, "attempt": 2} if e == found[place(found, "begun", 3)] else e for e in found]),
    ),
    ("one release a round", "follows the end", inserted(0, {"kind": "restarted", "round": 10})),
    ("one release a round", "out of order", in_ledger(lambda found: [e for e in found if e.get("round") != 3])),
    ("participation", "too soon", a_run_begun_twice(too_soon)),
    # So that a count of lines finds nothing.
    (
        *("participation", "listed twice in round 4"),
        a_run_begun_twice(lambda lines: [(n, a, "c0" if (n, a) == (4, 2) else who) for n, a, who in lines]),
    ),
]


@pytest.mark.parametrize(("field", "text", "edit"), LOGS, ids=[text for _, text, _ in LOGS])
def test_a_run_with_broken_logs_is_found_out_and_states_no_epsilon(run, field, text, edit):
    edit(run)
    found_out(run, field, text)
    states_nothing(run)


def test_fields_that_a_summary_may_have_are_no_alarm(run):
    in_json("summary.json", parameters=3, validation_accuracy=0.5)(run)
    metrics(run, 9)
    report_anew(run)
    assert critical(run) == []


# Values of run.json that no run has.
NO_VALUES = {
    "versions": [None, [], {"tff-mf": 3}],
    "command": [None, "x", [1]],
    "cohorts": [None, {}, [1]],
    "settings": [[], 1],
    "released_without_noise": [None, ["x"], [{"name": 1}]],
    "evaluation_columns": [None, "loss", [["x"]]],
    "simulation": [None, 1, "yes"],
    "sampler": [None, 1, []],
    "mechanism_sha256": [None, 3],
    "population": [10**400, 0.5, True, "x", -1],
    "clients_per_person": [10**400, 10**300, True, 0, None],
    "adjacency": [None, []],
    "round": [9],
}
NOT_TYPED = [(name, value) for name, several in NO_VALUES.items() for value in several]


@pytest.mark.parametrize(("name", "value"), NOT_TYPED)
def test_a_field_of_another_type_is_named(run, name, value):
    change_json(run / "run.json", lambda found: {**found, name: value})
    with pytest.raises(tff_mf.InputError, match=rf"{name}=|'{name}'|{name} must"):
        reports.check(run)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"sampling": {"kind": "SingleParticipation", "min_sep": 3, "max_participations": 3}}, "min_sep"),
        ({"noise_multiplier": float("nan")}, "NaN"),
        ({"rounds": 9.0}, "rounds"),
    ],
)
def test_a_plan_that_no_run_has_is_refused(run, changes, field):
    change_json(run / "plan.json", lambda found: {**found, **changes})
    with pytest.raises(tff_mf.InputError, match=field):
        reports.check(run)
