"""Reports: what they claim, in a table of generated run folders; their figures, their pages and their answers."""

import itertools
import json
import pathlib
import re
import shlex
import shutil

import pytest
import run_folders
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import ANSWERS, SCHEMA, change_json, cohorts, finished, plan, run, start

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.reports import SCHEMA as JSON_SCHEMA
from tff_mf.experiments.reports.questions import QUESTIONS
from tff_mf.experiments.runs import statements
from tff_mf.numerics.digits import rounded_up

from .shared import critical, invoke, moved, said, violated

EPOCHS = tff_mf.FixedEpoch(min_sep=3, max_participations=3)
LONG_EPOCHS = tff_mf.FixedEpoch(min_sep=4, max_participations=2)
ADAPTIVE = {"restarts": [4, 7], "restart_every": 3, "adaptive_count_stddev": 2.0}


def alone(*pattern):
    """Cohorts of which one client is in some, and every other client in one."""
    return [["a"] if t in pattern else [f"b{t}"] for t in range(9)]


def of_one(schema, *pattern, rounds=9, **privacy):
    """A run in which one client has a pattern, and the plan is of a schema."""
    ran = alone(*pattern)
    planned = [*ran, *ran[1 : 1 + rounds - 9]]
    return {"rounds": ran, "planned": planned, "privacy": plan(sampling=schema, rounds=rounds, **privacy)}


def answered(**changes):
    return {"answers": {**ANSWERS, **changes}}


SIMULATED = {"simulation": True, **answered(population=12)}
SOON = [cohorts()[0], cohorts()[0], *cohorts()[2:]]
OFTEN = [["c0", "c1"] if t % 3 == 0 else [f"c{2 * (t % 3)}", f"c{2 * (t % 3) + 1}"] for t in range(12)]
# Runs by how they differ from a sound one, and the fields of what is found to be wrong with them.
CLAIMS = {
    "as planned": ({}, set()),
    "stopped early": ({"rounds": cohorts()[:4]}, set()),
    "killed on its way": ({"killed": (5, 8)}, set()),
    "rounds without clients": (
        {"rounds": (some := [[] if t in (2, 8) else each for t, each in enumerate(cohorts())]), "planned": some},
        set(),
    ),
    "a client too soon": ({"rounds": SOON, "planned": SOON}, {"participation"}),
    "a client too often": ({"rounds": OFTEN, "planned": OFTEN, "privacy": plan(rounds=12)}, {"participation"}),
    "another sampler": ({"rounds": [[f"c{2 * (t % 4)}", f"c{2 * (t % 4) + 1}"] for t in range(9)]}, {"sampler"}),
    "another divisor": ({"divisors": [2, 2, 1, 2, 2, 2, 2, 2, 2]}, {"divisor"}),
    "a restart": ({"restarts": [5]}, {"restarts"}),
    "half of the clip norm": ({"clip_norms": [1.0] * 4 + [0.5] * 5}, {"clipping"}),
    "a training loss": (
        {"released_without_noise": [{"name": "training loss", "of": "the training clients"}]},
        {"released without noise"},
    ),
    "fixed epochs, first place": (of_one(EPOCHS, 0, 3, 6), set()),
    "fixed epochs, second place": (of_one(EPOCHS, 1, 4, 7), set()),
    "fixed epochs, out of place": (of_one(EPOCHS, 0, 4, 7), {"participation"}),
    # Of this matrix the fixed epochs planned are cheaper than what the client did.
    "fixed epochs, stopped out of place": (
        of_one(LONG_EPOCHS, 0, 8, rounds=12, mechanism=tff_mf.Tree(12)),
        {"participation"},
    ),
    "restarts, falling norms": ({**ADAPTIVE, "clip_norms": [1.0] * 3 + [0.8] * 3 + [0.6] * 3}, set()),
    "restarts, norms that return": ({**ADAPTIVE, "clip_norms": [1.0] * 3 + [0.8] * 3 + [1.0] * 3}, set()),
    # No more norms than restarts, and correlated noise of two of them lies side by side all the same.
    "restarts, a norm within one": ({**ADAPTIVE, "clip_norms": [1.0] * 4 + [0.8] * 2 + [1.0] * 3}, {"clipping"}),
    "other norms without restarts": ({"clip_norms": [1.0] * 3 + [0.8] * 6, "adaptive_count_stddev": 2.0}, {"clipping"}),
    "replace-one": ({"adjacency": "replace-one"}, set()),
    "a simulated cohort": ({"privacy": plan(cohort=200), "simulation": True, **answered(population=1000)}, set()),
    "a cohort that is not simulated": ({"privacy": plan(cohort=200)}, {"cohort"}),
    # Twelve clients by two for cohorts of 1000 stand for 6000.
    "δ of what a simulation stands for": ({**SIMULATED, "privacy": plan(cohort=1000, delta=1e-3)}, {"delta"}),
    "δ near that": ({**SIMULATED, "privacy": plan(cohort=1000, delta=1.6e-4)}, set()),
    "tuning runs": (answered(tuning_runs=40), set()),
    "several clients of a person": (answered(clients_of_one_person=3), set()),
    "the most clients of a person": (answered(clients_of_one_person=10**12), set()),
    # Accountants that compute with exp(ε) overflow above an ε of 709, which is no disagreement.
    "little noise": ({"privacy": plan(noise_multiplier=0.05)}, set()),
    "no noise": ({"privacy": plan(noise_multiplier=0.0)}, {"noise"}),
    "a seed": ({"privacy": plan(insecure_seed=3), **answered(clients_of_one_person=3)}, {"noise", "randomness"}),
    "a round twice": ({"twice": [4], **answered(clients_of_one_person=3)}, {"accountant", "one release a round"}),
    "no end": ({"ended": False, **answered(clients_of_one_person=3)}, {"log"}),
    "a large δ": ({"privacy": plan(delta=0.5), **answered(clients_of_one_person=3)}, {"delta"}),
    "δ of a small population": (answered(population=10**5), set()),
    "δ near the bound": (answered(population=9 * 10**5), set()),
    "δ of 1 / population": (answered(population=10**6), {"delta"}),
    # δ of 0.2 is below 1 / 3, and the log has eight clients; that of 1e-6 is below 1 / 20,000, and there are 1e6.
    "fewer clients than the log": ({"privacy": plan(delta=0.2), **answered(population=3)}, {"delta"}),
    "as many clients as the log": ({"privacy": plan(delta=0.2), **answered(population=8)}, {"delta"}),
    "one client, and a million": ({"population": 10**6, **answered(population=1)}, {"delta"}),
    "fewer clients than configured": ({"population": 10**6, **answered()}, {"delta"}),
    "participation by data": (answered(participation_depends_on_data=True), {"participation_depends_on_data"}),
    "private pretraining": (answered(pretraining="private"), {"pretraining"}),
    "a state that is known": (answered(state_is_secret=False), {"state_is_secret"}),
    "another release": (answered(other_releases="accuracy of each cohort"), {"released without noise"}),
}


