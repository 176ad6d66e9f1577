"""Web pages of reports, comparisons and plans: they load nothing, run nothing foreign, and show no ε too small."""

import base64
import dataclasses
import hashlib
import itertools
import json
import math
import pathlib
import re
import runpy
import shutil
from html import escape

import numpy as np
import pytest
import run_folders
from run_folders import ANSWERS

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.comparison import _report, charts
from tff_mf.experiments.output import figures, present
from tff_mf.experiments.output.present.html import html
from tff_mf.experiments.output.text import seen
from tff_mf.experiments.planning import explored
from tff_mf.experiments.planning import explored as plan_curves
from tff_mf.experiments.planning.deployment import Deployment
from tff_mf.experiments.planning.deployment import options as compared
from tff_mf.planning import options

from .page_content import Page
from .shared import invoke, moved, said
from .test_comparison import some_levels

PLAN = ["plan", "--population", "60", "--clients-per-round", "10", "--rounds", "12", "--delta", "1e-3"]
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"' style=x ]]>&lt; \u202e<!--"
# Folders have no slash in their name, and the command refuses what reverses a line.
HOSTILE_NAME = HOSTILE.replace("/", "").replace("\u202e", "")
ROOT = pathlib.Path(__file__).resolve().parents[2]
KINDS = ("report", "comparison", "plan", "hostile-report", "hostile-comparison", "refused-plan")


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
    path = folder / "page.html"
    if kind == "report":
        return page_of_run(folder / "run")
    if kind == "hostile-report":
        return page_of_run(folder / HOSTILE_NAME, answers={**ANSWERS, "unit": HOSTILE, "trusted": HOSTILE})
    if kind == "comparison":
        return page_of(comparison())
    if kind == "hostile-comparison":
        about = {"title": HOSTILE, "paper": HOSTILE, "notes": HOSTILE}
        return page_of(comparison(HOSTILE, about=about), name=HOSTILE)
    delta = ["--delta", "0.5"] if kind == "refused-plan" else []
    found = invoke(*PLAN, *delta, "--epsilon", "4", "--json", "--html", path)
    # A JSON object, and nothing else on stdout.
    assert json.loads(found.stdout)["recommended"], found.stderr
    return path.read_text(encoding="utf-8")


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


def test_the_policy_of_a_page_allows_its_own_scripts_alone(text):
    page = Page(text)
    (policy,) = [each["content"] for each in page.named("meta") if "http-equiv" in each]
    allowed = dict(each.split(" ", 1) for each in policy.split("; "))
    assert allowed["default-src"] == "'none'"
    scripts = [each for each in page.text_of("script") if each not in page.text_of("script", type="application/json")]
    for kind, found in (("script-src", scripts), ("style-src", page.text_of("style"))):
        hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in found]
        assert allowed[kind].split() == [f"'sha256-{each}'" for each in hashes]
    folder = pathlib.Path(present.__file__).parent
    assert set(scripts) <= {path.read_text(encoding="utf-8") for path in folder.glob("*.js")}


def test_every_input_has_a_label_and_every_id_is_unique(text):
    page = Page(text)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    labelled = [each["for"] for each in page.named("label")]
    inputs = [each["id"] for each in page.named("input")]
    assert sorted(labelled) == sorted(inputs)
    assert len(inputs) > 3
    for _, attributes in page.elements:
        for name in ("aria-labelledby", "for"):
            assert attributes.get(name, ids[0]) in ids
    for each in page.named("use"):
        assert each["href"].removeprefix("#") in ids
    assert len(page.named("h1")) == len(page.named("main")) == 1


@pytest.mark.parametrize("kind", ["report", "comparison"])
def test_texts_of_others_are_shown_and_never_markup(texts, kind):
    plain, hostile = Page(texts[kind]), Page(texts[f"hostile-{kind}"])
    assert len(hostile.named("script")) == len(plain.named("script"))
    assert hostile.named("img") == []
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


def test_what_the_sliders_show_is_data_and_no_markup(texts):
    plain = Page(texts["plan"])
    (held,) = plain.text_of("script", type="application/json")
    data = json.loads(held)
    data["points"] = [{"about": HOSTILE, "rows": [[HOSTILE]]}] * len(data["points"])
    found = Page(html(present.Document("Plan", [present.Explorer(data)])))
    assert json.loads(found.text_of("script", type="application/json")[0]) == data
    assert len(found.named("script")) == len(plain.named("script"))
    assert found.named("img") == []


