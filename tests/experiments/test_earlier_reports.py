"""Reports of earlier releases: they are checked in their own words, and their figures as strictly as today's."""

import json
import pathlib
import sys

import pytest

import tff_mf
from tff_mf.experiments import reports

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "fuzz"))
import run_folders

EARLIER = "tff-mf 0.1.0.dev420"
# Each sentence as it is now and as releases up to 0.1.0.dev420 wrote it.
WORDS = (
    ("OptimizedFor(", "MadeFor("),
    ("; to be checked in the log", "; the log will tell"),
    ("each round was released at most once, in order", "each round was released once at most, in order"),
    (
        "only those who are trusted see the server's state, with its keys and noise rows; this cannot be checked here",
        "the server's state, with keys and noise rows, is seen by nobody but those trusted; nobody can check that here",
    ),
    ("data; this cannot be checked here", "data; nobody can check that here"),
    (
        "a planned report: it is about the settings of the run, not about what it did",
        "a plan: what the run is set to do, whatever it did, and nothing of what it did",
    ),
    (
        "stopped after 5 of 9 rounds, the last released round with clients: if the decision to stop depended on "
        "released results, only the planned figures hold; the larger of the planned and the final figures is stated",
        "stopped after 5 of 9 rounds, as far as any was released and had clients: if what was released had a part in "
        "that, only the planned figures hold; the larger of planned and realised is stated",
    ),
    (
        "Philox is not a cryptographic generator: no proof rules out that its output can be predicted",
        "Philox is no cryptographic generator: no proof rules out telling its output",
    ),
)


def optimized():
    schema = run_folders.SCHEMA
    return run_folders.plan(mechanism=tff_mf.optimize_blt(rounds=9, participation=schema, buffers=2))


def in_earlier_words(folder, name, *, change=lambda report: None):
    """Rewrites a stored report as an earlier release wrote it, and returns its digest."""
    text = (folder / f"{name}.json").read_text()
    for now, before in WORDS:
        text = text.replace(now, before)
    report = json.loads(text)
    report["accountant"]["version"] = EARLIER
    change(report)
    report["digest"] = reports.digest(report)
    (folder / f"{name}.json").write_text(reports.as_text(report))
    (folder / f"{name}.md").write_text(reports.markdown(report))
    return report["digest"]


def about_report(folder, **more):
    return [each.text for each in reports.check(folder, **more) if each.field in ("report", "digest")]


@pytest.fixture(params=[9, 5])
def ran(tmp_path, request):
    """A run of nine rounds, and one that was stopped after five, each with both reports in earlier words."""
    folder = tmp_path / "run"
    run_folders.start(folder, privacy=optimized())
    reports.write(folder, realised=False)
    run_folders.run(folder, run_folders.cohorts()[: request.param])
    reports.write(folder, realised=True)
    return folder, in_earlier_words(folder, "planned"), in_earlier_words(folder, "report")


def test_reports_in_earlier_words_are_no_finding(ran):
    folder, _, digest = ran
    stored = json.loads((folder / "report.json").read_text())
    assert stored["mechanism"]["made_for"].startswith("MadeFor(")
    assert about_report(folder, held=digest) == []
    assert reports.is_current(folder)


def without(names):
    def change(report):
        report["assumptions"] = [each for each in report["assumptions"] if each["name"] not in names]
        report["arithmetic"]["severity"] = (
            "theoretical: low bits of float32 sums leave traces that the statement does not cover"
        )

    return change


@pytest.mark.parametrize("names", [["arithmetic"], ["arithmetic", "choice of settings"]])
def test_only_reports_of_other_releases_may_lack_what_came_later(tmp_path, names):
    folder = tmp_path / "run"
    run_folders.start(folder, privacy=optimized())
    run_folders.run(folder)
    reports.write(folder, realised=True)
    held = in_earlier_words(folder, "report", change=without(names))
    stored = json.loads((folder / "report.json").read_text())
    assert not {each["name"] for each in stored["assumptions"]} & set(names)
    assert about_report(folder, held=held) == []
    now = f"tff-mf {tff_mf.__version__}"
    in_earlier_words(folder, "report", change=lambda report: report["accountant"].update(version=now))
    assert any("`assumptions` in report.json" in text for text in about_report(folder))


def test_a_planned_report_in_earlier_words_is_no_finding(tmp_path):
    run_folders.start(tmp_path / "run", privacy=optimized())
    reports.write(tmp_path / "run", realised=False)
    in_earlier_words(tmp_path / "run", "planned")
    assert about_report(tmp_path / "run") == []


def halved(accountant):
    accountant["realised"]["epsilon"] /= 2
    return accountant


FORGED = {
    "headline": lambda text: text.replace("ε≤", "ε≤0."),
    "statement": lambda text: text.replace("μ at most ", "μ at most 0."),
    "accountant": halved,
    "noise": lambda noise: {**noise, "noise_multiplier": 2 * noise["noise_multiplier"]},
    "mechanism": lambda found: {**found, "made_for": found["made_for"].replace("rounds=9", "rounds=90")},
    "assumptions": lambda found: [{**each, "state": "holds"} for each in found],
}


@pytest.mark.parametrize("field", FORGED)
def test_earlier_words_excuse_nothing_else(tmp_path, field):
    folder = tmp_path / "run"
    run_folders.start(folder, privacy=optimized())
    run_folders.run(folder)
    reports.write(folder, realised=True)
    held = in_earlier_words(folder, "report")
    assert about_report(folder, held=held) == []
    in_earlier_words(folder, "report", change=lambda report: report.update({field: FORGED[field](report[field])}))
    assert any(f"`{field}` in report.json" in text for text in about_report(folder))
    assert any("the digest is not the one that was kept" in text for text in about_report(folder, held=held))


def test_every_sentence_is_in_some_report(tmp_path):
    for rounds in (9, 5):
        folder = tmp_path / str(rounds)
        run_folders.start(folder, privacy=optimized())
        reports.write(folder, realised=False)
        run_folders.run(folder, run_folders.cohorts()[:rounds])
        reports.write(folder, realised=True)
    text = "".join(path.read_text() for path in tmp_path.rglob("*.json"))
    assert [now for now, _ in WORDS if now not in text] == []
