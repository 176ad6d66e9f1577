"""Reports: what they claim, in a table of generated run folders; their figures and their pages.

Mistakes in the files of a run are in `test_mistakes.py`.
"""

import dataclasses
import json
import pathlib
import re
import shutil

import pytest
import run_folders
from run_folders import SCHEMA, cohorts, finished, plan, start

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.runs import ledger, names, statements
from tff_mf.experiments.sampling import SamplingSettings
from tff_mf.numerics.digits import rounded_up

from .shared import checked, critical, invoke, moved, small_settings, violated
from .shared import refused as shared_refused

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


def in_secret(*, times=1.0, **changes):
    """A run of secret cohorts, of Poisson sampling."""
    word = SamplingSettings(sampling="poisson")
    sampling = word.drawn_by(population=1000, clients_per_round=2)
    secret = plan(mechanism=tff_mf.Identity(), sampling=sampling, delta=1e-4, secret_cohorts=True)
    return {
        "privacy": secret,
        "rounds": [[]] * 9,
        "planned": [],
        "sampler": word.sampler,
        "amplified_epsilon": statements.stated_epsilon(statements.amplified_level(secret, word, 1000)) * times,
        "population": 1000,
        **changes,
    }


OF_SETTINGS = {"settings": small_settings(plan()), "server_learning_rate": 1.0}
SIMULATED = {"simulation": True, "population": None}
SOON = [cohorts()[0], cohorts()[0], *cohorts()[2:]]
OFTEN = [["c0", "c1"] if t % 3 == 0 else [f"c{2 * (t % 3)}", f"c{2 * (t % 3) + 1}"] for t in range(12)]
SEARCH = tff_mf.Search(mean=8)
# Nobody comes twice, so that the run cost less than was planned.
SELDOM = [[f"c{2 * t}", f"c{2 * t + 1}"] for t in range(9)]
# Runs by how they differ from a sound one, and the fields of what is found to be wrong with them.
CLAIMS = {
    "as planned": ({}, set()),
    "stopped early": ({"rounds": cohorts()[:4]}, set()),
    "nobody came twice": ({"rounds": SELDOM, "planned": SELDOM}, set()),
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
    "twice the clip norm": ({"clip_norms": [1.0] * 4 + [2.0] * 5}, {"clipping"}),
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
    "replace-one": ({"adjacency": "replace-one"}, set()),
    "a simulated cohort": ({"privacy": plan(cohort=200), "simulation": True, "population": 1000}, set()),
    "a simulated cohort, stopped": (
        {"privacy": plan(cohort=200), "simulation": True, "population": 1000, "rounds": cohorts()[:4]},
        set(),
    ),
    "a cohort that is not simulated": ({"privacy": plan(cohort=200)}, {"cohort"}),
    # Eight clients of the log by two for cohorts of 1000 stand for 4000.
    "δ of what a simulation stands for": ({**SIMULATED, "privacy": plan(cohort=1000, delta=1e-3)}, {"delta"}),
    "δ near that": ({**SIMULATED, "privacy": plan(cohort=1000, delta=2.4e-4)}, set()),
    "several clients of a person": ({"clients_per_person": 3}, set()),
    "the most clients of a person": ({"clients_per_person": 10**12}, set()),
    # Accountants that compute with exp(ε) overflow above an ε of 709, which is no disagreement.
    "little noise": ({"privacy": plan(noise_multiplier=0.05)}, set()),
    "no noise": ({"privacy": plan(noise_multiplier=0.0)}, {"noise"}),
    "a seed": (
        {"privacy": plan(noise_multiplier=None, epsilon=2.0, insecure_seed=3), "clients_per_person": 3},
        {"randomness"},
    ),
    "no end": ({"ended": False, "clients_per_person": 3}, {"log"}),
    "a large δ": ({"privacy": plan(delta=0.5), "clients_per_person": 3}, {"delta"}),
    "δ of a small population": ({"population": 10**5}, set()),
    "δ near the bound": ({"population": 9 * 10**5}, set()),
    "δ of 1 / population": ({"population": 10**6}, {"delta"}),
    # δ of 0.2 is below 1 / 3, and the log has eight clients.
    "fewer clients than the log": ({"privacy": plan(delta=0.2), "population": 3}, {"delta"}),
    "no population": ({"privacy": plan(delta=0.2), "population": None}, {"delta"}),
    "secret cohorts": (in_secret(), set()),
    "secret cohorts that are logged": (in_secret(rounds=cohorts()), {"sampler"}),
    "secret cohorts that nothing draws": (in_secret(sampler="by hand"), {"secrecy"}),
    "secret cohorts, a smaller ε": (in_secret(times=0.999), {"secrecy"}),
    "secret cohorts by the ε alone": (in_secret(secret_cohorts=False), {"sampler"}),
    "a search": ({"privacy": plan(search=SEARCH), "rounds": SELDOM, "planned": SELDOM}, set()),
    "settings": (OF_SETTINGS, set()),
    "settings of another sampler": ({**OF_SETTINGS, "sampler": "tff_mf.Poisson"}, {"participation"}),
    "settings of another schema": ({**OF_SETTINGS, "settings": small_settings()}, {"participation"}),
}


