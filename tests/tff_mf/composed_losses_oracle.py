"""δ of n Poisson-sampled Gaussian queries: Bromwich's integral of the exact moment generating function.

    δ(ε) = 1/(2πi) ∫ E[e^(zL)]ⁿ·e^(−zε) / (z(z + 1)) dz,    Re z = s > 0,

for the loss L of one query, without a grid of losses, without another release and without bounds on errors: what
`numerics.composed_losses` must not be below. Both integrals are sums, fine enough that all contours agree to 1e-12.
"""

import itertools
import math

import numpy as np
from scipy import optimize

import tff_mf

LONG = np.longdouble
# n, q, σ, δ, and ε with the client and without.
TABLE = (
    (30, 0.01, 1.0, 1e-06, 0.7351573080888945, 0.16541767055936202),
    (30, 0.01, 1.0, 1e-12, 2.5667622830579884, 0.21941630756445302),
    (30, 0.2, 2.0, 1e-06, 3.1027982802963567, 2.1337869468419246),
    (30, 0.2, 2.0, 1e-12, 5.137869557279163, 2.9847598558726163),
    (2000, 0.001, 1.0, 1e-06, 0.25219033242681255, 0.20576994054557934),
    (2000, 0.001, 1.0, 1e-12, 0.9536047036361107, 0.32776740173077923),
    (2000, 0.02, 1.5, 1e-06, 3.2328181265036178, 2.936467572811064),
    (2000, 0.02, 1.5, 1e-12, 4.999391049256057, 4.347686144601966),
    (13527, 3.7763765742297794e-05, 0.55, 1e-06, 0.42819971437808385, 0.06198164582373186),
    (13527, 3.7763765742297794e-05, 0.55, 1e-12, 3.7025303833230283, 0.0982888335182253),
    (13527, 0.001, 0.8, 1e-06, 1.0764236383550316, 0.8816624852297636),
    (13527, 0.001, 0.8, 1e-12, 3.036190790751511, 1.351499113635911),
    (1000000, 0.0001, 0.7, 1e-06, 1.1249189553952936, 1.0804372209643671),
    (1000000, 0.0001, 0.7, 1e-12, 2.7140730874902075, 1.6847915248045746),
    (1000000, 0.001, 2.0, 1e-06, 2.420858347729797, 2.413826117618802),
    (1000000, 0.001, 2.0, 1e-12, 3.696601044649778, 3.6808721918316505),
)


def nodes(probability, mu, takes_part, s, omega):
    """Returns losses of one query, and log-weights of a sum in place of its integral over x, for |Im z| ≤ omega."""
    step = 2 * math.pi / (50 / min(8.0, math.pi / (2 * mu)) + mu * (omega + 10) + 0.3 * s * mu * mu)
    reach = 12 + (1 + s) * mu + (0 if not takes_part else math.sqrt(2 * (1 + s) * abs(math.log(probability))))
    x = np.arange(-math.ceil(12 / step), math.ceil(reach / step)).astype(LONG) * LONG(step)
    ratio = np.log1p(LONG(probability) * np.expm1(LONG(mu) * x - LONG(mu) ** 2 / 2))
    logs = -x * x / 2 + np.log(LONG(step) / np.sqrt(2 * LONG(math.pi)))
    losses = ratio if takes_part else -ratio
    logs = logs + ratio if takes_part else logs
    # Untilted, too: probabilities add up to 1.
    used = np.maximum(logs + s * losses - np.max(logs + s * losses), logs) > -60
    return losses[used], logs[used]


