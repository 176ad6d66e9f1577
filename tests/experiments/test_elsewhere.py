"""What one machine made is believed, and goes on, on every other; changes within a tolerance lower no ε."""

import functools
import json
import math
import random
import re
import shutil

import checked_elsewhere
import environments
import msgspec
import pytest

from tff_mf.experiments import reports

FILE = checked_elsewhere.__file__
FORGERIES = 250
# Changes that are far below and above the tolerances, and next to them on both sides.
SIZES = [10.0**-exponent for exponent in range(3, 13)] + [0.99e-9, 1.01e-9, 0.99e-6, 1.01e-6]


@pytest.fixture(scope="module")
def made(whole_run, tmp_path_factory):
    root = tmp_path_factory.mktemp("made")
    checked_elsewhere.make(str(root), ["blt-grid", "dense-grid"])
    shutil.copytree(whole_run[0], root / "whole")
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
    """Otherwise the other tests show nothing."""
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
    """Returns a report with some of its floats changed."""
    forged = json.loads(json.dumps(report))
    for path in paths:
        at(forged, path[:-1])[path[-1]] *= factor
    return forged


def forgeries(report):
    """Yields places of one, several, or all claims of a report, and by what to change them, mostly to claim less."""
    places = [path for path in floats(report) if at(report, path)]
    claims = [path for path in places if path[-1] in reports.CLAIMS]
    generator = random.Random("small forgeries")
    for number in range(FORGERIES):
        paths = claims if number % 5 == 0 else generator.sample(places, generator.choice((1, 1, 2, 5)))
        sign = 1 if number % 7 == 0 else -1
        yield paths, 1 + sign * SIZES[number % len(SIZES)]


def assert_nothing_too_small(stated, recomputed):
    for path in floats(recomputed):
        if path[-1] in reports.CLAIMS:
            assert at(stated, path) >= at(recomputed, path) * (1 - 1e-9), path
    headline = msgspec.convert(stated, reports.Report).headline
    for shown, name in zip(re.findall(r"ε≤([\d.]+)", headline), ("epsilon_of_a_person", "epsilon"), strict=False):
        assert float(shown) >= recomputed["claim"][name] * (1 - 1e-9)


@pytest.mark.parametrize("realised", [True, False])
def test_small_changes_of_many_figures_add_up_to_no_smaller_epsilon(made, realised):
    recomputed = reports.build(made / "dense-grid", realised=realised).as_json()
    believed = 0
    for change in forgeries(recomputed):
        forged = changed(recomputed, *change)
        if not reports.differing(forged, recomputed):
            believed += 1
            assert_nothing_too_small(forged, recomputed)
    assert 10 < believed < FORGERIES / 2


def agrees_in(name, stored, recomputed):
    return reports.differing({name: stored}, {name: recomputed}) == []


@pytest.mark.parametrize(
    ("name", "factor", "agrees"),
    [
        *(("epsilon", 1 - 5e-10, True), ("epsilon", 1 - 2e-9, False)),
        *(("epsilon", 1 + 5e-7, True), ("epsilon", 1 + 2e-6, False)),
        # What stands in files is equal.
        *(("noise_multiplier", 1 + 5e-10, False), ("delta", 1 - 5e-10, False), ("delta", 1.0, True)),
    ],
)
@pytest.mark.parametrize("value", [3.0, 1e-4, 1e12])
def test_each_float_is_compared_by_the_rule_of_its_name(name, factor, agrees, value):
    assert agrees_in(name, value * factor, value) is agrees
    assert (reports.differing([{name: value * factor}], [{name: value}], "several") == []) is agrees


@pytest.mark.parametrize("value", [1e-25, 0.0, math.inf])
def test_a_claim_has_no_absolute_tolerance(value):
    assert agrees_in("epsilon", value, value)
    for other in (1e-26, 1e-20, 1.0, math.nan):
        assert not agrees_in("epsilon", other, value)


@pytest.mark.parametrize(("stored", "recomputed"), [(1, 1.0), (1.0, 1), (True, 1), (None, 0.0), ("1", 1.0), ([], 1.0)])
def test_types_are_compared_too(stored, recomputed):
    for name in ("epsilon", "delta"):
        assert not agrees_in(name, stored, recomputed)


def test_missing_and_further_fields_differ():
    whole = {"epsilon": 1.0, "at": [{"epsilon": 2.0}, {"epsilon": 3.0}]}
    assert reports.differing({"epsilon": 1.0}, whole) == ["at"]
    assert reports.differing({**whole, "more": 1}, whole) == ["more"]
    assert reports.differing({**whole, "at": whole["at"][:1]}, whole) == ["at"]
    assert reports.differing({**whole, "at": [*whole["at"][:1], {"epsilon": 3.0, "more": None}]}, whole) == ["at"]
