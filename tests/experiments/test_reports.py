"""Reports: what they state. The runs are folders; nothing is trained."""

import json
import math
import pathlib
import re
import shutil
import sys

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.cli import cli
from tff_mf.experiments.output.digits import rounded_up
from tff_mf.experiments.privacy import amplification, summary
from tff_mf.experiments.reports import SCHEMA as JSON_SCHEMA
from tff_mf.experiments.reports.questions import QUESTIONS
from tff_mf.experiments.run_folder.participation_log import read_observed
from tff_mf.experiments.sampling.settings import SamplingSettings, sampler_name

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "fuzz"))
import run_folders
from run_folders import ANSWERS, SCHEMA, cohorts, plan, run, start

RUN = {"rounds", "divisors", "clip_norms", "restarts", "twice", "killed", "ended"}


def finished(folder, **more):
    """Writes a whole run and its report, and returns the report."""
    start(folder, **{name: more.pop(name) for name in list(more) if name not in RUN})
    run(folder, **more)
    return reports.write(folder, realised=True)


def critical(report):
    return {each["field"] for each in report["findings"] if each["severity"] == "critical"}


def invoke(*arguments):
    return CliRunner().invoke(cli, ["report", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "good"
    return folder, finished(folder)


def test_the_check_finds_what_a_killed_process_left_unfinished(good, tmp_path):
    folder = shutil.copytree(good[0], tmp_path / "run")
    before = reports.check(folder)
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / ".0.tff-mf.tmp").write_bytes(b"keys")
    (found,) = [each for each in reports.check(folder) if each not in before]
    assert (found.severity, found.field) == ("warning", "files")
    assert "checkpoints/.0.tff-mf.tmp" in found.text


def test_the_check_names_files_whose_line_ends_were_changed(good, tmp_path):
    folder = shutil.copytree(good[0], tmp_path / "run")
    assert [each for each in reports.check(folder) if each.field == "files"] == []
    for name in ("ledger.jsonl", "report.json", "answers.json"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content.replace(b"\n", b"\r\n"))
    found = reports.check(folder)
    assert any(each.severity == "critical" for each in found)
    (named,) = [each.text for each in found if each.field == "files"]
    assert "ledger.jsonl, report.json: " in named
    assert "autocrlf" in named
    shutil.copytree(good[0], folder, dirs_exist_ok=True)
    table = (folder / "participation.csv").read_bytes()
    (folder / "participation.csv").write_bytes(table.replace(b"\r\n", b"\n"))
    assert [each.text.split(":")[0] for each in reports.check(folder) if each.field == "files"] == ["participation.csv"]


def test_a_good_run_states_its_epsilon(good):
    _, report = good
    assert [each for each in report["findings"] if each["severity"] == "critical"] == []
    epsilon = report["accountant"]["realised"]["epsilon"]
    assert f"ε≤{rounded_up(epsilon)}" in report["headline"]
    states = {each["name"]: each["state"] for each in report["assumptions"]}
    assert states.pop("participation_depends_on_data") == states.pop("state_is_secret") == "assumed"
    assert states.pop("choice of settings") == states.pop("arithmetic") == "assumed"
    assert set(states.values()) == {"holds"}


def test_realised_figures_are_the_worst_client(good):
    """Over all signs of all contributions of every client that took part."""
    _, report = good
    encoder = plan().mechanism.cast_to_float32().encoder(9)
    worst = 0.0
    for client in {client for cohort in cohorts() for client in cohort}:
        columns = encoder[:, [t for t, cohort in enumerate(cohorts()) if client in cohort]]
        for signs in range(2 ** columns.shape[1]):
            weights = [1 - 2 * (signs >> index & 1) for index in range(columns.shape[1])]
            worst = max(worst, float(np.linalg.norm(columns @ weights)))
    assert report["noise"]["sensitivity"] == pytest.approx(worst, rel=1e-12)
    assert report["noise"]["sensitivity_exact"]
    exact = tff_mf.Guarantee(mu=worst / 5.0).epsilon(1e-6)
    assert report["accountant"]["realised"]["epsilon"] == pytest.approx(exact, rel=1e-9)
    assert report["accountant"]["realised"]["epsilon"] >= exact
    planned = tff_mf.epsilon(plan().mechanism, 9, SCHEMA, noise_multiplier=5.0, delta=1e-6)
    assert report["accountant"]["planned"]["epsilon"] == pytest.approx(planned, rel=1e-9)
    # Somebody who came less often than was allowed for is all there is.
    assert report["accountant"]["realised"]["epsilon"] <= planned * (1 + 1e-12)


@pytest.mark.parametrize("pattern", [(0, 3, 6), (1, 4, 7)])
def test_fixed_epochs_are_checked_for_their_place(tmp_path, pattern):
    schema = tff_mf.FixedEpoch(min_sep=3, max_participations=3)
    rounds = [["a"] if t in pattern else [f"b{t}"] for t in range(9)]
    right = finished(tmp_path / "right", rounds=rounds, planned=rounds, privacy=plan(participation=schema))
    assert critical(right) == set()
    rounds = [["a"] if t in (0, 4, 7) else [f"b{t}"] for t in range(9)]
    wrong = finished(tmp_path / "wrong", rounds=rounds, planned=rounds, privacy=plan(participation=schema))
    assert critical(wrong) == {"participation"}


def test_a_planned_report_needs_no_log(tmp_path):
    start(tmp_path / "run")
    report = reports.write(tmp_path / "run", realised=False)
    planned = tff_mf.epsilon(plan().mechanism, 9, SCHEMA, noise_multiplier=5.0, delta=1e-6)
    assert f"ε≤{rounded_up(planned)}" in report["headline"]
    assert report["accountant"]["realised"] is None
    assert "assumed" in {each["state"] for each in report["assumptions"] if each["name"] == "participation"}
    assert (tmp_path / "run" / "planned.md").read_text().startswith("# Privacy report (planned)")
    assert invoke(tmp_path / "run", "--check").exit_code == 0


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_an_open_question_makes_epsilon_provisional(tmp_path, question):
    for answers in ({**ANSWERS, question.name: None}, {k: v for k, v in ANSWERS.items() if k != question.name}):
        report = finished(tmp_path / f"run{len(answers)}", answers=answers)
        assert report["headline"].startswith("PROVISIONAL, 1 question open: ")
        assert report["claim"]["state"] == "provisional"
        assert report["claim"]["open_questions"] == [question.name]
        assert critical(report) == set()


@settings(max_examples=20)
@given(st.sets(st.sampled_from([question.name for question in QUESTIONS]), min_size=1))
def test_no_set_of_open_questions_leaves_a_bare_epsilon(good, tmp_path_factory, names):
    folder = copied(good, tmp_path_factory.mktemp("open") / "run")
    (folder / "answers.json").write_text(json.dumps({**ANSWERS, **dict.fromkeys(names)}))
    for realised in (False, True):
        report = reports.build(folder, realised=realised)
        assert report["headline"].removeprefix("Planned: ").startswith("PROVISIONAL, ")
        assert set(report["claim"]["open_questions"]) == names


@pytest.mark.parametrize(
    ("name", "answer", "field"),
    [
        ("participation_depends_on_data", True, "participation_depends_on_data"),
        ("pretraining", "private", "pretraining"),
        ("state_is_secret", False, "state_is_secret"),
        ("other_releases", "accuracy of each cohort", "released without noise"),
    ],
)
def test_an_answer_can_void_the_guarantee(tmp_path, name, answer, field):
    report = finished(tmp_path / "run", answers={**ANSWERS, name: answer})
    assert critical(report) == {field}
    assert report["headline"].startswith("NO ε CAN BE STATED")


def copied(good, folder):
    shutil.copytree(good[0], folder)
    return folder


def test_a_good_run_passes_the_check(good):
    done = invoke(good[0], "--check")
    assert done.exit_code == 0
    assert "0 critical" in done.stdout


def test_restarts_and_adaptive_clipping_can_be_counted(tmp_path):
    adapted = finished(
        tmp_path / "run",
        restarts=[4, 7],
        clip_norms=[1.0] * 3 + [0.8] * 3 + [0.6] * 3,
        restart_every=3,
        adaptive_count_stddev=2.0,
    )
    assert critical(adapted) == set()
    schema = plan().mechanism, 9, SCHEMA
    sums = tff_mf.guarantee(*schema, noise_multiplier=5.0, restart_every=3)
    counts = tff_mf.adaptive_clipping_guarantee(9, SCHEMA, count_stddev=2.0)
    both = tff_mf.compose_guarantees(sums, counts)
    assert adapted["accountant"]["planned"]["epsilon"] == pytest.approx(both.epsilon(1e-6), rel=1e-9)
    assert adapted["accountant"]["planned"]["epsilon"] > sums.epsilon(1e-6)
    without = finished(tmp_path / "other", clip_norms=[1.0] * 3 + [0.8] * 6, adaptive_count_stddev=2.0)
    assert critical(without) == {"clipping"}


def test_replacing_a_client_costs_twice(good, tmp_path):
    replaced = finished(tmp_path / "run", adjacency="replace-one")
    assert replaced["accountant"]["realised"]["mu"] == pytest.approx(2 * good[1]["accountant"]["realised"]["mu"])
    assert "replace-one" in replaced["headline"]


def test_a_simulated_cohort_is_stated_as_one(tmp_path):
    answers = {**ANSWERS, "population": 1000}
    report = finished(tmp_path / "run", privacy=plan(cohort=200), simulation=True, answers=answers)
    assert "Simulated" in report["headline"]
    assert "cohorts of 200, simulated by 2" in report["headline"]
    accountant, claim = report["accountant"], report["claim"]
    assert claim["epsilon_as_run"] > claim["epsilon"] == accountant["realised"]["epsilon"]
    as_float32 = tff_mf.Guarantee(mu=100 * accountant["realised"]["mu"]).epsilon(1e-6)
    assert claim["epsilon_as_run"] == pytest.approx(as_float32, rel=1e-9)


def test_a_person_with_several_clients_has_an_epsilon_of_their_own(good, tmp_path):
    report = finished(tmp_path / "run", answers={**ANSWERS, "clients_of_one_person": 3})
    person = tff_mf.Guarantee(mu=3 * good[1]["accountant"]["realised"]["mu"]).epsilon(1e-6)
    assert report["claim"]["epsilon_of_a_person"] == pytest.approx(person, rel=1e-9)
    assert report["headline"].startswith(f"ε≤{rounded_up(report['claim']['epsilon_of_a_person'])} of a person with 3")


@pytest.mark.parametrize(
    ("population", "severity"), [(10**5, None), (2 * 10**5, None), (9 * 10**5, "warning"), (10**6, "critical")]
)
def test_a_large_delta_is_flagged(tmp_path, population, severity):
    report = finished(tmp_path / "run", answers={**ANSWERS, "population": population})
    assert [each["severity"] for each in report["findings"] if each["field"] == "delta"] == (
        [severity] if severity else []
    )


def test_no_noise_states_nothing(tmp_path):
    report = finished(tmp_path / "run", privacy=plan(noise_multiplier=0.0))
    assert "noise" in critical(report)
    assert report["accountant"]["realised"] is None


@pytest.mark.parametrize(
    "changes", [{"twice": [4]}, {"privacy": plan(delta=0.5)}, {"privacy": plan(insecure_seed=3)}, {"ended": False}]
)
def test_a_refused_claim_shows_no_epsilon_anywhere(tmp_path, changes):
    folder = tmp_path / "run"
    report = finished(folder, answers={**ANSWERS, "clients_of_one_person": 3}, **changes)
    assert report["claim"]["state"] == "refused"
    assert leaves(report, re.compile("epsilon|zcdp_rho")) == []
    done = invoke(folder, "--html", tmp_path / "page.html")
    for text in (done.stdout, (tmp_path / "page.html").read_text(), json.dumps(report, ensure_ascii=False)):
        # Names of tiers and assumptions on an ε have no figure.
        assert re.findall(r"ε\s*(?:≤|=|at δ)", text) == []
    assert "ε over" not in (tmp_path / "page.html").read_text()
    assert invoke(folder, "--check").exit_code == 1


def leaves(value, name, key=""):
    """Returns the values of JSON other than null whose name matches."""
    if isinstance(value, dict):
        return [each for own, inner in value.items() for each in leaves(inner, name, own)]
    if isinstance(value, list):
        return [each for inner in value for each in leaves(inner, name, key)]
    return [(key, value)] if name.match(key) and value is not None else []


def test_a_provisional_claim_passes_the_check_with_its_open_questions(tmp_path):
    finished(tmp_path / "run", answers={**ANSWERS, "unit": None})
    done = invoke(tmp_path / "run", "--check", "--json")
    assert done.exit_code == 0
    assert [(each["severity"], each["field"]) for each in json.loads(done.stdout)["findings"]] == [("warning", "unit")]


def test_a_report_says_what_it_is_about(tmp_path):
    folder, settings = (
        tmp_path / "run",
        {"dataset": "sqlite:/home/me/data", "training_clients": 8, "training_examples": 99},
    )
    start(folder, answers={**ANSWERS, "answered_by": "the privacy office"}, settings=settings)
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
        "answered_by": "the privacy office",
    }
    assert critical(report) == set()
    top = " ".join(reports.markdown(report).split("## Findings")[0].split())
    for each in ("sqlite:data, 8 clients, 99 examples", "2026-01-02T03:04:05+00:00 to 2026-01-02T03:05:06+00:00"):
        assert each in top
    for each in ("the privacy office", f"tff-mf {tff_mf.__version__}"):
        assert each in top
    for wrong in ("yesterday", "2026-01-02", "2026-01-02T03:04:05+01:00", 3, None):
        entries[0]["time"] = wrong
        run_folders.write_ledger(folder, entries)
        assert "log" in critical(reports.build(folder, realised=True))


