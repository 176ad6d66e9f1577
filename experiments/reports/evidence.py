"""What the folder of a run supports: its record, artifact, ledger and metrics, and the figures that follow."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Mapping, Sequence

import tff_mf
from tff_mf.accounting import Question
from tff_mf.base.errors import InputError

from ..output.files import file_hash
from ..runs import names, statements
from ..runs.ledger import LedgerRecord, read_ledger
from ..runs.metrics import Metrics, read_metrics
from ..runs.run_record import RunRecord, read_record
from ..sampling import ObservedParticipation

# Above the rounding of two sensitivities, or two values of μ, that are compared.
ROUNDING = 1e-9
# Up to this number of rounds the pattern of every client is evaluated, with a matrix of as many rows: in seconds.
_MOST_ROUNDS_BY_PATTERN = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Computed:
    """A guarantee that holds if every rule does, and the sensitivity that it follows from.

    Attributes:
        reached: A sensitivity that a client in the log attains; 0 if none is known.
    """

    guarantee: tff_mf.Guarantee
    sensitivity: tff_mf.SensitivityResult
    reached: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """The content of a run's folder, as far as it is intact, and the figures that follow from it.

    Attributes:
        realised: Whether the log counts, for the final report; without it, the report is about the plan.
        ledger: The log, as far as it can be read; empty before the run.
        wrong_log: What is wrong with the files of the log.
    """

    folder: pathlib.Path
    realised: bool
    record: RunRecord
    ledger: LedgerRecord
    metrics: Metrics
    wrong_log: Sequence[str]

    @property
    def plan(self) -> tff_mf.Plan:
        """The plan of the run."""
        return self.record.plan

    @property
    def rounds(self) -> int:
        """The last round that began."""
        return max(self.ledger.attempts, default=0)

    @property
    def last_round(self) -> int:
        """The last released round that has clients, or, of secret cohorts, may have."""
        released = self.ledger.last_released
        if self.record.is_secret:
            return released
        return max((number for number, size in self.ledger.sizes.items() if size and number <= released), default=0)

    @functools.cached_property
    def rounds_by_client(self) -> Mapping[str, Sequence[int]]:
        """The rounds of each client, counted from 1, in order.

        Formal guarantee: a client in several attempts of a round took part in it once, since at most one attempt is
        released; one in an abandoned attempt took part all the same.
        """
        rounds: dict[str, set[int]] = {}
        for line in self.ledger.begun:
            for client in line.clients:
                rounds.setdefault(client, set()).add(line.round)
        return {client: sorted(numbers) for client, numbers in rounds.items()}

    @functools.cached_property
    def observed(self) -> ObservedParticipation:
        """How often, and how far apart, clients took part."""
        return ObservedParticipation.of(self.rounds_by_client.values())

    @property
    def population(self) -> int | None:
        """The number of clients: as in `run.json` or as observed in the log, whichever is larger.

        δ is compared with 1 / population, so a smaller number than the log shows would let a δ pass that is too large.
        If clients stand for a larger cohort, the number comes from `deployed_population`.
        """
        deployed = self.plan.deployed_population(len(self.rounds_by_client))
        return max(deployed, self.record.population or 0) or None

    @functools.cached_property
    def planned(self) -> Computed:
        """The figures for the schema of the claim."""
        return _computed(self.record, self.plan.participation, rounds=self.plan.rounds)

    @functools.cached_property
    def seen(self) -> Computed | None:
        """The figures for the observed rounds of the clients; `None` if they cannot be computed.

        Formal guarantee: the sensitivity is the largest over the clients in the log, or an upper bound: the smaller one
        of the sensitivities of the observed patterns and of a schema that has all of them: the `MinSep` of the observed
        b and k, or, of a run in fixed epochs, the `FixedEpoch` of the observed steps. There are no figures of a ledger
        that no run can have written, such as one that lists a client twice in a round.
        """
        if not self.rounds or self.ledger.impossible:
            return None
        if self.record.is_secret:
            # No log has them: all that is known is what the sampling keeps.
            return self.planned
        try:
            return _seen(self)
        except InputError:
            return None

    @functools.cached_property
    def stated(self) -> Computed | None:
        """The figures that a report states: the observed ones, or the planned ones before the run.

        Formal guarantee: at least the figures of the observed participation. If the run was stopped early, at least the
        planned figures too: the decision to stop may depend on released results, and then the guarantee follows from
        the run that could have continued.
        """
        planned, seen = self.planned, self.seen
        if not self.realised:
            return planned
        if seen is None or self.last_round >= self.plan.rounds:
            return seen
        if planned.guarantee.mu < seen.guarantee.mu * (1 - ROUNDING):
            return seen
        # Where both are equal but for rounding, every machine names the same sensitivity.
        larger = max(planned.guarantee, seen.guarantee, key=lambda guarantee: guarantee.mu)
        return dataclasses.replace(planned, guarantee=larger)


def gather(folder: pathlib.Path, *, realised: bool) -> Evidence:
    """Returns what a run's folder contains; what is wrong with files but those of its record is collected."""
    record = read_record(folder)
    ledger, metrics, wrong_log = LedgerRecord(), Metrics(), []
    if realised:
        try:
            ledger = read_ledger(folder / names.LEDGER)
            wrong_log += [f"{names.LEDGER}: {problem}" for problem in ledger.problems]
            if ledger.bound_to not in (None, file_hash(folder / names.RUN_JSON)):
                wrong_log.append(f"{names.RUN_JSON} was edited after the run began")
            metrics = read_metrics(folder / names.METRICS)
        except InputError as error:
            wrong_log.append(str(error))
    return Evidence(
        folder=folder,
        realised=realised,
        record=record,
        ledger=ledger,
        metrics=metrics,
        wrong_log=wrong_log,
    )


