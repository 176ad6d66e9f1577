"""ε of independent releases with the same distribution of privacy losses, in certified arithmetic.

S is the sum of n independent losses; δ(ε) = E[(1 − e^(ε − S))₊]. With φ(z) = E[e^(zL)] of a loss, any s > 0 and g(y) =
e^(−sy)·(1 − e^(−y))₊,

    δ(ε) = e^(−sε)·E[e^(sS)·g(S − ε)].

Tilted by e^(sS), S is near ε for the s of Chernoff's bound: what is computed is not small, however small δ is. A
transform of the probabilities themselves loses more than 1e-16 of the largest of them.

**One more release.** δ does not become smaller if one more, independent release is published: a Gaussian one of μ = η,
whose loss has E[e^(zL)] = e^(z(z + 1)η²/2). With Φ(z) = φ(z)ⁿ·e^(z(z + 1)η²/2) and any period T, g(y) ≤ Σ_r g(y + rT).
The sum is periodic and continuous; its Fourier coefficients are 1/((s + iω)(s + 1 + iω)·T), the transform of g. Hence

    δ(ε) ≤ (1/T)·Σ_k Φ(s + iω_k)·e^(−(s + iω_k)ε) / ((s + iω_k)(s + 1 + iω_k)),    ω_k = 2πk/T.

No loss is rounded to a grid. Terms of k and −k are conjugates. As |φ(s + iω)| ≤ φ(s), those above Ω are at most
(2/T)·Σ A·e^(−ω²η²/2)/ω² ≤ A·e^(−Ω²η²/2)/(πΩ) together, with A = Φ(s)·e^(−sε); this is added to δ. With Ω = 7/η it is
1e-11·A/Ω, and η is so small that ε rises by about 1e-4 of it.

**Rounding.** u = 2⁻⁵³. NumPy's elementary functions are assumed to be exact to 8u relative, and sums and products of
complex matrices with J terms to (2J + 8)u of the sum of absolute values, in any order. `Nodes` bounds the error of φ as
a sum Σ m_j·e^(zℓ_j), relative to φ(s), and the error of each ℓ_j, 16u·r_j. With w_j = m_j·e^(sℓ_j)/φ(s), which add up
to 1:

- e^(ix) − 1 = 2 sin(x/2)·(i cos(x/2) − sin(x/2)) is exact to 25u relative, and x = ωℓ_j to 16uω·r_j.
- F(ω) = φ(s + iω)/φ(s) is computed as 1 + Σ w_j(ab + a + b) with a, b = e^(ix) − 1 of two frequencies that add up to
  ω. |a|, |b| ≤ min(2, ω|ℓ_j|), so that the absolute values add up to at most 4D with D = min(2, ω·Σ w_j|ℓ_j|), and
  F − 1 is exact to 4(2J + 64)u·D, which includes the errors of log F and its n-fold, besides the errors of w_j and ℓ_j.
- w_j is exact to v_j = 16u(4 + |log m_j| + s|ℓ_j| + s·r_j) relative, and to the error of log φ(s), the same for all:
  together D·(Σ w_j·v_j + this error) + min(2·Σ w_j·v_j, ω·Σ w_j·v_j|ℓ_j|).
- With the sum e(ω) of these, Fⁿ is exact to n·e·(|F| + e)^(n − 1), by the mean value theorem.
- log φ(s) is exact to Σ max(w_j, |w_j − m_j/φ(s)|)·(v_j + (J + 64)u), n times in log A, whether it is computed from φ
  or, where φ is near 1, from Σ m_j(e^(sℓ_j) − 1).

**Chernoff's bound.** g is largest where e^(−y) = s/(1 + s), so that δ(ε) ≤ φ(s)ⁿ·e^(−sε)·s^s/(1 + s)^(1 + s). It
is at most δ from ε = (n·log φ(s) − log δ − log(1 + s))/s − log(1 + 1/s) on. This is computed with an error of at
most n times the one of log φ(s), and 16u times the sum of the absolute values of the other terms and of n·log φ(s), all
over s, which are added to it. An ε that is known otherwise is returned only if it is not below.

The sum of n·e·(|F| + e)^(n − 1) over all terms, the errors of phases and of A and everything left out are added to δ,
typically 1e-7 of it. A result is an ε for which this bound is at most δ: it is right whatever s, T and η are.
Machines that round differently find the same ε to about 1e-12 of it: nothing depends on a comparison that an error
could turn, except with the probability of a tie.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

# Calibrations end at this part of the ε that is asked for: machines find ε of one σ that differ by 1e-10 of it at most.
ON_EVERY_MACHINE = 1 - 1e-9
_ROUNDING = 2.0**-53
_UNIT = 16 * _ROUNDING
# The share of ε that one more release may cost, and where its transform ends, in units of 1/η.
_MORE, _END = 1e-4, 7.0
# Weights below e to this power are left out.
_LEFT_OUT = -50.0
# Of s, the powers of 2 that are tried first, and the width to which the best is found.
_LOWEST, _HIGHEST, _WIDTH = -20, 60, 2.0**-7
# Nodes whose products are in memory at a time.
_CHUNK = 2**11
# φ − 1 from which on log φ is not computed from it.
_LARGE = 0.5
# Above |log φ| of all φ that are nearer to 1.
_LARGEST_LOG = 0.7
# Above it, an exponential would overflow.
_LARGEST_EXPONENT = 700.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nodes:
    """φ(z) as Σ_j exp(logs_j + z·losses_j).

    Attributes:
        losses: Losses ℓ_j, float64 `[nodes]`.
        logs: log m_j of their probabilities, or of their weights in a quadrature, float64 `[nodes]`.
        rounding: r_j: each loss is exact to 16u·r_j; at least |ℓ_j|. float64 `[nodes]`.
        error: Bound on the error of the sum without rounding, relative to φ(s).
    """

    losses: np.ndarray
    logs: np.ndarray
    rounding: np.ndarray
    error: float = 0.0

    def log_moment(self, s: float) -> float:
        """Returns log φ(s)."""
        logs = self.logs + s * self.losses
        top = float(np.max(logs))
        if top <= _LARGE:
            small = np.abs(s * self.losses) < 1
            rises = np.exp(self.logs) * np.expm1(np.where(small, s * self.losses, 0.0))
            rise = float(np.sum(np.where(small, rises, np.exp(logs) - np.exp(self.logs))))
            if abs(rise) < _LARGE:
                return math.log1p(rise)
        return top + math.log(float(np.sum(np.exp(logs - top))))

    def tilted(self, s: float) -> np.ndarray:
        """Returns w_j."""
        return np.exp(self.logs + s * self.losses - self.log_moment(s))


# The privacy loss of one release in one direction: φ(s + iω) for 0 ≤ ω ≤ the second argument, or `None` if there would
# be too many nodes.
Losses = Callable[[float, float], Nodes | None]


def nothing(s: float, omega: float) -> Nodes:
    """Returns φ of a release that does not depend on data."""
    del s, omega
    return Nodes(losses=np.zeros(1), logs=np.zeros(1), rounding=np.zeros(1))


def epsilon(
    losses: Losses, count: int, delta: float, *, most: float, gaussian: float = 0.0, least: float = 0.0
) -> float:
    """Returns ε, from `least` to `most`, for which releases and a Gaussian one are (ε, δ)-DP in one direction.

    Formal guarantee: not below the smallest such ε, including all rounding errors, unless `most` is.

    It is `most` if none is found below it.

    Args:
        losses: The privacy loss of one release.
        count: Number n of releases.
        delta: δ.
        most: An ε that is known otherwise, or infinity.
        gaussian: μ of the Gaussian release; 0 for none.
        least: An ε below which none is looked for.

    Example:
        >>> round(epsilon(nothing, 1, 1e-6, most=math.inf, gaussian=1 / 4.22468), 3)
        1.0
    """
    tilt = _tilt(losses, count, delta, gaussian)
    if tilt is None:
        return most
    s, chernoff = tilt
    if chernoff + _chernoff_error(losses, count, s, delta, gaussian) <= least:
        return least
    # Chernoff's bound can be far above ε: what one more release costs is then found again.
    best, near = most, min(max(chernoff, least), most)
    if near <= 0:
        return most
    while True:
        bound = _bisect(least, losses, count, s, delta, near, gaussian)
        best = min(best, bound)
        if not least < bound < near / 4:
            return best
        near = bound


def _bisect(least: float, losses: Losses, count: int, s: float, delta: float, near: float, gaussian: float) -> float:
    """Returns ε of the bound for one s, not below `least`; infinity if it is not about `near` or less."""
    # Smaller s take fewer nodes.
    tried = (_Bound.of(losses, count, s * 2.0**-power, near, gaussian) for power in range(16))
    bound = next((candidate for candidate in tried if candidate is not None), None)
    low, high = least, near * (1 + 10 * _MORE)
    if bound is None or not bound.delta(high) <= delta:
        return math.inf
    if bound.delta(low) <= delta:
        return low
    while True:
        middle = low + (high - low) / 2
        if middle in (low, high):
            return high
        low, high = (low, middle) if bound.delta(middle) <= delta else (middle, high)


def _tilt(losses: Losses, count: int, delta: float, gaussian: float) -> tuple[float, float] | None:
    """Returns s and ε of Chernoff's bound, at nearly the best s; `None` if no s can be computed with."""
    tilt, variance = None, gaussian * gaussian
    if not math.isfinite(variance):
        return None

    def falls(power: float) -> bool:
        # ε is h(s)/s with a convex h: it falls until s·h′(s) = h(s), and then rises.
        nonlocal tilt
        s = 2.0**power
        nodes = losses(s, 0.0)
        if nodes is None:
            return False
        # The largest g is at e^(−y) = s/(1 + s).
        height = count * nodes.log_moment(s) + s * (s + 1) * variance / 2 - math.log(delta) - math.log1p(s)
        slope = count * float(nodes.tilted(s) @ nodes.losses) + (s + 0.5) * variance
        if not (math.isfinite(height) and s * slope <= height):
            return False
        tilt = s, height / s - math.log1p(1 / s)
        return True

    low = next((power for power in range(_LOWEST, _HIGHEST) if not falls(power)), _HIGHEST) - 1.0
    step = 0.5
    while step >= _WIDTH:
        if falls(low + step):
            low += step
        step /= 2
    return tilt


