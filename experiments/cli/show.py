"""`tff-mf show`: the contents of an artifact."""

import dataclasses
from typing import Any

import rich_click as click

import tff_mf
from tff_mf.planning import by_name

from . import _options, account
from ._flags import Flags
from ._screens import Answer


@_options.command
@_options.mechanism
@_options.options(*_options.SETTING, more=(*_options.MORE, "bands", "buffers"))
@_options.option("plot")
def show(file: str, plot: str | None, **given: Any) -> Answer:
    """Print a mechanism's parameters, sensitivity and losses, for its own setting or another.

    If not given, rounds, participation and workload are those that the mechanism was optimized for. Losses compare
    mechanisms at equal privacy. --plot draws C, C⁻¹ and B = A·C⁻¹, their first columns, and the error of each round.
    """
    flags = Flags.of(given)
    if plot is not None and flags.restart_every is not None:
        raise click.UsageError("--plot does not go with --set restart_every: it draws one restart; leave that out.")
    _options.check_plot(plot)
    if file in by_name.names():
        setting = flags.setting()
        mechanism = flags.named(file, setting)
    else:
        mechanism = by_name.load(file)
        setting = flags.setting(mechanism.optimized_for)
        by_name.check_options(file, bands=flags.bands, buffers=flags.buffers, objective=flags.objective)
    asked = account.Asked(mechanism=mechanism, setting=setting, flags=flags)
    ended = mechanism.optimized_for
    search = {} if ended is None else {"converged": ended.converged, "duality_gap": ended.duality_gap}
    facts = {
        **asked.described(),
        **_parameters(mechanism),
        **asked.losses(),
        **{name: value for name, value in search.items() if value is not None},
    }
    if plot is not None:
        from .. import plots

        plots.draw_mechanism(mechanism, setting.rounds, setting.participation, account.workload_of(setting), plot)
        facts["plot"] = plot
    words = {"mechanism": account.title(file, mechanism)}
    return asked.answer(facts, words, first=("sensitivity", *account.LOSSES), below=[account.AT_EQUAL_PRIVACY])


def _parameters(mechanism: tff_mf.Mechanism) -> dict[str, Any]:
    """Returns the parameters of a mechanism; for arrays, their shapes."""
    import numpy as np

    parameters = {field.name: getattr(mechanism, field.name) for field in dataclasses.fields(mechanism)}
    del parameters["optimized_for"]
    return {name: list(value.shape) if isinstance(value, np.ndarray) else value for name, value in parameters.items()}
