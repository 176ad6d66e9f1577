"""The numbers of a report: for what was planned, and for what the clients that took part could move."""

import dataclasses
import math
from typing import Any

import tff_mf
from tff_mf.errors import InputError

from ..run_folder.run_json import Configuration
from ._evidence import Evidence

# Patterns are looked at one by one up to here, with a matrix of so many rows: seconds.
_MOST_ROUNDS_BY_PATTERN = 4096

_DELTAS = (1e-6, 1e-8, 1e-10)

# Above that of either of two sensitivities.
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figures:
    """A guarantee and where it comes from.

    Attributes:
        guarantee: What the run guarantees if every assumption holds.
        sensitivity: That of the mechanism in float32.
        reached: How far some client in the log can move the release, without any bound; 0 if that is not known.
    """

    guarantee: tff_mf.Guarantee
    sensitivity: tff_mf.SensitivityResult
    reached: float = 0.0


def planned(configuration: Configuration, mechanism: tff_mf.Mechanism) -> Figures:
    """Returns the figures for the schema that is claimed."""
    every = configuration.restart_every or configuration.rounds
    found = tff_mf.restart_sensitivity(
        mechanism.cast_to_float32(), configuration.rounds, configuration.schema, restart_every=every
    )
    return Figures(guarantee=_guarantee(configuration, found.value, configuration.schema), sensitivity=found)


def planned_epsilon(configuration: Configuration, mechanism: tff_mf.Mechanism) -> float | None:
    """Returns ε of a run as planned; `None` if it is infinite."""
    return finite(planned(configuration, mechanism).guarantee.epsilon(configuration.delta))


def realised(configuration: Configuration, evidence: Evidence) -> Figures | None:
    """Returns the figures for the patterns that were observed, or `None` if there is nothing to compute from.

    Formal guarantee: the sensitivity is the largest over the clients in the log, or an upper bound; by pattern, and by
    the schema of the observed b and k, whichever is less. A client twice in a round has no pattern, and no figure.
    """
    mechanism, rounds = evidence.mechanism, evidence.rounds
    if mechanism is None or not rounds or evidence.repeated:
        return None
    limit = max(1, evidence.max_participations)
    schema = tff_mf.MinSep(min_sep=evidence.min_sep or rounds, max_participations=limit)
    every = min(configuration.restart_every or rounds, rounds)
    run, reached = mechanism.cast_to_float32(), 0.0
    try:
        found = tff_mf.restart_sensitivity(run, rounds, schema, restart_every=every)
        if rounds <= _MOST_ROUNDS_BY_PATTERN:
            exact = tff_mf.pattern_sensitivity(run, rounds, evidence.patterns, restart_every=every)
            reached = exact.value if exact.exact else 0.0
            found = min(exact, found, key=lambda each: each.value)
    except InputError:
        return None
    return Figures(guarantee=_guarantee(configuration, found.value, schema), sensitivity=found, reached=reached)


def stated(
    configuration: Configuration, evidence: Evidence, planned: Figures | None, seen: Figures | None, *, realised: bool
) -> Figures | None:
    """Returns the figures that a report states: those of what ran, or of the plan as long as nothing did.

    Formal guarantee: never less than what the clients in the log could move. A run that was stopped early states what
    was planned too, if that is more: the decision to stop may have followed from what was released, and the guarantee
    then is that of the run that might have been.

    Args:
        configuration: What the run was set to do.
        evidence: What it did.
        planned: Figures for the schema that is claimed.
        seen: Figures for the patterns that were observed.
        realised: Whether the run is over, and its logs count.
    """
    if not realised:
        return planned
    if seen is None or planned is None or evidence.last_round >= configuration.rounds:
        return seen
    return max(planned, seen, key=lambda each: each.guarantee.mu)


def contradiction(
    configuration: Configuration, evidence: Evidence, planned: Figures | None, seen: Figures | None
) -> str:
    """Returns how what clients of the schema did contradicts the schema's sensitivity, or an empty text.

    Contributions that reach a sensitivity refute every smaller one that is claimed for patterns of the same schema.
    """
    if planned is None or seen is None:
        return ""
    within = evidence.rounds <= configuration.rounds and all(map(configuration.schema.allows, evidence.patterns))
    claimed = planned.sensitivity.value
    if not within or seen.reached <= claimed * (1 + _ROUNDING):
        return ""
    return f"clients that kept the schema move the release by {seen.reached!r}, more than the {claimed!r} of the plan"


def currencies(guarantee: tff_mf.Guarantee, delta: float) -> dict[str, Any]:
    """Returns a guarantee in every currency; infinite ones are `None`."""
    return {
        "mu": finite(guarantee.mu),
        "zcdp_rho": finite(guarantee.zcdp_rho),
        "epsilon": finite(guarantee.epsilon(delta)),
        "epsilon_by_pld": finite(guarantee.epsilon_by_pld(delta)),
        "epsilon_from_zcdp": finite(guarantee.epsilon_from_zcdp(delta)),
        "delta": delta,
        "epsilon_at": [{"delta": each, "epsilon": finite(guarantee.epsilon(each))} for each in _DELTAS],
    }


def _guarantee(configuration: Configuration, sensitivity: float, schema: tff_mf.Participation) -> tff_mf.Guarantee:
    if configuration.insecure_seed is not None or not configuration.noise_multiplier:
        return tff_mf.Guarantee(mu=math.inf, adjacency=configuration.adjacency)
    # Sensitivities are good to 9e-13.
    found = tff_mf.Guarantee(mu=sensitivity / configuration.noise_multiplier * (1 + 2.0**-40))
    if configuration.adjacency == "replace-one":
        found = found.replace_one()
    if configuration.adaptive_count_stddev is None:
        return found
    counts = tff_mf.adaptive_clipping_guarantee(
        max(configuration.rounds, (schema.max_participations - 1) * schema.min_sep + 1),
        schema,
        count_stddev=configuration.adaptive_count_stddev,
        adjacency=configuration.adjacency,
    )
    return tff_mf.compose_guarantees(found, counts)


def finite(value: float) -> float | None:
    """Returns a figure as JSON has it: `None` if it is infinite."""
    return None if math.isinf(value) else value
