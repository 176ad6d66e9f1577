"""`tff-mf optimize`: from a setting to an artifact."""

import time
from typing import Any

import click

import tff_mf

from . import _options, _types
from ._group import Group


@click.group(cls=Group)
def optimize() -> None:
    """Find a mechanism for a setting, and save it."""


_bands = click.option("--bands", type=int, required=True, help="Number of diagonals.")
_out = click.option("--out", required=True, metavar="FILE", help="Where the artifact goes.")


@optimize.command()
@_options.rounds
@_options.participation_options
@click.option("--buffers", type=int, help="Number of buffers; chosen by the optimizer if not given.")
@click.option("--objective", type=_types.OBJECTIVE, default="max", show_default=True, help="Loss to minimize.")
@_out
@_options.as_json
def blt(
    rounds: int,
    min_sep: int | None,
    max_participations: int | None,
    buffers: int | None,
    objective: str,
    out: str,
    as_json: bool,
) -> None:
    """A buffered linear Toeplitz mechanism (BLT)."""
    participation = _options.participation_to_optimize_for(min_sep, max_participations)
    start = time.perf_counter()
    mechanism = tff_mf.optimize_blt(rounds=rounds, participation=participation, buffers=buffers, objective=objective)
    _save(mechanism, out, start, {"buffers": mechanism.buffers, "objective": objective}, as_json=as_json)


@optimize.command()
@_options.rounds
@_options.participation_options
@_bands
@click.option(
    "--unit-norms/--free-norms", default=True, show_default=True, help="Columns of norm 1, or fitted to participation."
)
@_out
@_options.as_json
def banded(
    rounds: int,
    min_sep: int | None,
    max_participations: int | None,
    bands: int,
    unit_norms: bool,
    out: str,
    as_json: bool,
) -> None:
    """A banded matrix (BandMF) of the least RmsLoss.

    Participations are --bands apart, or more, if --min-sep and --max-participations are not given.
    """
    from .. import progress

    given = min_sep is not None or max_participations is not None
    participation = _options.participation(min_sep, max_participations) if given else None
    start = time.perf_counter()
    with progress.search() as report:
        mechanism = tff_mf.optimize_banded(
            rounds=rounds, bands=bands, participation=participation, unit_norms=unit_norms, progress=report
        )
    _save(mechanism, out, start, {"bands": mechanism.bands, "unit_norms": unit_norms}, as_json=as_json)


@optimize.command()
@_options.rounds
@_options.participation_options
@_bands
@click.option("--objective", type=_types.OBJECTIVE, default="rms", show_default=True, help="Loss to minimize.")
@_out
@_options.as_json
def banded_toeplitz(
    rounds: int,
    min_sep: int | None,
    max_participations: int | None,
    bands: int,
    objective: str,
    out: str,
    as_json: bool,
) -> None:
    """A banded Toeplitz matrix."""
    participation = _options.participation_to_optimize_for(min_sep, max_participations)
    start = time.perf_counter()
    mechanism = tff_mf.optimize_banded_toeplitz(
        rounds=rounds, bands=bands, participation=participation, objective=objective
    )
    _save(mechanism, out, start, {"bands": mechanism.bands, "objective": objective}, as_json=as_json)


@optimize.command()
@_options.rounds
@_options.participation_options
@_bands
@click.option("--objective", type=_types.OBJECTIVE, default="rms", show_default=True, help="Loss to minimize.")
@_out
@_options.as_json
def banded_inverse(
    rounds: int,
    min_sep: int | None,
    max_participations: int | None,
    bands: int,
    objective: str,
    out: str,
    as_json: bool,
) -> None:
    """A Toeplitz matrix with a banded inverse: noise of few draws, without a state of the model's size."""
    participation = _options.participation_to_optimize_for(min_sep, max_participations)
    start = time.perf_counter()
    mechanism = tff_mf.optimize_banded_inverse(
        rounds=rounds, bands=bands, participation=participation, objective=objective
    )
    _save(mechanism, out, start, {"bands": mechanism.bands, "objective": objective}, as_json=as_json)


@optimize.command()
@_options.rounds
@_options.participation_options
@_options.fixed_epochs
@_out
@_options.as_json
def dense(
    rounds: int,
    min_sep: int | None,
    max_participations: int | None,
    fixed_epochs: bool,
    out: str,
    as_json: bool,
) -> None:
    """A dense matrix of the least RmsLoss, with a bound on how far it is from the best."""
    from .. import progress

    participation = _options.participation_to_optimize_for(min_sep, max_participations, fixed_epochs=fixed_epochs)
    start = time.perf_counter()
    with progress.search() as report:
        found = tff_mf.optimize_dense_result(rounds=rounds, participation=participation, progress=report)
    entries = {"duality_gap": found.duality_gap, "converged": found.converged, "message": found.message}
    _save(found.mechanism, out, start, entries, as_json=as_json)


def _save(mechanism: tff_mf.Mechanism, out: str, start: float, entries: dict[str, Any], *, as_json: bool) -> None:
    """Writes the artifact and prints what it holds; seconds are counted from `start`."""
    seconds = time.perf_counter() - start
    tff_mf.save(mechanism, out)
    made_for = mechanism.made_for
    assert made_for is not None
    setting = mechanism, made_for.rounds, made_for.participation
    result = {
        "out": out,
        **entries,
        "rms_loss": tff_mf.rms_loss(*setting, made_for.workload),
        "max_loss": tff_mf.max_loss(*setting, made_for.workload),
        "sensitivity": tff_mf.sensitivity(*setting),
        # Of the parameters in float32, which noise runs with: what privacy is accounted for.
        "sensitivity_as_run": tff_mf.sensitivity(mechanism.as_run(), *setting[1:]),
        "seconds": seconds,
    }
    _options.report(result, as_json=as_json)
