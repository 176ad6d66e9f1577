"""`tff-mf account`: from a noise level to a guarantee."""

import click

from . import _options


@click.command()
@_options.mechanism_argument
@click.option("--noise-multiplier", type=float, required=True, help="σ: standard deviation of Z over the clip norm.")
@_options.rounds
@_options.participation_options
@_options.delta
@_options.as_json
def account(
    file: str,
    noise_multiplier: float,
    rounds: int,
    min_sep: int | None,
    max_participations: int | None,
    delta: float,
    as_json: bool,
) -> None:
    """Print what a run guarantees to each client, adjacency zero-out.

    FILE is an artifact, `production:b100`, `production:b400`, `production:b1000` or `identity`.
    """
    import tff_mf

    mechanism = _options.load_mechanism(file)
    participation = _options.participation(min_sep, max_participations)
    found = tff_mf.explain_sensitivity(mechanism.as_run(), rounds, participation)
    setting = (mechanism, rounds, participation)
    result = {
        "mechanism": mechanism.kind,
        "sensitivity": found.value,
        "sensitivity_exact": found.exact,
        "sensitivity_rule": found.rule,
        "noise_multiplier": noise_multiplier,
        "effective_noise_multiplier": tff_mf.effective_noise_multiplier(*setting, noise_multiplier=noise_multiplier),
        "zcdp_rho": tff_mf.zcdp_rho(*setting, noise_multiplier=noise_multiplier),
        "epsilon": tff_mf.epsilon(*setting, noise_multiplier=noise_multiplier, delta=delta),
        "delta": delta,
        "adjacency": "zero-out",
    }
    _options.report(result, as_json=as_json)