def test_reports_are_as_their_schema_says(good):
    assert reports.problem(good[1]) == ""
    assert "kind='guessed'" in reports.problem({**good[1], "kind": "guessed"})
    assert "'more'" in reports.problem({**good[1], "more": 1})
    assert "noise=…" in reports.problem({k: v for k, v in good[1].items() if k != "noise"})
    assert json.loads(invoke(good[0], "--schema").stdout) == JSON_SCHEMA


def test_the_markdown_has_every_figure(good):
    folder, report = good
    text = (folder / "report.md").read_text()
    text = " ".join(text.split())
    assert report["headline"] in text
    for each in report["assumptions"]:
        assert each["text"] in text
    for name in ("zcdp_rho", "mu", "epsilon", "epsilon_from_zcdp"):
        assert rounded_up(report["accountant"]["realised"][name]) in text


def pages(folder):
    """Yields the page of every state that a report can be in."""
    yield "planned", lambda: planned_only(folder / "planned")
    yield "unanswered", lambda: finished(folder / "unanswered", answers={})
    yield "several clients", lambda: finished(folder / "several", answers={**ANSWERS, "clients_of_one_person": 3})
    yield "stopped", lambda: finished(folder / "stopped", rounds=cohorts()[:4], ended=False)
    yield "test only", lambda: finished(folder / "test", privacy=plan(insecure_seed=3))
    yield "no noise", lambda: finished(folder / "noise", privacy=plan(noise_multiplier=0.0))
    yield "simulated", lambda: finished(folder / "simulated", privacy=plan(cohort=200), simulation=True)
    yield "adaptive", lambda: finished(folder / "adaptive", restarts=[4, 7], restart_every=3, adaptive_count_stddev=2.0)
    yield "settings", lambda: finished(folder / "settings", settings={"a_b": [None, True, {"c": 1.5}]}, command=["a b"])