def leaves(value, name, key=""):
    """Returns the values of JSON other than null whose name matches."""
    if isinstance(value, dict):
        return [each for own, inner in value.items() for each in leaves(inner, name, own)]
    if isinstance(value, list):
        return [each for inner in value for each in leaves(inner, name, key)]
    return [(key, value)] if name.match(key) and value is not None else []


def with_counts(report):
    sums = tff_mf.guarantee(plan().mechanism, 9, SCHEMA, noise_multiplier=5.0, restart_every=3)
    both = tff_mf.compose_guarantees(sums, tff_mf.adaptive_clipping_guarantee(9, SCHEMA, count_stddev=2.0))
    assert report["accountant"]["planned"]["epsilon"] == pytest.approx(both.epsilon(1e-6), rel=1e-9)
    assert report["accountant"]["planned"]["epsilon"] > sums.epsilon(1e-6)


def twice_as_far(report):
    sound = tff_mf.guarantee(plan().mechanism, 9, SCHEMA, noise_multiplier=5.0)
    assert report["accountant"]["planned"]["mu"] == pytest.approx(2 * sound.mu)
    assert report["accountant"]["realised"]["mu"] == pytest.approx(2 * report["noise"]["sensitivity"] / 5.0)
    assert "replace-one" in reports.headline(report)


def as_run_too(report):
    accountant, claim, headline = report["accountant"], report["claim"], reports.headline(report)
    assert "Simulated" in headline
    assert "cohorts of 200, simulated by 2" in headline
    assert claim["epsilon_as_run"] > claim["epsilon"] == accountant["realised"]["epsilon"]
    as_run = tff_mf.Guarantee(mu=100 * accountant["realised"]["mu"]).epsilon(1e-6)
    assert claim["epsilon_as_run"] == pytest.approx(as_run, rel=1e-9)
    assert "weak to no formal protection (ε > 10) of the clients that really train" in statements.tier(
        statements.of_facts(claim)
    )
    assert f"really train: ε≤{rounded_up(claim['epsilon_as_run'])}" in headline
    assert "μ-GDP with μ at most " in " ".join(reports.markdown(report).split())


