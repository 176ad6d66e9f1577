"""Bounds that ε is made of: slack for rounding errors is on the safe side, and no bound changes unnoticed.

No oracle tells a slack of 1e-9 from one with the wrong sign. So each place of such a constant in a module is given so
much that a wrong sign is seen, while all other places have none: no bound may be smaller. And same_bounds.json has the
bounds themselves, nearly all of which oracles are only below. After a change that is meant to change them:

    .venv-core/bin/python tests/tff_mf/test_bounds.py
"""

import ast
import importlib
import inspect
import json
import math
import pathlib
import types
import unittest.mock

import numpy as np
import pytest

import tff_mf
from tff_mf.accounting import b_min_sep, balls_in_bins, poisson
from tff_mf.accounting._bins_moments import dominating_pair
from tff_mf.accounting.balls_in_bins import balls_in_bins_gram
from tff_mf.accounting.guarantee import Level
from tff_mf.mechanisms._mechanism import _KINDS
from tff_mf.mechanisms.grid import bounds_of
from tff_mf.mechanisms.recursion import rows_of
from tff_mf.problem.grids import Grid

PRODUCTS = np.array([0.3, 0.1, 0.05])
COLUMNS = np.array([[0.5, 0.2], [0.4, 0.3], [0.3, 0.1]])
PAIR = dominating_pair(balls_in_bins_gram(tff_mf.Identity(), 6, bins=3) / 4, relative_error=0.0)
TOEPLITZ = tff_mf.BandedToeplitz(column=[1.0, 0.5])
BOUNDS = bounds_of(TOEPLITZ)


def tails_without_epsilon(epsilon):
    """How many tails leave no ε at δ = 1e-6, of many near the largest that does."""
    return sum(epsilon(tail) == math.inf for tail in np.linspace(1e-8, 2e-8, 40).tolist())


def of_gaussian(module):
    def with_tail(tail):
        return module.epsilon_with_tail(1e-6, 10 * tail, lambda rest: 1.0)

    return [
        *(module.delta_from_epsilon(epsilon, 0.5) for epsilon in (0.0, 1.0, 6.0)),
        module.epsilon_from_delta(1e-6, 0.5),
        -module.mu_from(1.0, 1e-6),
        module.delta_with_tail(1.0, 0.5, 1e-3),
        module.mu_of(1.0, 2.0),
        tails_without_epsilon(with_tail),
    ]


def of_guarantee(module):
    release = module.Guarantee(mu=0.5, tail=1e-9)
    both = module.compose_guarantees(release, release)
    return [release.epsilon_from_zcdp(1e-6), both.mu, both.tail, -release.effective_noise_multiplier]


def of_search(module):
    gamma, poisson = module.Search(mean=5.0, shape=1.0), module.Search(mean=9.0, shape=math.inf)
    numbers = [
        -gamma.gamma,
        gamma.epsilon(0.5, 1e-6),
        gamma._of_gamma(0.1)(3.0),
        *(module.Search(mean=mean, shape=math.inf)._of_poisson(0.3)(3.0) for mean in (1.0, 9.0)),
    ]
    # Of tails alone.
    module.Search._epsilon = lambda search, mu, delta: 1.0
    return [*numbers, tails_without_epsilon(lambda tail: poisson.epsilon(0.1, 1e-6, tail=tail))]


def of_b_min_sep(module):
    chain = module.Chain(rounds=12, min_sep=4, probability=0.2)
    return [
        module.thinning(4, 0.2)[0],
        module._of_moment(3.0, 3.0, 1e-6),
        module.log_moment_of_tuples(PRODUCTS, 3, chain),
        *(module.log_inverse_moment(PRODUCTS, 3.0, share, chain) for share in (0.0, 1.0)),
        *module.log_moments(PRODUCTS, np.array([3]), chain),
        *np.ravel(module.dominating(COLUMNS)),
        *module.epsilons(COLUMNS[:, :1], chain, delta=1e-6),
        *module.epsilons(COLUMNS, chain, delta=1e-6),
    ]


def of_bins(module):
    moments = module.Moments.of(PAIR)
    return [module.moment_delta(PAIR, moments, 0.8, 1e-2, remove=remove) for remove in (True, False)]


def of_direction(module):
    direction = module.Remove(sampler=module.Sampler(PAIR), powers=(0.1, 0.1, 0.2, 0.2), tilt=2.5)
    return [direction.most(0.8), *direction.values(direction.sample(50, np.random.default_rng(0)), 0.8)]


