"""What sampling would add to the privacy of a run whose cohorts nobody knows."""

import dataclasses

import tff_mf
from tff_mf.amplification import bands_and_norm

from . import statements
from .privacy import PrivacyPlan
from .settings import SamplingSettings

# Below it, privacy loss distributions in float64 say nothing.
_SMALLEST_DELTA = 1e-12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Amplified:
    """The ε of a deployment that samples as the run did, and keeps its cohorts secret.

    Attributes:
        epsilon: ε with amplification by sampling, for the cohort that the run stands for.
        population: Clients of such a deployment.
        claim: What a line on it is to state.
    """

    epsilon: float
    population: int
    claim: statements.Claim

    @property
    def statement(self) -> str:
        """The hypothetical guarantee in one line, which says that it is none of this run."""
        return (
            f"not of this run, whose cohorts follow from a seed and are logged, but of a deployment that draws them in "
            f"secret from {self.population} clients, with amplification by sampling: {statements.one_line(self.claim)}"
        )


def amplified(privacy: PrivacyPlan, sampling: SamplingSettings, population: int) -> Amplified | None:
    """Returns what amplification by sampling would give, or None if no theorem here covers the run.

    Formal guarantee: that of `tff_mf.amplified_epsilon`, for groups that are larger in the proportion in which the
    cohort is, rounded down: a client of such a deployment takes part with the probability of one of this run, or with a
    larger one. It covers Poisson sampling of a mechanism with one band, and cyclic Poisson sampling of one with as many
    bands as groups.

    Args:
        privacy: The mechanism and its noise.
        sampling: How cohorts were drawn.
        population: Clients they were drawn from.

    Example:
        >>> from tff_mf.experiments.privacy import plan_privacy
        >>> plan = plan_privacy(mechanism=tff_mf.Identity(), rounds=100, delta=1e-6, clients_per_round=10,
        ...                     participation=tff_mf.MinSep(min_sep=1, max_participations=100), noise_multiplier=1.0)
        >>> found = amplified(plan, SamplingSettings(kind="poisson"), 1000)
        >>> f"{found.epsilon:.2f}, {plan.epsilon:.2f} without"
        '0.95, 96.72 without'

    Raises:
        InputError: If an argument is out of range.
    """
    groups = {"poisson": 1, "cyclic_poisson": privacy.participation.separation}.get(sampling.kind)
    if groups is None or privacy.insecure or not privacy.noise_multiplier or privacy.delta < _SMALLEST_DELTA:
        return None
    bands, _ = bands_and_norm(privacy.mechanism.as_run(), privacy.mechanism.check(privacy.rounds))
    if bands != groups:
        return None
    # The run's own groups, with the clients left over that never take part: the whole population divided by fewer
    # clients per round, and then by groups, would make q smaller than it was.
    scaled = groups * (population // groups * privacy.cohort // privacy.clients_per_round)
    epsilon = tff_mf.amplified_epsilon(
        privacy.mechanism,
        privacy.rounds,
        population=scaled,
        clients_per_round=privacy.cohort,
        noise_multiplier=privacy.noise_multiplier,
        delta=privacy.delta,
    )
    claim = privacy.claim(population=scaled)
    cohorts = f"cohorts by {sampling.kind} sampling that nobody knows, {groups} groups in turn"
    return Amplified(
        epsilon=epsilon,
        population=scaled,
        claim=dataclasses.replace(
            claim, guarantee=None, amplified=epsilon, participation=cohorts, clients_per_round=privacy.cohort
        ),
    )