def planned_epsilon(record: RunRecord) -> float | None:
    """Returns ε of a run as planned; `None` if it is infinite, or may not be stated at this δ."""
    epsilon = _computed(record, record.plan.participation, rounds=record.plan.rounds).guarantee.epsilon(
        record.plan.delta
    )
    return None if statements.violations(epsilon, record.plan.delta, record.population) else epsilon


def _seen(evidence: Evidence) -> Computed:
    """Returns the figures of the observed participation: see `Evidence.seen`."""
    plan, rounds, came = evidence.plan, evidence.rounds, evidence.observed
    every = min(plan.restart_every or rounds, rounds)
    run, reached = plan.mechanism.cast_to_float32(), 0.0
    # The narrowest that has all observed patterns.
    schema = tff_mf.MinSep(min_sep=came.min_sep or rounds, max_participations=max(1, came.max_participations))
    schemas: list[tff_mf.Participation] = [schema]
    if isinstance(plan.participation, tff_mf.FixedEpoch) and came.common_step and came.span is not None:
        # The same of those that the run claims.
        most = came.span // came.common_step + 1
        schemas.append(tff_mf.FixedEpoch(min_sep=came.common_step, max_participations=most))
    bounds = [tff_mf.restart_sensitivity(run, rounds, kind, restart_every=every) for kind in schemas]
    if rounds <= _MOST_ROUNDS_BY_PATTERN:
        # Rounds are counted from 0 there.
        patterns = [tuple(number - 1 for number in numbers) for numbers in evidence.rounds_by_client.values()]
        exact = tff_mf.pattern_sensitivity(run, rounds, patterns, restart_every=every)
        reached = exact.value if exact.exact else 0.0
        bounds.insert(0, exact)
    # The first of those that are equal but for rounding, so that every machine takes the same.
    smallest = min(bound.value for bound in bounds)
    sensitivity = next(bound for bound in bounds if bound.value <= smallest * (1 + ROUNDING))
    # A log of more rounds than were planned, which voids the claim, has their cost too.
    return _computed(evidence.record, schema, rounds=max(plan.rounds, rounds), sensitivity=sensitivity, reached=reached)


def _computed(
    record: RunRecord,
    schema: tff_mf.Participation,
    *,
    rounds: int,
    sensitivity: tff_mf.SensitivityResult | None = None,
    reached: float = 0.0,
) -> Computed:
    """Returns the figures of a schema, with a sensitivity that is known to be smaller than the schema's, if one is."""
    plan, guarantee = record.plan, tff_mf.Guarantee(mu=math.inf, adjacency=record.adjacency)
    question = Question(
        mechanism=plan.mechanism,
        rounds=rounds,
        sampling=schema,
        restart_every=plan.restart_every,
        adaptive_count_stddev=plan.adaptive_count_stddev,
        adjacency=record.adjacency,
        grid=plan.grid,
        dimension=plan.dimension,
        search=plan.search,
    )
    sensitivity = sensitivity or question.sensitivity
    if plan.insecure_seed is None and plan.noise_multiplier:
        guarantee = question.guarantee(plan.noise_multiplier, sensitivity)
    return Computed(guarantee=guarantee, sensitivity=sensitivity, reached=reached)