def transform(queries, probability, mu, takes_part, s, period):
    """Returns log E[e^(sS)], ω, and E[e^((s + iω)S)] relative to it, for multiples of 2π/period."""
    losses, logs = nodes(probability, mu, takes_part, s, 0)
    log = np.log1p(np.sum(np.exp(logs) * np.expm1(s * losses))) * queries
    unit, sizes, found, omegas = 2 * math.pi / period, np.zeros(1), [], []
    while np.max(sizes) >= -35 - 2 * math.log(period):
        ks = np.arange(200) + 200 * len(found)
        losses, logs = nodes(probability, mu, takes_part, s, unit * ks[-1])
        weights = np.exp(logs + s * losses)
        weights = (weights / np.sum(weights)).astype(float)
        angles = np.multiply.outer(unit * ks, losses.astype(float))
        # 1 − cos without cancellation.
        real, imaginary = -2 * np.square(np.sin(angles / 2)) @ weights, np.sin(angles) @ weights
        sizes = np.log1p(np.maximum(real * (2 + real) + imaginary**2, -1 + 1e-15)) / 2 * queries
        found.append(np.exp(sizes) * np.exp(1j * np.arctan2(imaginary, 1 + real) * queries))
        omegas.append(unit * ks)
    return log, np.concatenate(omegas), np.concatenate(found)


def epsilon(queries, probability, sigma, delta, takes_part, contour=1.0):
    """Returns ε at δ in one direction.

    Args:
        queries: n.
        probability: q.
        sigma: σ, for sensitivity 1.
        delta: δ.
        takes_part: Whether the loss is of outputs with the client.
        contour: Re z, relative to the best of Chernoff's bound.
    """
    mu = 1 / sigma

    def tilted(s):
        losses, logs = nodes(probability, mu, takes_part, s, 0)
        weights = np.exp(logs) * np.expm1(s * losses)
        log = queries * float(np.log1p(np.sum(weights)))
        weights = np.exp(logs + s * losses)
        weights /= np.sum(weights)
        return log, math.sqrt(queries * float(weights @ np.square(losses - weights @ losses)))

    def chernoff(log_s):
        s = math.exp(log_s)
        return (tilted(s)[0] - math.log(delta) - math.log1p(s)) / s - math.log1p(1 / s)

    # Beyond the least, everything overflows.
    grid = np.linspace(-3, 9, 97)
    with np.errstate(all="ignore"):
        values = []
        for each in grid:
            values.append(chernoff(each))
            if not math.isfinite(values[-1]) or values[-1] > min(values):
                break
        at = grid[int(np.nanargmin(values))]
        at = optimize.minimize_scalar(chernoff, bounds=(at - 0.125, at + 0.125), method="bounded").x
    s = contour * math.exp(at)
    _, deviation = tilted(s)
    period = 32 * deviation + 160 / s
    log, omegas, sizes = transform(queries, probability, mu, takes_part, s, period)
    z = s + 1j * omegas
    terms = sizes / (z * (z + 1)) * np.where(omegas > 0, 2, 1) / period

    def value(found):
        return float(np.sum((terms * np.exp(-1j * omegas * found)).real) * np.exp(log - s * LONG(found)))

    # Far from the tilted mean nothing is accurate.
    high = chernoff(at) * 1.01
    low = next(high * 0.95**power for power in itertools.count(1) if value(high * 0.95**power) > delta)
    return optimize.brentq(lambda found: math.log(max(value(found), 1e-300) / delta), low, high, xtol=1e-14, rtol=1e-13)


def amplified(queries, probability, sigma, delta, population=10**9):
    sampling = tff_mf.Poisson(population=population, clients_per_round=probability * population)
    return tff_mf.epsilon(tff_mf.Identity(), queries, sampling, noise_multiplier=sigma, delta=delta)


def figures():
    """Returns ε and σ of every kind, for the same on another machine."""
    identity = tff_mf.Identity()
    found = [amplified(*row[:4]) for row in TABLE[1::4]]
    run = identity, 30, tff_mf.Poisson(population=1000, clients_per_round=10)
    sigma = tff_mf.calibrate_noise_multiplier(*run, epsilon=2.0, delta=1e-10)
    found.append(tff_mf.epsilon(*run, noise_multiplier=sigma, delta=1e-10))
    return [*found, tff_mf.Guarantee(mu=0.3).epsilon_by_pld(1e-25)]