def test_every_assumption_that_is_not_violated_can_be_ticked(texts, run_curves):
    _, report, _ = run_curves
    ticked = [each for each in Page(texts["report"]).named("input") if each["type"] == "checkbox"]
    assert len(ticked) == len([each for each in report["assumptions"] if each["state"] != "violated"])
    assert not [each for each in ticked if "checked" in each]


def test_a_violated_assumption_cannot_be_ticked(tmp_path):
    run_folders.start(tmp_path / "run")
    run_folders.run(tmp_path / "run", rounds=[["a"]] * 9)
    invoke("report", tmp_path / "run", "--html", tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    violated = said(each for each in report["assumptions"] if each["state"] == "violated")
    assert violated
    labels = "".join(page.text_of("label"))
    assert not [each for each in violated if each in labels]
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


COSTLY = {"grid": 8, "dimension": 10**9}


@pytest.mark.parametrize("numbers", [{}, COSTLY], ids=["floats", "integers"])
def test_curves_of_a_plan_end_at_its_epsilon(numbers):
    known = Deployment.of(population=60, clients_per_round=10, rounds=12, delta=1e-3, **numbers)
    found = compared(known, epsilon=4.0)
    blt = next(option for option in found if option.name == "blt")
    drawn = plan_curves.curves(known, [blt], blt, states=True)
    assert drawn["epsilon_over_rounds"]["blt"][-1] == (12, blt.figures["epsilon"])
    assert dict(drawn["epsilon_over_delta"])[1e-3] == blt.figures["epsilon"]
    for rounds, epsilon in drawn["epsilon_over_rounds"]["blt"]:
        most = -(-rounds // 6)
        schema = tff_mf.MinSep(min_sep=6, max_participations=most) if most > 1 else tff_mf.SingleParticipation()
        sigma = blt.figures["noise_multiplier"]
        on_grid = {"grid": known.setting.grid, "dimension": known.setting.dimension}
        exact = tff_mf.epsilon(blt.mechanism, rounds, schema, noise_multiplier=sigma, delta=1e-3, **on_grid)
        assert epsilon >= exact
    error = dict(drawn["error_over_rounds"]["blt"])
    rms = math.sqrt(np.mean(np.square([error[t] for t in range(1, 13)])))
    expected = blt.figures["rms_loss"] / blt.figures["sensitivity"] * blt.figures["noise_multiplier"] / 10
    assert rms == pytest.approx(expected)
    assert plan_curves.curves(known, [blt], blt, states=False)["epsilon_over_rounds"] == {}


def test_the_curve_of_a_plan_ends_at_its_epsilon_where_the_bound_of_fewer_rounds_is_larger():
    known = Deployment.of(
        population=60, clients_per_round=10, rounds=9, delta=1e-3, min_sep=1, max_participations=3, restart_every=4
    )
    epsilon = known.setting.guarantee(LOOSE, 5.0).epsilon(1e-3)
    option = options.Option(name="loose", mechanism=LOOSE, figures={"noise_multiplier": 5.0})
    points = plan_curves.curves(known, [option], option, states=True)["epsilon_over_rounds"]["loose"]
    assert points[-1] == (9, epsilon)
    assert max(each for _, each in points) == epsilon


@pytest.mark.parametrize(("given", "numbers"), [({"epsilon": 4.0}, COSTLY), ({"noise_multiplier": 3.0}, {})])
def test_every_position_of_the_sliders_is_what_plan_prints_there(given, numbers):
    """Against `options.options` at the point, and with the accountant called anew."""
    known = Deployment.of(population=60, clients_per_round=10, rounds=8, delta=1e-3, **numbers)
    level = {"epsilon": None, "noise_multiplier": None, **given}
    found = explored.explored(known, ["blt", "identity"], **level, max_participations=None)
    positions = itertools.product(*(axis.values for axis in explored.axes(known, **level)))
    points = dict(zip(positions, found["points"], strict=True))
    assert len(points) == math.prod(len(axis["values"]) for axis in found["axes"])
    possible = 0
    for index, ((cohort, rounds, min_sep, value), point) in enumerate(points.items()):
        if min_sep * cohort > 60:
            assert point["about"].startswith("Not possible: min_sep=")
            assert point["rows"] == []
            continue
        possible += 1
        for name, sigma, epsilon, *_ in point["rows"]:
            assert float(epsilon) >= value * (1 - 1e-6) or "noise_multiplier" in given
            if name == "identity":
                b = min(min_sep, rounds)
                k = -(-rounds // b)
                schema = tff_mf.MinSep(min_sep=b, max_participations=k) if k > 1 else tff_mf.SingleParticipation()
                # The printed σ with the printed ε is a true statement.
                noise = {"noise_multiplier": float(sigma), "delta": 1e-3}
                if numbers:
                    room = tff_mf.Grid.with_room(dimension=1, cohort=cohort).max_clients
                    noise |= {"grid": tff_mf.Grid(bits=8, max_clients=room), "dimension": 10**9}
                assert tff_mf.epsilon(tff_mf.Identity(), rounds, schema, **noise) <= float(epsilon)
        if index % 60 == 0:
            here = Deployment.of(
                population=60,
                clients_per_round=cohort,
                rounds=rounds,
                delta=1e-3,
                min_sep=min(min_sep, rounds),
                **numbers,
            )
            oracle = {each.name: each.figures for each in compared(here, **{next(iter(given)): value})}
            for name, sigma, epsilon, rho, loss, *_ in point["rows"]:
                exact = oracle[name]
                for shown, field in ((sigma, "noise_multiplier"), (epsilon, "epsilon"), (rho, "zcdp_rho")):
                    assert exact[field] <= float(shown) <= exact[field] * 1.01
                assert float(loss) == pytest.approx(exact["rms_loss"], rel=1e-3)
    assert 20 < possible < len(points)


def test_the_sliders_of_clients_that_come_once_have_no_other(tmp_path):
    plan = ["plan", "--population", 40, "--clients-per-round", 2, "--rounds", 8, "--delta", 1e-4, "--epsilon", 4]
    invoke(*plan, "--sampling", "single", "--grid", "none", "--html", tmp_path / "page.html", standalone_mode=False)
    text = (tmp_path / "page.html").read_text()
    assert "each client at most once; of 40 clients" in text
    assert "min-sep b" not in text


def test_a_plan_without_a_guarantee_shows_no_epsilon_anywhere(texts):
    page = Page(texts["refused-plan"])
    assert "NO ε" in "".join(page.text_of("div", class_="headline refused"))
    assert [each for each in page.named("input") if each["type"] == "range"] == []
    assert page.text_of("script", type="application/json") == []
    assert "There is nothing to draw." in texts["refused-plan"]
    assert not re.search(r"ε\s*[≤=]", "".join(page.text_of("main")))


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


@pytest.mark.parametrize(
    "command", [["report", "run"], [*PLAN, "--epsilon", "4"], ["compare", "spec.toml", "--out", "out"]]
)
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


NARROW = """<!DOCTYPE html><meta charset="utf-8">{frames}<script>
onload = () => {{
  const found = [...document.querySelectorAll("iframe")].map((frame) => {{
    const page = frame.contentDocument, rows = page.querySelector("#point-rows");
    const slider = page.querySelector("[type=range]"), before = rows?.textContent;
    if (slider) {{ slider.value = 0; slider.dispatchEvent(new Event("input")); }}
    page.querySelector("[type=checkbox]").click();
    const ticked = page.querySelector(".count").textContent.startsWith("1 of");
    return [page.documentElement.scrollWidth, ticked, before !== rows?.textContent];
  }});
  document.body.textContent = JSON.stringify(found);
}};
</script>"""


def test_in_chromium_no_page_is_wider_than_a_telephone_and_scripts_run(texts, tmp_path):
    """In frames: a window of Chromium is at least 500 pixels wide."""
    chromium = runpy.run_path(str(ROOT / "docs" / "html_pictures.py"))
    if chromium["browser"]() is None:
        pytest.skip(chromium["NEEDED"])
    frame = '<iframe width="380" height="700" style="border: 0" srcdoc="{}"></iframe>'
    frames = "".join(frame.format(escape(text)) for text in texts.values())
    (tmp_path / "pages.html").write_text(NARROW.format(frames=frames), encoding="utf-8")
    seen_there = chromium["run"](tmp_path / "pages.html", "--dump-dom")
    found = json.loads(re.search(r"<body>(.*)</body>", seen_there.stdout)[1])
    assert found == [[380, True, kind == "plan"] for kind in KINDS]
    # Errors of scripts, and whatever the policy of a page keeps out.
    assert "CONSOLE" not in seen_there.stderr
