"""`tff-mf show`: the contents of an artifact."""

import dataclasses
from typing import Any

import rich_click as click

import tff_mf
from tff_mf.planning import MechanismSetting

from . import _options, account
from ._flags import Flags
from ._screens import Answer


@_options.command()
@_options.mechanism
@_options.setting(*_options.SETTING, "workload", "bands", "buffers")
@_options.option("plot")
def show(file: str, flags: Flags, plot: str | None) -> Answer:
    """Print a mechanism's parameters, sensitivity and losses, for its own setting or another.

    If not given, rounds, participation and workload are those that the mechanism was optimized for. Losses compare
    mechanisms at equal privacy. --plot draws C, C⁻¹ and B = A·C⁻¹, their first columns, and the error of each round.
    """
    if plot is not None and flags.restart_every is not None:
        raise click.UsageError("--plot does not go with --set restart_every: it draws one restart; leave that out.")
    _options.check_plot(plot)
    mechanism, setting = _in_its_setting(file, flags)
    if plot is not None:
        from .. import plots

        plots.check_rounds(setting.rounds)
    found = account.Found(mechanism=mechanism, setting=setting, flags=flags)
    ended = mechanism.optimized_for
    facts = {**found.described(), **_parameters(mechanism), **found.losses()}
    if ended is not None:
        search = {"converged": ended.converged, "duality_gap": ended.duality_gap}
        facts |= {name: value for name, value in search.items() if value is not None}
    if plot is not None:
        from .. import plots

        drawn = (mechanism, setting.rounds, setting.participation, account.workload_of(setting))
        plots.draw_mechanism(*drawn, plot)
        facts["plot"] = plot
    words = {"mechanism": account.title(file, mechanism)}
    first = ("sensitivity", *account.LOSSES)
    return found.answer(facts, words, first=first, below=[account.AT_EQUAL_PRIVACY])


def _in_its_setting(file: str, flags: Flags) -> tuple[tff_mf.Mechanism, MechanismSetting]:
    """Returns the mechanism and the setting of the flags; the mechanism's own setting replaces flags not given."""
    from tff_mf.planning import by_name

    read = None if file in by_name.names() else by_name.load(file)
    setting = flags.setting(read)
    if read is None:
        return flags.named(file, setting), setting
    by_name.check_options(file, bands=flags.bands, buffers=flags.buffers, objective=flags.objective)
    return read, setting


def _parameters(mechanism: tff_mf.Mechanism) -> dict[str, Any]:
    """Returns the parameters of a mechanism; for arrays, their shapes."""
    import numpy as np

    parameters = {field.name: getattr(mechanism, field.name) for field in dataclasses.fields(mechanism)}
    del parameters["optimized_for"]
    return {name: list(each.shape) if isinstance(each, np.ndarray) else each for name, each in parameters.items()}