def _chernoff_error(losses: Losses, count: int, s: float, delta: float, gaussian: float) -> float:
    """Returns a bound on the error of the ε of Chernoff's bound for one s."""
    nodes = losses(s, 0.0)
    assert nodes is not None
    sizes = count * abs(nodes.log_moment(s)) + s * (s + 1) * gaussian**2 / 2 - math.log(delta) + math.log1p(s)
    error = count * _log_error(nodes, s) + _UNIT * (sizes + s * math.log1p(1 / s))
    return error / s * (1 + 2.0**-20)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Bound:
    """The bound on δ for one s, as a function of ε: A(ε)·(Σ_k sizes_k·cos(phases_k − ω_k·ε) + slack).

    Attributes:
        s: s.
        log: log A(0), rounded up.
        omegas: ω_k of the terms that are not negligible.
        sizes: Size of each term, relative to A; twice for all but the first.
        phases: Phase of each term at ε = 0.
        slack: Bound on all errors, relative to A.
    """

    s: float
    log: float
    omegas: np.ndarray
    sizes: np.ndarray
    phases: np.ndarray
    slack: float

    @classmethod
    def of(cls, losses: Losses, count: int, s: float, near: float, gaussian: float) -> "_Bound | None":
        """Returns the bound for ε up to about `near`, or `None` if it would take too many nodes."""
        nodes = losses(s, 0.0)
        assert nodes is not None
        weights = nodes.tilted(s)
        mean = float(weights @ nodes.losses)
        eta = gaussian or math.sqrt(2 * _MORE * near / (s + 1))
        deviation = math.sqrt(count * float(weights @ np.square(nodes.losses - mean)) + eta**2)
        period = 12 * deviation + 50 / s
        unit, side = 2 * math.pi / period, math.ceil(math.sqrt(_END / eta * period / (2 * math.pi) + 1))
        nodes = losses(s, unit * side**2)
        if nodes is None:
            return None
        omegas = unit * np.arange(side**2)
        steps, errors, log_error = _ratios(nodes, s, unit, side)
        payoffs = 1 / ((s + 1j * omegas) * (s + 1 + 1j * omegas))
        scales = np.where(omegas > 0, 2, 1) / period * np.abs(payoffs) * np.exp(-np.square(omegas) * eta**2 / 2)
        sizes = scales * np.exp(count * steps.real)
        phases = count * steps.imag + omegas * (s + 0.5) * eta**2 + np.angle(payoffs)
        reach = count * abs(mean) + (s + 0.5) * eta**2 + near + 1
        slacks = count * errors * scales * np.exp((count - 1) * np.log(np.exp(steps.real) + errors))
        slacks += sizes * _UNIT * (len(omegas) + 2 * _LARGEST_EXPONENT + omegas * reach)
        used = sizes > 1e-22 * np.max(sizes)
        last = float(omegas[-1])
        slack = float(np.sum(slacks) + np.sum(sizes[~used])) + math.exp(-((last * eta) ** 2) / 2) / (math.pi * last)
        log = count * nodes.log_moment(s) + s * (s + 1) * eta**2 / 2
        log += count * log_error + _UNIT * (abs(log) + s * reach + 1)
        return cls(
            s=s, log=log, omegas=omegas[used], sizes=sizes[used], phases=phases[used], slack=slack * (1 + 2.0**-20)
        )

    def delta(self, epsilon: float) -> float:
        """Returns a bound on δ(ε) without infinite losses."""
        # An exponential of less would lose digits.
        exponent = max(self.log - self.s * epsilon, -_LARGEST_EXPONENT)
        if not exponent < _LARGEST_EXPONENT:
            return math.inf
        total = float(self.sizes @ np.cos(self.phases - self.omegas * epsilon)) + self.slack
        # What is not a number stays so, and is no δ.
        return (0.0 if total <= 0 else total) * math.exp(exponent) * (1 + 2.0**-40)


