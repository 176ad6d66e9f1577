"""What is certified, by which bound, and with what certainty."""

import dataclasses

from tff_mf.balls_in_bins import DirectionBound
from tff_mf.grids import Grid


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinSepPoissonGuarantee:
    """(ε, δ) of a run with b-min-sep sampling, with its certificate.

    Formal guarantee: as for `min_sep_poisson_epsilon`, if `certified`.

    Attributes:
        epsilon: ε.
        delta: δ, which includes `failure`.
        noise_multiplier: σ.
        min_sep: b.
        probability: p.
        estimate: An estimate of ε, without a certificate.
        remove: Bound for the run with the client against the run without it, of real numbers.
        add: Bound for the run without the client against the run with it, of real numbers.
        bound: Name of the bound in the direction that decides: "unamplified", "no round" (deterministic, for adding)
            or "Monte Carlo".
        failure: Probability, at most δ/1000, that the certificate is wrong; 0 if no sampling was needed.
        certified: False if a seed was given: its samples may have been chosen.
        seconds: Time that it took.
        grid: The grid whose integers `epsilon` is of, or `None` for real numbers.
    """

    epsilon: float
    delta: float
    noise_multiplier: float
    min_sep: int
    probability: float
    estimate: float
    remove: DirectionBound
    add: DirectionBound
    bound: str
    failure: float
    certified: bool
    seconds: float
    grid: Grid | None = None
