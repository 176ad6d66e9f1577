"""The guarantee of a whole run, in every privacy measure, for either adjacency, and composed with others; and σ for it.

Noise C⁻¹z added to a stream x is C⁻¹(Cx + z): everything a run releases is a function of Cx + z, one Gaussian release
of a vector with sensitivity sens_Π(C). Its ε is exactly the Gaussian mechanism's with the effective noise
multiplier σ / sens_Π(C); no composition takes place. One number μ = sens_Π(C) / σ describes it, and the run is μ-GDP
(Gaussian differential privacy), and so is any composition of such runs. Where cohorts are drawn at random and kept
secret, ε is smaller: the file of each sampling has its theorem.

Every function here accounts for `mechanism.cast_to_float32()`, whose float32 parameters the noise runs with.
"""

from typing import Unpack

from tff_mf.accounting.guarantee import Guarantee
from tff_mf.accounting.question import More, Question
from tff_mf.base import validation
from tff_mf.mechanisms import Mechanism
from tff_mf.problem.participation import Sampling


def guarantee(
    mechanism: Mechanism,
    rounds: int,
    sampling: Sampling,
    *,
    noise_multiplier: float,
    **more: Unpack[More],
) -> Guarantee:
    """Returns the guarantee of a whole run, with or without restarts, by the least of the bounds that apply.

    It is the ε of all rounds together; composing an ε of each round would be wrong. Composition assumes fresh noise in
    every round, but here the noise of a round returns, with the opposite sign, in later ones. How much a pattern of
    rounds reveals is measured by the sensitivity of C, and by no quantity of a single round.

    Formal guarantee:
        Adjacency: `adjacency`; zero-out alone is amplified by secret cohorts.
        Participation: cohorts are drawn by `sampling`. For a participation schema, the client's rounds form a pattern
        of it within all `rounds`, across restarts. For any other sampling its own condition holds, which its class
        states; `sampling.schema(rounds)` holds for whoever knows the cohorts, and what follows from it is never
        exceeded.
        Sensitivity: that of `mechanism.cast_to_float32()`, or a proven upper bound, rounded up; see
        `restart_sensitivity`.
        Released: all `rounds` noised sums. Composing the result once a round, or once a restart, would be wrong.
        Arithmetic: without `grid`, noise is taken to be Gaussian with real values, which floating-point numbers are
        not. With it, the release is the integers that are computed; what they cost is included: `grid_charge.charge`.

    Args:
        mechanism: As of `Question`, like `rounds` and `sampling`.
        rounds: Number of rounds n.
        sampling: How cohorts are drawn.
        noise_multiplier: σ, standard deviation of a coordinate of z divided by the clip norm; at least 0.
        more: `restart_every`, `adaptive_count_stddev`, `adjacency`, `grid`, `dimension`, `search` and `samples`, as of
            `Question`.

    Example:
        >>> from tff_mf import MinSep, Tree
        >>> p = MinSep(min_sep=314, max_participations=6)
        >>> run = guarantee(Tree(2000, variant="online"), 2000, p, noise_multiplier=7)
        >>> round(run.zcdp_rho, 2), round(run.epsilon(1e-10), 2), round(run.epsilon_from_zcdp(1e-10), 2)
        (0.81, 8.53, 8.9)
    """
    sigma = validation.nonnegative("noise_multiplier", noise_multiplier)
    return Question(mechanism=mechanism, rounds=rounds, sampling=sampling, **more).guarantee(sigma)


def zcdp_rho(mechanism: Mechanism, rounds: int, sampling: Sampling, *, noise_multiplier: float) -> float:
    """Returns ρ for which the whole run is ρ-zCDP, whoever knows the cohorts: `zcdp_rho` of `guarantee`.

    Source: Bun and Steinke (2016), proposition 1.6.

    Example:
        >>> from tff_mf import BLT, MinSep
        >>> p = MinSep(min_sep=447, max_participations=5)
        >>> round(zcdp_rho(BLT.production("b400"), 2350, p, noise_multiplier=7.379), 3)
        0.195
    """
    return guarantee(mechanism, rounds, sampling, noise_multiplier=noise_multiplier).zcdp_rho


def epsilon(
    mechanism: Mechanism,
    rounds: int,
    sampling: Sampling,
    *,
    noise_multiplier: float,
    delta: float,
    **more: Unpack[More],
) -> float:
    """Returns ε for which the whole run is (ε, δ)-DP: `epsilon(delta)` of `guarantee` for the same arguments.

    Example:
        >>> from tff_mf import BLT, MinSep
        >>> p = MinSep(min_sep=447, max_participations=5)
        >>> round(epsilon(BLT.production("b400"), 2350, p, noise_multiplier=7.379, delta=1e-10), 2)
        3.93
    """
    # Checked before the sensitivity, which may take seconds.
    validation.open_unit("delta", delta)
    return guarantee(mechanism, rounds, sampling, noise_multiplier=noise_multiplier, **more).epsilon(delta)


def calibrate_noise_multiplier(
    mechanism: Mechanism,
    rounds: int,
    sampling: Sampling,
    *,
    epsilon: float,
    delta: float,
    **more: Unpack[More],
) -> float:
    """Returns the smallest σ for which the whole run is (ε, δ)-DP, rounded up to 32 bits.

    With secret cohorts it is within 0.1 % of the smallest, or 0.5 % where ε is certified by sampling.

    Formal guarantee: as for `tff_mf.guarantee`, whose `epsilon(delta)` for the result is at most the requested
    `epsilon`, on this machine and on every other one. Where ε is certified by sampling, all certificates of the search
    together fail with at most δ/1000, which δ includes. From then on this process states the certificate of that σ.
    Another process draws its own, whose ε may differ in the third digit.

    Args:
        mechanism: As of `guarantee`, like `rounds`, `sampling` and `more`.
        rounds: Number of rounds n.
        sampling: How cohorts are drawn.
        epsilon: ε, greater than 0.
        delta: δ, strictly between 0 and 1.
        more: Further fields of `Question`.

    Example:
        >>> from tff_mf import Identity, SingleParticipation
        >>> round(calibrate_noise_multiplier(Identity(), 100, SingleParticipation(), epsilon=1.0, delta=1e-6), 4)
        4.2247

    Raises:
        InputValueError: If no finite noise is enough.
    """
    question = Question(mechanism=mechanism, rounds=rounds, sampling=sampling, **more)
    return question.noise_multiplier(epsilon=epsilon, delta=delta)
