"""Web pages of reports, comparisons and plans: they load nothing, run nothing foreign, and show no ε too small."""

import base64
import hashlib
import itertools
import json
import math
import pathlib
import re
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import tff_mf
from tff_mf.experiments import pages, reports
from tff_mf.experiments.cli import cli
from tff_mf.experiments.comparison import _report
from tff_mf.experiments.pages import _charts, _markup, _scales
from tff_mf.experiments.planning import curves as plan_curves
from tff_mf.experiments.planning import explored, options
from tff_mf.experiments.planning.deployment import Deployment

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "fuzz"))
import run_folders
from run_folders import ANSWERS

from .page_content import Page
from .test_comparison import some_levels

PLAN = ["plan", "--population", "60", "--clients-per-round", "10", "--rounds", "12", "--delta", "1e-3"]
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"' style=x ]]>&lt; \u202e<!--"
# Folders have no slash in their name, and the command refuses what reverses a line.
HOSTILE_NAME = HOSTILE.replace("/", "").replace("\u202e", "")
KINDS = ("report", "comparison", "plan", "hostile-report", "hostile-comparison", "refused-plan")


def invoke(*arguments):
    return CliRunner().invoke(cli, list(map(str, arguments)), catch_exceptions=False)


def comparison(label="blt", **more):
    found = _report.as_dict(some_levels(), planned=14, done=13, failed={"run": "it failed"}, **more)
    found["levels"][0]["half_width_95"] = 0.01
    found["levels"][0]["mechanism"] = found["gaps"][0]["better"] = label
    return found


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
        return pages.comparison_page(comparison(), name="grid", markdown="| a |\n")
    if kind == "hostile-comparison":
        about = {"title": HOSTILE, "paper": HOSTILE, "notes": HOSTILE}
        return pages.comparison_page(comparison(HOSTILE, about=about), name=HOSTILE, markdown=f"| {HOSTILE} |\n")
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
    folder = pathlib.Path(pages.__file__).parent
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
    assert [each["role"] for each in page.named("svg") if "aria-hidden" not in each] == ["img"] * len(
        [each for each in page.named("svg") if "aria-labelledby" in each]
    )
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


@pytest.mark.parametrize("hostile", [HOSTILE, "\x00\x1b[2J", "\u2028", "a\nb", "&amp;", "'\"`=<>"])
def test_an_element_contains_no_other_that_was_not_made(hostile):
    page = Page(_markup.element("p", hostile, _markup.element("b", hostile), title=hostile, class_=hostile))
    assert [tag for tag, _ in page.elements] == ["p", "b"]
    assert page.elements[0][1].keys() == {"title", "class"}
    held = Page(f"<script>{_markup.embedded({'name': hostile})}</script>")
    assert len(held.elements) == 1
    assert json.loads(held.text_of("script")[0]) == {"name": hostile}


def test_a_report_shows_its_headline_findings_and_every_assumption(texts, tmp_path):
    run_folders.start(tmp_path / "run")
    run_folders.run(tmp_path / "run")
    report = reports.build(tmp_path / "run", realised=True)
    page = Page(texts["report"])
    shown = " ".join("".join(page.text_of("main")).split())
    assert report["headline"] in shown
    for each in report["assumptions"]:
        assert each["text"] in shown
    ticked = [each for each in page.named("input") if each["type"] == "checkbox"]
    assert len(ticked) == len([each for each in report["assumptions"] if each["state"] != "violated"])
    assert not [each for each in ticked if "checked" in each]


