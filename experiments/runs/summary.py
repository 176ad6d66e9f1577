"""The privacy part of a run's `summary.json`, from its plan and its log alone, so that a check can recompute it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tff_mf

from .. import sampling
from ..sampling.settings import SamplingSettings
from . import amplification, statements
from .settings import RunSettings
from .words import Reason

# What a summary names of the settings, in this order.
_SETTINGS = (
    *("algorithm", "model", "vocab_size", "embedding_size", "units", "server_optimizer", "server_learning_rate"),
    *("server_momentum", "server_warmup", "server_cooldown", "client_learning_rate", "clip_norm", "adaptive_clipping"),
    *("adaptive_learning_rate", "zeroing", "sampling", "dropout", "seed"),
)


def of_settings(settings: RunSettings) -> dict[str, Any]:
    """Returns the fields of a summary that name settings, with the numbers that they came to."""
    return {name: getattr(settings, name) for name in _SETTINGS}


def privacy_claims(
    privacy: tff_mf.Plan,
    observed: sampling.ObservedParticipation,
    in_secret: amplification.Amplified | None,
    *,
    population: int | None = None,
    violations: Sequence[Reason] = (),
    unanswered: Sequence[str] = (),
    secret: tuple[float, SamplingSettings] | None = None,
) -> dict[str, Any]:
    """Returns the fields of a summary that state a guarantee or its assumptions.

    Formal guarantee: no field holds an ε or a ρ if the claim is refused.

    Args:
        privacy: The mechanism and its noise.
        observed: How often, and how far apart, clients took part.
        in_secret: The amplified guarantee of a deployment with secret cohorts, or `None`.
        population: Number of clients that can take part, in proportion to the cohort, if known.
        violations: What the report of the run finds critical.
        unanswered: Questions of the report that are open.
        secret: Of a run whose own cohorts are secret: the ε that it states, and how they are drawn.
    """
    holds = observed.within(privacy.participation)
    run = statements.of_run(privacy, observed, population=population, violations=violations)
    if secret is not None:
        known = statements.of_plan(privacy, population=population, violations=violations)
        run = dataclasses.replace(amplification.own_claim(known, *secret), simulation=True)
    claim = statements.facts(dataclasses.replace(run, unanswered=unanswered))
    claims = {
        **privacy.as_dict(),
        "observed_min_sep": observed.min_sep,
        "observed_max_participations": observed.max_participations,
        "participation_within_assumed": holds,
        "claim": claim,
        "amplified_epsilon": in_secret and in_secret.epsilon,
        "amplified_claim": in_secret and statements.facts(in_secret.claim),
    }
    if secret is not None:
        # μ and ρ are those of known cohorts.
        claims |= {"epsilon": secret[0], "epsilon_as_run": secret[0], "zcdp_rho": None}
        claims |= {"observed_min_sep": None, "observed_max_participations": None}
    if claim["state"] == statements.REFUSED:
        claims |= dict.fromkeys(("epsilon", "epsilon_as_run", "zcdp_rho", "amplified_epsilon", "amplified_claim"))
    return claims
