"""The figures of a report: for the planned participation and the observed one."""

import dataclasses
import math
from typing import Any

import tff_mf
from tff_mf.accounting import Question, grid_charge
from tff_mf.base.errors import InputError
from tff_mf.base.strict_json import finite
from tff_mf.planning import run_guarantee

from ..runs import statements
from ..runs.run_record import RunRecord
from ._evidence import Evidence

# Up to this number of rounds, each client's pattern is evaluated, with a matrix of as many rows: in seconds.
_MOST_ROUNDS_BY_PATTERN = 4096

_DELTAS = (1e-6, 1e-8, 1e-10)

# Above the rounding error of two sensitivities that are compared.
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figures:
    """A guarantee that holds if every assumption does, and the sensitivity that it follows from.

    Attributes:
        question: What was asked of the run, to ask again with the sensitivity of its first rounds.
        reached: A sensitivity that a client in the log attains; 0 if none is known.
        charge: What the integers of a grid cost, which is part of the guarantee; `None` in floating point.
    """

    guarantee: tff_mf.Guarantee
    sensitivity: tff_mf.SensitivityResult
    question: Question
    reached: float = 0.0
    charge: grid_charge.GridCharge | None = None


def planned(record: RunRecord, mechanism: tff_mf.Mechanism) -> Figures:
    """Returns the figures for the participation schema of the run."""
    every = record.restart_every or record.rounds
    found = tff_mf.restart_sensitivity(mechanism.cast_to_float32(), record.rounds, record.schema, restart_every=every)
    return _figures(record, mechanism, found, record.schema, rounds=record.rounds)


def planned_epsilon(record: RunRecord, mechanism: tff_mf.Mechanism) -> float | None:
    """Returns ε of a run as planned; `None` if it is infinite, or may not be stated at this δ."""
    epsilon = planned(record, mechanism).guarantee.epsilon(record.delta)
    return None if statements.violations(epsilon, record.delta, record.population) else epsilon


def realised(evidence: Evidence) -> Figures | None:
    """Returns the figures for the observed rounds of the clients; `None` if they cannot be computed.

    Formal guarantee: the sensitivity is the largest over the clients in the log, or an upper bound: the smaller one of
    the sensitivities of the observed patterns and of a schema that has all of them: the `MinSep` of the observed b
    and k, or, of a run in fixed epochs, the `FixedEpoch` of the observed steps. If a client is listed twice in a round,
    there are no figures.
    """
    record, mechanism, rounds = evidence.record, evidence.mechanism, evidence.rounds
    if mechanism is None or not rounds or evidence.repeated:
        return None
    if record.is_secret:
        # No log has them: all that is known is what the sampling keeps.
        return planned(record, mechanism)
    schema = observed_schema(evidence)
    try:
        found, reached = observed_sensitivity(evidence, mechanism)
        # A log of more rounds than were planned, which voids the claim, has their cost too.
        return _figures(record, mechanism, found, schema, rounds=max(record.rounds, rounds), reached=reached)
    except InputError:
        return None


def observed_schema(evidence: Evidence) -> tff_mf.MinSep:
    """Returns the narrowest `MinSep` that has all observed patterns."""
    most = max(1, evidence.observed.max_participations)
    return tff_mf.MinSep(min_sep=evidence.observed.min_sep or evidence.rounds, max_participations=most)