def leaves(value, name, key=""):
    """Returns the values of JSON other than null whose name matches."""
    if isinstance(value, dict):
        return [each for own, inner in value.items() for each in leaves(inner, name, own)]
    if isinstance(value, list):
        return [each for inner in value for each in leaves(inner, name, key)]
    return [(key, value)] if name.search(key) and value is not None else []


def with_counts(report):
    sums = tff_mf.guarantee(plan().mechanism, 9, SCHEMA, noise_multiplier=5.0, restart_every=3)
    both = tff_mf.compose_guarantees(sums, tff_mf.adaptive_clipping_guarantee(9, SCHEMA, count_stddev=2.0))
    assert report.planned.epsilon == pytest.approx(both.epsilon(1e-6), rel=1e-9)
    assert report.planned.epsilon > sums.epsilon(1e-6)


def twice_as_far(report):
    sound = tff_mf.guarantee(plan().mechanism, 9, SCHEMA, noise_multiplier=5.0)
    assert report.planned.mu == pytest.approx(2 * sound.mu)
    assert report.realised.mu == pytest.approx(2 * report.sensitivity / 5.0)
    assert "replace-one" in report.headline


def as_run_too(report):
    claim, headline = report.claim, report.headline
    assert "Simulated" in headline
    assert "cohorts of 200, simulated by 2" in headline
    assert claim.epsilon_as_run > claim.epsilon == report.realised.epsilon
    as_run = tff_mf.Guarantee(mu=100 * report.realised.mu).epsilon(1e-6)
    assert claim.epsilon_as_run == pytest.approx(as_run, rel=1e-9)
    assert f"really train: ε≤{rounded_up(claim.epsilon_as_run)}" in headline
    assert "which stand for 200" in reports.markdown(report)


def of_a_person(report):
    person = tff_mf.Guarantee(mu=3 * report.realised.mu).epsilon(1e-6)
    assert report.claim.epsilon_of_a_person == pytest.approx(person, rel=1e-9)
    shown = rounded_up(report.claim.epsilon_of_a_person)
    assert report.headline.startswith(f"ε≤{shown} of a person with 3")


def as_the_other_runs(report):
    """No log says what they cost, nor may anything say how many there were, such as when this one began."""
    one = tff_mf.guarantee(plan().mechanism, 9, SCHEMA, noise_multiplier=5.0)
    assert report.claim.epsilon == report.planned.epsilon == SEARCH.epsilon(one.mu, 1e-6) > one.epsilon(1e-6)
    assert (report.realised, report.claim.mu) == (None, None)
    assert (report.log.started, report.log.ended) == (None, None)
    assert "a search of 8 runs on average" in report.headline


# What else is right of the figures of a run.
FIGURES = {
    "restarts, falling norms": with_counts,
    "replace-one": twice_as_far,
    "a simulated cohort": as_run_too,
    "several clients of a person": of_a_person,
    "a search": as_the_other_runs,
}


