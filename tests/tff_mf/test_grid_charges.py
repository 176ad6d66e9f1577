"""What noise on a grid costs in the guarantee, amplified or not; the integers in which sums are exact."""

import dataclasses
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st

import tff_mf
from tff_mf import accounting
from tff_mf.accounting import grid_charge
from tff_mf.accounting.balls_in_bins import widened
from tff_mf.accounting.question import Question
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import bounds_of, on_grid
from tff_mf.numerics import normals
from tff_mf.problem import grids

from .grid_oracle import couplings, exact_scales

GRID = tff_mf.Grid(bits=16, max_clients=6500)
SCHEMA = tff_mf.MinSep(min_sep=10, max_participations=4)
LSTM = 4_050_748
ROOMY = tff_mf.Grid(bits=16, max_clients=2000)
FREE = grid_charge.GridCharge(mu=0.0, tail=0.0, sensitivity=0.0, error=0.0, log_ratio=0.0, limit=12.0)


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
    less = tff_mf.pattern_sensitivity(mechanism.cast_to_float32(), 40, [(0, 20)])
    run = {"mechanism": mechanism, "rounds": 40, "sampling": SCHEMA, "adjacency": "replace-one"}
    for more in ({}, {"grid": GRID, "dimension": 10**6}):
        question = accounting.Question(**run, **more)
        assert question.unamplified(3.0, question.sensitivity) == question.unamplified(3.0) == question.guarantee(3.0)
        found, charge = question.unamplified(3.0, less), question.charge(3.0)
        assert (charge is None) == (not more)
        ideal, moved = (less.value, 0.0) if charge is None else (less.value + charge.sensitivity, charge.mu)
        assert found.mu < question.unamplified(3.0).mu
        assert 2 * ideal / 3.0 + 2 * moved <= found.mu == pytest.approx(2 * ideal / 3.0 + 2 * moved, rel=1e-9)


def test_restarts_bound_the_rounds_of_a_stream():
    unstable = tff_mf.BandedToeplitz(column=[1.0, -1.5])
    arguments = {"noise_multiplier": 1.0, "grid": GRID, "dimension": 10}
    with pytest.raises(InputValueError, match="restart the noise earlier"):
        tff_mf.guarantee(unstable, 80, SCHEMA, **arguments)
    assert tff_mf.guarantee(unstable, 80, SCHEMA, **arguments, restart_every=20).mu < math.inf


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
    run = tff_mf.Identity(), 40, tff_mf.Poisson(population=100, clients_per_round=50)
    amplified = tff_mf.calibrate_noise_multiplier(*run, epsilon=60.0, delta=1e-10, **arguments)
    assert tff_mf.epsilon(*run, noise_multiplier=amplified, delta=1e-10, **arguments) < 60
    with pytest.raises(InputValueError, match="too small for noise on a grid"):
        tff_mf.calibrate_noise_multiplier(tff_mf.Identity(), 40, SCHEMA, epsilon=60.0, delta=1e-24, **arguments)


def test_an_event_leaves_out_only_a_negligible_tail():
    assert tff_mf.Guarantee(mu=1.0, tail=1e-24).dp_event() == tff_mf.Guarantee(mu=1.0).dp_event()
    with pytest.raises(InputValueError, match="tail=1e-12"):
        tff_mf.Guarantee(mu=1.0, tail=1e-12).dp_event()


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
    units = exact_scales(recursion.mechanism, rounds) * recursion.deviation * grids.LARGEST_NORMAL + 1
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
    found = on_grid(_nearly_singular(kind), deviation=2.0 * 2**8)
    assert found.largest >= _largest_row_sum(found, min(found.rounds, 120)) * (1 - 1e-6)
    coefficients = bounds_of(found.mechanism).rounded(found.coefficient_bits)
    assert found.largest * (np.abs(coefficients).sum(axis=1).max() + 1) * 2.0**found.coefficient_bits <= 2.0**52