def of_a_person(report):
    person = tff_mf.Guarantee(mu=3 * report["accountant"]["realised"]["mu"]).epsilon(1e-6)
    assert report["claim"]["epsilon_of_a_person"] == pytest.approx(person, rel=1e-9)
    shown = rounded_up(report["claim"]["epsilon_of_a_person"])
    assert reports.headline(report).startswith(f"ε≤{shown} of a person with 3")


def qualified(report):
    assert reports.headline(report).startswith("QUALIFIED, 40 tuning runs not counted: ")
    assert "qualified, 40 tuning runs not counted" in statements.at_a_glance(statements.of_facts(report["claim"]))
    assert [(each["severity"], each["values"]) for each in report["findings"]] == [("warning", {"runs": 40})]


def as_planned(report):
    accountant = report["accountant"]
    assert accountant["realised"]["epsilon"] < accountant["planned"]["epsilon"] == report["claim"]["epsilon"]
    assert "stopped after 4 of 9" in " ".join(said(report["findings"]))


# What else is right of the figures of a run.
FIGURES = {
    "restarts, falling norms": with_counts,
    "replace-one": twice_as_far,
    "a simulated cohort": as_run_too,
    "several clients of a person": of_a_person,
    "tuning runs": qualified,
    "stopped early": as_planned,
}


# A page takes most of a second. Its curves depend on the state of the claim alone; these would have curves otherwise.
PAGED = ("a client too soon", "a restart", "no noise", "a seed")


@pytest.mark.parametrize("case", CLAIMS)
def test_an_epsilon_is_stated_exactly_if_nothing_is_violated(tmp_path, case):
    more, fields = CLAIMS[case]
    folder = tmp_path / "run"
    report = finished(folder, **more)
    checked = invoke("report", folder, "--check", "--json")
    assert {
        each["field"] for each in json.loads(checked.stdout)["findings"] if each["severity"] == "critical"
    } == fields
    assert (violated(report), checked.exit_code) == (fields, bool(fields))
    if fields:
        refused(report, folder, paged=case in PAGED)
        return
    claim = report["claim"]
    assert claim["state"] == json.loads(checked.stdout)["state"] == ("qualified" if case == "tuning runs" else "stated")
    first = claim["epsilon"] if claim["epsilon_of_a_person"] is None else claim["epsilon_of_a_person"]
    assert f"ε≤{rounded_up(first)}" in reports.headline(report)
    stopped = len(more.get("rounds", cohorts())) < 9 or case == "rounds without clients"
    assert any(each["code"] == "stopped_early" for each in report["findings"]) == stopped
    warned = [each["severity"] for each in report["findings"] if each["field"] == "delta"]
    assert warned == (["warning"] if case.startswith("δ near") else [])
    FIGURES.get(case, lambda report: None)(report)


def refused(report, folder, *, paged):
    """Asserts that no figure of an ε is in a report and its pages. Names of tiers and assumptions have none."""
    assert report["claim"]["state"] == "refused"
    assert reports.headline(report).startswith(("NO ε CAN BE STATED", "TEST ONLY"))
    assert leaves(report, re.compile("epsilon|zcdp_rho")) == []
    page = folder.parent / "page.html"
    texts = [
        invoke("report", folder, *(["--html", page] if paged else [])).stdout,
        json.dumps(report, ensure_ascii=False),
    ]
    if paged:
        texts.append(page.read_text())
        assert "ε over" not in texts[-1]
    for text in texts:
        assert re.findall(r"ε\s*(?:≤|=|at δ)", text) == []


@pytest.fixture
def copy(whole_run, tmp_path):
    return pathlib.Path(shutil.copytree(whole_run[0], tmp_path / "copy"))


def test_a_good_run_assumes_what_nobody_can_check_and_nothing_else(whole_run):
    states = {each["name"]: each["state"] for each in whole_run[1]["assumptions"]}
    assumed = {"participation_depends_on_data", "state_is_secret", "choice of settings", "arithmetic"}
    assumed.add("released without noise")
    assert {name for name, state in states.items() if state == "assumed"} == assumed
    assert set(states.values()) == {"assumed", "holds"}


