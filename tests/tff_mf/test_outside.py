"""Mechanisms from outside of this package work everywhere, and laws and streams find what a careless author writes."""

import dataclasses

import numpy as np
import pytest

import tff_mf
from tff_mf.accounting import grid_charge
from tff_mf.mechanisms import Recursion, of_kind
from tff_mf.mechanisms.recursion import DRAWN, NEW, Case
from tff_mf.noise import numpy as streams

from .mechanism_laws import GRID, MechanismLaws, largest_norm
from .outside import any_matrix, geometric, geometric_class, geometric_with_a_recursion, mixed_matrix, with_diagonals

SCHEMA = tff_mf.MinSep(min_sep=3, max_participations=3)
THREE = np.array([1.0, 0.5, 0.25])


class TestOurs(MechanismLaws):
    """The mechanisms of this package obey the laws."""

    @pytest.fixture(autouse=True)
    def _of_each_kind(self, make_mechanism):
        self.make = make_mechanism

    def make(self, rounds):
        raise NotImplementedError


class TestMatrix(MechanismLaws):
    """A matrix without structure, of both signs, from outside."""

    def make(self, rounds):
        return any_matrix(mixed_matrix(rounds))


class TestGeometric(MechanismLaws):
    """A Toeplitz mechanism from outside."""

    def make(self, rounds):
        return geometric_with_a_recursion()


class TestDiagonals(MechanismLaws):
    """A banded mechanism from outside."""

    def make(self, rounds):
        return with_diagonals(lambda n: np.outer(THREE, np.ones(n)), max_rounds=property(lambda self: 60))


def column(mechanism, rounds):
    return np.append(1.0, mechanism.alpha * mechanism.beta ** np.arange(rounds - 1))


def test_arrays_of_another_shape_or_type_have_no_sensitivity():
    for mechanism in (
        with_diagonals(lambda n: THREE[:, np.newaxis]),
        geometric(coefficients=lambda self, n: column(self, n)[:40]),
        geometric(coefficients=lambda self, n: column(self, n).astype(np.float32)),
    ):
        with pytest.raises(tff_mf.InputError, match=r"diagonals|coefficients"):
            tff_mf.sensitivity(mechanism, 100, SCHEMA)


@pytest.mark.parametrize("own", ["blt", "identity"])
def test_a_kind_of_this_package_cannot_be_replaced(own):
    ours = of_kind(own)
    with pytest.raises(tff_mf.InputError, match=f"kind='{own}' is the kind of .*choose another"):
        geometric_class(own=own)
    assert of_kind(own) is ours


class Heavier(tff_mf.BLT):
    """A subclass whose C is not that of its base class."""

    def coefficients(self, rounds):
        return 2 * super().coefficients(rounds)


class HeavierTree(tff_mf.Tree):
    def encoder(self, rounds):
        return 2 * super().encoder(rounds)


class HeavierScaledBLT(tff_mf.ScaledBLT):
    def encoder(self, rounds):
        return 2 * super().encoder(rounds)


@pytest.mark.parametrize(
    ("mechanism", "base"),
    [
        (Heavier(theta=[0.5], omega=[0.5]), tff_mf.BLT(theta=[0.5], omega=[0.5])),
        (HeavierTree(16), tff_mf.Tree(16)),
        tuple(kind(theta=[0.5], omega=[0.5], scales=[1.0] * 16) for kind in (HeavierScaledBLT, tff_mf.ScaledBLT)),
    ],
)
def test_a_subclass_inherits_neither_a_closed_form_nor_a_file_nor_noise(mechanism, base, tmp_path):
    found, once = (tff_mf.sensitivity(each, 16, tff_mf.SingleParticipation()) for each in (mechanism, base))
    assert found == pytest.approx(2 * once)
    restarted = tff_mf.restart_sensitivity(mechanism, 16, SCHEMA, restart_every=8).value
    assert restarted >= largest_norm(np.kron(np.eye(2), mechanism.encoder(8)), SCHEMA.patterns(16)) * (1 - 1e-12)
    for use in (
        lambda: tff_mf.save(mechanism, tmp_path / "file"),
        lambda: streams.build_stream(mechanism, dimension=2, stddev=1.0),
    ):
        with pytest.raises(tff_mf.InputError, match="has no kind of its own"):
            use()