def planned_only(folder):
    start(folder)
    return reports.write(folder, realised=False)


PAGES = [name for name, _ in pages(pathlib.Path())]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_for_people(tmp_path, name):
    """Findings first, at 80 columns, without the representations of a language, and no row twice."""
    report = dict(pages(tmp_path))[name]()
    text = reports.markdown(report)
    lines = text.splitlines()
    headings = [line for line in lines if line.startswith("#")]
    assert lines[2].startswith("**")
    assert headings[1] == "## Findings"
    appendix = [heading.startswith("## Appendix") for heading in headings]
    assert appendix == sorted(appendix)
    assert max(len(line) for line in lines) <= 79
    for wrong in ("True", "False", "None,", "None.\n", "MadeFor(", "MinSep(", "{'", "['", "nan", "1.0000", "\0"):
        assert wrong not in text, wrong
    body = text[: text.index("## Appendix")]
    assert not set(re.findall(r"[a-z]+_[a-z_]+", body)) - {"plan_cohorts", "clients_of_one_person", *ANSWERS}
    assert len(re.findall(r"\d\.\d{5,}", body)) == 0
    rows = [line for line in lines if line.startswith(("- ", "| "))]
    assert len(set(rows)) == len(rows)
    # Both accountants are named once, with what a difference means.
    assert text.count("privacy loss distributions") <= 1