def of_betting(module):
    generator, direction = np.random.default_rng(0), module.remove_direction(PAIR, 0.8, np.random.default_rng(1))
    proved = Level(epsilon=0.9, delta=1e-2, bound="proved", theorem="moments", direction="remove")
    found = module.certified(proved, direction, 0.6, samples=4000, failure=1e-6, generator=generator)
    return [*of_direction(module), direction.tilt, *direction.powers, found.epsilon, *module.approach(2.0, 1.0)]


def of_poisson(module):
    remove, add = module.query_losses(0.01, 0.5)
    return [
        *module.poisson_epsilons(100, 0.01, 0.5, 1e-6),
        *module.poisson_epsilons(10, 0.5, 2.0, 1e-3),
        *(len(losses(s, omega).losses) for losses in (remove, add) for s, omega in ((3.0, 0.0), (40.0, 9.0))),
    ]


def of_losses(module):
    losses = poisson.query_losses(0.01, 0.5)[0]
    return [
        module._chernoff_error(losses, 100, 3.0, 1e-6, 0.3),
        *(module.epsilon(losses, 100, delta, most=math.inf, gaussian=0.3) for delta in (1e-2, 1e-6, 1e-12)),
    ]


def of_grid(module):
    cost = module.charge(BOUNDS, 20, 2, noise_multiplier=3.0, grid=Grid(bits=8, max_clients=9), dimension=100)
    return [
        *(cost.mu, cost.tail),
        module.overflow(100, max_clients=90, clients_per_round=50.0),
        module.delta_of_chain(1.0, 1e-6, cost, factor=0.01),
        module.epsilon_of_chain(1e-6, cost, lambda delta: 1.0),
    ]


def of_integers(module):
    scaled = tff_mf.ScaledBLT(theta=[0.9, 0.5], omega=[0.25, 0.25], scales=np.linspace(0.5, 2, 20)).cast_to_float32()
    banded = tff_mf.Banded(values=[np.linspace(1, 2, 20), [0.3] * 20]).cast_to_float32()
    toeplitz = tff_mf.BandedToeplitz(column=[1.0, 0.3]).cast_to_float32()
    bounds = [
        module.Linear(scaled),
        *(module.Rows(each, rows_of(each.encoder(20)), banded=True) for each in (banded, toeplitz)),
        module.Rows(toeplitz, np.array([toeplitz.column]), banded=True),
    ]
    numbers = [module.unit(100.0, 2.0), *(module._sums(np.full((2, bands), 0.1)) for bands in (0, 3))]
    for at in (each.at(100.0) for each in bounds):
        numbers += [at.largest, at.error(20), at.column_change, at.largest_diagonal, -at.smallest_diagonal]
    return numbers


def of_rounds(module):
    blt = tff_mf.BLT.production("b400").cast_to_float32()
    return [module.Linear(blt).at(2.0**bits).rounds for bits in (20, 30, 34, 36)]


def of_more_chains(module):
    chain = module.Chain(rounds=12, min_sep=4, probability=0.2)
    # With p = 1, and little noise, the bound is of rounds that are known.
    known = module.BMinSep(min_sep=4, probability=1.0)
    return [
        *np.ravel([module.epsilons(COLUMNS / 9, chain, delta=delta) for delta in (1e-2, 1e-5, 1e-12)]),
        *module.epsilons(COLUMNS * 4, module.Chain(rounds=200, min_sep=9, probability=0.001), delta=1e-6),
        *(
            tff_mf.guarantee(TOEPLITZ, 12, known, noise_multiplier=sigma).at(delta=1e-6).epsilon
            for sigma in (0.05, 0.3)
        ),
    ]


def of_groups(module):
    estimator = balls_in_bins.Estimator(balls_in_bins_gram(tff_mf.Identity(), 6, bins=3))
    return [module.gram_error(24), *estimator.epsilons(2.0, 1e-6), estimator.noise_multiplier(2.0, 1e-6)]


def of_trees(module):
    trees = [module.Tree(rounds, variant=variant) for rounds in (20, 5000) for variant in ("full", "online")]
    bounds = [tree.grid_bounds().at(100.0) for tree in trees]
    return [number for at in bounds for number in (at.largest, at.error(20))]


