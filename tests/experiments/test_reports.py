"""Reports: what they state, and twelve runs that were broken on purpose. The runs are folders; nothing is trained."""

import csv
import json
import math
import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import tff_mf
from tff_mf.experiments import ledger, reports, sampling
from tff_mf.experiments.cli import cli
from tff_mf.experiments.privacy import plan_privacy, upwards
from tff_mf.experiments.reports._questions import QUESTIONS
from tff_mf.experiments.reports._schema import SCHEMA as JSON_SCHEMA

SCHEMA = tff_mf.MinSep(min_sep=3, max_participations=3)
ANSWERS = {
    "trusted": "the server's operator",
    "unit": "one device",
    "clients_of_one_person": 1,
    "population": 20_000,
    "enforcement": "the server's sampler",
    "participation_depends_on_data": False,
    "tuning_runs": 2,
    "pretraining": "public",
    "other_releases": "none",
    "state_is_secret": True,
}
RUN = {"rounds", "divisors", "clip_norms", "restarts", "twice", "ended"}
COLUMNS = ["round", "seconds", "loss"]


def plan(**changes):
    arguments = {
        "mechanism": tff_mf.BLT.production("b100"),
        "rounds": 9,
        "participation": SCHEMA,
        "delta": 1e-6,
        "clients_per_round": 2,
        "noise_multiplier": 5.0,
    }
    return plan_privacy(**{**arguments, **changes})


def cohorts(rounds=9):
    drawn = sampling.plan_cohorts(
        client_ids=[f"c{index}" for index in range(8)],
        clients_per_round=2,
        rounds=rounds,
        participation=SCHEMA,
        seed=1,
    )
    return [list(drawn.cohort(t)) for t in range(rounds)]


def start(folder, *, answers=ANSWERS, privacy=None, planned=None, **more):
    """Writes what a run writes before its first round."""
    folder.mkdir(exist_ok=True)
    fields = {
        "clip_norm": 1.0,
        "cohorts": cohorts() if planned is None else planned,
        "sampler": "plan_cohorts",
        "evaluation_columns": ["loss"],
        "versions": {"tff-mf": tff_mf.__version__},
        **more,
    }
    reports.write_configuration(folder, privacy or plan(), **fields)
    (folder / "answers.json").write_text(json.dumps(answers))


def run(folder, rounds=None, *, divisors=None, clip_norms=None, restarts=(), twice=(), ended=True):
    """Writes what a run writes round by round; `rounds` are cohorts."""
    rounds = cohorts() if rounds is None else rounds
    with (
        (folder / "participation.csv").open("w", newline="") as file,
        ledger.open_ledger(folder / ledger.LEDGER, configuration=folder / "run.json") as book,
    ):
        writer = csv.writer(file)
        writer.writerow(["round", "client"])
        for number, clients in enumerate(rounds, start=1):
            if number in restarts:
                book.restarted(number)
            for _ in range(2 if number in twice else 1):
                writer.writerows((number, client) for client in clients)
                book.begin(
                    number,
                    clients,
                    divisor=2 if divisors is None else divisors[number - 1],
                    clip_norm=1.0 if clip_norms is None else clip_norms[number - 1],
                )
                book.released(number)
        if ended:
            book.ended()
    metrics(folder, len(rounds))


def metrics(folder, rounds, columns=COLUMNS):
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([number, *[0.5] * (len(columns) - 1)] for number in range(1, rounds + 1))


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


def test_a_good_run_states_its_epsilon(good):
    _, report = good
    assert [each for each in report["findings"] if each["severity"] == "critical"] == []
    epsilon = report["accountant"]["realised"]["epsilon"]
    assert f"ε≤{upwards(epsilon)}" in report["headline"]
    states = {each["name"]: each["state"] for each in report["assumptions"]}
    assert states.pop("participation_depends_on_data") == states.pop("state_is_secret") == "assumed"
    assert set(states.values()) == {"holds"}


