"""Web pages of reports and comparisons: they load nothing, run nothing, and show no ε too small."""

import base64
import dataclasses
import hashlib
import itertools
import json
import math
import re
import shutil

import numpy as np
import pytest
import run_folders
from run_folders import ANSWERS

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.comparison import _report, charts
from tff_mf.experiments.output import figures
from tff_mf.experiments.output.present.html import html
from tff_mf.experiments.output.text import seen

from .page_content import Page
from .shared import invoke, moved, said
from .test_comparison import some_levels

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"' style=x ]]>&lt; \u202e<!--"
# Folders have no slash in their name, and the command refuses what reverses a line.
HOSTILE_NAME = HOSTILE.replace("/", "").replace("\u202e", "")
KINDS = ("report", "comparison", "hostile-report", "hostile-comparison")


def comparison(label="blt", **more):
    best, *rest = some_levels()
    levels = [dataclasses.replace(best, label=label), *rest]
    return _report.result_of(levels, planned=14, done=13, failed={"run": "it failed"}, **more)


def page_of(found, *, name="grid"):
    return html(_report.document(found, charts=charts.charts(found), name=name))


def page_of_run(folder, *, answers=ANSWERS, **more):
    run_folders.start(folder, answers=answers, **more)
    run_folders.run(folder)
    found = invoke("report", folder, "--html", folder.parent / "page.html")
    assert found.exit_code == 0, found.stderr
    return (folder.parent / "page.html").read_text(encoding="utf-8")