@pytest.mark.parametrize("case", CLAIMS)
def test_an_epsilon_is_stated_exactly_if_nothing_is_violated(tmp_path, case):
    more, fields = CLAIMS[case]
    folder = tmp_path / "run"
    report = finished(folder, **more)
    checked = invoke("report", folder, "--check", "--json")
    found = json.loads(checked.stdout)
    assert ({reason["field"] for reason in found["reasons"]}, found["differs"]) == (fields, [])
    assert (violated(report), checked.exit_code) == (fields, bool(fields))
    if fields:
        refused(report, folder)
        return
    claim = report.claim
    assert claim.state == found["state"] == "stated"
    first = claim.epsilon if claim.epsilon_of_a_person is None else claim.epsilon_of_a_person
    assert f"ε≤{rounded_up(first)}" in report.headline
    # What a stated ε rests on, and nothing here can check.
    assert 0 < len(claim.not_checked) <= 8
    assert all(f"\n- {text}\n" in reports.markdown(report) for text in claim.not_checked)
    assert any("read no low bits" in text for text in claim.not_checked), "these runs have no grid"
    stopped = len(more.get("rounds", cohorts())) < 9 or case == "rounds without clients"
    assert any(text.startswith("stopped after") for text in report.warnings) == stopped
    assert any(text.startswith("δ = ") for text in report.warnings) == case.startswith("δ near")
    # The decision to stop may depend on what was released: then the plan counts too.
    if report.realised and not case.startswith("secret"):
        epsilons = [report.realised.epsilon, *([report.planned.epsilon] if stopped else [])]
        assert claim.epsilon == max(epsilons) <= report.planned.epsilon * (1 + 1e-12)
    FIGURES.get(case, lambda report: None)(report)


def refused(report, folder):
    """Asserts that no figure of an ε is in a report and its pages."""
    assert (report.claim.state, report.claim.not_checked) == ("refused", [])
    assert report.headline.startswith(("NO ε CAN BE STATED", "TEST ONLY"))
    assert leaves(report.as_json(), re.compile("epsilon|zcdp_rho")) == []
    # The command line has the ε that was asked for.
    assert "command" not in report.run
    done = invoke("report", folder)
    assert done.exit_code == 1
    for text in [
        done.stdout,
        report.as_text(),
        *((folder / name).read_text() for name in ("report.md", "report.html")),
    ]:
        assert re.findall(r"ε\s*(?:≤|=|at δ)", text) == []


@pytest.mark.parametrize(
    "more",
    [
        {"rounds": SELDOM, "planned": SELDOM, "clients_per_person": 3},
        {"privacy": plan(grid=tff_mf.Grid(bits=12, max_clients=50), dimension=1000)},
    ],
    ids=["seldom, persons", "grid"],
)
def test_runs_before_are_composed_as_they_were_planned(tmp_path, more):
    folder = tmp_path / "run"
    finished(folder, **more)
    assert invoke("report", folder, "--runs-before", 3).exit_code == 0
    report = reports.read(folder / "report.json")
    one, planned, persons = report.realised.mu, report.planned.mu, more.get("clients_per_person", 1)
    tail = 4 * (report.claim.tail or 0.0)
    composed = tff_mf.Guarantee(mu=persons * (one**2 + 3 * planned**2) ** 0.5, tail=tail).epsilon(1e-6)
    assert composed <= report.claim.epsilon_with_runs_before <= composed * (1 + 1e-6)
    assert report.claim.epsilon == report.realised.epsilon, "of this run alone, as before"
    shown = rounded_up(report.claim.epsilon_with_runs_before)
    assert f"ε≤{shown} with the 3 runs before it" in report.headline
    assert f"less noise: ε ≤ {shown}." in reports.markdown(report)
    assert critical(folder) == []
    # It is computed again by the number that the report has.
    written = (folder / "report.json").read_text()
    for field, wrong in (("epsilon_with_runs_before", composed * 0.99), ("runs_before", 2), ("runs_before", 0)):
        run_folders.change_json(folder / "report.json", lambda content: content["claim"].update({field: wrong}))  # noqa: B023
        assert "claim.epsilon_with_runs_before" in reports.check(folder).differs
        (folder / "report.json").write_text(written)


def test_tails_of_runs_before_add_up():
    one = tff_mf.Guarantee(mu=1.0, tail=1e-12)
    about = {"delta": 1e-6, "rounds": 9, "participation": "once"}
    stated = statements.claim(one, earlier=one, runs_before=3, **about).epsilon_with_runs_before
    composed = tff_mf.Guarantee(mu=2.0, tail=4e-12).epsilon(1e-6)
    assert composed <= stated <= composed * (1 + 1e-9)
    assert stated > tff_mf.Guarantee(mu=2.0, tail=3e-12).epsilon(1e-6) * (1 + 1e-6)