@pytest.mark.parametrize("rounds", [1, 2, 11, 24])
def test_the_integers_of_fewer_rounds_are_bounded_by_the_rows_of_these(make_mechanism, rounds):
    """Never below the largest integer that normals of ±T and a rounding of 1 can give in these rounds."""
    found = on_grid(make_mechanism(24), deviation=3.0 * 2**8)
    assert found.largest_within(rounds) >= _largest_row_sum(found, rounds) * (1 - 1e-9)
    assert found.largest_within(rounds) <= found.largest


def test_integers_that_may_exceed_2_to_the_52_are_refused(make_mechanism):
    with pytest.raises(tff_mf.InputError, match=r"grid does not fit .* exceed 2\^52"):
        on_grid(make_mechanism(24), deviation=2.0**52)


@pytest.mark.parametrize("rounds", [1, 9, 40])
def test_a_charge_is_that_of_the_rounds_of_its_run(rounds):
    """C⁻¹ of nine bands of ones is ±1 for ever: over 131,072 rounds, its integers grow to 29,000 times T·s."""
    ones = tff_mf.BandedToeplitz(column=[1.0] * 9)
    found = on_grid(ones, deviation=7.379 * 2**16)
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
    found = on_grid(mechanism, deviation=sigma * 2**grid.bits)
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
    change = np.linalg.norm(rounded - exact, axis=0).max() if found.coefficient_bits is not None else 0.0
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
    found = on_grid(blt, deviation=0.05 * 2**8)
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
    found = on_grid(mechanism, deviation=deviation)
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
    exact, found = bounds_of(tree).norms, on_grid(tree, deviation=1e5)
    monkeypatch.setattr("tff_mf.mechanisms.tree.MOST_WHOLE_ROUNDS", 0)
    coarse = bounds_of(tree).norms
    assert len(exact) == len(coarse)
    assert np.all(np.array(exact) <= np.array(coarse) * (1 + 1e-12))
    assert found.error(rounds) <= on_grid(tree, deviation=1e5).error(rounds)


@pytest.mark.sampled
@pytest.mark.parametrize(("theta", "omega"), [((0.5,), (3.0,)), ((1.0,), (2.5,)), ((0.9, 0.3), (1.5, 2.0))])
@pytest.mark.parametrize("bits", [0, 2, 16, 30])
def test_a_stream_ends_before_its_error_voids_the_bound_on_its_integers(theta, omega, bits):
    # The buffers of these C⁻¹ grow, and the bounds hold for errors of at most half a unit.
    found = on_grid(tff_mf.BLT(theta=theta, omega=omega), deviation=2.0**bits)
    assert 0 < found.error(found.rounds) <= min(2.0**-6, 2.0**-12 * 2.0**bits * 13.5)
    assert found.largest <= 2.0**52
    assert 1 < found.rounds <= 64


def test_a_bound_on_the_error_counts_the_subtraction_of_a_half():
    """Of an L of up to `past`, which is rounded to half of its last place, whatever the error before."""
    for theta in (0.5, 1.0):
        found = on_grid(tff_mf.BLT(theta=[theta], omega=[0.25]), deviation=2.0**20)
        past = found.largest - 13.6 * 2.0**20
        assert found.error(9) >= 2.0**-53 * (past + 1)


