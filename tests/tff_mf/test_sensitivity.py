import dataclasses
import itertools
import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tff_mf
from tff_mf.mechanisms import ToeplitzMechanism

THEOREM = re.compile(r"^Toeplitz, non-increasing.*theorem 3\.1$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column(ToeplitzMechanism):
    """A Toeplitz mechanism of any coefficients."""

    kind = "column"
    column: tuple[float, ...]

    @property
    def max_rounds(self):
        return len(self.column)

    def coefficients(self, rounds):
        return np.array(self.column[:rounds], dtype=np.float64)

    def inverse_coefficients(self, rounds):
        return np.linalg.inv(self.encoder(rounds))[:, 0]

    def cast_to_float32(self):
        return self


def brute_force(encoder, schema):
    """Largest norm over all patterns, and over the contributions +1 and −1 in each of their rounds."""
    largest = 0.0
    for pattern in schema.patterns(len(encoder)):
        gram = encoder[:, pattern].T @ encoder[:, pattern]
        for signs in itertools.product((1, -1), repeat=len(pattern)):
            largest = max(largest, np.array(signs) @ gram @ np.array(signs))
    return np.sqrt(largest)


@st.composite
def settings(draw):
    rounds = draw(st.integers(1, 9))
    min_sep = draw(st.integers(1, rounds))
    max_participations = draw(st.integers(1, (rounds - 1) // min_sep + 1))
    schema = draw(st.sampled_from([tff_mf.MinSep, tff_mf.FixedEpoch]))
    return rounds, schema(min_sep=min_sep, max_participations=max_participations)


def columns(**bounds):
    return st.lists(st.one_of(st.floats(**bounds), st.just(0.0)), min_size=9, max_size=9)


@given(settings(), columns(min_value=0.0, max_value=2.0))
def test_non_increasing_coefficients_are_exact(setting, values):
    rounds, schema = setting
    mechanism = Column(column=tuple(sorted(values, reverse=True)))
    result = tff_mf.explain_sensitivity(mechanism, rounds, schema)
    assert result.exact
    assert result.value == pytest.approx(brute_force(mechanism.encoder(rounds), schema), rel=1e-12, abs=1e-150)


@given(settings(), columns(min_value=-2.0, max_value=2.0))
def test_no_rule_is_below_brute_force(setting, values):
    rounds, schema = setting
    mechanism = Column(column=tuple(values))
    result = tff_mf.explain_sensitivity(mechanism, rounds, schema)
    largest = brute_force(mechanism.encoder(rounds), schema)
    assert result.value >= largest * (1 - 1e-12)
    if result.exact:
        assert result.value == pytest.approx(largest, rel=1e-12, abs=1e-150)


@given(settings(), columns(min_value=-2.0, max_value=2.0), st.integers(0, 2**32 - 1))
def test_no_contribution_of_vectors_exceeds_the_bound(setting, values, seed):
    rounds, schema = setting
    mechanism = Column(column=tuple(values))
    generator = np.random.default_rng(seed)
    bound = tff_mf.sensitivity(mechanism, rounds, schema)
    for pattern in schema.patterns(rounds):
        contributions = np.zeros((rounds, 3))
        contributions[list(pattern)] = generator.standard_normal((len(pattern), 3))
        norms = np.linalg.norm(contributions, axis=1, keepdims=True)
        contributions /= np.where(norms > 0, norms, 1)
        assert np.linalg.norm(mechanism.encoder(rounds) @ contributions) <= bound * (1 + 1e-12)


@given(settings(), st.lists(st.floats(0.01, 1.0), min_size=2, max_size=2), st.floats(0.0, 1.6))
def test_blt_against_brute_force(setting, theta, total):
    rounds, schema = setting
    mechanism = tff_mf.BLT(theta=theta, omega=[total / 2, total / 2])
    result = tff_mf.explain_sensitivity(mechanism, rounds, schema)
    largest = brute_force(mechanism.encoder(rounds), schema)
    assert result.value >= largest * (1 - 1e-12)
    if total <= 1:
        assert result.value == pytest.approx(largest, rel=1e-12)


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 300))
@example(300, 1, 300)
def test_sum_of_shifts_is_the_sum_of_columns(rounds, min_sep, max_participations):
    max_participations = min(max_participations, (rounds - 1) // min_sep + 1)
    mechanism = tff_mf.BLT(theta=[1.0, 0.6], omega=[0.1, 0.5])
    schema = tff_mf.MinSep(min_sep=min_sep, max_participations=max_participations)
    directly = np.linalg.norm(mechanism.encoder(rounds)[:, : max_participations * min_sep : min_sep].sum(axis=1))
    assert tff_mf.sensitivity(mechanism, rounds, schema) == pytest.approx(directly, rel=1e-13)


TWICE = tff_mf.MinSep(min_sep=2, max_participations=2)


@pytest.mark.parametrize(
    "column",
    [
        (1.0, np.nextafter(1.0, 2.0), 0.5, 0.25),
        (1.0, 0.5, 0.25, np.nextafter(0.25, 1.0)),
        (1.0, 0.5, 0.25, -5e-324),
        (1.0, 0.0, 0.0, 5e-324),
        (1.0, 2.0, 0.5, 0.25),
    ],
)
def test_theorem_is_never_applied_outside_its_conditions(column):
    result = tff_mf.explain_sensitivity(Column(column=column), 4, TWICE)
    assert not result.exact
    assert not THEOREM.match(result.rule)
    assert result.value >= brute_force(Column(column=column).encoder(4), TWICE) * (1 - 1e-15)


def test_theorem_is_applied_at_the_edge_of_its_conditions():
    result = tff_mf.explain_sensitivity(Column(column=(1.0, 1.0, 0.5, 0.5)), 4, TWICE)
    assert result.exact
    assert THEOREM.match(result.rule)


def test_majorant_costs_next_to_nothing_just_outside():
    inside = tff_mf.sensitivity(Column(column=(1.0, 1.0, 0.5, 0.25)), 4, TWICE)
    outside = tff_mf.sensitivity(Column(column=(1.0, np.nextafter(1.0, 2.0), 0.5, 0.25)), 4, TWICE)
    assert outside == pytest.approx(inside, rel=1e-15)


def test_a_late_spike_is_not_charged_to_every_round():
    result = tff_mf.explain_sensitivity(Column(column=(1.0, *[0.0] * 98, 1.0)), 100, TWICE)
    assert "Cauchy-Schwarz" in result.rule
    assert result.value <= 2 * np.sqrt(2) * (1 + 1e-15)


def test_rising_coefficients_would_fool_the_earliest_pattern():
    """Why the conditions matter: the pattern of theorem 3.1 is not the worst one here."""
    mechanism = Column(column=(1.0, -1.0, 1.0, 0.0))
    earliest = np.linalg.norm(mechanism.encoder(4)[:, [0, 1]].sum(axis=1))
    schema = tff_mf.MinSep(min_sep=1, max_participations=2)
    assert tff_mf.sensitivity(mechanism, 4, schema) >= brute_force(mechanism.encoder(4), schema) > earliest


def test_bands_no_wider_than_the_separation_are_exact_whatever_their_signs():
    schema = tff_mf.MinSep(min_sep=3, max_participations=3)
    mechanism = Column(column=(0.5, -2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    result = tff_mf.explain_sensitivity(mechanism, 8, schema)
    assert result.exact
    assert result.value == pytest.approx(brute_force(mechanism.encoder(8), schema), rel=1e-14)


@pytest.mark.parametrize(("min_sep", "max_participations", "rounds"), [(1, 1, 1), (1, 16, 16), (400, 9, 10**6)])
def test_identity_is_the_root_of_the_participations(min_sep, max_participations, rounds):
    result = tff_mf.explain_sensitivity(
        tff_mf.Identity(), rounds, tff_mf.MinSep(min_sep=min_sep, max_participations=max_participations)
    )
    assert (result.value, result.exact) == (max_participations**0.5, True)


def test_large_settings_are_quick_and_agree_with_the_limit():
    schema = tff_mf.MinSep(min_sep=1, max_participations=10**6)
    value = tff_mf.sensitivity(tff_mf.BLT(theta=[0.5], omega=[0.5]), 10**6, schema)
    assert value == pytest.approx(2 * 1e3, rel=1e-5)


def test_the_schema_must_fit():
    with pytest.raises(tff_mf.InputError, match="max_participations=3 with min_sep=5 needs 11 rounds, but rounds=10"):
        tff_mf.sensitivity(tff_mf.Identity(), 10, tff_mf.MinSep(min_sep=5, max_participations=3))


def test_more_rounds_than_the_mechanism_has_are_refused():
    with pytest.raises(tff_mf.InputError, match="rounds=4 is more than the 3"):
        tff_mf.sensitivity(Column(column=(1.0, 0.5, 0.1)), 4, TWICE)


def test_coefficients_that_overflow_are_refused():
    for bad in (np.inf, np.nan):
        with pytest.raises(tff_mf.InputError, match="overflow"):
            tff_mf.sensitivity(Column(column=(1.0, bad, 0.0, 0.0)), 4, TWICE)


def test_rounds_that_no_memory_holds_are_refused():
    with pytest.raises(tff_mf.InputError, match="rounds=1000000000000"):
        tff_mf.sensitivity(tff_mf.Identity(), 10**12, TWICE)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("blt", 4, TWICE), "mechanism="),
        ((None, 4, TWICE), "mechanism="),
        ((tff_mf.BLT, 4, TWICE), "mechanism="),
        ((tff_mf.Identity(), 4, (2, 2)), "participation="),
        ((tff_mf.Identity(), 4, tff_mf.FixedEpoch), "participation="),
        ((tff_mf.Identity(), 4.0, TWICE), "rounds="),
        ((tff_mf.Identity(), 0, TWICE), "rounds="),
    ],
)
def test_wrong_objects_are_named(arguments, name):
    with pytest.raises(tff_mf.InputError, match=name):
        tff_mf.sensitivity(*arguments)


def test_fixed_epochs_are_tighter_than_min_sep_where_coefficients_rise():
    column = Column(column=(1.0, 0.5, 1.5, 0.25, 1.25, 0.125))
    setting = {"min_sep": 2, "max_participations": 3}
    fixed = tff_mf.explain_sensitivity(column, 6, tff_mf.FixedEpoch(**setting))
    assert fixed.exact
    assert fixed.value < tff_mf.sensitivity(column, 6, tff_mf.MinSep(**setting))


def test_fixed_epochs_of_many_rounds_fall_back_to_the_bounds_of_min_sep(monkeypatch):
    monkeypatch.setattr("tff_mf.sensitivities.toeplitz._MOST_PRODUCTS", 5)
    column, setting = Column(column=(1.0, 0.5, 1.5, 0.25)), {"min_sep": 2, "max_participations": 2}
    fixed = tff_mf.explain_sensitivity(column, 4, tff_mf.FixedEpoch(**setting))
    assert fixed == tff_mf.explain_sensitivity(column, 4, tff_mf.MinSep(**setting))


def test_numbers_whose_squares_are_zero_in_float64_count_all_the_same():
    for scale in (1e-170, 1e-200, 1e-307):
        for column in ((1.0, 0.5, 0.25, 0.125), (1.0, -0.5, 2.0, 0.125)):
            tiny, plain = Column(column=tuple(scale * each for each in column)), Column(column=column)
            for schema in (TWICE, tff_mf.FixedEpoch(min_sep=2, max_participations=2)):
                expected = scale * tff_mf.sensitivity(plain, 4, schema)
                assert tff_mf.sensitivity(tiny, 4, schema) == pytest.approx(expected, rel=1e-12, abs=0)