def test_realised_figures_are_the_worst_client(whole_run):
    """Over all signs of all contributions of every client that took part."""
    _, report = whole_run
    encoder = plan().mechanism.cast_to_float32().encoder(9)
    clients = {client for cohort in cohorts() for client in cohort}
    worst = max(moved(encoder, [t for t, cohort in enumerate(cohorts()) if each in cohort]) for each in clients)
    assert report["noise"]["sensitivity"] == pytest.approx(worst, rel=1e-12)
    assert report["noise"]["sensitivity_exact"]
    exact = tff_mf.Guarantee(mu=worst / 5.0).epsilon(1e-6)
    assert report["accountant"]["realised"]["epsilon"] == pytest.approx(exact, rel=1e-9)
    assert report["accountant"]["realised"]["epsilon"] >= exact
    planned = tff_mf.epsilon(plan().mechanism, 9, SCHEMA, noise_multiplier=5.0, delta=1e-6)
    assert report["accountant"]["planned"]["epsilon"] == pytest.approx(planned, rel=1e-9)
    # Somebody who came less often than was allowed for is all there is.
    assert report["accountant"]["realised"]["epsilon"] <= planned * (1 + 1e-12)


def test_nobody_who_did_not_answer_has_an_epsilon_of_a_person(copy):
    for name in ("answers.json", "summary.json"):
        (copy / name).unlink()
    claim = reports.build(copy, realised=True)["claim"]
    assert claim["epsilon"] is not None
    assert claim["epsilon_of_a_person"] is None


def test_rounds_that_were_given_up_do_not_hide_that_a_run_was_stopped(tmp_path):
    """All nine rounds were begun; then it went back to the fifth, and ended there."""
    folder = tmp_path / "run"
    start(folder)
    run(folder)
    entries = [each for each in run_folders.read_entries(folder) if each["kind"] != "released" or each["round"] < 5]
    again = run_folders.begun(5, cohorts()[4], attempt=2)
    released = {"kind": "released", "round": 5}
    run_folders.write_ledger(folder, [*entries[:-1], again, released, run_folders.end_of(5)])
    run_folders.metrics(folder, 5)
    report = reports.write(folder, realised=True)
    assert violated(report) == set()
    assert f"ε≤{rounded_up(report['accountant']['planned']['epsilon'])}" in reports.headline(report)
    assert "stopped after 5 of 9" in " ".join(said(report["findings"]))


def test_a_planned_report_needs_no_log(tmp_path):
    start(tmp_path / "run")
    report = reports.write(tmp_path / "run", realised=False)
    planned = tff_mf.epsilon(plan().mechanism, 9, SCHEMA, noise_multiplier=5.0, delta=1e-6)
    assert f"ε≤{rounded_up(planned)}" in reports.headline(report)
    assert report["accountant"]["realised"] is None
    assert "assumed" in {each["state"] for each in report["assumptions"] if each["name"] == "participation"}
    assert (tmp_path / "run" / "planned.md").read_text().startswith("# Privacy report (planned)")
    assert invoke("report", tmp_path / "run", "--check").exit_code == 0
    # The run of it has no ε without its logs.
    report = reports.build(tmp_path / "run", realised=True)
    assert {"log", "accountant"} <= violated(report)
    assert report["accountant"]["realised"] is None


def test_a_headline_of_fixed_epochs_does_not_speak_of_min_sep(tmp_path):
    """Their ε is smaller than that of clients who come b rounds apart or more, wherever they like."""
    start(tmp_path / "run", privacy=plan(sampling=EPOCHS))
    headline = reports.headline(reports.build(tmp_path / "run", realised=False))
    assert "in the same place of epochs of b=3, k≤3 in a row" in headline
    assert "min-sep" not in headline


@settings(max_examples=20)
@given(st.sets(st.sampled_from([question.name for question in QUESTIONS]), min_size=1), st.booleans())
def test_no_set_of_open_questions_leaves_a_bare_epsilon(whole_run, tmp_path_factory, names, left_out):
    folder = pathlib.Path(shutil.copytree(whole_run[0], tmp_path_factory.mktemp("open") / "run"))
    # A summary would be another claim than that of the answers.
    (folder / "summary.json").unlink()
    given = {name: value for name, value in ANSWERS.items() if name not in names}
    (folder / "answers.json").write_text(json.dumps(given if left_out else {**given, **dict.fromkeys(names)}))
    for realised in (False, True):
        report = reports.build(folder, realised=realised)
        questions = "1 question" if len(names) == 1 else f"{len(names)} questions"
        assert reports.headline(report).removeprefix("Planned: ").startswith(f"PROVISIONAL, {questions} open: ")
        assert report["claim"]["state"] == "provisional"
        assert set(report["claim"]["open_questions"]) == names