@given(dimension=st.integers(1, 2**40), bits=st.integers(8, 26), data=st.data())
def test_every_sum_fits(dimension, bits, data):
    """In the type itself, in which the sum of these records neither wraps around nor becomes another number."""
    near = st.integers(0, 52 - bits).map(lambda power: 2**power)
    clients = data.draw(st.integers(1, 2 ** (52 - bits)) | near | near.map(lambda power: max(power - 1, 1)))
    grid = tff_mf.Grid(bits=bits, max_clients=clients)
    assert grid.largest_sum == clients * 2**bits == int(np.array(grid.largest_sum).astype(grid.integers))
    assert (grid.largest_norm, grid.integers == "int32") == (2**bits, clients * 2**bits <= 2**31 - 1)
    assert 2 ** (grid.bits_per_coordinate - 1) < 2 * grid.largest_sum + 1 <= 2**grid.bits_per_coordinate
    with pytest.raises(InputValueError, match="exceeds the maximum"):
        tff_mf.Grid(bits=bits, max_clients=2 ** (52 - bits) + 1)
    half = math.ceil(math.log2(dimension) / 2) + 5
    assert tff_mf.Grid.auto(dimension=dimension, max_clients=10).bits == min(max(half, 14), 22)


def hockey_stick(epsilon, one, other):
    return float(np.maximum(0, one - math.exp(epsilon) * other).sum())


def largest_delta_of_chain(level, epsilon, delta, charge):
    """Returns the largest δ(level) that four laws can have, by brute force over the probability of an event.

    The computed release and the ideal one are μ_c-GDP close up to the tail, on both data sets, and the ideal releases
    are (ε, δ)-DP. Of an event of probability x on one data set, the three trade-offs in a row say how probable it is at
    most on the other; there are laws that attain it.
    """
    x = np.concatenate([[0.0], np.logspace(-40, -level / math.log(10), 4001)])

    def close(probability):
        return scipy.stats.norm.cdf(scipy.stats.norm.ppf(np.minimum(probability, 1.0)) + charge.mu)

    ideal = np.minimum(math.exp(epsilon) * close(x + charge.tail) + delta, 1.0)
    return float(np.max(np.minimum(close(ideal) + charge.tail, 1.0) - math.exp(level) * x))


@settings(max_examples=200)
@example(epsilon=0.0, decades=-30.0, mu=1.0, deviations=4.0, tail=0.0)
@example(epsilon=1.0, decades=-30.0, mu=1.0, deviations=5.0, tail=0.0)
@example(epsilon=0.0, decades=-2.0, mu=1.0, deviations=2.8, tail=0.0)
@example(epsilon=0.0, decades=-30.0, mu=0.0, deviations=0.0, tail=1e-3)
@example(epsilon=2.0, decades=-30.0, mu=0.5, deviations=3.0, tail=1e-4)
@example(epsilon=1.0, decades=-5.0, mu=1e-3, deviations=5.0, tail=1e-9)
@given(
    epsilon=st.floats(0, 4),
    decades=st.floats(-12, -0.5),
    mu=st.just(0.0) | st.floats(-4, 0.3).map(lambda exponent: 10.0**exponent),
    deviations=st.floats(0, 7),
    tail=st.just(0.0) | st.floats(-9, -2).map(lambda exponent: 10.0**exponent),
)
def test_no_four_laws_exceed_the_delta_of_their_chain(epsilon, decades, mu, deviations, tail):
    cost, delta, factor = dataclasses.replace(FREE, mu=mu, tail=tail), 10.0**decades, mu * deviations
    bound = grid_charge.delta_of_chain(epsilon, delta, cost, factor=factor)
    exact = largest_delta_of_chain(epsilon + 2 * factor, epsilon, delta, cost)
    assert exact <= bound * (1 + 1e-9) + 1e-14
    # It is reached where the laws differ by their tails and by δ alone.
    if factor == 0 and mu == 0 and bound < 1:
        assert bound <= exact * (1 + 1e-6) + 1e-14


