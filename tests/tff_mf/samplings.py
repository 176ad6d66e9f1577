"""Short forms of `tff_mf.guarantee` and `tff_mf.calibrate_noise_multiplier` for each sampling."""

import tff_mf
from tff_mf.accounting import bands_and_norm
from tff_mf.accounting.question import Question
from tff_mf.accounting.secret import FAILURE


def cyclic(mechanism, rounds, *, population, clients_per_round):
    """Returns the sampling with as many groups as C has bands."""
    groups, _ = bands_and_norm(mechanism, rounds)
    return tff_mf.CyclicPoisson(groups=groups, population=population, clients_per_round=clients_per_round)


def cyclic_epsilon(mechanism, rounds, *, population, clients_per_round, **level):
    """Returns ε of cyclic Poisson sampling."""
    sampling = cyclic(mechanism, rounds, population=population, clients_per_round=clients_per_round)
    return tff_mf.epsilon(mechanism, rounds, sampling, **level)


def cyclic_sigma(mechanism, rounds, *, population, clients_per_round, **level):
    """Returns σ for cyclic Poisson sampling."""
    sampling = cyclic(mechanism, rounds, population=population, clients_per_round=clients_per_round)
    return tff_mf.calibrate_noise_multiplier(mechanism, rounds, sampling, **level)


def cyclic_event(mechanism, rounds, *, population, clients_per_round, **level):
    """Returns the event of dp-accounting of cyclic Poisson sampling."""
    sampling = cyclic(mechanism, rounds, population=population, clients_per_round=clients_per_round)
    return tff_mf.guarantee(mechanism, rounds, sampling, **level).dp_event()


def bins_level(mechanism, rounds, *, bins, noise_multiplier, delta, clients_per_round=None, **more):
    """Returns ε of balls in bins, with its bound."""
    sampling = tff_mf.BallsInBins(groups=bins, clients_per_round=clients_per_round)
    found = tff_mf.guarantee(mechanism, rounds, sampling, noise_multiplier=noise_multiplier, **more)
    return found.at(delta=delta)


def min_sep_level(mechanism, rounds, *, min_sep, probability, noise_multiplier, delta, clients_per_round=None, **more):
    """Returns ε of b-min-sep sampling, with its bound."""
    sampling = tff_mf.BMinSep(min_sep=min_sep, probability=probability, clients_per_round=clients_per_round)
    found = tff_mf.guarantee(mechanism, rounds, sampling, noise_multiplier=noise_multiplier, **more)
    return found.at(delta=delta)


def min_sep_directions(mechanism, rounds, *, min_sep, probability, noise_multiplier, delta, samples=200_000):
    """Returns the bounds of both directions of b-min-sep sampling, to remove a client and to add one."""
    sampling = tff_mf.BMinSep(min_sep=min_sep, probability=probability)
    run = sampling.run(Question(mechanism=mechanism, rounds=rounds, sampling=sampling, samples=samples))
    return run.directions(noise_multiplier, delta, run.columns, FAILURE / 2 * delta)