def test_a_provisional_claim_passes_the_check_with_its_open_questions(tmp_path):
    finished(tmp_path / "run", **answered(unit=None))
    done = invoke("report", tmp_path / "run", "--check", "--json")
    assert done.exit_code == 0
    assert [(each["severity"], each["field"]) for each in json.loads(done.stdout)["findings"]] == [("warning", "unit")]
    shown = invoke("report", tmp_path / "run", "--check").stdout
    assert shown.startswith("0 critical of 1 finding; provisional, 1 question open\n")


def answers_changed(folder):
    change_json(folder / "answers.json", lambda found: {**found, "unit": "a phone", "trusted": None})


def of_another_format(folder):
    change_json(folder / "report.json", lambda found: {**found, "report": 1})


def without_its_page(folder):
    (folder / "report.md").unlink()


def with_another_page(folder):
    page = (folder / "report.md").read_text()
    (folder / "report.md").write_text(page.replace("ε≤2", "ε≤1", 1))


@pytest.mark.parametrize("change", [answers_changed, of_another_format, without_its_page, with_another_page])
def test_a_report_is_written_anew(copy, change):
    change(copy)
    done = invoke("report", copy)
    assert done.exit_code == 0
    assert critical(copy) == []
    # The plan stays as it was before the run.
    planned = (copy / "planned.json").read_bytes()
    assert invoke("report", copy, "--planned").exit_code == 0
    assert (copy / "planned.json").read_bytes() == planned
    assert critical(copy) == []


def test_a_report_of_a_run_that_goes_on_is_written_anew(tmp_path):
    folder = tmp_path / "run"
    start(folder)
    run(folder, rounds=cohorts()[:4], ended=False)
    assert invoke("report", folder).stdout.splitlines()[3].startswith("NO ε CAN BE STATED")
    run_folders.metrics(folder, 3)
    assert invoke("report", folder).exit_code == 0
    run(folder)
    assert invoke("report", folder).stdout.splitlines()[3].startswith("ε ≤ ")
    assert critical(folder) == []


def test_what_was_only_answered_is_not_said_to_be_checked(copy):
    shown = " ".join(invoke("report", copy).stdout.split())
    assert "this was answered, and cannot be checked" in shown
    assert "released without noise" not in shown.partition("Checked, and holds")[2]


def test_the_check_finds_what_a_killed_process_left_unfinished(copy):
    before = reports.check(copy)
    (copy / "checkpoints").mkdir(exist_ok=True)
    (copy / "checkpoints" / ".0.tff-mf.tmp").write_bytes(b"keys")
    (found,) = [each for each in reports.check(copy) if each not in before]
    assert (found.severity, found.field) == ("warning", "files")
    assert "checkpoints/.0.tff-mf.tmp" in found.text


def test_the_check_names_files_whose_line_ends_were_changed(whole_run, copy):
    def named():
        return [each.text for each in reports.check(copy) if each.field == "files"]

    assert named() == []
    for name in ("ledger.jsonl", "report.json", "answers.json"):
        (copy / name).write_bytes((copy / name).read_bytes().replace(b"\n", b"\r\n"))
    assert critical(copy)
    (text,) = named()
    assert "ledger.jsonl, report.json: " in text
    assert "autocrlf" in text
    shutil.copytree(whole_run[0], copy, dirs_exist_ok=True)
    table = (copy / "metrics.csv").read_bytes()
    (copy / "metrics.csv").write_bytes(table.replace(b"\r\n", b"\n"))
    assert [each.split(":")[0] for each in named()] == ["metrics.csv"]


def test_a_run_without_its_ledger_is_no_plan(copy):
    for name in ("ledger.jsonl", "report.json"):
        (copy / name).unlink()
    title, _, _, first, *_ = invoke("report", copy).stdout.splitlines()
    assert title == "Privacy report (realised)"
    assert first.startswith("NO ε CAN BE STATED")
    assert invoke("report", copy, "--check").exit_code == 1


