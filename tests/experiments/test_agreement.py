"""Stored values agree with recomputed ones by the rule of their name."""

import math

import pytest

from tff_mf.experiments.output import agreement

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
