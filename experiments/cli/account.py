"""`tff-mf account`: the guarantee of a run, or the noise for one."""

import dataclasses
import math
from typing import Any

import msgspec
import rich_click as click

from tff_mf.accounting import Question
from tff_mf.base import validation
from tff_mf.planning import by_name

from ..runs import statements
from ..sampling import SamplingSettings
from . import _options, _screens
from ._screens import Answer


@_options.command
@_options.mechanism
@_options.options(
    *(*_options.LEVEL, "rounds", *_options.SAMPLING, *_options.COHORTS, "grid", "dimension"),
    required=("rounds", "delta"),
)
def account(
    file: str,
    rounds: int,
    delta: float,
    epsilon: float | None,
    noise_multiplier: float | None,
    population: int | None,
    clients_per_round: int | None,
    grid: int | str | None,
    dimension: int | None,
    **drawn: Any,
) -> Answer:
    """Print the guarantee of a run for each client, in one line and in figures.

    With --epsilon in place of --noise-multiplier, it is of the smallest noise multiplier within (ε, δ). Without --grid
    and --dimension, figures are of real numbers. With --sampling, amplified figures are added: they hold only if
    cohorts are drawn at random and remain secret.
    """
    if (noise_multiplier is None) == (epsilon is None):
        raise click.UsageError("give either --noise-multiplier, or --epsilon for the smallest that reaches it.")
    # All of it before anything is computed; participation is never guessed.
    sampling, cohorts = _options.sampling_of(drawn), {"population": population, "clients_per_round": clients_per_round}
    schema, integers = sampling.schema(rounds), _options.grid_of_options(grid, dimension, clients_per_round)
    for name, number in cohorts.items():
        if number is not None:
            validation.whole(name, number)
    if noise_multiplier is not None:
        validation.positive("noise_multiplier", noise_multiplier)
    mechanism = by_name.load(file, rounds)
    known = Question(
        mechanism=mechanism,
        rounds=rounds,
        sampling=schema,
        grid=integers,
        dimension=None if integers is None else dimension,
    )
    sigma = _noise(known, noise_multiplier, epsilon, delta)
    guarantee = known.guarantee(sigma)
    claim = statements.claim(
        guarantee,
        delta=delta,
        rounds=rounds,
        participation=statements.bound_to(schema),
        population=population,
        cohort=clients_per_round or 1,
        clients_per_round=clients_per_round or 1,
        grid=integers is not None,
    )
    facts: dict[str, Any] = {
        "mechanism": mechanism.kind,
        **_screens.described(rounds, schema),
        **_screens.sensitivity(mechanism, rounds, schema),
        **({} if integers is None else {"grid_bits": integers.bits, "dimension": dimension}),
        "noise_multiplier": sigma,
        "effective_noise_multiplier": guarantee.effective_noise_multiplier,
        "mu": guarantee.mu,
        "zcdp_rho": guarantee.zcdp_rho,
        "delta": delta,
        "epsilon": guarantee.epsilon(delta),
        "claim": msgspec.to_builtins(claim),
    }
    if sampling.is_secret:
        facts |= _amplified(known, sampling, cohorts, noise_multiplier, epsilon, delta)
    refused = claim.state == statements.REFUSED
    hidden = [name for name in facts if name.removeprefix("amplified_").startswith("epsilon")] if refused else []
    shown = {
        "mechanism": _screens.title(file, mechanism),
        "participation": claim.participation,
        **dict.fromkeys(("min_sep", "max_participations", "claim", "amplified_statement", "sensitivity_exact")),
        "sensitivity_rule": _screens.exactness(facts),
        **{name: "not stated" for name in hidden if math.isfinite(facts[name])},
    }
    sigma = _screens.line("noise_multiplier", facts["noise_multiplier"])
    needed = f"{sigma}: " if epsilon is not None and not refused else ""
    blocks = [
        f"{needed}{statements.line(claim)}",
        _screens.figures(facts, shown),
        _of_amplified_noise(facts),
        f"Not checked: {'; '.join(claim.not_checked)}." if claim.not_checked else "",
    ]
    return Answer(statements.without_epsilon(facts) if refused else facts, blocks, failed=refused)


def _noise(question: Question, noise_multiplier: float | None, epsilon: float | None, delta: float) -> float:
    """Returns σ: the given one, or the smallest that reaches ε."""
    if noise_multiplier is not None:
        return noise_multiplier
    assert epsilon is not None
    return question.noise_multiplier(epsilon=epsilon, delta=delta)


def _of_amplified_noise(facts: dict[str, Any]) -> str:
    """Returns what holds if nobody ever learns a cohort, after the σ that is enough for it if that was asked for."""
    sigma, statement = facts.get("amplified_noise_multiplier"), facts.get("amplified_statement", "")
    return statement if sigma is None else f"{_screens.line('noise_multiplier', sigma)} {statement}"


def _amplified(
    known: Question,
    sampling: SamplingSettings,
    cohorts: dict[str, int | None],
    noise_multiplier: float | None,
    epsilon: float | None,
    delta: float,
) -> dict[str, Any]:
    """Returns the figures that hold if nobody ever learns a cohort; `known` is for whoever knows all of them."""
    secret = dataclasses.replace(known, sampling=sampling.drawn_by(**cohorts))
    sigma = _noise(secret, noise_multiplier, epsilon, delta)
    level = secret.guarantee(sigma).at(delta=delta)
    calibrated = {
        "amplified_noise_multiplier": sigma,
        "epsilon_if_cohorts_are_known": known.guarantee(sigma).epsilon(delta),
    }
    return {
        **({} if epsilon is None else calibrated),
        "amplified_epsilon": level.epsilon,
        "amplified_bound": level.theorem,
        "amplified_failure": level.failure,
        "amplified_statement": statements.amplified_line(
            level, sampling, rounds=known.rounds, **cohorts, grid=known.grid
        ),
    }