@pytest.mark.parametrize("more", [in_secret(), {"privacy": plan(search=SEARCH)}], ids=["secret", "search"])
def test_runs_before_are_refused_where_nothing_composes(tmp_path, typed, more):
    finished(tmp_path / "run", **more)
    before = (tmp_path / "run" / "report.json").read_bytes()
    for wrong, named in ((["--runs-before", "3"], "runs_before=3"), (["--runs-before", "0"], "runs_before=0")):
        assert named in shared_refused(typed, "report", "run", *wrong)
    assert "runs_before=3" in shared_refused(typed, "report", "run", "--check", "--runs-before", "3")
    assert (tmp_path / "run" / "report.json").read_bytes() == before


@pytest.fixture
def copy(whole_run, tmp_path):
    return pathlib.Path(shutil.copytree(whole_run[0], tmp_path / "copy"))


def test_a_report_says_what_was_checked(whole_run):
    assert checked(whole_run[1]) == {
        *("participation", "sampler", "log", "one release a round", "plan", "mechanism", "randomness"),
        *("released without noise", "divisor", "cohort", "clipping", "restarts", "accountant", "model"),
    }


def test_realised_figures_are_the_worst_client(whole_run):
    """Over all signs of all contributions of every client that took part."""
    _, report = whole_run
    encoder = plan().mechanism.cast_to_float32().encoder(9)
    clients = {client for cohort in cohorts() for client in cohort}
    worst = max(moved(encoder, [t for t, cohort in enumerate(cohorts()) if each in cohort]) for each in clients)
    assert report.sensitivity == pytest.approx(worst, rel=1e-12)
    exact = tff_mf.Guarantee(mu=worst / 5.0).epsilon(1e-6)
    assert report.realised.epsilon == pytest.approx(exact, rel=1e-9)
    assert report.realised.epsilon >= exact
    planned = tff_mf.epsilon(plan().mechanism, 9, SCHEMA, noise_multiplier=5.0, delta=1e-6)
    assert report.planned.epsilon == pytest.approx(planned, rel=1e-9)
    # Somebody who came less often than was allowed for is all there is.
    assert report.realised.epsilon <= planned * (1 + 1e-12)


def test_rounds_that_were_given_up_do_not_hide_that_a_run_was_stopped(tmp_path):
    """All nine rounds were begun; then it went back to the fifth, without one of its clients, and ended there."""
    folder = tmp_path / "run"
    start(folder, planned=[])
    with ledger.open_ledger(folder / names.LEDGER) as book:
        for number in (*range(1, 10), 5):
            clients = cohorts()[number - 1][number in book.record.attempts :]
            book.begin(number, clients, divisor=2, clip_norm=1.0)
            book.released_until(min(number, 4))
        book.released_until(5)
        book.end()
    run_folders.metrics(folder, 5)
    report = reports.write(folder, realised=True)
    assert violated(report) == set()
    assert f"ε≤{rounded_up(report.planned.epsilon)}" in report.headline
    assert "stopped after 5 of 9" in " ".join(report.warnings)
    assert 5 in reports.gather(folder, realised=True).rounds_by_client[cohorts()[4][0]]


@pytest.mark.parametrize("left", [".lock", "checkpoints", "metrics.csv"])
def test_anything_of_a_run_is_a_run(tmp_path, left):
    folder = tmp_path / "run"
    start(folder)
    reports.write(folder, realised=False)
    assert critical(folder) == []
    (folder / left).mkdir()
    assert any("ledger.jsonl" in each for each in critical(folder))


def test_a_plan_says_that_it_is_one_and_needs_no_log(tmp_path):
    folder = tmp_path / "run"
    start(folder)
    assert invoke("report", folder, "--check").exit_code == 0
    assert "nothing has run here" in invoke("report", folder).stderr
    report = reports.read(folder / "planned.json")
    planned = tff_mf.epsilon(plan().mechanism, 9, SCHEMA, noise_multiplier=5.0, delta=1e-6)
    assert report.headline.startswith(f"Planned: ε≤{rounded_up(planned)}")
    assert report.realised is None
    assert checked(report) == {"plan", "mechanism", "randomness", "cohort", "accountant"}
    assert "no file of a run that began is here" in " ".join(reports.check(folder).warnings)
    # The run of it has no ε without its logs.
    report = reports.build(folder, realised=True)
    assert {"log", "accountant"} <= violated(report)
    assert report.realised is None


