"""An ε that counts the search for settings: against exact densities, dp-accounting, and what was drawn."""

import decimal
import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy.stats import chisquare, norm

import tff_mf
from tff_mf.accounting import Question

ONCE = tff_mf.SingleParticipation()
# One of many runs, of which few are less likely than digits tell.
MANY = [(116, math.inf), (200, 30.0)]
KINDS = [(8, 0), (8, 1), (3, 0.5), (1.5, 2), (30, 0), (8, math.inf), (2, math.inf)]
ORDERS = np.geomspace(1.01, 3000, 300).tolist()


def generating(search, order):
    """Returns a derivative of E[x^K] at x, as a function of it: of order 0, 1."""
    if search.is_poisson:
        return lambda x: search.mean**order * np.exp(search.mean * (x - 1))
    gamma, shape = search.gamma, search.shape
    less = 1 - gamma
    if shape == 0:
        whole = (lambda x: np.log1p(-less * x) / math.log(gamma), lambda x: less / (1 - less * x) / -math.log(gamma))
    else:
        scale = gamma**-shape - 1
        whole = (
            lambda x: ((1 - less * x) ** -shape - 1) / scale,
            lambda x: shape * less * (1 - less * x) ** (-shape - 1) / scale,
        )
    return whole[order]


def selected(search, cells, order):
    """Returns P(a cell is selected), where later cells of an order have better scores: exactly, from E[x^K]."""
    below = np.cumsum(cells[order]) / np.sum(cells)
    at_most = generating(search, 0)(np.concatenate([[0.0], below]))
    chances = np.empty(len(cells))
    chances[order] = np.diff(at_most)
    return chances


@pytest.mark.parametrize(("mean", "shape"), KINDS)
def test_the_exact_delta_of_what_is_selected_is_never_above_the_stated_one(mean, shape):
    """Of a normal with and without μ, for scores that rise with it, and any other order of its cells."""
    random = np.random.default_rng(5)
    search = tff_mf.Search(mean=mean, shape=shape)
    edges = np.linspace(-9, 12, 400)
    for _ in range(30):
        mu, delta = 10 ** random.uniform(-1, 0.4), 10 ** random.uniform(-8, -2)
        epsilon = search.epsilon(mu, delta)
        without, with_client = (
            np.diff(norm.cdf(np.concatenate([[-np.inf], edges, [np.inf]]) - shift)) for shift in (0.0, mu)
        )
        rising = np.arange(len(without))
        for order in (rising, rising[::-1], random.permutation(rising), np.roll(rising, random.integers(400))):
            one, other = (selected(search, cells, order) for cells in (without, with_client))
            for first, second in ((one, other), (other, one)):
                assert np.sum(np.maximum(first - math.exp(epsilon) * second, 0)) <= delta


@pytest.mark.parametrize(("mean", "shape"), KINDS)
def test_epsilon_is_that_of_dp_accounting_or_less(mean, shape):
    """Less for Poisson's distribution alone, where dp-accounting takes δ of a run from its Rényi divergences."""
    search = tff_mf.Search(mean=mean, shape=shape)
    for mu in (0.1, 0.5, 1.0, 2.0):
        for delta in (1e-9, 1e-5):
            accountant = RdpAccountant(ORDERS)
            run = dp_accounting.GaussianDpEvent(1 / mu)
            accountant.compose(dp_accounting.dp_event.RepeatAndSelectDpEvent(run, mean, shape))
            theirs, ours = accountant.get_epsilon(delta), search.epsilon(mu, delta)
            assert ours <= theirs * (1 + 1e-9)
            assert ours >= theirs * (0.7 if search.is_poisson else 0.99)


def test_theorem_6_with_the_delta_of_a_normal():
    """Poisson's distribution, order by order: nothing of dp-accounting is as small."""
    mean, mu, delta, orders = 5.0, 0.8, 1e-6, np.geomspace(1.01, 200, 20_000)
    apart = np.log1p(1 / (orders - 1))
    chances = norm.cdf(mu / 2 - apart / mu) - np.exp(apart) * norm.cdf(-mu / 2 - apart / mu)
    divergences = mu**2 / 2 * orders + mean * chances + math.log(mean) / (orders - 1)
    least = np.min(divergences - (math.log(delta) + np.log(orders)) / (orders - 1) + np.log1p(-1 / orders))
    assert tff_mf.Search(mean=mean, shape=math.inf).epsilon(mu, delta) == pytest.approx(least, rel=1e-5)


@pytest.mark.parametrize(("mean", "shape"), [*KINDS, *MANY])
def test_the_number_of_runs_has_its_distribution(mean, shape):
    search = tff_mf.Search(mean=mean, shape=shape)
    drawn = np.bincount([search.draw() for _ in range(4000)], minlength=1500)[:1500]
    # P(K = k) from E[x^K] on a circle, by Fourier's transform.
    circle = np.exp(2j * np.pi * np.arange(2**12) / 2**12)
    expected = np.maximum(np.real(np.fft.fft(generating(search, 0)(circle)) / 2**12)[:1500], 0) * drawn.sum()
    large = expected > 8
    rest = [np.append(counts[large], counts[~large].sum() + 1e-9) for counts in (drawn, expected)]
    assert chisquare(rest[0], rest[1] * rest[0].sum() / rest[1].sum()).pvalue > 1e-6
    assert generating(search, 1)(1.0) == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize("mean", [1.5, 8, 30])
