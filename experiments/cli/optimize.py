"""`tff-mf optimize`, a mechanism optimized for a setting as an artifact, and `tff-mf show`, what is in one."""

import dataclasses
import time
from typing import Any

import numpy as np
import rich_click as click

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.planning import MechanismSetting, by_name

from ..output import files
from ..runs import statements
from ..runs.settings import RunSettings
from . import _options, _screens
from ._screens import Answer

# What --set gives: the shape of the workload, and how a search is done.
_MORE = ("server_momentum", "server_warmup", "server_cooldown", "objective", "unit_norms")


@_options.command
@click.argument("kind", metavar="KIND")
@_options.options("rounds", *_options.SAMPLING, "workload", "bands", "buffers", required=("rounds",))
@_options.assigned(*_MORE)
@_options.options("out", required=("out",))
def optimize(kind: str, out: str, **given: Any) -> Answer:
    """Optimize a mechanism for a setting, and save it.

    KIND is blt (a buffered linear Toeplitz mechanism), banded (BandMF), banded-toeplitz, scaled-blt (less error,
    for exactly so many rounds), or dense (of minimal RmsLoss, with a bound on its distance from the optimum).

    Without --sampling and its parameters, each client is assumed to take part once; for banded, any number of times, as
    many rounds apart as there are bands. The assumed participation is printed.

    BLTs have least MaxLoss, as in the paper, and others least RmsLoss, as in `tff-mf plan`: `--set objective=rms`.
    """
    validation.one_of("kind", kind, tuple(by_name.SEARCHES))
    files.check_file(out)
    given = {name: value for name, value in given.items() if value is not None}
    assumed = not given.keys() & set(_options.SAMPLING)
    bands = given.get("bands", 0)
    if assumed and kind == "banded" and bands > 0:
        given |= {"min_sep": bands, "max_participations": -(-given["rounds"] // bands)}
    elif assumed:
        given["sampling"] = "single"
        if "bands" in by_name.SEARCHES[kind].options and "bands" not in given:
            raise click.UsageError("--bands is missing: give it, or a --sampling, of which --min-sep is used.")
    # Only its mechanism is made: nobody takes part, and no ε is stated.
    settings = RunSettings(mechanism=kind, **given, clients_per_round=1, delta=0.5)
    start, setting = time.perf_counter(), settings.mechanism_setting()
    mechanism = settings.build_mechanism()
    try:
        tff_mf.save(mechanism, out)
    except InputValueError as error:
        raise InputValueError(str(error).replace("path=", "out=", 1)) from error
    search = mechanism.optimized_for
    assert search is not None
    assert search.search is not None
    facts = {
        "out": out,
        "mechanism": mechanism.kind,
        **_screens.described(setting.rounds, setting.participation),
        **{name: getattr(mechanism, name) for name in ("buffers", "bands") if hasattr(mechanism, name)},
        "unit_norms": settings.unit_norms,
        "objective": search.search.objective,
        "participation_assumed": assumed,
        **_screens.losses(mechanism, setting),
        "seconds": time.perf_counter() - start,
        "converged": search.converged,
        "message": search.search.message,
        "duality_gap": search.duality_gap,
    }
    facts = {name: value for name, value in facts.items() if value is not None}
    words = {
        "participation": statements.bound_to(setting.participation) + (" (assumed: none was given)" if assumed else ""),
        **dict.fromkeys(("participation_assumed", "sensitivity_rule", "converged")),
        "message": "converged" if search.converged else f"not converged: {search.search.message}",
    }
    return _screens.of_mechanism(facts, setting, words, first="out")


@_options.command
@_options.mechanism
@_options.options("rounds", *_options.SAMPLING, "plot")
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
    # Of arrays, the shapes.
    parameters = {field.name: getattr(mechanism, field.name) for field in dataclasses.fields(mechanism)}
    del parameters["optimized_for"]
    facts = {
        "mechanism": mechanism.kind,
        **_screens.described(rounds, schema),
        **{name: list(value.shape) if isinstance(value, np.ndarray) else value for name, value in parameters.items()},
        **_screens.losses(mechanism, setting),
        **({} if search is None else {"converged": search.converged, "duality_gap": search.duality_gap}),
    }
    facts = {name: value for name, value in facts.items() if value is not None}
    if plot is not None:
        from .. import plots

        plots.draw_mechanism(mechanism, setting, plot)
        facts["plot"] = plot
    return _screens.of_mechanism(facts, setting, {"mechanism": _screens.title(file, mechanism)}, first="sensitivity")
