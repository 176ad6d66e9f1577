"""`tff-mf optimize`: from a setting to an artifact."""

import click

from . import _options


@click.group()
def optimize() -> None:
    """Find a mechanism for a setting, and save it."""


@optimize.command()
@_options.rounds
@_options.participation_options
@click.option("--buffers", type=int, help="Number of buffers; chosen by the optimizer if not given.")
@click.option("--objective", default="max", show_default=True, help="Loss to minimize: max or rms.")
@click.option("--out", required=True, metavar="FILE", help="Where the artifact goes.")
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
    import time

    import tff_mf

    participation = (
        tff_mf.SingleParticipation()
        if min_sep is None and max_participations is None
        else _options.participation(min_sep, max_participations)
    )
    start = time.perf_counter()
    mechanism = tff_mf.optimize_blt(rounds=rounds, participation=participation, buffers=buffers, objective=objective)
    seconds = time.perf_counter() - start
    tff_mf.save(mechanism, out)
    result = {
        "out": out,
        "buffers": mechanism.buffers,
        "objective": objective,
        "rms_loss": tff_mf.rms_loss(mechanism, rounds, participation),
        "max_loss": tff_mf.max_loss(mechanism, rounds, participation),
        "sensitivity": tff_mf.sensitivity(mechanism, rounds, participation),
        "seconds": seconds,
    }
    _options.report(result, as_json=as_json)
