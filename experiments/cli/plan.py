"""`tff-mf plan`: every mechanism at the user's numbers, and the one to take."""

import math

import click

from . import _options

_COLUMNS = {
    "rms_loss": ("RmsLoss", "{:.2f}"),
    "max_loss": ("MaxLoss", "{:.2f}"),
    # Rounded up: who copies a smaller noise multiplier has a larger ε than was shown.
    "noise_multiplier": ("noise mult.", None),
    "zcdp_rho": ("rho", None),
    "epsilon": ("epsilon", None),
    "memory_rows": ("model copies", "{}"),
    "seconds": ("search s", "{:.1f}"),
}
_NONE = "–"
_CASES = {"half_min_sep": "b/2", "twice_min_sep": "2b", "half_as_many_rounds_again": "1.5n"}


@click.command()
@click.option("--population", type=int, required=True, help="Clients that can take part.")
@click.option("--clients-per-round", type=int, required=True, help="Clients of a round.")
@_options.rounds
@_options.delta
@click.option("--epsilon", type=float, help="ε that the whole run may reach; or give --noise-multiplier.")
@click.option("--noise-multiplier", type=float, help="σ: standard deviation of Z over the clip norm.")
@_options.participation_options
@click.option("--dimension", type=int, help="Number of model parameters, for the memory in bytes.")
@click.option("--thorough", is_flag=True, help="Search also for what takes minutes.")
@click.option(
    "--plot",
    metavar="FILE",
    help="Draw losses and guarantees for other separations, rounds and cohorts: PNG, SVG or PDF by the ending.",
)
@_options.as_json
def plan(
    population: int,
    clients_per_round: int,
    rounds: int,
    delta: float,
    epsilon: float | None,
    noise_multiplier: float | None,
    min_sep: int | None,
    max_participations: int | None,
    dimension: int | None,
    thorough: bool,
    plot: str | None,
    as_json: bool,
) -> None:
    """Compare all mechanisms before a run, adjacency zero-out, and recommend one.

    --min-sep is as large as the population allows if not given, and --max-participations what then fits. Losses are
    comparable at equal privacy. The last columns are ε at the same noise if clients come back at half or at twice the
    separation, as often as they can, or the run is longer; ∞ where the mechanism cannot go on.
    """
    from tff_mf import _requires

    from .. import deployment as deployments
    from .. import planning, signal_to_noise, statements
    from ..statements import upwards

    deployment = deployments.Deployment(
        population=population,
        clients_per_round=clients_per_round,
        rounds=rounds,
        delta=delta,
        min_sep=min_sep,
        max_participations=max_participations,
    )
    if plot is not None:
        _requires.packages("--plot", "matplotlib")
        from .. import _figures

        _figures.checked_path(plot)
    found = planning.options(
        deployment, epsilon=epsilon, noise_multiplier=noise_multiplier, dimension=dimension, thorough=thorough
    )
    chosen, why = planning.recommend(found)
    claim = planning.claim(deployment, chosen)
    statement = f"{chosen.name}: {statements.one_line(claim)}"
    customary = statements.customary_delta(delta, population)
    notes = [f"{customary}, which is customary"] if customary else []
    signal = signal_to_noise.of_option(deployment, chosen, dimension, advise_epsilon=not statements.refusal(claim))
    if plot is not None:
        from .. import plan_plots

        plan_plots.draw(deployment, found, plot)
    participation = deployment.participation
    if as_json:
        rows = [
            {
                "name": option.name,
                "note": option.note,
                **option.figures,
                "epsilon_if_wrong": _finite(option.if_wrong),
                "rms_loss_if_wrong": _finite(option.loss_if_wrong),
            }
            for option in found
        ]
        result = {
            "population": population,
            "clients_per_round": clients_per_round,
            "rounds": rounds,
            "min_sep": deployment.min_sep,
            "max_participations": participation.limit,
            "delta": delta,
            "adjacency": "zero-out",
            "recommended": chosen.name,
            "why": why,
            "statement": statement,
            "signal": signal,
            "notes": notes,
            "mechanisms": rows,
        }
        _options.report(result, as_json=True)
        if signal["hopeless"]:
            click.echo(f"plan: {signal['line']}", err=True)
        return
    click.echo(
        f"n = {rounds}, b = {deployment.min_sep}, k = {participation.limit}, δ = {delta}, zero-out, "
        f"{clients_per_round} of {population} clients a round"
    )
    header = [title for title, _ in _COLUMNS.values()] + [f"eps at {case}" for case in _CASES.values()]
    click.echo(f"{'':16}" + "".join(f"{title:>13}" for title in header))
    for option in found:
        if option.mechanism is None:
            click.echo(f"{option.name:16}  {option.note}")
            continue
        cells = [
            upwards(option.figures[name]) if form is None else form.format(option.figures[name])
            for name, (_, form) in _COLUMNS.items()
        ]
        cells += [upwards(option.if_wrong[case]) for case in _CASES]
        if statements.refusal(claim):
            # What no line may state no column states.
            cells = [_NONE if "eps" in title else cell for title, cell in zip(header, cells, strict=True)]
        click.echo(f"{option.name:16}" + "".join(f"{cell:>13}" for cell in cells))
    click.echo(why)
    click.echo(signal["line"])
    click.echo(statement)
    for note in notes:
        click.echo(note)
    if plot is not None:
        click.echo(plot)


def _finite(values: dict[str, float]) -> dict[str, float | None]:
    return {case: value if math.isfinite(value) else None for case, value in values.items()}
