"""What a run will guarantee, worked out before it starts and stated after it ends."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tff_mf
from tff_mf import _validate
from tff_mf.errors import InputValueError

from .. import sampling
from ..sampling import CohortPlan
from . import statements


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """The mechanism, its noise, and the guarantee that both give.

    A cohort of `cohort` clients may be simulated by fewer, `clients_per_round`, with the noise scaled
    down in proportion, as in the papers: the averaged update then has the noise that the large cohort
    would have. The guarantee (ε, δ) is that of the large cohort. The small run itself has much less
    noise, and the guarantee `epsilon_as_run`.

    Attributes:
        mechanism: The mechanism.
        rounds: Number of rounds n.
        participation: What each client is bound to.
        noise_multiplier: σ of the cohort.
        delta: δ.
        clients_per_round: Clients that train in a round.
        cohort: Clients that a round stands for.
        insecure_seed: Makes the noise repeatable. TEST ONLY: it leaves no guarantee.
    """

    mechanism: tff_mf.Mechanism
    rounds: int
    participation: tff_mf.Participation
    noise_multiplier: float
    delta: float
    clients_per_round: int
    cohort: int
    insecure_seed: int | None = None

    @property
    def insecure(self) -> bool:
        """Whether the noise is repeatable, and ε therefore unbounded."""
        return self.insecure_seed is not None

    @property
    def noise_multiplier_as_run(self) -> float:
        """σ of the noise that the run adds to the sum over the clients that train."""
        return self.noise_multiplier * self.clients_per_round / self.cohort

    @property
    def epsilon(self) -> float:
        """ε of the run that the cohort stands for."""
        return self._epsilon(self.noise_multiplier)

    @property
    def epsilon_as_run(self) -> float:
        """ε of the clients that really trained."""
        return self._epsilon(self.noise_multiplier_as_run)

    @property
    def zcdp_rho(self) -> float:
        """ρ of the run that the cohort stands for."""
        if self.insecure:
            return float("inf")
        return tff_mf.zcdp_rho(self.mechanism, self.rounds, self.participation, noise_multiplier=self.noise_multiplier)

    def _epsilon(self, noise_multiplier: float) -> float:
        if self.insecure:
            return float("inf")
        return tff_mf.epsilon(
            self.mechanism, self.rounds, self.participation, noise_multiplier=noise_multiplier, delta=self.delta
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns the numbers of the statement, for a JSON file; an unbounded ε is `None`."""
        return {
            "mechanism": self.mechanism.kind,
            "epsilon": _finite(self.epsilon),
            "delta": self.delta,
            "zcdp_rho": _finite(self.zcdp_rho),
            "adjacency": "zero-out",
            "noise_multiplier": self.noise_multiplier,
            "sensitivity": tff_mf.sensitivity(self.mechanism.cast_to_float32(), self.rounds, self.participation),
            "rounds": self.rounds,
            "min_sep": self.participation.min_sep,
            "max_participations": self.participation.max_participations,
            "cohort": self.cohort,
            "clients_per_round": self.clients_per_round,
            "noise_multiplier_as_run": self.noise_multiplier_as_run,
            "epsilon_as_run": _finite(self.epsilon_as_run),
            "test_only": self.insecure,
        }

    def claim(self, *, population: int | None = None, violations: Sequence[str] = ()) -> statements.Claim:
        """Returns what a line on the plan is to state.

        Args:
            population: Number of clients that can take part, in proportion to the cohort, if known.
            violations: What voids the guarantee, each with its field: "log: a line is damaged".
        """
        found = None
        if not self.insecure:
            arguments = (self.mechanism, self.rounds, self.participation)
            found = tff_mf.guarantee(*arguments, noise_multiplier=self.noise_multiplier)
        return statements.Claim(
            guarantee=found,
            delta=self.delta,
            rounds=self.rounds,
            participation=statements.bound_to(self.participation),
            population=population,
            cohort=self.cohort,
            clients_per_round=self.clients_per_round,
            test_only=self.insecure,
            violations=violations,
        )

    def run_claim(
        self,
        observed: sampling.ObservedParticipation,
        *,
        population: int | None = None,
        violations: Sequence[str] = (),
    ) -> statements.Claim:
        """Returns what a line on a training run is to state, with participation as assumed and as observed.

        Formal guarantee: that of `statements.one_line`; a participation that was observed to exceed what was assumed
        voids ε, and the line then says so instead of a number.

        Args:
            observed: Who took part, by the log.
            population: Number of clients that can take part, in proportion to the cohort, if known.
            violations: What else voids the guarantee, each with its field.
        """
        claim = self.claim(population=population, violations=violations)
        seen = statements.seen(observed.min_sep, observed.max_participations)
        if not observed.within(self.participation):
            text = (
                f"participation: clients took part more than was accounted for: assumed {claim.participation}, {seen}"
            )
            claim = dataclasses.replace(claim, violations=[*violations, text])
        text = f"{claim.participation}, {seen}"
        return dataclasses.replace(claim, participation=text, simulation=True)

    def statement(
        self,
        observed: sampling.ObservedParticipation,
        *,
        population: int | None = None,
        violations: Sequence[str] = (),
    ) -> str:
        """Returns the guarantee of a training run in one line: `statements.one_line` of its `run_claim`."""
        return statements.one_line(self.run_claim(observed, population=population, violations=violations))


