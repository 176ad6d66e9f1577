"""What noise on a grid costs in the guarantee; the integers in which sums are exact."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st

import tff_mf
from tests.tff_mf.samplings import cyclic_epsilon, cyclic_sigma
from tff_mf import accounting
from tff_mf.accounting import grid_charge
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import on_grid
from tff_mf.numerics import normals
from tff_mf.problem import grids

from .grid_oracle import couplings, exact_scales

GRID = tff_mf.Grid(bits=16, max_clients=6500)
SCHEMA = tff_mf.MinSep(min_sep=10, max_participations=4)
LSTM = 4_050_748


@pytest.mark.parametrize("eta", [1e-9, 1e-4, 0.1, 1.0, 3.0, 10.0])
def test_pure_privacy_is_gaussian_privacy(eta):
    """The trade-off function of (η, 0)-DP is above that of √(π/2)·η, which no smaller constant gives for small η."""
    alpha = np.linspace(0, 1, 2001)[1:-1]
    pure = np.maximum(0, np.maximum(1 - np.exp(eta) * alpha, np.exp(-eta) * (1 - alpha)))

    def gdp(mu):
        return scipy.stats.norm.cdf(scipy.stats.norm.isf(alpha) - mu)

    assert np.all(gdp(math.sqrt(math.pi / 2) * eta) <= pure + 1e-15)
    if 1e-4 <= eta <= 0.1:
        assert not np.all(gdp(0.99 * math.sqrt(math.pi / 2) * eta) <= pure + 1e-15)


def test_a_sensitivity_that_is_known_takes_the_place_of_the_schemas():
    mechanism = tff_mf.BLT.production("b400")
    question = accounting.Question(
        mechanism=mechanism, rounds=40, sampling=SCHEMA, adjacency="replace-one", grid=GRID, dimension=10**6
    )
    charge = question.charge(3.0)
    assert (
        question.charge(3.0)
        is charge
        == grid_charge.charge(mechanism, 40, 4, noise_multiplier=3.0, grid=GRID, dimension=10**6)
    )
    assert question.unamplified(3.0, question.sensitivity) == question.unamplified(3.0) == question.guarantee(3.0)
    less = tff_mf.pattern_sensitivity(mechanism.cast_to_float32(), 40, [(0, 20)])
    found, expected = question.unamplified(3.0, less), 2 * (less.value + charge.sensitivity) / 3.0 + 2 * charge.mu
    assert expected <= found.mu < question.unamplified(3.0).mu
    assert found.mu == pytest.approx(expected, rel=1e-9)
    on_real_numbers = dataclasses.replace(question, grid=None, dimension=None)
    assert on_real_numbers.charge(3.0) is question.charge(0.0) is None
    assert on_real_numbers.unamplified(3.0, less).mu == pytest.approx(2 * less.value / 3.0, rel=1e-9)


def test_restarts_bound_the_rounds_of_a_stream():
    unstable = tff_mf.BandedToeplitz(column=[1.0, -1.5])
    arguments = {"noise_multiplier": 1.0, "grid": GRID, "dimension": 10}
    with pytest.raises(InputValueError, match="restart the noise earlier"):
        tff_mf.guarantee(unstable, 80, SCHEMA, **arguments)
    assert tff_mf.guarantee(unstable, 80, SCHEMA, **arguments, restart_every=20).mu < math.inf


@pytest.mark.once
def test_a_tail_enters_delta():
    """Both data sets: δ grows by (1 + e^ε)·tail, and ε is the inverse."""
    plain = tff_mf.Guarantee(mu=0.5)
    tailed = dataclasses.replace(plain, tail=1e-9)
    for epsilon in (0.0, 0.5, 2.0, 5.0):
        expected = plain.delta(epsilon) + (1 + math.exp(epsilon)) * 1e-9
        assert tailed.delta(epsilon) == pytest.approx(expected, rel=1e-9)
        assert tailed.delta(epsilon) >= expected
    for delta in (1e-3, 1e-6):
        for method in ("epsilon", "epsilon_by_pld", "epsilon_from_zcdp"):
            with_tail, without = getattr(tailed, method)(delta), getattr(plain, method)(delta)
            assert without < with_tail < 1.2 * without
        assert tailed.delta(tailed.epsilon(delta)) <= delta
    assert tailed.epsilon(1e-9) == math.inf
    assert tailed.delta(1e4) == 1.0


TAIL_OF_A_GRID = 1e-24


@pytest.mark.parametrize("delta", [1e-4, 1e-10, 1e-15])
def test_epsilon_is_finite_where_the_tail_tells_less_than_delta(delta):
    """The least δ that these laws allow at any ε is that of the threshold: ε is infinite above it, finite below."""
    for mu in np.linspace(0.1, 9.0, 30):
        least = scipy.stats.norm.sf(scipy.stats.norm.isf(TAIL_OF_A_GRID) - mu) + TAIL_OF_A_GRID
        epsilon = tff_mf.Guarantee(mu=float(mu), tail=TAIL_OF_A_GRID).epsilon(delta)
        assert (epsilon == math.inf) or least <= delta
        assert math.isfinite(epsilon) or least > delta / 4


def test_a_target_above_the_largest_epsilon_is_reached_with_a_smaller_one():
    arguments = {"grid": GRID, "dimension": LSTM}
    sigma = tff_mf.calibrate_noise_multiplier(tff_mf.Identity(), 40, SCHEMA, epsilon=60.0, delta=1e-10, **arguments)
    found = tff_mf.guarantee(tff_mf.Identity(), 40, SCHEMA, noise_multiplier=sigma, **arguments)
    assert 31 < found.epsilon(1e-10) < 33
    less = tff_mf.guarantee(tff_mf.Identity(), 40, SCHEMA, noise_multiplier=0.95 * sigma, **arguments)
    assert less.epsilon(1e-10) == math.inf
    setting = {"population": 100, "clients_per_round": 50, "delta": 1e-10, **arguments}
    amplified = cyclic_sigma(tff_mf.Identity(), 40, **setting, epsilon=60.0)
    assert cyclic_epsilon(tff_mf.Identity(), 40, **setting, noise_multiplier=amplified) < 60
    with pytest.raises(InputValueError, match="too small for noise on a grid"):
        tff_mf.calibrate_noise_multiplier(tff_mf.Identity(), 40, SCHEMA, epsilon=60.0, delta=1e-24, **arguments)


def test_tails_add_up():
    tailed = tff_mf.Guarantee(mu=3.0, tail=1e-12)
    composed = tff_mf.compose_guarantees(tailed, tff_mf.Guarantee(mu=4.0, tail=2e-12), tff_mf.Guarantee(mu=0.0))
    assert composed.tail == pytest.approx(3e-12, rel=1e-12)
    assert composed.tail >= 3e-12
    assert tailed.replace_one().tail == tailed.tail


def test_an_event_leaves_out_only_a_negligible_tail():
    assert tff_mf.Guarantee(mu=1.0, tail=1e-24).dp_event() == tff_mf.Guarantee(mu=1.0).dp_event()
    with pytest.raises(InputValueError, match="tail=1e-12"):
        tff_mf.Guarantee(mu=1.0, tail=1e-12).dp_event()


def test_a_dimension_beyond_every_proof_is_named():
    arguments = {"noise_multiplier": 1.0, "grid": GRID, "dimension": 2**63 - 1}
    with pytest.raises(InputValueError, match=r"dimension=9223372036854775807 does not fit .* take fewer values"):
        tff_mf.guarantee(tff_mf.Identity(), 40, SCHEMA, **arguments)
    with pytest.raises(InputValueError, match=r"epsilon=1e\+22 at delta=1e-06 has no noise on this grid"):
        tff_mf.calibrate_noise_multiplier(
            tff_mf.Identity(), 40, SCHEMA, epsilon=1e22, delta=1e-6, grid=GRID, dimension=LSTM
        )


def _nearly_singular(kind):
    """(1 + 0.6x)^13: rounded to multiples of 2^-13, some of its roots are beyond the unit circle."""
    column = np.array([1.0])
    for _ in range(13):
        column = np.convolve(column, [1.0, 0.6])
    toeplitz = tff_mf.BandedToeplitz(column=column.tolist())
    if kind == "toeplitz":
        return toeplitz
    if kind == "dense":
        return tff_mf.Dense(matrix=toeplitz.encoder(120))
    return tff_mf.Banded(values=np.repeat(column[:, np.newaxis], 120, axis=1))


def _largest_row_sum(recursion, rounds):
    """The largest sum of absolute values of a row of C̃⁻¹·diag(C), times T·s/C_tt + 1 of each column, in fractions."""
    below = couplings(recursion, rounds)
    units = exact_scales(recursion.mechanism, rounds) * recursion.deviation * recursion.largest_normal + 1
    inverse, found = [], Fraction(0)
    for t in range(rounds):
        row = [Fraction(int(i == t)) for i in range(rounds)]
        for past in range(t):
            if weight := Fraction(below[t, past]):
                row = [own - weight * other for own, other in zip(row, inverse[past], strict=True)]
        inverse.append(row)
        found = max(found, sum(abs(each) * Fraction(unit) for each, unit in zip(row, units, strict=True)))
    return float(found)


@pytest.mark.parametrize("kind", ["toeplitz", "banded", "dense"])
def test_integers_are_bounded_by_the_rows_of_the_rounded_matrix(kind):
    """By those of C, they would exceed int32 after 70 rounds, and the sums of their products 2^52."""
    found = on_grid(_nearly_singular(kind), deviation=2.0 * 2**8, largest_normal=13.5)
    assert found.largest >= _largest_row_sum(found, min(found.rounds, 120)) * (1 - 1e-6)
    assert found.largest * (np.abs(found.coefficients).sum(axis=1).max() + 1) * 2.0**found.coefficient_bits <= 2.0**52


@pytest.mark.parametrize("rounds", [1, 2, 11, 24])
def test_the_integers_of_fewer_rounds_are_bounded_by_the_rows_of_these(make_mechanism, rounds):
    """Never below the largest integer that normals of ±T and a rounding of 1 can give in these rounds."""
    found = on_grid(make_mechanism(24), deviation=3.0 * 2**8, largest_normal=13.5)
    assert found.largest_within(rounds) >= _largest_row_sum(found, rounds) * (1 - 1e-9)
    assert found.largest_within(rounds) <= found.largest


@pytest.mark.parametrize("rounds", [1, 9, 40])
def test_a_charge_is_that_of_the_rounds_of_its_run(rounds):
    """C⁻¹ of nine bands of ones is ±1 for ever: over 131,072 rounds, its integers grow to 29,000 times T·s."""
    ones = tff_mf.BandedToeplitz(column=[1.0] * 9)
    found = on_grid(ones, deviation=7.379 * 2**16, largest_normal=grids.LARGEST_NORMAL)
    whole = _largest_row_sum(found, rounds)
    assert whole * (1 - 1e-9) <= found.largest_within(rounds) <= whole * 1.01
    assert found.largest > 1000 * whole
    arguments = {"noise_multiplier": 7.379, "grid": GRID, "dimension": LSTM}
    charge = grid_charge.charge(ones, rounds, 4, **arguments)
    cell = 1 / found.deviation
    least = normals.rounding_error(
        cell=cell, limit=charge.limit, later=2.0**-53 * (whole + 1) * cell, later_relative=2.0**-53
    )
    assert least.log_ratio <= charge.log_ratio <= 1.01 * least.log_ratio
    # The rounds between restarts count, and a longer run costs no less.
    restarted = grid_charge.charge(ones, 40 * rounds, 4, **arguments, restart_every=rounds)
    assert restarted.log_ratio == pytest.approx(charge.log_ratio, rel=0.02)
    assert grid_charge.charge(ones, 40 * rounds, 4, **arguments).log_ratio > charge.log_ratio


def _least_guarantee(mechanism, rounds, schema, every, *, adjacency, sigma, grid, dimension):
    """Returns μ and the tail that the theorem of the charge needs, from a sum over all rounds of the run."""
    restarts = [min(every, rounds - begin) for begin in range(0, rounds, every)]
    scales = exact_scales(mechanism, every)
    found = on_grid(mechanism, deviation=sigma * 2**grid.bits, largest_normal=grids.LARGEST_NORMAL)
    largest = _largest_row_sum(found, every)
    cells = [float(1 / (found.deviation * scale)) for part in restarts for scale in scales[:part]]
    run = (mechanism, rounds, schema.max_participations)
    # Any T is allowed, for its tail.
    limit = grid_charge.charge(*run, noise_multiplier=sigma, grid=grid, dimension=dimension, restart_every=every).limit
    errors = [
        normals.rounding_error(cell=cell, limit=limit, later=2.0**-53 * (largest + 1) * cell, later_relative=2.0**-53)
        for cell in cells
    ]
    by_error = sum(dimension * (found.error(every) * cell) ** 2 for cell in cells)
    by_ratio = sum(dimension * error.log_ratio**2 for error in errors)
    charge = math.sqrt(by_error) + math.sqrt(math.pi / 2 * by_ratio)
    rounded = couplings(found, every) / scales[:, np.newaxis]
    exact = np.tril(found.mechanism.encoder(every), -1)
    change = np.linalg.norm(rounded - exact, axis=0).max() if hasattr(found, "coefficient_bits") else 0.0
    sensitivity = tff_mf.restart_sensitivity(found.mechanism, rounds, schema, restart_every=every).value
    ideal = (sensitivity + schema.max_participations * float(change)) / sigma
    return ideal * (2 if adjacency == "replace-one" else 1) + 2 * charge, sum(dimension * each.tail for each in errors)


@settings(max_examples=8)
@example(rounds=6, every=2, min_sep=2, bits=16, sigma=2.0, dimension=10**6, adjacency="zero-out")
@example(rounds=5, every=3, min_sep=1, bits=26, sigma=100.0, dimension=1, adjacency="replace-one")
@example(rounds=6, every=6, min_sep=6, bits=20, sigma=0.5, dimension=10**8, adjacency="zero-out")
@example(rounds=6, every=6, min_sep=6, bits=8, sigma=0.05, dimension=10**12, adjacency="zero-out")
@given(
    rounds=st.integers(1, 6),
    every=st.integers(1, 6),
    min_sep=st.integers(1, 6),
    bits=st.integers(8, 26),
    sigma=st.floats(-1.3, 2).map(lambda exponent: 10.0**exponent),
    dimension=st.integers(0, 12).map(lambda power: 10**power),
    adjacency=st.sampled_from(["zero-out", "replace-one"]),
)
def test_a_guarantee_on_a_grid_covers_every_round_of_the_run(
    make_mechanism, rounds, every, min_sep, bits, sigma, dimension, adjacency
):
    """With restarts too, all rounds are charged: of each restart, also of the last one."""
    every, grid = min(every, rounds), tff_mf.Grid(bits=bits, max_clients=9)
    schema = tff_mf.MinSep(min_sep=min_sep, max_participations=(rounds - 1) // min_sep + 1)
    mechanism = make_mechanism(every)
    setting = {"grid": grid, "dimension": dimension, "adjacency": adjacency}
    try:
        found = tff_mf.guarantee(mechanism, rounds, schema, noise_multiplier=sigma, restart_every=every, **setting)
    except InputValueError as refused:
        if "fewer bits" not in str(refused):
            raise
        # The integers or the errors of some mechanisms grow too large on a fine grid, and tests of those are elsewhere.
        reject()
    least, tail = _least_guarantee(mechanism, rounds, schema, every, sigma=sigma, **setting)
    assert least * (1 - 1e-13) <= found.mu
    assert tail * (1 - 1e-9) <= found.tail <= 1.1e-24


@pytest.mark.parametrize("restarts", [1, 2])
@pytest.mark.parametrize(("theta", "omega"), [((0.5,), (3.0,)), ((0.9, 0.3), (1.5, 2.0))])
def test_errors_of_the_sums_of_all_rounds_are_charged(theta, omega, restarts):
    """Of a stream whose integers grow, with hardly any noise on a coarse grid: there e is a good part of the charge."""
    blt, schema = tff_mf.BLT(theta=theta, omega=omega), tff_mf.SingleParticipation()
    setting = {"grid": tff_mf.Grid(bits=8, max_clients=9), "dimension": 10**6, "adjacency": "zero-out"}
    found = on_grid(blt, deviation=0.05 * 2**8, largest_normal=grids.LARGEST_NORMAL)
    every = min(found.rounds, 30)
    run = (blt, restarts * every, schema)
    guarantee = tff_mf.guarantee(*run, noise_multiplier=0.05, restart_every=every, **setting)
    least, _ = _least_guarantee(*run, every, sigma=0.05, **setting)
    assert least * (1 - 1e-13) <= guarantee.mu
    by_error = 2 * math.sqrt(run[1] * 10**6) * found.error(every) / found.deviation
    # Without e, or with the e of one round, μ would be below the least.
    assert guarantee.mu - least < 0.9 * by_error


@pytest.mark.parametrize("widest", [0.13, 0.26, 0.38, 1.01, 1.9])
def test_wide_cells_of_every_round_are_within_the_log_ratio(widest):
    """η is not largest at the ends of the widths of the rounds where wide cells are divided for its proof."""
    rounds, ratio = 12, 1.3
    matrix = np.eye(rounds) - np.diag(np.full(rounds - 1, 3.0), -1)
    matrix[rounds // 2 :] *= ratio
    mechanism, deviation = tff_mf.Dense(matrix=matrix), ratio / widest
    found = on_grid(mechanism, deviation=deviation, largest_normal=grids.LARGEST_NORMAL)
    arguments = {"noise_multiplier": deviation / 2**8, "grid": tff_mf.Grid(bits=8, max_clients=2), "dimension": 10}
    charge = grid_charge.charge(mechanism, rounds, 1, **arguments)
    eighths = [eighth / 8 for eighth in range(1, 16) if widest / ratio < eighth / 8 < widest]
    for width in (*np.linspace(widest / ratio, widest, 50), *eighths):
        later = (found.largest + 1) * 2.0**-53 * width
        error = normals.rounding_error(cell=width, limit=charge.limit, later=later, later_relative=2.0**-53)
        assert error.log_ratio <= charge.log_ratio


@pytest.mark.parametrize("variant", ["full", "online", "vanilla"])
@pytest.mark.parametrize("rounds", [1, 3, 300, 1024])
def test_coarse_bounds_of_trees_are_above_those_of_the_inverse(variant, rounds, monkeypatch):
    tree = tff_mf.Tree(rounds, variant=variant)
    exact = on_grid(tree, deviation=1e5, largest_normal=13.5)
    monkeypatch.setattr("tff_mf.mechanisms.tree.MOST_WHOLE_ROUNDS", 0)
    coarse = on_grid(tree, deviation=1e5, largest_normal=13.5)
    assert exact.largest <= coarse.largest
    assert len(exact._blocks) == len(coarse._blocks)
    assert np.all(np.array(exact._blocks) <= np.array(coarse._blocks) * (1 + 1e-12))
    assert exact.error(rounds) <= coarse.error(rounds)


@pytest.mark.sampled
@pytest.mark.parametrize(("theta", "omega"), [((0.5,), (3.0,)), ((1.0,), (2.5,)), ((0.9, 0.3), (1.5, 2.0))])
@pytest.mark.parametrize("bits", [0, 2, 16, 30])
def test_a_stream_ends_before_its_error_voids_the_bound_on_its_integers(theta, omega, bits):
    # The buffers of these C⁻¹ grow, and the bounds hold for errors of at most half a unit.
    found = on_grid(tff_mf.BLT(theta=theta, omega=omega), deviation=2.0**bits, largest_normal=13.0)
    assert 0 < found.error(found.rounds) <= min(2.0**-6, 2.0**-12 * found.unit)
    assert found.largest <= 2.0**52
    assert 1 < found.rounds <= 64


def test_a_bound_on_the_error_counts_the_subtraction_of_a_half():
    """Of an L of up to `past`, which is rounded to half of its last place, whatever the error before."""
    for theta in (0.5, 1.0):
        found = on_grid(tff_mf.BLT(theta=[theta], omega=[0.25]), deviation=2.0**20, largest_normal=13.0)
        past = found.largest - found.unit
        assert found.error(9) >= 2.0**-53 * (past + 1)


@pytest.mark.parametrize("dimension", [1, 2, 3, 4, 5, 2**20, 2**20 + 1, 2**22, 2**22 + 1, 4_050_748, 2**40])
def test_auto_takes_half_the_bits_of_the_dimension_and_five(dimension):
    bits = math.ceil(math.log2(dimension) / 2) + 5
    assert tff_mf.Grid.auto(dimension=dimension, max_clients=10).bits == min(max(bits, 14), 22)


@st.composite
def sizes(draw):
    """Bits and clients, half of the time with a sum at a power of two, or one client beside it."""
    bits = draw(st.integers(8, 26))
    near = st.integers(0, 52 - bits).map(lambda power: 2**power)
    clients = draw(st.integers(1, 2**26) | st.tuples(near, st.sampled_from([-1, 0, 1])).map(sum))
    return bits, min(max(clients, 1), 2 ** (52 - bits))


@settings(max_examples=100)
@example((16, 2**15))
@example((26, 2**5))
@example((26, 2**5 - 1))
@example((8, 2**44))
@given(sizes())
def test_every_sum_fits(size):
    bits, max_clients = size
    grid = tff_mf.Grid(bits=bits, max_clients=max_clients)
    largest = max_clients * 2**bits
    assert grid.largest_sum == largest <= 2**52
    assert grid.largest_norm == 2**bits
    assert (grid.integers == "int32") == (largest <= 2**31 - 1)
    # In the type itself, in which the sum of these records neither wraps around nor becomes another number.
    assert int(np.array(largest).astype(grid.integers)) == largest
    assert int(np.array(-largest).astype(grid.integers)) == -largest
    with pytest.raises(InputValueError, match="exceeds the maximum"):
        tff_mf.Grid(bits=bits, max_clients=2 ** (52 - bits) + 1)
    modulus = 2**grid.bits_per_coordinate
    assert modulus // 2 < 2 * largest + 1 <= modulus