@pytest.mark.parametrize("left", [".lock", "checkpoints", "metrics.csv"])
def test_anything_of_a_run_is_a_run(tmp_path, left):
    folder = tmp_path / "run"
    start(folder)
    reports.write(folder, realised=False)
    assert critical(folder) == []
    (folder / left).mkdir()
    assert any("ledger.jsonl" in each for each in critical(folder))


def test_a_plan_says_that_it_is_one(copy):
    """All that a run writes is removed: what is left is a plan, which says that nothing ran."""
    for path in copy.iterdir():
        if path.name not in ("run.json", "mechanism.safetensors", "answers.json", "planned.json", "planned.md"):
            path.unlink()
    assert reports.headline(json.loads((copy / "planned.json").read_text())).startswith("Planned: ")
    assert "no file of a run that began is here" in " ".join(each.text for each in reports.check(copy))
    for name in ("planned.json", "planned.md"):
        (copy / name).unlink()
    found = reports.check(copy)
    assert ("warning", "there is no report to check") in {(each.severity, each.text) for each in found}
    assert invoke("report", copy, "--check").exit_code == 0
    done = invoke("report", copy)
    assert "nothing has run here" in done.stderr
    assert "\n\nPlanned: ε ≤ " in done.stdout


def test_a_report_says_what_it_is_about(tmp_path):
    folder, about = tmp_path / "run", {"dataset": "sqlite:/home/me/data", "training_examples": 99}
    answers = {**ANSWERS, "answered_by": "the privacy office"}
    start(folder, answers=answers, about=about, training_clients=8)
    run(folder)
    entries = run_folders.read_entries(folder)
    entries[0]["time"], entries[-1]["time"] = "2026-01-02T03:04:05+00:00", "2026-01-02T03:05:06+00:00"
    run_folders.write_ledger(folder, entries)
    report = reports.write(folder, realised=True)
    assert report["about"] == {
        "data_set": {"name": "sqlite:data", "sha256": None, "clients": 8, "examples": 99},
        "started": "2026-01-02T03:04:05+00:00",
        "ended": "2026-01-02T03:05:06+00:00",
        "seconds": 61,
    }
    assert report["answers"]["answered_by"] == "the privacy office"
    assert violated(report) == set()
    for wrong in ("yesterday", "2026-01-02", 3, None):
        entries[0]["time"] = wrong
        run_folders.write_ledger(folder, entries)
        assert "log" in violated(reports.build(folder, realised=True))


def test_reports_are_as_their_schema_says(whole_run):
    assert reports.problem(whole_run[1]) == ""
    assert "kind='guessed'" in reports.problem({**whole_run[1], "kind": "guessed"})
    assert "'more'" in reports.problem({**whole_run[1], "more": 1})
    assert "noise=…" in reports.problem({k: v for k, v in whole_run[1].items() if k != "noise"})
    assert json.loads(invoke("report", whole_run[0], "--schema").stdout) == JSON_SCHEMA


PAGES = {
    "planned": None,
    "unanswered": {"answers": {}},
    "several clients": answered(clients_of_one_person=3),
    "stopped": {"rounds": cohorts()[:4], "ended": False},
    "test only": {"privacy": plan(insecure_seed=3)},
    "no noise": {"privacy": plan(noise_multiplier=0.0)},
    "simulated": {"privacy": plan(cohort=200), "simulation": True},
    "adaptive": ADAPTIVE,
    "settings": {"about": {"a_b": [None, True, {"c": 1.5}]}, "command": ["a b"]},
}


@pytest.mark.parametrize("name", PAGES)
def test_the_figures_of_a_page_are_rounded_to_the_safe_side(tmp_path, name):
    if PAGES[name] is None:
        start(tmp_path / "run")
        report = reports.write(tmp_path / "run", realised=False)
    else:
        report = finished(tmp_path / "run", **PAGES[name])
    text, noise, accountant = " ".join(reports.markdown(report).split()), report["noise"], report["accountant"]
    (shown,) = re.findall(r"noise multiplier σ: ([\d.]+\d|\d)", text)
    assert noise["noise_multiplier"] * 0.999 <= float(shown) <= noise["noise_multiplier"]
    (shown,) = re.findall(r"sensitivity: ([\d.]+\d|\d)", text)
    assert noise["sensitivity"] <= float(shown) <= noise["sensitivity"] * 1.001
    for row in re.findall(r"\| ε at δ = 1e-06 \|([^|]+)\|([^|]+)?\|", text):
        exact = [accountant[name]["epsilon"] for name in ("planned", "realised") if accountant[name]]
        assert all(float(cell) >= epsilon for cell, epsilon in zip(row, exact, strict=False))
    for name in ("zcdp_rho", "mu", "epsilon", "epsilon_from_zcdp"):
        figures = [accountant[kind] and accountant[kind].get(name) for kind in ("planned", "realised")]
        assert all(rounded_up(each) in text for each in figures if each is not None)