def _ratios(nodes: Nodes, s: float, unit: float, side: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns log F for ω = 0, 1, …, side² − 1 times `unit`, and bounds on the errors of F and of log φ(s)."""
    weights, terms = nodes.tilted(s), _ROUNDING * (2 * len(nodes.losses) + 64)
    errors, of_log = _weight_errors(nodes, s), _log_error(nodes, s)
    left_out, moved = _left_out(nodes), _UNIT * float(weights @ nodes.rounding)
    omegas, lengths = unit * np.arange(side**2), weights * np.abs(nodes.losses)
    total = float(weights @ errors)
    of_ratios = left_out + np.minimum(2.0, omegas * float(np.sum(lengths))) * (4 * terms + total + of_log)
    of_ratios += np.minimum(2 * total, omegas * float(lengths @ errors)) + omegas * moved
    heavy = weights > math.exp(_LEFT_OUT)
    weights, losses = weights[heavy], nodes.losses[heavy]
    rises = np.zeros((side, side), complex)
    for start in range(0, len(losses), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        large, small = (_rises(np.multiply.outer(unit * step * np.arange(side), losses[chunk])) for step in (side, 1))
        large *= weights[chunk]
        rises += large @ small.T + np.sum(large, axis=1)[:, None] + small @ weights[chunk]
    rises = rises.ravel()
    # log|1 + x|, without cancellation where x is small.
    squares = rises.real * (2 + rises.real) + np.square(rises.imag)
    with np.errstate(divide="ignore"):
        sizes = np.where(squares > -0.5, np.log1p(np.maximum(squares, -0.5)) / 2, np.log(np.abs(1 + rises)))
    return sizes + 1j * np.angle(1 + rises), of_ratios, of_log


def _weight_errors(nodes: Nodes, s: float) -> np.ndarray:
    """Returns v_j."""
    return _UNIT * (4 + np.abs(nodes.logs) + s * np.abs(nodes.losses) + s * nodes.rounding)


def _left_out(nodes: Nodes) -> float:
    """Returns a bound on what the sum lacks, relative to φ(s)."""
    return 2 * (nodes.error + len(nodes.losses) * math.exp(_LEFT_OUT))


def _log_error(nodes: Nodes, s: float) -> float:
    """Returns a bound on the error of log φ(s)."""
    log, weights, terms = nodes.log_moment(s), nodes.tilted(s), _ROUNDING * (2 * len(nodes.losses) + 64)
    changes = weights
    if abs(log) < _LARGEST_LOG:
        # In the two ways of computing log φ.
        changes = np.maximum(weights, np.abs(weights - np.exp(nodes.logs - log)))
    moved = _UNIT * float(weights @ nodes.rounding)
    return _left_out(nodes) + float(changes @ (_weight_errors(nodes, s) + terms)) + s * moved


def _rises(angles: np.ndarray) -> np.ndarray:
    """Returns e^(ix) − 1, without cancellation."""
    sines, cosines = np.sin(angles / 2), np.cos(angles / 2)
    return 2 * sines * (1j * cosines - sines)