@pytest.mark.parametrize("name", PAGES)
def test_figures_of_a_page_are_rounded_to_the_safe_side(tmp_path, name):
    report = dict(pages(tmp_path))[name]()
    text = " ".join(reports.markdown(report).split())
    noise, accountant = report["noise"], report["accountant"]
    (shown,) = re.findall(r"noise multiplier is ([\d.]+\d|\d)", text)
    assert noise["noise_multiplier"] * 0.999 <= float(shown) <= noise["noise_multiplier"]
    (shown,) = re.findall(r"sensitivity is ([\d.]+\d|\d)", text)
    assert noise["sensitivity"] <= float(shown) <= noise["sensitivity"] * 1.001
    for row in re.findall(r"\| ε at δ = 1e-06 \|([^|]+)\|([^|]+)?\|", text):
        exact = [accountant[name]["epsilon"] for name in ("planned", "realised") if accountant[name]]
        assert all(float(cell) >= epsilon for cell, epsilon in zip(row, exact, strict=False))


HOSTILE = ["# heading", "- item " * 30, "1. x " * 40, "**ε≤0.001** " * 20, "| a | b " * 30, "> q " * 50, "=== " * 60]


@pytest.mark.parametrize("answer", HOSTILE)
def test_no_answer_begins_a_line_of_its_own(tmp_path, answer):
    report = finished(tmp_path / "run", answers={**ANSWERS, "trusted": f"us\n\n{answer}", "enforcement": answer})
    plain = finished(tmp_path / "plain")

    def markup(text):
        lines = reports.markdown(text).splitlines()
        return [line.split()[0] for line in lines if re.match(r" {0,3}(#|[-+*=>|]|\*\*|\d+[.)] )", line)]

    assert len([each for each in markup(report) if each in ("#", "##", "|", "1.", "===", ">", "-")]) == len(
        [each for each in markup(plain) if each in ("#", "##", "|", "1.", "===", ">", "-")]
    )