def test_a_report_says_what_it_is_about_and_names_no_folder(tmp_path):
    about = {"dataset": "sqlite:/home/me/data", "training_examples": 99}
    report = finished(tmp_path / "run", about=about, training_clients=8)
    assert (report.run["about"], report.run["training_clients"]) == ({**about, "dataset": "sqlite:data"}, 8)
    assert "Data: sqlite:data, 8 clients" in reports.markdown(report)
    assert "cohorts" not in report.run


PAGES = {
    "planned": None,
    "several clients": {"clients_per_person": 3},
    "simulated": {"privacy": plan(cohort=200), "simulation": True},
    "adaptive": ADAPTIVE,
}


@pytest.mark.parametrize("name", PAGES)
def test_the_figures_of_a_page_are_rounded_to_the_safe_side(tmp_path, name):
    if PAGES[name] is None:
        start(tmp_path / "run")
        report = reports.write(tmp_path / "run", realised=False)
    else:
        report = finished(tmp_path / "run", **PAGES[name])
    text, sigma = " ".join(reports.markdown(report).split()), report.plan["noise_multiplier"]
    (shown,) = re.findall(r"noise multiplier σ: ([\d.]+\d|\d)", text)
    assert sigma * 0.999 <= float(shown) <= sigma
    (shown,) = re.findall(r"sensitivity: ([\d.]+\d|\d)", text)
    assert report.sensitivity <= float(shown) <= report.sensitivity * 1.001
    figures = [each for each in (report.planned, report.realised) if each]
    for row in re.findall(r"\| ε of a client at δ = 1e-06 \|([^|]+)\|([^|]+)?\|", text):
        assert all(float(cell) >= each.epsilon for cell, each in zip(row, figures, strict=False))
    for name in ("zcdp_rho", "mu", "epsilon"):
        assert all(rounded_up(getattr(each, name)) in text for each in figures)


def test_no_text_of_a_user_is_markup(tmp_path):
    """In Markdown, a block of code has it as it is."""
    name = "us\n\n# heading\n\n**ε≤0.001**\n\n| a | b\n\n<script>x</script> <!-- \u202e\x1b[8m"
    finished(tmp_path / "run", about={"note": name}, sampler=name)
    assert invoke("report", tmp_path / "run").exit_code == 0
    page, text = ((tmp_path / "run" / file).read_text() for file in ("report.html", "report.md"))
    assert not set("\x1b\u202e") & set(page + text)
    assert "\n# heading" not in text
    assert not any(tag in page for tag in ("<script", "<!--", "<h1>heading", "<strong>ε≤0.001"))


class Apart(tff_mf.Guarantee):
    """A guarantee whose two accountants differ."""

    def epsilon_by_pld(self, delta, **more):
        return self.epsilon(delta) + 1e-3


def test_figures_that_the_log_or_the_other_accountant_refutes_state_nothing(copy):
    planned = reports.gather(copy, realised=True).planned

    def wrong(**figures):
        evidence = reports.gather(copy, realised=True)
        vars(evidence).update(figures)
        _, claim = reports.judged(evidence)
        return [reason.text for reason in claim.reasons if reason.field == "accountant"]

    assert wrong() == []
    apart = dataclasses.replace(planned, guarantee=Apart(mu=planned.guarantee.mu))
    assert wrong(stated=apart) == ["the closed form of ε and privacy loss distributions disagree"]
    # Somebody came as often as was allowed, and moved more than half of what was planned.
    half = dataclasses.replace(planned.sensitivity, value=planned.sensitivity.value / 2)
    refuted = wrong(planned=dataclasses.replace(planned, sensitivity=half))
    assert refuted == ["clients that follow the schema attain a larger sensitivity than the planned one"]
    assert wrong(stated=None) == ["no sensitivity can be computed from the files"]
