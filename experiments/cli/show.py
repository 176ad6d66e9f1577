"""`tff-mf show`: what an artifact holds."""

import click

from . import _options


@click.command()
@_options.mechanism_argument
@click.option("--rounds", type=int, help="Number of rounds n; that of the artifact if not given.")
@_options.participation_options
@click.option(
    "--plot",
    metavar="FILE",
    help="Draw C, C⁻¹ and B = A·C⁻¹, their first columns, and the error of each round: PNG, SVG or PDF by the ending.",
)
@_options.as_json
def show(
    file: str,
    rounds: int | None,
    min_sep: int | None,
    max_participations: int | None,
    plot: str | None,
    as_json: bool,
) -> None:
    """Print a mechanism's parameters, sensitivity and losses, for its own setting or another.

    Losses are for the workload that the mechanism was made for. `converged` and `duality_gap`, where known, are
    those of the search for it, in its own setting.

    FILE is an artifact, `production:b100`, `production:b400`, `production:b1000` or `identity`.
    """
    import dataclasses

    import numpy as np

    import tff_mf
    from tff_mf import _requires

    if plot is not None:
        _requires.packages("--plot", "matplotlib")
        from .. import _figures

        _figures.checked_path(plot)
    mechanism = _options.load_mechanism(file)
    made_for = mechanism.made_for
    if made_for is not None and min_sep is None and max_participations is None:
        participation = made_for.participation
    else:
        participation = _options.participation(min_sep, max_participations)
    if rounds is None:
        if made_for is None:
            raise click.UsageError("--rounds is missing, and the mechanism was not made for a number of rounds.")
        rounds = made_for.rounds
    workload = tff_mf.PrefixSum() if made_for is None else made_for.workload
    if plot is not None:
        from .. import plots

        plots.check_rounds(rounds)
    found = tff_mf.explain_sensitivity(mechanism, rounds, participation)
    parameters = {field.name: getattr(mechanism, field.name) for field in dataclasses.fields(mechanism)}
    del parameters["made_for"]
    # A number for each band and round is no parameter to read.
    parameters = {name: list(each.shape) if isinstance(each, np.ndarray) else each for name, each in parameters.items()}
    result = {
        "mechanism": mechanism.kind,
        **parameters,
        "rounds": rounds,
        "workload": repr(workload),
        "participation": type(participation).__name__,
        "min_sep": participation.separation,
        "max_participations": participation.limit,
        "sensitivity": found.value,
        "sensitivity_as_run": tff_mf.sensitivity(mechanism.as_run(), rounds, participation),
        "sensitivity_exact": found.exact,
        "sensitivity_rule": found.rule,
        "rms_loss": tff_mf.rms_loss(mechanism, rounds, participation, workload),
        "max_loss": tff_mf.max_loss(mechanism, rounds, participation, workload),
    }
    if made_for is not None:
        search = {"converged": made_for.converged, "duality_gap": made_for.duality_gap}
        result |= {name: value for name, value in search.items() if value is not None}
    if plot is not None:
        from .. import plots

        plots.mechanism(mechanism, rounds, participation, workload, plot)
        result["plot"] = plot
    _options.report(result, as_json=as_json)