def test_a_subclass_with_a_kind_inherits_no_bounds_on_a_grid():
    """A BLT's weights are its parameters, so that its recursion on a grid is of exactly C."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Other(tff_mf.BLT):
        kind = "blt_with_another_recursion"

        def recursion(self):
            return Recursion.linear(past=[0.5 * each for each in self.omega], after=[[(0, 0.5), (NEW, 1.0)]])

    given = {"noise_multiplier": 1.0, "grid": GRID, "dimension": 10}
    assert grid_charge.charge(tff_mf.BLT(theta=[0.5], omega=[0.5]), 9, 2, **given).sensitivity == 0
    assert grid_charge.charge(Other(theta=[0.5], omega=[0.5]), 9, 2, **given).sensitivity > 0.5


def until(last, *, rounds=None, **changes):
    """Right for `last` rounds, and of another structure after them."""

    def recursion(self):
        good = Case(past=((0, self.alpha),), after=(((0, self.beta), (NEW, 1.0)),))
        cases = good, dataclasses.replace(good, **changes)
        case = lambda done, tables, operations: operations.minimum(done // last, 1)  # noqa: E731
        return Recursion(rows=1, cases=cases, case=case, rounds=rounds)

    return recursion


def linear(scale=1.0, past=None, after=None):
    return lambda self: Recursion.linear(
        scale=scale, past=past or [self.alpha], after=after or [[(0, self.beta), (NEW, 1.0)]]
    )


HOSTILE = {
    "repeats noise": linear(scale=0.0, past=[-1.0], after=[[(0, 1.0), (DRAWN, 1.0)]]),
    "adds none": linear(scale=0.0),
    "adds 1 % less": linear(scale=0.99),
    "adds independent noise": linear(past=[0.0]),
    "ends after 20 rounds": until(20, scale=0.0),
    "is not a number": linear(scale=float("nan")),
}


@pytest.mark.parametrize("grid", [None, GRID], ids=["floats", "grid"])
@pytest.mark.parametrize("recursion", HOSTILE.values(), ids=HOSTILE)
def test_a_recursion_that_is_not_the_inverse_has_no_noise(recursion, grid):
    with pytest.raises(tff_mf.InputError, match=r"recursion of kind 'geometric_\d+' is (not C⁻¹z: row|<object)"):
        streams.build_stream(geometric(recursion=recursion), dimension=2, stddev=1.0, grid=grid)


@pytest.mark.parametrize(("size", "scale"), [(0.5, 1.0), (2.0**40, 0.99 * 2.0**-40)], ids=["half", "of small numbers"])
def test_an_encoder_that_is_not_of_the_noise_has_no_noise(size, scale):
    mechanism = geometric(coefficients=lambda self, n: size * column(self, n), recursion=linear(scale=scale))
    with pytest.raises(tff_mf.InputError, match="row 0 has the weights"):
        streams.build_stream(mechanism, dimension=2, stddev=2.0**60)


@pytest.mark.parametrize("grid", [None, GRID], ids=["floats", "grid"])
@pytest.mark.parametrize("has_recursion", [False, True], ids=["without a recursion", "with a recursion"])
@pytest.mark.parametrize("kind", ["coefficients", "diagonals"])
def test_an_encoder_that_is_not_of_the_sensitivity_has_no_noise(kind, has_recursion, grid):
    """The noise is that of the encoder, and less of it than coefficients or diagonals account for."""
    methods = {"encoder": lambda self, n: np.eye(n) + 0.5 * np.eye(n, k=-1), "max_rounds": 40}
    if has_recursion:
        methods["recursion"] = lambda self: Recursion.linear(past=[0.5], after=[[(NEW, 1.0)]])
    if kind == "coefficients":
        mechanism = geometric(coefficients=lambda self, n: np.eye(1, n)[0], **methods)
    else:
        mechanism = with_diagonals(lambda n: np.ones((1, n)), count=1, **methods)
    with pytest.raises(tff_mf.InputError, match="has another C in"):
        streams.build_stream(mechanism, dimension=2, stddev=1.0, grid=grid)


@pytest.mark.parametrize("special", [1, 20, 40], ids=["one round", "half of them", "the whole run"])
def test_an_encoder_that_depends_on_the_number_of_rounds_has_no_noise(special):
    """What is accounted for in so many rounds would not be what runs; also if all numbers are small."""
    whole = mixed_matrix(40) * 2.0**-40

    def encoder(self, rounds):
        return whole[:rounds, :rounds] * (1 / 3 if rounds == special else 1)

    with pytest.raises(tff_mf.InputError, match="has another C in"):
        streams.build_stream(any_matrix(whole, encoder=encoder), dimension=2, stddev=1.0)


def test_a_recursion_that_differs_in_later_rounds_adds_to_the_sensitivity():
    """Beyond the rounds that are compared."""
    mechanism = geometric(recursion=until(100, rounds=200, past=((0, 0.0),)))
    assert grid_charge.charge(mechanism, 200, 4, noise_multiplier=1.0, grid=GRID, dimension=1000).sensitivity > 0.5


def test_a_theorem_about_bands_takes_no_grid_with_a_recursion_from_outside():
    mechanism = any_matrix(np.eye(4))
    on_grid = {"noise_multiplier": 2.0, "delta": 1e-4, "grid": GRID, "dimension": 5}
    for sampling in (
        tff_mf.Poisson(population=40, clients_per_round=2),
        tff_mf.BMinSep.of_population(min_sep=2, population=40, clients_per_round=2),
    ):
        with pytest.raises(tff_mf.InputError, match="outside of tff_mf"):
            tff_mf.epsilon(mechanism, 4, sampling, **on_grid)
    bins = tff_mf.BallsInBins(groups=2, clients_per_round=2)
    assert 0 < tff_mf.epsilon(mechanism, 4, bins, **on_grid) < np.inf


def test_a_banded_outsider_is_amplified_by_its_bands():
    outsider = with_diagonals(lambda n: np.outer([1.0, 0.5], np.ones(n)), count=2)
    sampling = tff_mf.CyclicPoisson(groups=2, population=100, clients_per_round=5)
    found, expected = (
        tff_mf.guarantee(each, 8, sampling, noise_multiplier=1).dp_event()
        for each in (outsider, tff_mf.BandedToeplitz(column=[1.0, 0.5]))
    )
    assert found == expected