def of_error(module):
    errors = [
        module.rounding_error(cell=2.0**-19, values=100, limit=limit) for limit in (4.0, 7.0, 9.0, 10.5, 12.0, 13.0)
    ]
    return [number for error in errors for number in (error.log_ratio, error.tail)]


def of_limits(module):
    return [module.rounding_error(cell=2.0**-19, values=values).limit for values in (10**3, 10**7, 10**9)]


# Of each module its constants, with what they are where there is none, and numbers that none may make smaller.
SLACKS = {
    "numerics.gaussian": ({"_SLACK": 0.0, "_SENSITIVITY_SLACK": 0.0}, of_gaussian),
    "numerics.normals._error": ({"_SLACK": 0.0}, of_error),
    "mechanisms.grid": ({"SLACK": 1.0}, of_integers),
    "mechanisms.tree": ({"SLACK": 1.0}, of_trees),
    "accounting.guarantee": ({"SLACK": 0.0}, of_guarantee),
    "accounting.search": ({"_SLACK": 0.0}, of_search),
    "accounting.secret": ({"_SLACK": 0.0}, lambda module: [module.jensen_epsilon(1e-6, 0.2, 0.25)]),
    "accounting.b_min_sep": ({"_SLACK": 0.0, "_LOG_SLACK": 0.0, "_GROWTH_SLACK": 0.0}, of_b_min_sep),
    "accounting._bins_moments": ({"LOSS_SLACK": 0.0, "DELTA_SLACK": 0.0}, of_bins),
    "accounting.betting": ({"LOSS_SLACK": 0.0, "DELTA_SLACK": 0.0}, of_direction),
    "accounting.grid_charge": ({"EXP_SLACK": 0.0, "SLACK": 1.0}, of_grid),
}

# Of each module numbers that stay.
STORED = {name: numbers for name, (_, numbers) in SLACKS.items()} | {
    "numerics.gaussian": lambda module: [*of_gaussian(module), (module.mu_of(1.0, 2.0) - 0.5) * 2**41],
    "numerics.normals._error": lambda module: [*of_error(module), *of_limits(module)],
    "numerics.composed_losses": of_losses,
    "mechanisms.grid": lambda module: [*of_integers(module), *of_rounds(module)],
    "accounting.b_min_sep": lambda module: [*of_b_min_sep(module), *of_more_chains(b_min_sep)],
    "accounting.balls_in_bins": of_groups,
    "accounting.betting": of_betting,
    "accounting.poisson": of_poisson,
}
FILE = pathlib.Path(__file__).parent / "same_bounds.json"


class Slack(ast.NodeTransformer):
    """Replaces each use of the constants by none, and that of number `place` by more."""

    def __init__(self, none, place):
        self.none, self.place, self.uses = none, place, []

    def visit_Name(self, node):
        if node.id not in self.none or not isinstance(node.ctx, ast.Load):
            return node
        self.uses.append(node.lineno)
        return ast.copy_location(ast.Constant(self.none[node.id] + 0.03 * (len(self.uses) - 1 == self.place)), node)


def with_slack(module, none, place):
    slack, changed = Slack(none, place), types.ModuleType(module.__name__)
    tree = ast.fix_missing_locations(slack.visit(ast.parse(inspect.getsource(module))))
    # The kind of a mechanism stays that of its module.
    with unittest.mock.patch.dict(_KINDS):
        exec(compile(tree, module.__file__, "exec"), changed.__dict__)
    return changed, slack.uses


@pytest.mark.parametrize("name", SLACKS)
def test_no_slack_makes_a_bound_smaller(name):
    (none, numbers), module = SLACKS[name], importlib.import_module(f"tff_mf.{name}")
    without, uses = with_slack(module, none, None)
    least = np.array(numbers(without))
    for place, line in enumerate(uses):
        found = np.array(numbers(with_slack(module, none, place)[0]))
        assert np.all(found >= least), f"line {line}"
        assert np.any(found > least), f"line {line} is of no number here"


def bounds(name):
    return list(map(float, STORED[name](with_slack(importlib.import_module(f"tff_mf.{name}"), {}, None)[0])))


@pytest.mark.parametrize("name", STORED)
def test_bounds_are_what_they_were(name):
    np.testing.assert_allclose(bounds(name), json.loads(FILE.read_text())[name], rtol=1e-10)


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: bounds(name) for name in STORED}, indent=1) + "\n")