@settings(max_examples=60)
@example(ideal=0.0, decades=-6.0, mu=1.0, tail=0.0)
@example(ideal=1.0, decades=-3.0, mu=0.5, tail=1e-5)
@given(
    ideal=st.floats(0, 4),
    decades=st.floats(-10, -1),
    mu=st.floats(-4, 0.3).map(lambda exponent: 10.0**exponent),
    tail=st.just(0.0) | st.floats(-12, -4).map(lambda exponent: 10.0**exponent),
)
def test_no_four_laws_exceed_the_epsilon_of_their_chain(ideal, decades, mu, tail):
    """Where the ideal release is (ε, δ)-DP for an ε that rises as δ falls, whichever δ was asked for last."""
    cost, delta, asked = dataclasses.replace(FREE, mu=mu, tail=tail), 10.0**decades, []

    def epsilon_from(part):
        asked.append(part)
        return ideal + math.log(delta / part) / 8

    epsilon = grid_charge.epsilon_of_chain(delta, cost, epsilon_from)
    if epsilon < math.inf:
        exact = min(largest_delta_of_chain(epsilon, epsilon_from(part), part, cost) for part in tuple(asked))
        assert exact <= delta * (1 + 1e-9) + 1e-14


def test_a_charge_that_leaves_nothing_has_no_epsilon():
    tail = dataclasses.replace(FREE, mu=1e-3, tail=1e-6)
    assert grid_charge.epsilon_of_chain(1e-6, tail, lambda part: 1.0) == math.inf
    assert grid_charge.epsilon_of_chain(1e-6, FREE, lambda part: 800.0) == math.inf
    assert grid_charge.delta_of_chain(800.0, 1e-6, FREE, factor=0.0) == 1.0


def test_an_event_has_what_a_grid_costs():
    """An event of sampled Gaussians would be of real numbers, and its ε smaller than the one of the integers."""
    run = tff_mf.Identity(), 8, tff_mf.Poisson(population=10_000, clients_per_round=1000)
    on_grid = tff_mf.guarantee(*run, noise_multiplier=1.0, grid=ROOMY, dimension=LSTM)
    known = tff_mf.guarantee(*run[:2], run[2].schema(8), noise_multiplier=1.0, grid=ROOMY, dimension=LSTM)
    assert on_grid.dp_event().noise_multiplier == on_grid.effective_noise_multiplier
    assert on_grid.effective_noise_multiplier <= known.effective_noise_multiplier
    assert not hasattr(tff_mf.guarantee(*run, noise_multiplier=1.0).dp_event(), "noise_multiplier")


def test_what_was_computed_for_a_small_model_is_not_stated_for_a_large_one():
    run = tff_mf.Identity(), 8, tff_mf.Poisson(population=10_000, clients_per_round=1000)
    small, large = (tff_mf.guarantee(*run, noise_multiplier=1.0, grid=ROOMY, dimension=size) for size in (9, LSTM))
    assert small.epsilon(1e-5) < large.epsilon(1e-5)


@pytest.mark.parametrize(("mean", "room"), [(3.0, 8), (50.0, 90), (0.2, 3)])
def test_the_room_of_a_sum_bounds_the_tail_of_a_cohort(mean, room):
    for clients, rounds in itertools.product((10, 100, 10_000), (1, 7, 2000)):
        if mean < clients:
            exact = -math.expm1(rounds * math.log1p(-scipy.stats.binom.sf(room, clients, mean / clients)))
            assert exact <= grid_charge.overflow(rounds, max_clients=room, clients_per_round=mean)
    assert grid_charge.overflow(1, max_clients=room, clients_per_round=mean) < 1
    assert grid_charge.overflow(1, max_clients=3, clients_per_round=3.0) == 1.0
    arguments = {"noise_multiplier": 1.0, "grid": tff_mf.Grid(bits=16, max_clients=room), "dimension": 9}
    run = tff_mf.Identity(), 7, tff_mf.Poisson(population=10_000, clients_per_round=mean)
    assert tff_mf.guarantee(*run, **arguments).tail >= grid_charge.overflow(7, max_clients=room, clients_per_round=mean)


TWO_BANDS = tff_mf.BandedToeplitz(column=[1.0, 0.5])
DELTA, SIGMA = 1e-3, 1.2