def test_a_violated_assumption_cannot_be_ticked(tmp_path):
    run_folders.start(tmp_path / "run")
    run_folders.run(tmp_path / "run", rounds=[["a"]] * 9)
    invoke("report", tmp_path / "run", "--html", tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    violated = [each["text"] for each in report["assumptions"] if each["state"] == "violated"]
    assert violated
    labels = "".join(page.text_of("label"))
    assert not [each for each in violated if each in labels]
    assert "refused" in page.named("div")[0]["class"]
    assert "ε over" not in "".join(page.text_of("figure"))


@pytest.fixture(scope="module")
def run_curves(tmp_path_factory):
    folder = tmp_path_factory.mktemp("curves") / "run"
    run_folders.whole(folder, audited=False)
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
    run_folders.start(tmp_path, privacy=run_folders.plan(mechanism=LOOSE, participation=schema, restart_every=4))
    epsilon = reports.build(tmp_path, realised=False)["accountant"]["planned"]["epsilon"]
    points = reports.curves(tmp_path, realised=False)["epsilon_over_rounds"]["planned"]
    assert points[-1] == (9, epsilon)
    assert max(each for _, each in points) == epsilon


def test_a_run_whose_rounds_had_no_client_has_a_page(tmp_path):
    run_folders.start(tmp_path, planned=[[]] * 9)
    run_folders.run(tmp_path, [[]] * 9)
    found = reports.curves(tmp_path, realised=True)
    assert (found["cohorts"][-1], found["clients_by_participations"]) == ((9, 0), [])
    page = pages.report_page(reports.build(tmp_path, realised=True), found, run="empty", markdown="")
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
            worst = 0.0
            for pattern in known:
                columns = encoder[:rounds, [t for t in pattern if t < rounds]]
                for signs in itertools.product((1, -1), repeat=columns.shape[1]):
                    worst = max(worst, float(np.linalg.norm(columns @ np.array(signs))))
            exact = tff_mf.Guarantee(mu=worst / 5.0).epsilon(1e-6)
            assert exact <= epsilon * (1 + 1e-12)
            assert epsilon == pytest.approx(exact, rel=1e-6)


def test_curves_of_a_plan_end_at_its_epsilon():
    known = Deployment(population=60, clients_per_round=10, rounds=12, delta=1e-3)
    found = options.options(known, epsilon=4.0)
    blt = next(option for option in found if option.name == "blt")
    drawn = plan_curves.curves(known, [blt], blt, states=True)
    assert drawn["epsilon_over_rounds"]["blt"][-1] == (12, blt.figures["epsilon"])
    assert dict(drawn["epsilon_over_delta"])[1e-3] == blt.figures["epsilon"]
    for rounds, epsilon in drawn["epsilon_over_rounds"]["blt"]:
        most = -(-rounds // 6)
        schema = tff_mf.MinSep(min_sep=6, max_participations=most) if most > 1 else tff_mf.SingleParticipation()
        sigma = blt.figures["noise_multiplier"]
        exact = tff_mf.epsilon(blt.mechanism, rounds, schema, noise_multiplier=sigma, delta=1e-3)
        assert epsilon >= exact
    error = dict(drawn["error_over_rounds"]["blt"])
    rms = math.sqrt(np.mean(np.square([error[t] for t in range(1, 13)])))
    expected = blt.figures["rms_loss"] / blt.figures["sensitivity"] * blt.figures["noise_multiplier"] / 10
    assert rms == pytest.approx(expected)
    assert plan_curves.curves(known, [blt], blt, states=False)["epsilon_over_rounds"] == {}


def test_the_curve_of_a_plan_ends_at_its_epsilon_where_the_bound_of_fewer_rounds_is_larger():
    known = Deployment(
        population=60, clients_per_round=10, rounds=9, delta=1e-3, min_sep=1, max_participations=3, restart_every=4
    )
    epsilon = known.setting.guarantee(LOOSE, 5.0).epsilon(1e-3)
    option = options.Option(name="loose", mechanism=LOOSE, figures={"noise_multiplier": 5.0})
    points = plan_curves.curves(known, [option], option, states=True)["epsilon_over_rounds"]["loose"]
    assert points[-1] == (9, epsilon)
    assert max(each for _, each in points) == epsilon


@pytest.mark.parametrize("given", [{"epsilon": 4.0}, {"noise_multiplier": 3.0}])
def test_every_position_of_the_sliders_is_what_plan_prints_there(given):
    """Against `options.options` at the point, and with the accountant called anew."""
    known = Deployment(population=60, clients_per_round=10, rounds=8, delta=1e-3)
    level = {"epsilon": None, "noise_multiplier": None, **given}
    found = explored.explored(known, ["blt", "identity"], **level, max_participations=None)
    axes = explored.axes(known, **level)
    grid = itertools.product(axes.clients_per_round, axes.rounds, axes.min_sep, axes.level)
    points = dict(zip(grid, found["points"], strict=True))
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
                exact = tff_mf.epsilon(tff_mf.Identity(), rounds, schema, noise_multiplier=float(sigma), delta=1e-3)
                assert exact <= float(epsilon)
        if index % 60 == 0:
            here = Deployment(
                population=60, clients_per_round=cohort, rounds=rounds, delta=1e-3, min_sep=min(min_sep, rounds)
            )
            oracle = {each.name: each.figures for each in options.options(here, **{next(iter(given)): value})}
            for name, sigma, epsilon, rho, loss, *_ in point["rows"]:
                exact = oracle[name]
                for shown, field in ((sigma, "noise_multiplier"), (epsilon, "epsilon"), (rho, "zcdp_rho")):
                    assert exact[field] <= float(shown) <= exact[field] * 1.01
                assert float(loss) == pytest.approx(exact["rms_loss"], rel=1e-3)
    assert 20 < possible < len(points)


def test_a_plan_without_a_guarantee_shows_no_epsilon_anywhere(texts):
    page = Page(texts["refused-plan"])
    assert "NO ε" in "".join(page.text_of("div", class_="headline refused"))
    assert [each for each in page.named("input") if each["type"] == "range"] == []
    assert page.text_of("script", type="application/json") == []
    assert "There is nothing to draw." in texts["refused-plan"]
    assert not re.search(r"ε\s*[≤=]", "".join(page.text_of("main")))


def test_steps_are_never_below_either_end():
    """A curve of ε is drawn at the larger of two values everywhere between them."""
    points = [(1.0, 2.0), (3.0, 5.0), (4.0, 1.0), (6.0, None), (7.0, 3.0), (9.0, 3.5)]
    curve = _charts.Curve(name="ε", points=points, drawn="steps")
    x = _scales.scale(_scales.Axis(label=""), [1, 9], 0, 800)
    y = _scales.scale(_scales.Axis(label="", from_zero=True), [1, 5], 500, 0)
    parts = re.findall(r"([ML])([\d.]+) ([\d.]+)", _charts._path(curve, x, y))
    drawn = [(kind, float(a), float(b)) for kind, a, b in parts]
    for (_, left, above), (kind, right, below) in itertools.pairwise(drawn):
        if kind == "L" and right > left:
            # Horizontal, at the height of the larger value; SVG's y goes down.
            ends = [y.place(value) for at, value in points if value is not None and left - 1 < x.place(at) < right + 1]
            assert above == below == pytest.approx(min(ends), abs=0.01)
    assert [kind for kind, *_ in drawn].count("M") == 2
    known = [(x.place(at), y.place(value)) for at, value in points if value is not None]
    assert all(min(math.dist(each, (a, b)) for _, a, b in drawn) < 0.01 for each in known)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("values", [[1e-12, 1e-6], [0.3, 0.4], [5, 5], [1, 2000], [1e-3, 7e5], [0.1, 0.25]])
def test_ticks_are_few_and_in_the_range(values, log):
    scale = _scales.scale(_scales.Axis(label="", log=log), values, 0, 100)
    ticks = scale.ticks()
    assert 1 <= len(ticks) <= 10
    assert all(0 <= scale.place(tick) <= 100 + 1e-6 for tick in ticks)
    assert all(0 <= scale.place(value) <= 100 for value in values)


def luminance(color):
    parts = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_color_of_text_and_lines_has_contrast_on_every_ground():
    """By WCAG 2: 4.5 for text; the colors of curves have it too. In light, dark and print."""
    style = (pathlib.Path(pages.__file__).parent / "page.css").read_text()
    schemes = [dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in re.findall(r":root \{(.*?)\}", style, re.S)]
    assert len(schemes) == 3
    for colors in schemes:
        for name in ("ink", "quiet", "link", "bad", "warn", "good", *(f"c{index}" for index in range(_charts.COLORS))):
            for ground in ("paper", "box"):
                light, dark = sorted((luminance(colors[name]), luminance(colors[ground])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, ground)
    rest = re.sub(r":root \{.*?\}", "", style, flags=re.S)
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b", rest), "a color that is not one of the scheme"


def test_curves_differ_by_mark_where_colors_are_not_seen():
    """Dots have no dashes."""
    marks = {str(_charts._mark(style, 0.0, 0.0)) for style in range(_charts.COLORS)}
    assert len(marks) == len(set(_charts._DASHES)) == _charts.COLORS


def test_a_comparison_at_one_rate_claims_no_choice_and_states_a_guarantee_once():
    found = comparison()
    for each in found["levels"]:
        each |= {"validation_accuracy_by_rate": {"1": 0.2}, "statement": "ε≤2 for all"}
    text = pages.comparison_page(found, name="grid", markdown="")
    assert "best by validation" not in text
    assert "Best rates" not in text
    assert text.count("ε≤2 for all") == 1
    names = Page(text).text_of("td", class_="name")
    assert {"blt", "identity"} <= set(names)


LINES = {
    "report": lambda folder: ["report", folder / "run"],
    "plan": lambda folder: [*PLAN, "--epsilon", "4"],
    "compare": lambda folder: ["compare", folder / "spec.toml", "--out", folder / "out"],
}


@pytest.mark.parametrize("command", LINES)
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("page.pdf", "must end in .html"),
        ("missing/page.html", "there is no folder"),
        ("folder.html", "is a folder"),
        ("full.html", "cannot be written"),
    ],
)
def test_a_page_that_cannot_be_written_is_refused_before_anything_is_done(tmp_path, monkeypatch, command, name, why):
    run_folders.start(tmp_path / "run")
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "spec.toml").write_text("")
    if name == "full.html":
        monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(tff_mf.InputError, match=r"^html='[^\n]*$") as refused:
        invoke(*LINES[command](tmp_path), "--html", tmp_path / name)
    assert why in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before


