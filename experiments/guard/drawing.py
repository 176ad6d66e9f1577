"""Cohorts that the sampling of a plan draws before the first round, in secret or for the log."""

import dataclasses
import pathlib
from collections.abc import Iterable
from typing import Any

import tff_mf
from tff_mf.base import checkpoint_files
from tff_mf.base.errors import InputValueError

from ..runs import amplification
from ..runs.names import CHECKPOINTS, COHORTS, RUN_JSON
from ..runs.rules import checked_ids
from ..runs.run_record import read_record
from ..sampling import CohortPlan, keep_secret, secret_cohorts
from ..sampling.settings import SamplingSettings


def record_fields(folder: pathlib.Path, plan: tff_mf.Plan, sampler: str | None, **more: Any) -> dict[str, Any]:
    """Returns the fields of `run.json` that a pipeline gives, and those that follow from what draws its cohorts."""
    if "amplified_epsilon" in more:
        raise InputValueError(
            f"amplified_epsilon={more['amplified_epsilon']!r} is the plan's: make the plan with secret_cohorts=True."
        )
    if sampler is not None and plan.secret_cohorts:
        raise InputValueError(
            f"sampler={sampler!r} does not go with secret_cohorts, whose ε is of cohorts by the plan's sampling: leave "
            "it out."
        )
    if sampler is not None:
        return {"sampler": sampler, **more}
    word, planned = _word(plan.sampling), plan.population or getattr(plan.sampling, "population", None)
    fields = {"sampler": f"tff_mf.{type(plan.sampling).__name__}", "population": planned, **more}
    if not plan.secret_cohorts:
        return fields
    if planned is None or fields["population"] != planned:
        raise InputValueError(
            f"population={fields['population']!r} must be the plan's, {planned!r}: with secret_cohorts, make the plan "
            "with population=len(clients)."
        )
    _check_sampling(plan, planned, "clients")
    stated = read_record(folder).amplified_epsilon if (folder / RUN_JSON).exists() else None
    if stated is None:
        # Not computed again where a run goes on: a certificate by samples would differ.
        stated = amplification.stated_epsilon(amplification.own(plan, word, planned))
    return {**fields, "amplified_epsilon": stated}


def checked_clients(plan: tff_mf.Plan, clients: Iterable[str], *, name: str = "clients") -> list[str]:
    """Returns the clients of a run in an order that depends on nothing else."""
    ids = checked_ids(clients, name)
    for planned in (plan.population, getattr(plan.sampling, "population", None)):
        if planned not in (None, len(ids)):
            raise InputValueError(
                f"{name} are {len(ids)}, and the plan is for population={planned}: make the plan for as many as there "
                "are."
            )
    _check_sampling(plan, len(ids), name)
    return sorted(ids)


def cohorts(folder: pathlib.Path, plan: tff_mf.Plan, clients: Iterable[str], *, run: str, begun: bool) -> CohortPlan:
    """Returns the cohorts of a run, by a key in the folder of its checkpoints."""
    checkpoint_files.make_private(folder / CHECKPOINTS)
    path = folder / CHECKPOINTS / COHORTS
    drawn, secret = secret_cohorts(
        path,
        run=run,
        begun=begun,
        client_ids=checked_clients(plan, clients),
        rounds=plan.rounds,
        sampling=plan.sampling,
        clients_per_round=plan.clients_per_round,
    )
    if plan.grid is not None and drawn.clients_per_round > plan.grid.max_clients:
        raise InputValueError(f"grid={plan.grid} has less room than a cohort needs: take a Grid of more clients.")
    if not begun:
        keep_secret(path, secret)
    return drawn


def _check_sampling(plan: tff_mf.Plan, clients: int, name: str) -> None:
    """Raises if the plan's sampling would draw other cohorts than the plan's from as many clients."""
    word = _word(plan.sampling)
    if word is None:
        return
    drawn_by = word.drawn_by(population=clients, clients_per_round=plan.clients_per_round)
    # The size may be left out of the plan's sampling, where no grid needs it.
    of_any_size = isinstance(drawn_by, tff_mf.BallsInBins | tff_mf.BMinSep)
    without_size = dataclasses.replace(drawn_by, clients_per_round=None) if of_any_size else drawn_by
    if plan.sampling not in (drawn_by, without_size):
        raise InputValueError(f"sampling={plan.sampling!r} of the plan must be {drawn_by!r} for {clients} {name}.")


def _word(sampling: tff_mf.Sampling) -> SamplingSettings | None:
    """Returns the word of a sampling; `None` if none stands for it, as for a timer."""
    try:
        return SamplingSettings.of(sampling)
    except InputValueError:
        return None