def integers(bits, sent):
    """Returns the exact law of the two integers that a run with TWO_BANDS releases, for what the client sends."""
    scale, span = SIGMA * 2**bits, round(9 * SIGMA * 2**bits)
    n = np.arange(-span, span + 1)
    first = scipy.stats.norm.cdf((n + 0.5) / scale) - scipy.stats.norm.cdf((n - 0.5) / scale)
    # n_1 = R(s·z − n_0/2): both integers are moved by what is sent, and the second depends on the noise of the first.
    second = np.array(
        [scipy.stats.norm.cdf((n + 0.5 + m / 2) / scale) - scipy.stats.norm.cdf((n - 0.5 + m / 2) / scale) for m in n]
    )
    law, wide = first[:, np.newaxis] * second, 2**bits
    found = np.zeros((len(n) + 2 * wide, len(n) + 2 * wide))
    begin = [wide + each for each in sent]
    found[begin[0] : begin[0] + len(n), begin[1] : begin[1] + len(n)] = law
    return found


@pytest.mark.parametrize("signs", [(1, 1), (1, -1)])
def test_epsilon_covers_the_exact_law_of_integers(signs):
    bits = 3
    sends = (signs[0] * 2**bits, 0), (0, signs[1] * 2**bits)
    one, other = sum(0.5 * integers(bits, each) for each in sends), integers(bits, (0, 0))
    bins = tff_mf.BallsInBins(groups=2)
    epsilon = tff_mf.epsilon(TWO_BANDS, 2, bins, noise_multiplier=SIGMA, delta=DELTA, samples=20_000)
    worst = max(hockey_stick(epsilon, one, other), hockey_stick(epsilon, other, one))
    assert worst <= DELTA
    # It is not vacuous: integers of so few bits tell nearly as much as real numbers do.
    assert signs == (1, -1) or worst > 0.5 * DELTA


def test_a_matrix_that_is_rounded_has_inner_products_below_the_bound():
    generator = np.random.default_rng(5)
    for _ in range(20):
        entries = np.tril(generator.uniform(size=(8, 8)))
        change = generator.normal(size=(8, 8)) * np.tril(generator.uniform(0, 0.1, size=(8, 8)))
        groups = np.tile(np.eye(4), 2)
        norm = float(np.linalg.norm(change, axis=0).max())
        rounded, plain = (entries + change) @ groups.T, entries @ groups.T
        assert np.all(rounded.T @ rounded <= widened(plain.T @ plain, 2 * norm) + 1e-12)


def test_a_client_in_a_bin_has_what_rounding_changes_in_each_of_its_rounds():
    sampling, more = tff_mf.BallsInBins(groups=2, clients_per_round=10), {"grid": GRID, "dimension": 10}
    mechanism = tff_mf.BandedToeplitz(column=[1.0, 0.3])
    once = grid_charge.charge(mechanism, 8, 1, noise_multiplier=2.0, **more).sensitivity
    charge_of = sampling.run(Question(mechanism=mechanism, rounds=8, sampling=sampling, **more)).charge_of
    assert charge_of(2.0).sensitivity >= 4 * once * (1 - 1e-9) > 0


@pytest.mark.parametrize(
    "sampling",
    [
        tff_mf.BallsInBins(groups=4, clients_per_round=1999),
        tff_mf.BMinSep(min_sep=2, probability=0.5, clients_per_round=1999),
        tff_mf.Poisson(population=4000, clients_per_round=1999),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_cohort_without_room_has_no_epsilon_and_no_noise_multiplier(sampling):
    run, more = (tff_mf.Identity(), 8, sampling), {"samples": 1000, "grid": ROOMY, "dimension": LSTM}
    found = tff_mf.guarantee(*run, noise_multiplier=2.0, **more).at(delta=1e-4)
    assert (found.epsilon, found.failure) == (math.inf, 0.0)
    with pytest.raises(InputValueError):
        tff_mf.calibrate_noise_multiplier(*run, epsilon=1.0, delta=1e-4, **more)