def test_the_command_on_a_page_can_be_copied_and_fills_its_lines(tmp_path):
    command = ["tff-mf", "train", "--name", "it's mine", *(f"--option-{'x' * n}={n}" for n in range(1, 30))]
    report = finished(tmp_path / "run", command=command)
    text = reports.markdown(report)
    start = text.index("    tff-mf train")
    lines = text[start : text.index("\n\n", start)].splitlines()
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == command
    assert max(map(len, lines)) <= 79
    for line, after in itertools.pairwise(lines):
        (word, *_) = shlex.split(after.rstrip("\\"))
        assert len(f"{line[:-2]} {word} \\") > 79


MARKUP = ["# heading", "- item " * 30, "1. x " * 40, "**ε≤0.001** " * 20, "| a | b " * 30, "> q " * 50, "=== " * 60]
HTML = ["<!--", "<script>", "&#8238;", "&lt;b", "</p>", "<?x"]
HIDING = ["\x1b[8m", "\u202e", "\u2066", "\u200b", "\x9b2J", "\ud800", "\x00", "\ufeff"]


def begins(text):
    """How many lines begin as markup does, and how many of those are headings or bold."""
    lines = text.splitlines()
    words = [line.split()[0] for line in lines if re.match(r" {0,3}(#|[-+*=>|]|\*\*|\d+[.)] )", line)]
    return sum(word in ("#", "##", "|", "1.", "===", ">", "-") for word in words), sum(
        line.startswith(("# ", "**")) for line in lines
    )


@pytest.mark.parametrize("answer", [*MARKUP, *HTML, *HIDING])
def test_no_answer_is_markup_or_hides_anything(whole_run, copy, answer):
    """In Markdown, in HTML that is in Markdown, and on a screen."""
    answers = {**ANSWERS, "trusted": f"us {answer}\n\n{answer}", "enforcement": answer}
    (copy / "answers.json").write_text(json.dumps(answers))
    text = reports.markdown(reports.build(copy, realised=True))
    assert begins(text) == begins(reports.markdown(reports.build(whole_run[0], realised=True)))
    assert f"us \\{answer}" in " ".join(text.split()) or answer not in HTML
    if answer in HIDING:
        record = json.loads((copy / "run.json").read_text())
        (copy / "run.json").write_text(json.dumps({**record, "command": ["tff-mf", f"{answer}x"]}))
        text = " ".join(reports.markdown(reports.build(copy, realised=True)).split())
        assert answer not in text
        assert "us \ufffd" in text
        assert answer not in invoke("report", copy, "--check", catch_exceptions=True).output


def test_the_page_in_the_docs_has_every_question():
    page = pathlib.Path(__file__).parent.parent.parent / "docs" / "report.md"
    text = " ".join(page.read_text().split())
    assert all(f"{number}. {each.text}" in text for number, each in enumerate(QUESTIONS, start=1))


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(tff_mf.InputError, match="is not a run folder"):
        reports.build(tmp_path, realised=True)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(tff_mf.InputError, match="damaged"):
        reports.build(tmp_path, realised=True)


def test_a_run_that_goes_on_keeps_its_record(tmp_path):
    start(tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_text()
    start(tmp_path / "run")
    assert (tmp_path / "run" / "run.json").read_text() == before
    with pytest.raises(tff_mf.InputError, match="clip_norm=2"):
        start(tmp_path / "run", privacy=plan(clip_norm=2.0))
    with pytest.raises(tff_mf.InputError, match="another mechanism"):
        start(tmp_path / "run", privacy=plan(mechanism=tff_mf.Identity()))


def test_accountants_that_disagree_void_the_guarantee(copy, monkeypatch):
    monkeypatch.setattr(tff_mf.Guarantee, "epsilon_by_pld", lambda self, delta: self.epsilon(delta) + 1e-3)
    assert "accountant" in violated(reports.build(copy, realised=True))