def test_the_page_in_the_docs_is_what_the_command_prints(tmp_path):
    run_folders.whole(tmp_path / "run", audited=False)
    page = pathlib.Path(__file__).parent.parent.parent / "docs" / "report.md"
    (shown,) = re.findall(r"^~~~text\n(.*?)^~~~$", page.read_text(), re.S | re.M)
    printed = invoke(tmp_path / "run").stdout

    def without_hashes(text):
        return re.sub(r"[0-9a-f]{16,64}…?|tff-mf \d\S*", "…", text)

    assert without_hashes(printed).startswith(without_hashes(shown.rstrip("\n")))
    assert "## The run" in shown


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ({"populaton": 3}, "not a question"),
        ({"population": "many"}, "population='many'"),
        ({"clients_of_one_person": 0}, "clients_of_one_person=0"),
        ({"state_is_secret": "yes"}, "state_is_secret='yes'"),
        ([], "one JSON object"),
    ],
)
def test_answers_that_are_none_are_named(tmp_path, answers, text):
    start(tmp_path / "run", answers=answers)
    with pytest.raises(tff_mf.InputError, match=text):
        reports.build(tmp_path / "run", realised=False)


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(tff_mf.InputError, match="is not a run folder"):
        reports.build(tmp_path, realised=True)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(tff_mf.InputError, match="damaged"):
        reports.build(tmp_path, realised=True)


