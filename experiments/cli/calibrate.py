"""`tff-mf calibrate`: from a guarantee to a noise level."""

import click

from . import _options


@click.command()
@_options.mechanism_argument
@click.option("--epsilon", type=float, required=True, help="ε that the whole run may reach.")
@_options.delta
@_options.rounds
@_options.participation_options
@_options.population
@_options.as_json
def calibrate(
    file: str,
    epsilon: float,
    delta: float,
    rounds: int,
    min_sep: int | None,
    max_participations: int | None,
    population: int | None,
    as_json: bool,
) -> None:
    """Print the smallest noise multiplier with which a run stays within (ε, δ), adjacency zero-out.

    FILE is an artifact, `production:b100`, `production:b400`, `production:b1000` or `identity`.
    """
    import tff_mf
    from tff_mf import _validate

    from .. import statements

    if population is not None:
        _validate.whole("population", population)
    mechanism = _options.load_mechanism(file)
    setting = (mechanism, rounds, _options.participation(min_sep, max_participations))
    multiplier = tff_mf.calibrate_noise_multiplier(*setting, epsilon=epsilon, delta=delta)
    result = {
        "mechanism": mechanism.kind,
        "noise_multiplier": multiplier,
        "sensitivity": tff_mf.sensitivity(mechanism.as_run(), *setting[1:]),
        "effective_noise_multiplier": tff_mf.effective_noise_multiplier(*setting, noise_multiplier=multiplier),
        "zcdp_rho": tff_mf.zcdp_rho(*setting, noise_multiplier=multiplier),
        "epsilon": tff_mf.epsilon(*setting, noise_multiplier=multiplier, delta=delta),
        "delta": delta,
        "adjacency": "zero-out",
        "statement": statements.one_line(
            statements.Claim(
                guarantee=tff_mf.guarantee(*setting, noise_multiplier=multiplier),
                delta=delta,
                rounds=rounds,
                participation=statements.bound_to(setting[2]),
                population=population,
            )
        ),
    }
    _options.report(result, as_json=as_json)
