"""Reports are believed on every machine, and figures that are changed by less than a tolerance lower no ε."""

import functools
import json
import pathlib
import random
import re
import shutil

import checked_elsewhere
import environments
import forged_runs
import pytest
import run_folders

from tff_mf.experiments import reports
from tff_mf.experiments.output import agreement

FILE = checked_elsewhere.__file__
FORGERIES = 250
# Changes that are far below and above the tolerances, and next to them on both sides.
SIZES = [10.0**-exponent for exponent in range(3, 13)] + [0.99e-9, 1.01e-9, 0.99e-6, 1.01e-6]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made")
    checked_elsewhere.make(str(root), ["blt-grid", "dense-grid"])
    run_folders.whole(root / "audited")
    return root


@pytest.mark.parametrize("environment", environments.cases("oldest", "locale"))
def test_a_report_is_believed_on_every_machine(made, environment):
    assert environments.call(environment, FILE, "checked", str(made)) == {each.name: [] for each in made.iterdir()}


# Long: CI checks the runs of this machine on every other one.
@pytest.mark.long
@pytest.mark.parametrize("environment", ["machine", "haswell", "skylakex", "no-avx512", "oldest"])
def test_a_report_of_every_mechanism_from_every_machine_is_believed_on_every_machine(tmp_path, environment):
    environments.call(environment, FILE, "make", str(tmp_path))
    for name in environments.ENVIRONMENTS:
        found = environments.call(name, FILE, "checked", str(tmp_path))
        assert {run: wrong for run, wrong in found.items() if wrong} == {}, name
        assert len(found) == len(checked_elsewhere.RUNS)


def test_machines_differ_at_all():
    """Otherwise the other tests show nothing. Reports of these runs have had the same digest on all of them."""
    assert environments.call("oldest", FILE, "product") != checked_elsewhere.product()


def floats(value, path=()):
    """Yields the places of all floats in JSON."""
    if isinstance(value, float):
        yield path
    elif isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from floats(inner, (*path, key))


def at(value, path):
    return functools.reduce(lambda inner, key: inner[key], path, value)


def changed(report, paths, factor):
    """Returns a report with some of its floats changed, and all that follows from them written anew."""
    forged = json.loads(json.dumps(report))
    for path in paths:
        at(forged, path[:-1])[path[-1]] *= factor
    return reports.sealed(forged)


def forgeries(report):
    """Yields places of one, several, or all claims of a report, and by what to change them, mostly to claim less."""
    places = [path for path in floats(report) if at(report, path)]
    claims = [path for path in places if path[-1] in agreement.CLAIMS]
    generator = random.Random("small forgeries")
    for number in range(FORGERIES):
        paths = claims if number % 5 == 0 else generator.sample(places, generator.choice((1, 1, 2, 5)))
        sign = 1 if number % 7 == 0 else -1
        yield paths, 1 + sign * SIZES[number % len(SIZES)]


def assert_nothing_too_small(stated, recomputed):
    for path in floats(recomputed):
        if path[-1] in agreement.CLAIMS:
            assert at(stated, path) >= at(recomputed, path) * (1 - 1e-9), path
    for shown, name in zip(
        re.findall(r"ε≤([\d.]+)", reports.headline(stated)), ("epsilon_of_a_person", "epsilon"), strict=False
    ):
        assert float(shown) >= recomputed["claim"][name] * (1 - 1e-9)


@pytest.mark.parametrize("realised", [True, False])
def test_small_changes_of_many_figures_add_up_to_no_smaller_epsilon(made, realised):
    recomputed = reports.build(made / "dense-grid", realised=realised)
    believed = 0
    for change in forgeries(recomputed):
        forged = changed(recomputed, *change)
        if not reports.differences(forged, recomputed):
            believed += 1
            assert_nothing_too_small(forged, recomputed)
    assert 10 < believed < FORGERIES / 2


# Through the whole check, which takes a second; the test before has all of them.
@pytest.mark.sampled(most=4)
@pytest.mark.parametrize("part", range(50))
def test_small_changes_with_everything_written_anew_are_believed_or_found_by_the_whole_check(made, tmp_path, part):
    folder = pathlib.Path(shutil.copytree(made / "dense-grid", tmp_path / "run"))
    recomputed = reports.build(folder, realised=True)
    for paths, factor in list(forgeries(recomputed))[part::50][:: 10 if part else 5]:
        forged = changed(recomputed, paths, factor)
        (folder / "report.json").write_text(reports.as_text(forged))
        (folder / "report.md").write_text(reports.markdown(forged))
        with forged_runs.remembered():
            found = {each.field for each in reports.check(folder) if each.severity == "critical"}
        assert (found == set()) == (reports.differences(forged, recomputed) == []), paths
        assert found <= {"report"}


def test_an_edited_fact_is_found_although_all_figures_agree(made, tmp_path):
    recomputed = reports.build(made / "blt-grid", realised=True)
    for name, edit in (("assumptions", {"state": "holds"}), ("findings", {"values": {"rounds": 1}})):
        edited = {**recomputed, name: [{**each, **edit} for each in recomputed[name]]}
        assert (reports.differences(edited, recomputed) == [name]) == (edited != recomputed)
    edited = {**recomputed, "claim": {**recomputed["claim"], "state": "stated", "open_questions": []}}
    assert (reports.differences(edited, recomputed) == ["claim"]) == (edited != recomputed)


@pytest.mark.parametrize("factor", [1 - 1e-12, 1 + 1e-12, 1 - 1e-3])
def test_an_input_is_compared_exactly(made, factor):
    recomputed = reports.build(made / "blt-grid", realised=True)
    for path in (("noise", "noise_multiplier"), ("claim", "delta"), ("clipping", "clip_norm")):
        assert path[0] in reports.differences(changed(recomputed, [path], factor), recomputed)


def test_a_report_that_is_printed_on_another_machine_keeps_its_digest(made, tmp_path):
    """`tff-mf report RUN` writes the report too, with other last bits there."""
    folder = pathlib.Path(shutil.copytree(made / "blt-grid", tmp_path / "run"))
    report = json.loads((folder / "report.json").read_text())
    claims = [path for path in floats(report) if path[-1] in ("mu", "epsilon")]
    (folder / "report.json").write_text(reports.as_text(elsewhere := changed(report, claims, 1 + 1e-12)))
    assert elsewhere["digest"] != report["digest"]
    assert reports.write(folder, realised=True) == elsewhere
    assert [each for each in reports.check(folder, held=elsewhere["digest"]) if each.severity == "critical"] == []