def observed_sensitivity(evidence: Evidence, mechanism: tff_mf.Mechanism) -> tuple[tff_mf.SensitivityResult, float]:
    """Returns the sensitivity of the observed participation, and one that a client in the log attains, 0 if unknown."""
    record, rounds = evidence.record, evidence.rounds
    every = min(record.restart_every or rounds, rounds)
    run, reached = mechanism.cast_to_float32(), 0.0
    schemas: list[tff_mf.Participation] = [observed_schema(evidence)]
    step, span = evidence.observed.common_step, evidence.observed.span
    if isinstance(record.schema, tff_mf.FixedEpoch) and step and span is not None:
        # The narrowest that has all observed patterns, if the run claims one.
        schemas.append(tff_mf.FixedEpoch(min_sep=step, max_participations=span // step + 1))
    bounds = [tff_mf.restart_sensitivity(run, rounds, each, restart_every=every) for each in schemas]
    if rounds <= _MOST_ROUNDS_BY_PATTERN:
        exact = tff_mf.pattern_sensitivity(run, rounds, evidence.patterns, restart_every=every)
        reached = exact.value if exact.exact else 0.0
        bounds.insert(0, exact)
    # The first of those that are equal but for rounding, so that every machine takes the same.
    smallest = min(each.value for each in bounds)
    return next(each for each in bounds if each.value <= smallest * (1 + _ROUNDING)), reached


def stated(evidence: Evidence, planned: Figures | None, seen: Figures | None) -> Figures | None:
    """Returns the figures that a report states: the observed ones, or the planned ones before the run.

    Formal guarantee: at least the figures of the observed participation. If the run was stopped early, at least the
    planned figures too: the decision to stop may depend on released results, and then the guarantee follows from the
    run that could have continued.
    """
    if not evidence.realised:
        return planned
    if seen is None or planned is None or last_round(evidence) >= evidence.record.rounds:
        return seen
    if planned.guarantee.mu < seen.guarantee.mu * (1 - _ROUNDING):
        return seen
    # Where both are equal but for rounding, every machine names the same sensitivity.
    return dataclasses.replace(planned, guarantee=max(planned.guarantee, seen.guarantee, key=lambda each: each.mu))


def last_round(evidence: Evidence) -> int:
    """Returns the last released round that has clients, or, of secret cohorts, may have."""
    if evidence.record.is_secret and evidence.ledger is not None:
        return evidence.ledger.last_released
    return evidence.last_round


def contradiction(evidence: Evidence, planned: Figures | None, seen: Figures | None) -> bool:
    """Returns whether the log refutes the sensitivity of the schema.

    If a client that follows the schema attains a sensitivity, the sensitivity of the schema cannot be smaller.
    """
    if planned is None or seen is None:
        return False
    record = evidence.record
    within = evidence.rounds <= record.rounds and all(map(record.schema.allows, evidence.patterns))
    return within and seen.reached > planned.sensitivity.value * (1 + _ROUNDING)


def measures(guarantee: tff_mf.Guarantee, delta: float) -> dict[str, Any]:
    """Returns a guarantee in each privacy measure; infinite values are `None`."""
    return {
        "mu": finite(guarantee.mu),
        "zcdp_rho": finite(guarantee.zcdp_rho),
        "epsilon": finite(guarantee.epsilon(delta)),
        "epsilon_by_pld": finite(guarantee.epsilon_by_pld(delta)),
        "epsilon_from_zcdp": finite(guarantee.epsilon_from_zcdp(delta)),
        "delta": delta,
        "epsilon_at": [{"delta": each, "epsilon": finite(guarantee.epsilon(each))} for each in _DELTAS],
    }


def _figures(
    record: RunRecord,
    mechanism: tff_mf.Mechanism,
    found: tff_mf.SensitivityResult,
    schema: tff_mf.Participation,
    *,
    rounds: int,
    reached: float = 0.0,
) -> Figures:
    question = Question(
        mechanism=mechanism,
        rounds=rounds,
        sampling=schema,
        restart_every=record.restart_every,
        adjacency=record.adjacency,
        grid=record.grid,
        dimension=record.dimension,
    )
    return Figures(
        guarantee=guarantee_of(record, question, found),
        sensitivity=found,
        question=question,
        reached=reached,
        charge=question.charge(record.noise_multiplier),
    )


def guarantee_of(record: RunRecord, question: Question, sensitivity: tff_mf.SensitivityResult) -> tff_mf.Guarantee:
    """Returns the guarantee of a run with a sensitivity, with the integers of a grid and the counts of clipping."""
    if record.insecure_seed is not None or not record.noise_multiplier:
        return tff_mf.Guarantee(mu=math.inf, adjacency=record.adjacency)
    count_stddev = record.adaptive_count_stddev
    return run_guarantee(question, record.noise_multiplier, count_stddev=count_stddev, sensitivity=sensitivity)