def refuse(*arguments, **more):
    raise OSError(28, "No space left on device")


def test_json_is_all_there_is_on_stdout(tmp_path):
    run_folders.whole(tmp_path / "run", audited=False)
    report = invoke("report", tmp_path / "run", "--json", "--html", tmp_path / "report.html")
    assert json.loads(report.stdout)["kind"] == "realised"
    assert {each.name for each in tmp_path.glob("*.html")} == {"report.html"}


@pytest.mark.parametrize("flags", [["--check"], ["--questions"]])
def test_a_page_goes_with_a_report(tmp_path, flags):
    run_folders.start(tmp_path / "run")
    found = invoke("report", tmp_path / "run", *flags, "--html", tmp_path / "page.html")
    assert found.exit_code == 2
    assert "--html does not go with" in found.stderr


def test_a_page_changes_no_report(tmp_path):
    run_folders.whole(tmp_path / "run", audited=False)
    invoke("report", tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert invoke("report", tmp_path / "run", "--html", tmp_path / "run" / "page.html").exit_code == 0
    (tmp_path / "run" / "page.html").unlink()
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_a_comparison_draws_every_seed_and_interval(texts):
    page = Page(texts["comparison"])
    shown = "".join(page.text_of("main"))
    for each in ("blt", "identity", "ε = 2", "it failed", "line of blt with seed 0"):
        assert each in shown
    groups = [each.get("class", "") for each in page.named("g")]
    assert len([each for each in groups if "faint" in each]) == 5
    assert len([each for each in page.named("line") if each.get("class") == "interval"]) == 1
    nothing = _report.as_dict([], planned=1, done=0, failed={"run": "it failed"})
    assert Page(pages.comparison_page(nothing, name="none", markdown="")).unbalanced == []
