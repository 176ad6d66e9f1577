"""δ of n Poisson-sampled Gaussian queries: Bromwich's integral of the exact moment generating function.

    δ(ε) = 1/(2πi) ∫ E[e^(zL)]ⁿ·e^(−zε) / (z(z + 1)) dz,    Re z = s > 0,

for the loss L of one query, without a grid of losses, without another release and without bounds on errors: what
`tff_mf.composed_losses` must not be below. Sums in place of both integrals are refined until nothing changes. Another
contour has the same integral. `python tests/tff_mf/composed_losses_oracle.py` prints the table of `composed_losses_table`.
"""

import itertools
import math

import numpy as np
from scipy import optimize

LONG = np.longdouble
# n, and q and σ.
QUERIES = {
    30: ((0.01, 1.0), (0.2, 2.0)),
    300: ((0.01, 0.8), (0.1, 3.0)),
    2000: ((1e-3, 1.0), (0.02, 1.5)),
    13527: ((100 / 2648041, 0.55), (1e-3, 0.8)),
    100_000: ((1e-3, 1.0), (1e-4, 0.6)),
    1_000_000: ((1e-4, 0.7), (1e-3, 2.0)),
}
DELTAS = (1e-6, 1e-8, 1e-10, 1e-12)


def nodes(probability, mu, takes_part, s, omega):
    """Returns losses of one query and log-weights of a sum in place of the integral over x ~ N(0, 1), for |Im z| ≤ omega."""
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
    unit, found, omegas = 2 * math.pi / period, [], []
    for start in itertools.count(0, 200):
        ks = np.arange(start, start + 200)
        losses, logs = nodes(probability, mu, takes_part, s, unit * ks[-1])
        weights = np.exp(logs + s * losses)
        weights = (weights / np.sum(weights)).astype(float)
        angles = np.multiply.outer(unit * ks, losses.astype(float))
        # 1 − cos without cancellation.
        real, imaginary = -2 * np.square(np.sin(angles / 2)) @ weights, np.sin(angles) @ weights
        sizes = np.log1p(np.maximum(real * (2 + real) + imaginary**2, -1 + 1e-15)) / 2 * queries
        found.append(np.exp(sizes) * np.exp(1j * np.arctan2(imaginary, 1 + real) * queries))
        omegas.append(unit * ks)
        if start and np.max(sizes) < -35 - 2 * math.log(period):
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
        mean = float(weights @ losses)
        return log, queries * mean, math.sqrt(queries * float(weights @ np.square(losses - mean)))

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
    _, mean, deviation = tilted(s)
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


def table():
    """Returns ε with and without the client, by n, q, σ and δ."""
    for queries, settings in QUERIES.items():
        for (probability, sigma), delta in itertools.product(settings, DELTAS):
            each = [epsilon(queries, probability, sigma, delta, takes_part) for takes_part in (True, False)]
            yield queries, probability, sigma, delta, *each


if __name__ == "__main__":
    for row in table():
        print(f"    {row},", flush=True)
