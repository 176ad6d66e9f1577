"""`plan`: chooses what is not given, and calibrates the noise."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tff_mf.accounting import SecretSampling, check_sampling
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Identity, Mechanism
from tff_mf.planning import options as compared
from tff_mf.planning import secret
from tff_mf.planning._noise import check_level, checked_cohort
from tff_mf.planning._plan import Plan
from tff_mf.planning._words import Alternative
from tff_mf.planning.setting import MechanismSetting
from tff_mf.problem.grids import Grid
from tff_mf.problem.participation import Sampling


def plan(
    *,
    rounds: int,
    clients_per_round: int,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    population: int | None = None,
    mechanism: Mechanism | str | os.PathLike[str] | None = None,
    sampling: Sampling | None = None,
    clip_norm: float = 1.0,
    cohort: int | None = None,
    secret_cohorts: bool = False,
    grid: Grid | None = None,
    dimension: int | None = None,
    restart_every: int | None = None,
    adaptive_count_stddev: float | None = None,
    insecure_seed: int | None = None,
) -> Plan:
    """Returns the plan of a run: everything that its guarantee depends on, in one object.

    What is not given is chosen, as `tff-mf plan` does: `plan.why` says why, and `plan.alternatives` what the others
    would cost. `print(plan)` shows all of it.

    Formal guarantee: with `epsilon`, the plan's own `epsilon` is at most that: of all restarts, and composed with the
    counts of adaptive clipping.

    Args:
        rounds: Number of rounds n of the whole run.
        clients_per_round: Clients that train in a round, for some samplings on average.
        delta: δ; at most one divided by the number of clients, and rather less.
        epsilon: ε that the whole run may reach.
        noise_multiplier: σ of the cohort, in place of ε.
        population: Clients that cohorts are drawn from; needed if `sampling` is not given.
        mechanism: The mechanism, with restarts of one restart; or a name, such as "blt" or "banded", or the path of an
            artifact; or `None` for the recommended one: with secret cohorts, of those that the sampling amplifies.
        sampling: How cohorts are drawn; `None` for clients that come as far apart as their number allows.
        clip_norm: ζ, the bound on the L2 norm of a client's update.
        cohort: Clients that a round stands for; `clients_per_round` if not given.
        secret_cohorts: Whether a trusted server draws the cohorts in secret and nobody ever learns one: only then ε
            is that of `sampling`, and not that of its schema.
        grid: The grid on which updates, their sums and the noise are integers, or `None` for floating point, where
            the guarantee holds only for the real numbers that floats stand for, until `for_model`.
        dimension: The most parameters that the model may have, with a grid.
        restart_every: Rounds after which noise starts anew with fresh z, less than `rounds`; or `None`.
        adaptive_count_stddev: Standard deviation of the noised counts of adaptive clipping, for the cohort; `None` if
            the clip norm is fixed. It needs `restart_every`.
        insecure_seed: Makes the noise repeatable. TEST ONLY: it leaves no guarantee.

    Example:
        >>> import tff_mf
        >>> found = tff_mf.plan(population=600, clients_per_round=20, rounds=100, epsilon=8.0, delta=1e-6)
        >>> found.sampling, found.mechanism.kind, f"{found.epsilon:.2f}"
        (MinSep(min_sep=30, max_participations=4), 'blt', '8.00')
        >>> simulated = tff_mf.plan(mechanism="identity", rounds=10, sampling=tff_mf.SingleParticipation(),
        ...                         delta=1e-6, clients_per_round=20, cohort=1000, epsilon=2.0)
        >>> f"{simulated.noise_multiplier:.3f} {simulated.noise_multiplier_as_run:.4f}"
        '2.230 0.0446'

    Raises:
        ArtifactError: If `mechanism` is the path of a file that holds no intact artifact.
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is missing or out of range, arguments contradict each other, or the counts alone
            exceed `epsilon`.
    """
    check_level(epsilon=epsilon, noise_multiplier=noise_multiplier, delta=delta)
    cohort = checked_cohort(clients_per_round, cohort)
    if sampling is None:
        sampling = _widest(population, clients_per_round, rounds)
    check_sampling(sampling)
    fields: dict[str, Any] = {
        "rounds": rounds,
        "sampling": sampling,
        "delta": delta,
        "clients_per_round": clients_per_round,
        "cohort": cohort,
        "insecure_seed": insecure_seed,
        "restart_every": restart_every,
        "adaptive_count_stddev": adaptive_count_stddev,
        "grid": grid,
        "dimension": dimension,
        "clip_norm": clip_norm,
        "population": population,
        "secret_cohorts": secret_cohorts,
        "noise_multiplier": 0.0 if noise_multiplier is None else float(noise_multiplier),
    }
    fields |= _mechanism(mechanism, fields, epsilon)
    found = Plan(**fields)
    if epsilon is not None:
        return found.calibrated(epsilon)
    if grid is not None:
        # Refused now, and not by the first report of the run.
        _ = found.guarantee
    return found


def _widest(population: int | None, clients_per_round: int, rounds: int) -> Sampling:
    """Returns the sampling in which clients come as far apart as their number allows."""
    if population is None:
        raise InputValueError(
            "population and sampling are missing: give population=len(clients), or say with sampling= how often a "
            "client may take part, for example tff_mf.MinSep(min_sep=20, max_participations=5)."
        )
    return compared.widest(population, clients_per_round=clients_per_round, rounds=rounds)


def _mechanism(
    given: Mechanism | str | os.PathLike[str] | None, fields: Mapping[str, Any], epsilon: float | None
) -> dict[str, Any]:
    """Returns the mechanism that is given or named, or else the recommended one with the reason and all others."""
    if given is not None and not isinstance(given, str | os.PathLike):
        return {"mechanism": given}
    sampling, rounds = fields["sampling"], fields["rounds"]
    setting = MechanismSetting(
        rounds=rounds, participation=sampling.schema(rounds), restart_every=fields["restart_every"]
    )
    if given is not None:
        return {"mechanism": setting.named(os.fspath(given))}
    if fields["secret_cohorts"]:
        return _in_secret(sampling, rounds, fields["delta"], epsilon)
    # Without noise, mechanisms are compared as with any.
    level = {"noise_multiplier": fields["noise_multiplier"]} if epsilon is None else {"epsilon": epsilon}
    found = compared.options(setting, delta=fields["delta"], **level)
    chosen, why = compared.recommend(found)
    others = [each for each in found if each is not chosen]
    return {"mechanism": chosen.mechanism, "why": why, "alternatives": _costs(others, chosen, "rms_loss")}


def _in_secret(sampling: Sampling, rounds: int, delta: float, epsilon: float | None) -> dict[str, Any]:
    """Returns the recommended mechanism of those that the sampling amplifies, with the reason and all others."""
    if not isinstance(sampling, SecretSampling):
        # The plan refuses it.
        return {"mechanism": Identity()}
    if epsilon is None:
        raise InputValueError(
            "mechanism is missing: with secret_cohorts, which one is best depends on ε; give epsilon in place of "
            "noise_multiplier, or a mechanism."
        )
    found = secret.options(sampling, rounds=rounds, epsilon=epsilon, delta=delta)
    if len(found) == 1:
        return {"mechanism": found[0].mechanism, "why": f"{found[0].name}: no other is amplified by {sampling}."}
    chosen, why = compared.recommend(found, measure="error")
    others = [each for each in found if each is not chosen]
    return {"mechanism": chosen.mechanism, "why": why, "alternatives": _costs(others, chosen, "rms_error")}


def _costs(others: Sequence[compared.Option], chosen: compared.Option, by: str) -> tuple[Alternative, ...]:
    """Returns what other mechanisms would cost."""
    return tuple(
        Alternative(
            name=each.name,
            loss=each.figures[by] / chosen.figures[by] if each.figures else None,
            memory_rows=each.figures.get("memory_rows"),
            note=each.note,
        )
        for each in others
    )