def made(kind, folder):
    """The text of a page of a kind."""
    if kind == "report":
        return page_of_run(folder / "run")
    if kind == "hostile-report":
        return page_of_run(folder / HOSTILE_NAME, answers={**ANSWERS, "unit": HOSTILE, "trusted": HOSTILE})
    if kind == "comparison":
        return page_of(comparison())
    assert kind == "hostile-comparison"
    about = {"title": HOSTILE, "paper": HOSTILE, "notes": HOSTILE}
    return page_of(comparison(HOSTILE, about=about), name=HOSTILE)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return {kind: made(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


@pytest.fixture(params=KINDS)
def text(request, texts):
    return texts[request.param]


def test_a_page_is_one_file_that_loads_nothing(text):
    page = Page(text)
    assert page.unbalanced == []
    assert page.loads() == []
    assert not re.search(r"https?:", text)
    assert text.startswith("<!DOCTYPE html>\n<html lang=")


def test_the_policy_of_a_page_allows_no_script(text):
    page = Page(text)
    (policy,) = [each["content"] for each in page.named("meta") if "http-equiv" in each]
    allowed = dict(each.split(" ", 1) for each in policy.split("; "))
    assert allowed["default-src"] == "'none'"
    assert "script-src" not in allowed
    assert page.named("script") == page.named("input") == []
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in page.text_of("style")]
    assert allowed["style-src"].split() == [f"'sha256-{each}'" for each in hashes]


def test_every_id_is_unique_and_every_reference_is_one(text):
    page = Page(text)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        for name in ("aria-labelledby", "for"):
            assert name not in attributes or attributes[name] in ids
    for each in page.named("use"):
        assert each["href"].removeprefix("#") in ids
    assert len(page.named("h1")) == len(page.named("main")) == 1


@pytest.mark.parametrize("kind", ["report", "comparison"])
def test_texts_of_others_are_shown_and_never_markup(texts, kind):
    plain, hostile = Page(texts[kind]), Page(texts[f"hostile-{kind}"])
    assert [tag for tag, _ in hostile.elements if tag in ("script", "img")] == []
    assert plain.named("h1")
    shown = "".join(hostile.text_of("body"))
    assert "<img src=x onerror=alert(2)>" in shown
    assert "\u202e" not in texts[f"hostile-{kind}"]
    assert not [name for _, attributes in hostile.elements for name in attributes if name.startswith("on")]


@pytest.fixture(scope="module")
def ordinary():
    """The page of a comparison whose texts are words."""
    return Page(page_of(comparison("plain", about=dict.fromkeys(("title", "paper", "notes"), "plain")), name="plain"))


@pytest.mark.parametrize(
    "hostile", [HOSTILE, "\x00\x1b[2J", "\u2028", "a\nb", "&amp;", "'\"`=<>", "{{ 7 * 6 }}", "$x^2$"]
)
def test_no_text_of_others_becomes_an_element_a_template_or_a_formula(ordinary, hostile):
    about = {"title": hostile, "paper": hostile, "notes": hostile}
    found = Page(page_of(comparison(hostile, about=about), name=hostile))
    assert [tag for tag, _ in found.elements] == [tag for tag, _ in ordinary.elements]
    assert [each.keys() for _, each in found.elements] == [each.keys() for _, each in ordinary.elements]
    assert seen(hostile) in found.text_of("h1")[0]


def test_a_page_of_a_run_that_broke_its_schema_shows_no_epsilon(tmp_path):
    run_folders.start(tmp_path / "run")
    run_folders.run(tmp_path / "run", rounds=[["a"]] * 9)
    invoke("report", tmp_path / "run", "--html", tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    violated = said(each for each in report["assumptions"] if each["state"] == "violated")
    assert violated
    assert all(each in "".join(page.text_of("main")) for each in violated)
    assert "refused" in page.named("div")[0]["class"]
    assert "ε over" not in "".join(page.text_of("figure"))


@pytest.fixture(scope="module")
def run_curves(whole_run):
    folder, _ = whole_run
    return folder, reports.build(folder, realised=True), reports.curves(folder, realised=True)


def test_curves_end_at_the_figures_of_the_report(run_curves):
    _, report, found = run_curves
    for name in ("planned", "realised"):
        figures = report["accountant"][name]
        assert found["epsilon_over_rounds"][name][-1] == (9, figures["epsilon"])
        over_delta = dict(found["epsilon_over_delta"][name])
        assert over_delta[figures["delta"]] == figures["epsilon"]
        values = [epsilon for _, epsilon in found["epsilon_over_delta"][name]]
        assert values == sorted(values, reverse=True)
        rising = [epsilon for _, epsilon in found["epsilon_over_rounds"][name]]
        assert rising == sorted(rising)


# Three rounds in a row have a looser bound alone than as part of a longer run with restarts.
LOOSE = tff_mf.BandedToeplitz(column=[1.0, 2.0])


def test_the_curve_of_a_planned_run_ends_at_its_epsilon_where_the_bound_of_fewer_rounds_is_larger(tmp_path):
    schema = tff_mf.MinSep(min_sep=1, max_participations=3)
    run_folders.start(tmp_path, privacy=run_folders.plan(mechanism=LOOSE, sampling=schema, restart_every=4))
    epsilon = reports.build(tmp_path, realised=False)["accountant"]["planned"]["epsilon"]
    points = reports.curves(tmp_path, realised=False)["epsilon_over_rounds"]["planned"]
    assert points[-1] == (9, epsilon)
    assert max(each for _, each in points) == epsilon


def test_a_run_whose_rounds_had_no_client_has_a_page(tmp_path):
    run_folders.start(tmp_path, planned=[[]] * 9)
    run_folders.run(tmp_path, [[]] * 9)
    found = reports.curves(tmp_path, realised=True)
    assert (found["cohorts"][-1], found["clients_by_participations"]) == ((9, 0), [])
    page = html(reports.document(reports.build(tmp_path, realised=True), found, run="empty"))
    assert "Clients of each round" in page
    assert "Participation of clients" not in page


def test_epsilon_of_the_first_rounds_is_that_of_the_worst_client_in_them(run_curves):
    """Over all signs of all contributions of every client, and for the plan over all patterns."""
    _, _, found = run_curves
    encoder = run_folders.plan().mechanism.cast_to_float32().encoder(9)
    patterns = {
        "realised": [
            [t for t, cohort in enumerate(run_folders.cohorts()) if client in cohort]
            for client in {client for cohort in run_folders.cohorts() for client in cohort}
        ],
        "planned": [
            pattern
            for size in (1, 2, 3)
            for pattern in itertools.combinations(range(9), size)
            if min(np.diff(pattern), default=9) >= 3
        ],
    }
    for name, known in patterns.items():
        for rounds, epsilon in found["epsilon_over_rounds"][name]:
            worst = max(moved(encoder[:rounds], [t for t in pattern if t < rounds]) for pattern in known)
            exact = tff_mf.Guarantee(mu=worst / 5.0).epsilon(1e-6)
            assert exact <= epsilon * (1 + 1e-12)
            assert epsilon == pytest.approx(exact, rel=1e-6)


def test_steps_are_never_below_either_end():
    """A curve of ε is drawn at the larger of two values everywhere between them, and not beside a gap."""
    points = [(1.0, 2.0), (3.0, 5.0), (4.0, 1.0), (6.0, math.nan), (7.0, 3.0), (9.0, 3.5)]
    x, y = figures.safe_steps(*np.array(points).T)
    assert sorted(x) == list(x)
    for (left, before), (right, after) in itertools.pairwise(points):
        between = y[1:][(x[:-1] == left) & (x[1:] == right)]
        if math.isfinite(before + after):
            assert between == [max(before, after)]
            assert y[:-1][(x[:-1] == left) & (x[1:] == right)] == between
        else:
            assert np.isnan(between).all()
    assert {(a, b) for a, b in points if b == b} <= set(zip(x.tolist(), y.tolist(), strict=True))


@pytest.mark.parametrize("command", [["report", "run"], ["compare", "spec.toml", "--out", "out"]])
def test_a_page_that_cannot_be_written_is_refused_before_anything_is_done(tmp_path, monkeypatch, command):
    """Other wrong paths are in refused_lines.txt, and among those of tests/fuzz."""
    monkeypatch.chdir(tmp_path)
    run_folders.start(tmp_path / "run")
    (tmp_path / "spec.toml").write_text("")
    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(tff_mf.InputError, match=r"^html='full\.html' cannot be written"):
        invoke(*command, "--html", "full.html")
    assert sorted(tmp_path.rglob("*")) == before


def refuse(*arguments, **more):
    raise OSError(28, "No space left on device")


def test_a_page_changes_no_report(whole_run, tmp_path):
    shutil.copytree(whole_run[0], tmp_path / "run")
    invoke("report", tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    shown = invoke("report", tmp_path / "run", "--json", "--html", tmp_path / "run" / "page.html")
    assert json.loads(shown.stdout)["kind"] == "realised"
    (tmp_path / "run" / "page.html").unlink()
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_a_comparison_shows_every_mechanism_level_failure_and_statement(texts):
    page = Page(texts["comparison"])
    shown = "".join(page.text_of("main"))
    for each in ("blt", "identity", "ε = 2", "it failed", "all 10 models"):
        assert each in shown
    nothing = _report.result_of([], planned=1, done=0, failed={"run": "it failed"})
    assert Page(page_of(nothing)).unbalanced == []
