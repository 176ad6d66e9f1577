"""`tff-mf account`: from a noise level to a guarantee."""

import click

from . import _options, _types


@click.command()
@_options.mechanism_argument
@click.option("--noise-multiplier", type=float, required=True, help="σ: standard deviation of Z over the clip norm.")
@_options.rounds
@_options.participation_options
@_options.fixed_epochs
@click.option("--restart-every", type=int, help="Rounds after which noise starts anew; never, if not given.")
@click.option(
    "--adjacency", type=_types.ADJACENCY, default="zero-out", show_default=True, help="zero-out or replace-one."
)
@_options.delta
@_options.population
@_options.as_json
def account(
    file: str,
    noise_multiplier: float,
    rounds: int,
    min_sep: int | None,
    max_participations: int | None,
    fixed_epochs: bool,
    restart_every: int | None,
    adjacency: str,
    delta: float,
    population: int | None,
    as_json: bool,
) -> None:
    """Print what a run guarantees to each client, in figures and in one line.

    FILE is an artifact, `production:b100`, `production:b400`, `production:b1000` or `identity`.
    """
    import tff_mf
    from tff_mf import _validate

    from .. import statements

    if population is not None:
        _validate.whole("population", population)
    mechanism = _options.load_mechanism(file)
    participation = _options.participation(min_sep, max_participations, fixed_epochs=fixed_epochs)
    every = rounds if restart_every is None else restart_every
    found = tff_mf.restart_sensitivity(mechanism.as_run(), rounds, participation, restart_every=every)
    run = tff_mf.guarantee(
        mechanism,
        rounds,
        participation,
        noise_multiplier=noise_multiplier,
        restart_every=restart_every,
        adjacency=adjacency,
    )
    result = {
        "mechanism": mechanism.kind,
        "sensitivity": found.value,
        "sensitivity_exact": found.exact,
        "sensitivity_rule": found.rule,
        "noise_multiplier": noise_multiplier,
        "effective_noise_multiplier": run.effective_noise_multiplier,
        "mu": run.mu,
        "zcdp_rho": run.zcdp_rho,
        "epsilon": run.epsilon(delta),
        "epsilon_by_pld": run.epsilon_by_pld(delta),
        "epsilon_from_zcdp": run.epsilon_from_zcdp(delta),
        "delta": delta,
        "adjacency": adjacency,
        "statement": statements.one_line(
            statements.Claim(
                guarantee=run,
                delta=delta,
                rounds=rounds,
                participation=statements.bound_to(participation),
                population=population,
            )
        ),
    }
    _options.report(result, as_json=as_json)
