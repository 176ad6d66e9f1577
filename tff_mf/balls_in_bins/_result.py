"""What is certified, by which bound, and with what certainty."""

import dataclasses

from tff_mf.grids import Grid


@dataclasses.dataclass(frozen=True, kw_only=True)
class DirectionBound:
    """A bound in one direction of the adjacency.

    Attributes:
        value: The certified ε, or δ.
        estimate: An estimate of it, without a certificate.
        bound: The bound that was smallest: "unamplified", "allocation" or "moments" (deterministic), or
            "Monte Carlo".
        samples: Number of samples of the Monte Carlo bound, 0 if another one was close enough.
    """

    value: float
    estimate: float
    bound: str
    samples: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class BallsInBinsGuarantee:
    """(ε, δ) of a run with balls-in-bins sampling, with its certificate.

    Formal guarantee: as for `balls_in_bins_epsilon`, if `certified`.

    Attributes:
        epsilon: ε.
        delta: δ, which includes `failure`.
        noise_multiplier: σ.
        bins: Number of groups b.
        estimate: An estimate of the figure that was asked for, without a certificate.
        remove: Bound for the run with the client against the run without it, of real numbers.
        add: Bound for the run without the client against the run with it, of real numbers.
        bound: Name of the bound in the direction that decides.
        failure: Probability, at most δ/1000, that the certificate is wrong; 0 if no sampling was needed.
        certified: False if a seed was given: its samples may have been chosen.
        seconds: Time that it took.
        grid: The grid whose integers `epsilon` is of, or `None` for real numbers.
    """

    epsilon: float
    delta: float
    noise_multiplier: float
    bins: int
    estimate: float
    remove: DirectionBound
    add: DirectionBound
    bound: str
    failure: float
    certified: bool
    seconds: float
    grid: Grid | None = None

    @property
    def samples(self) -> int:
        """Number of samples of both directions."""
        return self.remove.samples + self.add.samples