def plan_privacy(
    *,
    mechanism: tff_mf.Mechanism,
    rounds: int,
    participation: tff_mf.Participation,
    delta: float,
    clients_per_round: int,
    cohort: int | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    insecure_seed: int | None = None,
) -> PrivacyPlan:
    """Returns the plan for either a privacy target or a noise multiplier.

    Example:
        >>> plan = plan_privacy(mechanism=tff_mf.Identity(), rounds=10, participation=tff_mf.SingleParticipation(),
        ...                     delta=1e-6, clients_per_round=20, cohort=1000, epsilon=2.0)
        >>> f"{plan.noise_multiplier:.3f} {plan.noise_multiplier_as_run:.4f}"
        '2.230 0.0446'

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or not exactly one of `epsilon` and
            `noise_multiplier` is given.
    """
    check_level(epsilon=epsilon, noise_multiplier=noise_multiplier, delta=delta)
    cohort = checked_cohort(clients_per_round, cohort)
    if insecure_seed is not None:
        _validate.whole("insecure_seed", insecure_seed, at_least=0)
    if epsilon is not None:
        noise_multiplier = tff_mf.calibrate_noise_multiplier(
            mechanism, rounds, participation, epsilon=epsilon, delta=delta
        )
    return PrivacyPlan(
        mechanism=mechanism,
        rounds=participation.check(rounds),
        participation=participation,
        noise_multiplier=_validate.nonnegative("noise_multiplier", noise_multiplier),
        delta=delta,
        clients_per_round=clients_per_round,
        cohort=cohort,
        insecure_seed=insecure_seed,
    )


def population(privacy: PrivacyPlan, cohorts: CohortPlan) -> int:
    """Returns the number of clients of a deployment in proportion to its simulation, rounded up.

    δ is held against 1 / population, so that the larger one is the stricter.
    """
    return -(-len(cohorts.client_ids) * privacy.cohort // privacy.clients_per_round)


def check_level(*, epsilon: float | None, noise_multiplier: float | None, delta: float) -> None:
    """Raises unless a level of noise is given one way, by numbers that can be one.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If one is out of range, or not exactly one of `epsilon` and `noise_multiplier` is given.
    """
    if (epsilon is None) == (noise_multiplier is None):
        raise InputValueError("Give either epsilon=ε or noise_multiplier=σ, and not both.")
    _validate.open_unit("delta", delta)
    if epsilon is not None:
        _validate.positive("epsilon", epsilon)
    if noise_multiplier is not None:
        _validate.nonnegative("noise_multiplier", noise_multiplier)


def checked_cohort(clients_per_round: int, cohort: int | None) -> int:
    """Returns how many clients a round stands for.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or the cohort is smaller than what simulates it.
    """
    clients_per_round = _validate.whole("clients_per_round", clients_per_round)
    cohort = clients_per_round if cohort is None else _validate.whole("cohort", cohort)
    if cohort < clients_per_round:
        raise InputValueError(
            f"cohort={cohort} must be at least clients_per_round={clients_per_round}: fewer clients simulate more."
        )
    return cohort


def _finite(value: float) -> float | None:
    return None if value == float("inf") else value