def test_a_run_without_logs_has_no_epsilon(tmp_path):
    start(tmp_path / "run")
    report = reports.build(tmp_path / "run", realised=True)
    assert {"log", "accountant"} <= critical(report)
    assert not math.isfinite(report["accountant"]["realised"] or math.inf)


def test_a_run_that_goes_on_keeps_its_configuration(tmp_path):
    start(tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_text()
    start(tmp_path / "run")
    assert (tmp_path / "run" / "run.json").read_text() == before
    with pytest.raises(tff_mf.InputError, match="clip_norm=2"):
        start(tmp_path / "run", clip_norm=2.0)
    with pytest.raises(tff_mf.InputError, match="another mechanism"):
        start(tmp_path / "run", privacy=plan(mechanism=tff_mf.Identity()))


def test_a_run_that_was_stopped_early_states_what_was_planned(tmp_path):
    stopped = finished(tmp_path / "run", rounds=cohorts()[:4])
    assert critical(stopped) == set()
    assert stopped["accountant"]["realised"]["epsilon"] < stopped["accountant"]["planned"]["epsilon"]
    assert f"ε≤{rounded_up(stopped['accountant']['planned']['epsilon'])}" in stopped["headline"]
    assert "stopped after 4 of 9" in " ".join(each["text"] for each in stopped["findings"])


def test_a_failed_audit_voids_the_guarantee(good, tmp_path):
    folder = copied(good, tmp_path / "run")
    (folder / "audit.json").write_text(json.dumps({"passed": False, "tests": [{"name": "repeats", "passed": False}]}))
    report = reports.write(folder, realised=True)
    assert critical(report) == {"audit"}
    assert "repeats" in report["headline"]


def test_accountants_that_disagree_void_the_guarantee(good, tmp_path, monkeypatch):
    folder = copied(good, tmp_path / "run")
    monkeypatch.setattr(tff_mf.Guarantee, "epsilon_by_pld", lambda self, delta: self.epsilon(delta) + 1e-3)
    assert "accountant" in critical(reports.build(folder, realised=True))


def test_little_noise_is_no_disagreement_of_accountants(tmp_path):
    """Accountants that compute with exp(ε) overflow above an ε of 709."""
    report = finished(tmp_path / "run", privacy=plan(noise_multiplier=0.05))
    assert report["claim"]["state"] == "stated"
    assert report["claim"]["epsilon"] > 709


def test_a_headline_does_not_quote_an_epsilon_of_a_wrong_summary(good, tmp_path):
    folder = copied(good, tmp_path / "run")
    (folder / "summary.json").write_text(json.dumps({"epsilon": 0.0987654321, "claim": {"epsilon": 0.0987654321}}))
    report = reports.build(folder, realised=True)
    assert critical(report) == {"summary"}
    assert "0.0987654321" not in json.dumps(report)


@pytest.mark.parametrize(
    ("kind", "clients", "believed"), [("poisson", 20_000, True), ("min_sep", 20_000, False), ("poisson", 20_001, False)]
)
def test_an_amplified_epsilon_is_of_the_sampler_and_of_the_clients_of_the_run(tmp_path, kind, clients, believed):
    """`clients` are those that the settings name: no more than the population can train."""
    privacy, folder = plan(mechanism=tff_mf.Identity()), tmp_path / "run"
    kinds = {"sampling": msgspec.to_builtins(SamplingSettings(kind="poisson"))}
    sampler, more = sampler_name(kind), {"settings": {**kinds, "training_clients": clients}, "population": 20_000}
    start(folder, privacy=privacy, sampler=sampler, **more)
    run(folder)
    in_secret = amplification.amplified(privacy, SamplingSettings(kind="poisson"), clients)
    claims = summary.privacy_claims(privacy, read_observed(folder / "participation.csv"), in_secret, population=20_000)
    assert claims["amplified_epsilon"] < claims["epsilon"]
    (folder / "summary.json").write_text(json.dumps(claims))
    assert critical(reports.build(folder, realised=True)) == (set() if believed else {"summary"})
