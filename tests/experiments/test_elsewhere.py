"""What one machine made is believed, and goes on, on every other; each figure has its tolerance."""

import math
import shutil

import checked_elsewhere
import environments
import pytest

from tff_mf.experiments import reports

FILE = checked_elsewhere.__file__


@pytest.fixture(scope="module")
def made(whole_run, tmp_path_factory):
    root = tmp_path_factory.mktemp("made")
    checked_elsewhere.make(str(root))
    shutil.copytree(whole_run[0], root / "whole")
    return root


@pytest.mark.parametrize("environment", environments.cases("oldest", "locale"))
def test_a_report_is_believed_on_every_machine(made, environment):
    assert environments.call(environment, FILE, "checked", str(made)) == {each.name: [] for each in made.iterdir()}


@pytest.mark.parametrize("environment", environments.cases("oldest"))
def test_a_report_that_another_machine_made_is_believed_here(environment, tmp_path):
    environments.call(environment, FILE, "make", str(tmp_path))
    assert checked_elsewhere.checked(str(tmp_path)) == {each.name: [] for each in tmp_path.iterdir()}


def test_machines_differ_at_all():
    """Otherwise the other tests show nothing."""
    assert environments.call("oldest", FILE, "product") != environments.call("machine", FILE, "product")


def agrees_in(name, stored, recomputed):
    agrees = reports.differing({name: stored}, {name: recomputed}) == []
    assert agrees == (reports.differing([{name: stored}], [{name: recomputed}], "several") == [])
    return agrees


@pytest.mark.parametrize("name", sorted(reports.CLAIMS))
@pytest.mark.parametrize("value", [3.0, 1e-4, 1e12, 1e-25])
def test_a_claim_may_be_larger_by_a_millionth_and_hardly_smaller(name, value):
    for factor, agrees in ((1 - 5e-10, True), (1 - 2e-9, False), (1 + 5e-7, True), (1 + 2e-6, False)):
        assert agrees_in(name, value * factor, value) is agrees
    for other in (0.0, math.nan, math.inf, None, str(value), int(value) + 1):
        assert not agrees_in(name, other, value)


def test_what_stands_in_files_is_equal_with_its_type():
    for name, value in (("noise_multiplier", 3.0), ("delta", 1e-6)):
        assert agrees_in(name, value, value)
        assert not agrees_in(name, value * (1 - 5e-10), value)
    for name in ("epsilon", "delta"):
        assert not any(agrees_in(name, *pair) for pair in ((1, 1.0), (1.0, 1), (True, 1), (None, 0.0), ([], 1.0)))


def test_missing_and_further_fields_differ():
    whole = {"epsilon": 1.0, "at": [{"epsilon": 2.0}, {"epsilon": 3.0}]}
    assert reports.differing({"epsilon": 1.0}, whole) == ["at"]
    assert reports.differing({**whole, "more": 1}, whole) == ["more"]
    assert reports.differing({**whole, "at": whole["at"][:1]}, whole) == ["at"]
    assert reports.differing({**whole, "at": [*whole["at"][:1], {"epsilon": 3.0, "more": None}]}, whole) == ["at"]
