"""`tff-mf show`: the contents of an artifact."""

import dataclasses
from typing import Any

import numpy as np
import rich_click as click

import tff_mf
from tff_mf.planning import MechanismSetting, by_name

from . import _options, _screens
from ._screens import Answer


@_options.command
@_options.mechanism
@_options.options("rounds", *_options.SAMPLING)
@_options.option("plot")
def show(file: str, rounds: int | None, plot: str | None, **drawn: Any) -> Answer:
    """Print a mechanism's parameters, sensitivity and losses, for its own setting or another.

    If not given, rounds and participation are those that the mechanism was optimized for, as the workload is. Losses
    compare mechanisms at equal privacy. --plot draws C, C⁻¹ and B = A·C⁻¹, first columns, and the error of each round.
    """
    _options.check_plot(plot)
    mechanism = by_name.load(file, rounds)
    search = mechanism.optimized_for
    if rounds is None and search is None:
        raise click.UsageError("--rounds is missing, and the artifact does not say for how many it was optimized.")
    rounds = search.rounds if rounds is None and search else rounds
    assert rounds is not None
    given = search is None or any(value is not None for value in drawn.values())
    schema = _options.sampling_of(drawn).schema(rounds) if given or search is None else search.participation
    setting = MechanismSetting(
        rounds=rounds, participation=schema, workload=None if search is None else search.workload
    )
    facts = {
        "mechanism": mechanism.kind,
        **_screens.described(rounds, schema),
        **_parameters(mechanism),
        **_screens.losses(mechanism, setting),
        **({} if search is None else {"converged": search.converged, "duality_gap": search.duality_gap}),
    }
    facts = {name: value for name, value in facts.items() if value is not None}
    if plot is not None:
        from .. import plots

        plots.draw_mechanism(mechanism, rounds, schema, _screens.workload_of(setting), plot)
        facts["plot"] = plot
    return _screens.of_mechanism(facts, setting, {"mechanism": _screens.title(file, mechanism)}, first="sensitivity")


def _parameters(mechanism: tff_mf.Mechanism) -> dict[str, Any]:
    """Returns the parameters of a mechanism; for arrays, their shapes."""
    parameters = {field.name: getattr(mechanism, field.name) for field in dataclasses.fields(mechanism)}
    del parameters["optimized_for"]
    return {name: list(value.shape) if isinstance(value, np.ndarray) else value for name, value in parameters.items()}
