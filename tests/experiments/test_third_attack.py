"""What passed a third attack: on reports of their time and their pages, on kept answers, on advice. Nothing trains."""

import json
import os
import pathlib
import shutil
import sys

import pytest
from click.testing import CliRunner

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.cli import _answers, cli
from tff_mf.experiments.output import digits
from tff_mf.experiments.planning import options, signal_to_noise
from tff_mf.experiments.planning.deployment import Deployment

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "fuzz"))
import run_folders
from run_folders import ANSWERS, change_json

FORGED = "0\n\n# Privacy report (realised)\n\n**client-level zero-out DP, central: ε≤0.001 at δ=1e-06**"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "good"
    return folder, run_folders.whole(folder, audited=False)


@pytest.fixture
def run(good, tmp_path):
    return pathlib.Path(shutil.copytree(good[0], tmp_path / "run"))


def critical(folder):
    return [f"{each.field}: {each.text}" for each in reports.check(folder) if each.severity == "critical"]


def forge(folder, change, *, realised=True):
    """Writes a report that somebody changed, with a digest and a page that are right."""
    stem = "report" if realised else "planned"
    report = json.loads((folder / f"{stem}.json").read_text())
    change(report)
    report["digest"] = reports._build.digest(report)
    (folder / f"{stem}.json").write_text(reports._files.as_text(report))
    (folder / f"{stem}.md").write_text(reports.markdown(report))


@pytest.mark.parametrize("realised", [True, False])
@pytest.mark.parametrize("hashed", [FORGED, {"ε≤0.001": "of 1e-6"}, "A" * 64, 0])
def test_the_hash_of_an_older_answer_is_a_hash(run, hashed, realised):
    reports.write(run, realised=realised)
    forge(run, lambda report: report["files"].update({"answers.json": hashed}), realised=realised)
    assert any("`files` in" in each for each in critical(run))


def test_a_report_of_other_bytes_of_the_same_answers_is_older_than_they_are(run):
    change_json(run / "answers.json", lambda found: dict(reversed(found.items())))
    texts = [each.text for each in reports.check(run) if each.field == "report"]
    assert texts == ["report.json is older than answers.json: tff-mf report rewrites it"]
    assert not critical(run)


@pytest.mark.parametrize("version", ["tff-mf ١.٠", "tff-mf 1.0\n", "tff-mf 1.0+gabcdef0123 (ε≤0.001)", "tff-mf １.０"])
def test_a_version_is_of_plain_digits(run, version):
    forge(run, lambda report: report["accountant"].update(version=version))
    assert any("`accountant` in report.json" in each for each in critical(run))


def test_a_report_without_an_audit_has_no_hash_of_one(run):
    forge(run, lambda report: report["files"].update({"audit.json": "0" * 64}))
    assert any("`files` in" in each for each in critical(run))


@pytest.mark.parametrize("answer", ["us <!--", "us <script>", "us &#8238;", "us &lt;b", "us </p>", "us <?x"])
def test_an_answer_hides_nothing_of_a_page_in_html(run, answer):
    change_json(run / "answers.json", lambda found: {**found, "trusted": answer})
    reports.write(run, realised=True)
    page = (run / "report.md").read_text()
    assert f"**us \\{answer[3:]}**" in page


@pytest.mark.parametrize("hidden", ["\x1b[8m", "\u202e", "\u2066", "\u200b", "\x9b2J", "\ud800", "\x00", "\ufeff"])
def test_an_answer_hides_nothing_on_a_screen(run, hidden):
    answers = {**ANSWERS, "trusted": f"us{hidden}", "other_releases": hidden + "x"}
    (run / "answers.json").write_text(json.dumps(answers))
    with (run / "run.json").open() as file:
        configuration = json.load(file)
    (run / "run.json").write_text(json.dumps({**configuration, "command": ["tff-mf", f"{hidden}x"]}))
    shown = reports.markdown(reports.build(run, realised=True))
    assert hidden not in shown
    assert "us\ufffd" in shown
    assert hidden not in CliRunner().invoke(cli, ["report", str(run), "--check"]).output


@pytest.mark.parametrize(
    "more", [{"adjacency": "replace-one"}, {"restart_every": 25}, {"restart_every": 25, "min_sep": 20}]
)
def test_an_epsilon_that_is_advised_is_that_of_the_setting(more):
    deployment = Deployment(population=2000, clients_per_round=20, rounds=100, delta=1e-6, **more)
    found = {each.name: each for each in options.options(deployment, noise_multiplier=6.0)}
    option = found["banded-toeplitz"]
    signal = signal_to_noise.of_option(deployment, option, 60_000, advise_epsilon=True)
    sigma = 6.0 * signal_to_noise.LEARNS / signal["noise_to_signal"]
    guarantee = tff_mf.guarantee(
        option.mechanism,
        100,
        deployment.participation,
        noise_multiplier=sigma,
        restart_every=deployment.restart_every,
        adjacency=deployment.adjacency,
    )
    assert signal["epsilon_needed"] == guarantee.epsilon(1e-6)


def test_a_session_that_was_broken_off_is_no_default_over_a_later_answer(tmp_path):
    earlier = {**ANSWERS, "population": None, "clients_of_one_person": 1}
    (tmp_path / "answers.draft.json").write_text(json.dumps(earlier))
    (tmp_path / "answers.json").write_text(json.dumps({**ANSWERS, "clients_of_one_person": 5}))
    for name, seconds in (("answers.draft.json", 100), ("answers.json", 200)):
        os.utime(tmp_path / name, (seconds, seconds))
    assert _answers._earlier(tmp_path) == {**ANSWERS, "clients_of_one_person": 5, "answered_by": None}
    os.utime(tmp_path / "answers.draft.json", (300, 300))
    # What was taken back before the session was broken off is asked anew.
    assert _answers._earlier(tmp_path) == {**earlier, "answered_by": None}


@pytest.mark.parametrize(
    "search", [["blt"], ["banded", "--bands", 4], ["dense"], ["structured", "--diagonals", 2, "--rank", 2]]
)
def test_no_noise_is_calibrated_to_a_participation_that_is_assumed(tmp_path, search):
    arguments = ["optimize", *search, "--rounds", 16, "--epsilon", 2, "--delta", 1e-6, "--out", tmp_path / "file"]
    found = CliRunner().invoke(cli, [*map(str, arguments)])
    assert found.exit_code == 2
    assert "--min-sep and --max-participations missing" in found.output
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("value", [4967452568080.4795, 7343422638690.604, 1e300, 2.0001, 0.1 + 0.2])
def test_an_epsilon_of_any_size_is_rounded_up(value):
    assert float(digits.rounded_up(value)) >= value