def test_realised_figures_are_the_worst_client(good):
    """Over all signs of all contributions of every client that took part."""
    _, report = good
    encoder = plan().mechanism.as_run().encoder(9)
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
    assert f"ε≤{upwards(planned)}" in report["headline"]
    assert report["accountant"]["realised"] is None
    assert "assumed" in {each["state"] for each in report["assumptions"] if each["name"] == "participation"}
    assert (tmp_path / "run" / "planned.md").read_text().startswith("# Privacy report (planned)")
    assert invoke(tmp_path / "run", "--check").exit_code == 0


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_an_open_question_blocks_epsilon(tmp_path, question):
    for answers in ({**ANSWERS, question.name: None}, {k: v for k, v in ANSWERS.items() if k != question.name}):
        report = finished(tmp_path / f"run{len(answers)}", answers=answers)
        assert report["headline"].startswith("NO ε")
        assert question.name in report["headline"]
        assert "ε≤" not in report["headline"]


@settings(max_examples=20)
@given(st.sets(st.sampled_from([question.name for question in QUESTIONS]), min_size=1))
def test_no_set_of_open_questions_leaves_an_epsilon(good, tmp_path_factory, names):
    folder = copied(good, tmp_path_factory.mktemp("open") / "run")
    (folder / "answers.json").write_text(json.dumps({**ANSWERS, **dict.fromkeys(names)}))
    for realised in (False, True):
        headline = reports.build(folder, realised=realised)["headline"]
        assert headline.startswith("NO ε")
        assert "ε≤" not in headline


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


def change(index, clients):
    """Returns the cohorts with one that is another."""
    several = cohorts()
    several[index] = clients
    return several


def copied(good, folder):
    shutil.copytree(good[0], folder)
    return folder


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
    if not break_it.__name__.startswith(("broken_report", "broken_markdown")):
        headline = json.loads((folder / "report.json").read_text())["headline"]
        assert "ε≤" not in headline
        assert headline.startswith(("NO ε CAN BE STATED", "TEST ONLY"))


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
    report = finished(tmp_path / "run", privacy=plan(cohort=200), simulation=True)
    assert "Simulated" in report["headline"]
    assert "cohorts of 200, simulated by 2" in report["headline"]
    accountant = report["accountant"]
    assert accountant["epsilon_as_run"] > accountant["realised"]["epsilon"]
    as_run = tff_mf.Guarantee(mu=100 * accountant["realised"]["mu"]).epsilon(1e-6)
    assert accountant["epsilon_as_run"] == pytest.approx(as_run, rel=1e-9)


def test_a_person_with_several_clients_has_an_epsilon_of_their_own(good, tmp_path):
    report = finished(tmp_path / "run", answers={**ANSWERS, "clients_of_one_person": 3})
    person = tff_mf.Guarantee(mu=3 * good[1]["accountant"]["realised"]["mu"]).epsilon(1e-6)
    assert report["accountant"]["epsilon_of_a_person"] == pytest.approx(person, rel=1e-9)


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
    assert report["accountant"]["realised"]["epsilon"] is None


def test_reports_are_as_their_schema_says(good):
    assert list(reports.problems(good[1])) == []
    assert list(reports.problems({**good[1], "kind": "guessed"})) == [
        "report.kind='guessed' is none of ['planned', 'realised']"
    ]
    assert list(reports.problems({**good[1], "more": 1})) == ["report has more, which is unknown"]
    assert "report has no noise" in list(reports.problems({k: v for k, v in good[1].items() if k != "noise"}))
    assert json.loads(invoke(good[0], "--schema").stdout) == JSON_SCHEMA


def test_the_markdown_has_every_figure(good):
    folder, report = good
    text = (folder / "report.md").read_text()
    assert report["headline"] in text
    for each in report["assumptions"]:
        assert each["text"] in text
    for name in ("zcdp_rho", "mu", "epsilon", "epsilon_from_zcdp"):
        assert upwards(report["accountant"]["realised"][name]) in text


def test_questions_can_be_filled_in(good):
    assert json.loads(invoke(good[0], "--questions").stdout) == ANSWERS


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ({"populaton": 3}, "no question"),
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
    with pytest.raises(tff_mf.InputError, match="no folder of a run"):
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
    assert f"ε≤{upwards(stopped['accountant']['planned']['epsilon'])}" in stopped["headline"]
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
