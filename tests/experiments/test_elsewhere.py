"""What one machine made is believed, and goes on, on every other; changes within a tolerance lower no ε."""

import functools
import json
import math
import pathlib
import random
import re
import shutil

import checked_elsewhere
import environments
import forged_runs
import pytest
import used_elsewhere
from used_elsewhere import calibrate_to_account, save_to_load

from tff_mf.experiments import reports
from tff_mf.experiments.output import agreement

from .shared import critical

FILE = checked_elsewhere.__file__
FORGERIES = 250
# Changes that are far below and above the tolerances, and next to them on both sides.
SIZES = [10.0**-exponent for exponent in range(3, 13)] + [0.99e-9, 1.01e-9, 0.99e-6, 1.01e-6]


@pytest.fixture(scope="module")
def made(audited_run, tmp_path_factory):
    root = tmp_path_factory.mktemp("made")
    checked_elsewhere.make(str(root), ["blt-grid", "dense-grid"])
    shutil.copytree(audited_run[0], root / "audited")
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
    assert environments.call("oldest", FILE, "product") != environments.call("machine", FILE, "product")


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
            found = {each.split(":")[0] for each in critical(folder)}
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
    assert critical(folder, held=elsewhere["digest"]) == []


CLAIM, STRENGTH, OTHER, INPUT = "epsilon", "effective_noise_multiplier", "limit", "noise_multiplier"


@pytest.mark.parametrize(
    ("name", "factor", "agrees"),
    [
        *((CLAIM, 1 - 5e-10, True), (CLAIM, 1 - 2e-9, False), (CLAIM, 1 + 5e-7, True), (CLAIM, 1 + 2e-6, False)),
        *((STRENGTH, 1 + 5e-10, True), (STRENGTH, 1 + 2e-9, False), (STRENGTH, 1 - 5e-7, True)),
        *((OTHER, 1 - 5e-7, True), (OTHER, 1 + 5e-7, True), (OTHER, 1 - 2e-6, False), (OTHER, 1 + 2e-6, False)),
        *((INPUT, 1.0, True), (INPUT, 1 + 2**-52, False)),
    ],
)
@pytest.mark.parametrize("value", [3.0, 1e-25, 1e12])
def test_each_float_is_compared_by_the_rule_of_its_name(name, factor, agrees, value):
    assert agreement.agrees(name, value * factor, value) is agrees
    assert agreement.agrees("several", [{name: value * factor}], [{name: value}]) is agrees
    assert (agreement.differing({name: value * factor}, {name: value}) == []) is agrees


def test_a_bound_on_rounding_errors_has_a_tolerance_of_its_own():
    for stored in (2.5e-9 + 5e-13, 2.5e-9 - 5e-13, 2.5e-9):
        assert agreement.agrees("added_sensitivity", stored, 2.5e-9)
    assert not agreement.agrees("added_sensitivity", 2.4e-9, 2.5e-9)
    assert not agreement.agrees("sensitivity", 2.5e-9 - 5e-13, 2.5e-9)


@pytest.mark.parametrize(("stored", "recomputed"), [(1, 1.0), (1.0, 1), (True, 1), (None, 0.0), ("1", 1.0), ([], 1.0)])
def test_types_are_compared_too(stored, recomputed):
    for name in (CLAIM, STRENGTH, OTHER, INPUT):
        assert not agreement.agrees(name, stored, recomputed)


def test_only_equal_values_agree_with_zero_and_with_infinity():
    for value in (0.0, math.inf):
        assert agreement.agrees(CLAIM, value, value)
        assert not agreement.agrees(CLAIM, 1e-30, value)
    assert not agreement.agrees(CLAIM, math.nan, 1.0)
    assert not agreement.agrees(CLAIM, 1.0, math.inf)


def test_missing_and_further_fields_differ():
    whole = {"epsilon": 1.0, "at": [{"epsilon": 2.0}, {"epsilon": 3.0}]}
    assert agreement.differing({"epsilon": 1.0}, whole) == ["at"]
    assert agreement.differing({**whole, "more": 1}, whole) == ["more"]
    assert agreement.differing({**whole, "at": whole["at"][:1]}, whole) == ["at"]
    assert agreement.differing({**whole, "at": [*whole["at"][:1], {"epsilon": 3.0, "more": None}]}, whole) == ["at"]


def test_the_adopted_value_is_the_stored_one_where_it_agrees_and_the_recomputed_one_elsewhere():
    recomputed = {"epsilon": 8.000000000000002, "mu": 1.0, "rounds": 3}
    stored = {"epsilon": 8.0, "mu": 0.9, "rounds": 4, "more": 1}
    assert agreement.adopted(stored, recomputed) == {"epsilon": 8.0, "mu": 1.0, "rounds": 3}


HERE = "machine"
_ALL = tuple(name for name in environments.ENVIRONMENTS if name != HERE)


@pytest.fixture(scope="module")
def there(once_for_all):
    """A run, one that was stopped, artifacts and noise, as this machine makes them."""

    def make(root):
        environments.call(HERE, used_elsewhere.__file__, "make", root / "made")
        return root / "made"

    return once_for_all("machines", make)


def alarms(environment, root, *what):
    names = [each.__name__ for each in what] or None
    found = environments.call(environment, used_elsewhere.__file__, "used", root, names)
    return "\n".join(filter(None, found.values()))


def test_artifacts_are_loaded_and_their_noise_is_enough(tmp_path):
    used_elsewhere.make(tmp_path / "made", trained=False)
    assert not alarms("oldest", tmp_path / "made", save_to_load, calibrate_to_account)


# Long: beside what is tested above, test_same_integers.py has the numbers and fingerprints that a run goes on
# with.
@pytest.mark.long
@pytest.mark.parametrize("environment", _ALL)
def test_what_was_made_here_is_used_there(environment, there):
    assert not alarms(environment, there)


# Long: what was there here is used there above, by the same rules.
@pytest.mark.long
@pytest.mark.parametrize("environment", _ALL)
def test_what_was_made_there_is_used_here(environment, tmp_path):
    environments.call(environment, used_elsewhere.__file__, "make", tmp_path / "made")
    assert not alarms(HERE, tmp_path / "made")