@pytest.mark.parametrize("shape", [0, 5e-324, 1e-300, 1e-58, 1e-30, 1e-9, 0.3, 1, 30, math.inf])
def test_rounding_does_not_change_the_number_of_runs(mean, shape, monkeypatch):
    # Numbers on both sides of the sums of P(K = k), which are computed with many more digits than there are.
    search, drawn = tff_mf.Search(mean=mean, shape=shape), []
    with decimal.localcontext(decimal.Context(prec=500)):
        expected, eta, gamma = map(decimal.Decimal, (mean, shape, search.gamma))
        if search.is_poisson:
            chances = [(-expected).exp() * expected**k / math.factorial(k) for k in range(6)]
        elif shape == 0:
            chances = [-((1 - gamma) ** k) / (k * gamma.ln()) for k in range(1, 7)]
        else:
            factors = [math.prod((k + eta) / (k + 1) for k in range(1, runs)) * eta for runs in range(1, 7)]
            chances = [factor * (1 - gamma) ** k / (gamma**-eta - 1) for k, factor in enumerate(factors, start=1)]
        sums = list(itertools.accumulate(chances))
        places = [total + side for total in sums for side in (-decimal.Decimal("1e-40"), decimal.Decimal("1e-40"))]
        numbers = [int(place * 2**256) for place in places]
    for number in numbers:
        monkeypatch.setattr("os.urandom", lambda count, number=number: number.to_bytes(count, "big"))
        drawn.append(search.draw())
    first = 0 if search.is_poisson else 1
    assert drawn == [first + k + after for k in range(6) for after in (0, 1)]


@pytest.mark.parametrize(("mean", "shape"), [(1.0000001, 1e6), (1.01, 30), (8, 5e-324), (1.5, 0.3)])
def test_the_mean_that_is_accounted_for_is_that_of_what_is_drawn(mean, shape):
    search = tff_mf.Search(mean=mean, shape=shape)
    with decimal.localcontext(decimal.Context(prec=400)):
        eta, gamma = decimal.Decimal(shape), decimal.Decimal(search.gamma)
        drawn = eta * (1 - gamma) / gamma / (1 - gamma**eta)
    assert search._mean_drawn == pytest.approx(float(drawn), rel=1e-14)
    assert mean <= drawn <= mean * (1 + 1e-8)


@pytest.mark.parametrize("shape", [0, 1, 1e6])
def test_one_run_is_no_search(shape, monkeypatch):
    alone = tff_mf.Search(mean=1, shape=shape)
    monkeypatch.setattr("os.urandom", lambda count: b"\xff" * count)
    assert alone.draw() == 1
    assert alone.epsilon(1.0, 1e-6) == tff_mf.Guarantee(mu=1.0).epsilon(1e-6)


@pytest.mark.parametrize("search", [tff_mf.Search(mean=8), tff_mf.Search(mean=3, shape=math.inf)], ids=repr)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"adjacency": "replace-one"},
        {"restart_every": 4, "adaptive_count_stddev": 9.0},
        {"grid": tff_mf.Grid(bits=12, max_clients=50), "dimension": 1000},
    ],
    ids=lambda more: ",".join(more),
)
def test_the_noise_of_a_plan_is_the_least_for_the_selected_run(search, more):
    run = (tff_mf.BLT(theta=[0.9], omega=[0.1]), 10, tff_mf.MinSep(min_sep=5, max_participations=2))
    sigma = tff_mf.calibrate_noise_multiplier(*run, epsilon=4.0, delta=1e-5, search=search, **more)
    stated = [
        tff_mf.epsilon(*run, noise_multiplier=sigma * less, delta=1e-5, search=search, **more) for less in (1, 0.999)
    ]
    assert stated[0] <= 4.0 < stated[1]
    one = tff_mf.guarantee(*run, noise_multiplier=sigma, **more)
    assert one.epsilon(1e-5) < stated[0] == search.epsilon(one.mu, 1e-5, tail=one.tail)


def test_a_tail_counts_as_often_as_there_are_runs():
    """One that would take a quarter of δ for one run has no room for eight."""
    search = tff_mf.Search(mean=8)
    epsilon = search.epsilon(1.0, 1e-6)
    quarter = 1e-6 / 4 / (1 + math.exp(epsilon))
    assert search.epsilon(1.0, 1e-6, tail=quarter) == math.inf
    assert epsilon < search.epsilon(1.0, 1e-6, tail=quarter / 16) < 1.1 * epsilon


def test_no_other_figure_of_a_search_is_given():
    guarantee = tff_mf.Guarantee(mu=1.0, search=tff_mf.Search(mean=8))
    for ask in (
        lambda: guarantee.delta(1.0),
        lambda: guarantee.epsilon_by_pld(1e-6),
        lambda: guarantee.epsilon_from_zcdp(1e-6),
        lambda: guarantee.dp_event(),
        lambda: tff_mf.compose_guarantees(guarantee, guarantee),
    ):
        with pytest.raises(tff_mf.InputError, match="search="):
            ask()
    assert guarantee.replace_one().epsilon(1e-6) == tff_mf.Search(mean=8).epsilon(2.0, 1e-6)


def test_secret_cohorts_have_no_search():
    poisson = tff_mf.Poisson(population=1000, clients_per_round=10)
    with pytest.raises(tff_mf.InputError, match="search="):
        Question(mechanism=tff_mf.Identity(), rounds=30, sampling=poisson, search=tff_mf.Search(mean=8))
    run = {"mechanism": "identity", "rounds": 30, "clients_per_round": 10, "epsilon": 4.0, "delta": 1e-6}
    with pytest.raises(tff_mf.InputError, match="search="):
        tff_mf.plan(**run, sampling=poisson, secret_cohorts=True, search=tff_mf.Search(mean=8))
    plan = tff_mf.plan(**run, population=300, search=tff_mf.Search(mean=8))
    with pytest.raises(tff_mf.InputError, match="search="):
        tff_mf.Order.of(plan, examples=300)
