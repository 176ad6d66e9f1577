"""`tff-mf account`: the guarantee of a noise multiplier."""

from . import _guarantees, _options
from ._flags import Flags


@_options.command()
@_options.mechanism
@_options.option("noise_multiplier", required=True)
@_options.setting(*_options.GUARANTEE, required=("rounds",))
@_options.option("delta", required=True)
@_options.as_json
def account(file: str, noise_multiplier: float, flags: Flags, delta: float, as_json: bool) -> None:
    """Print the guarantee of a run for each client, in figures and in one sentence.

    With --sampling, amplified figures are added to the others: they hold only if cohorts are drawn at random and remain
    secret. With --workload, the error of the released values is added, in clip norms.
    """
    from ..runs import statements

    found = _guarantees.found(file, flags)
    run = found.guarantee(noise_multiplier)
    claim = statements.of_setting(found.setting, run, delta=delta, population=flags.population)
    result = {
        "mechanism": found.mechanism.kind,
        **found.described(),
        **found.sensitivity(),
        **found.charge(noise_multiplier),
        "noise_multiplier": noise_multiplier,
        "effective_noise_multiplier": run.effective_noise_multiplier,
        "mu": run.mu,
        "zcdp_rho": run.zcdp_rho,
        "epsilon": run.epsilon(delta),
        "epsilon_by_pld": run.epsilon_by_pld(delta),
        "epsilon_from_zcdp": run.epsilon_from_zcdp(delta),
        "delta": delta,
        **found.errors(noise_multiplier),
        **found.amplified(noise_multiplier, delta),
        "claim": statements.facts(claim),
    }
    found.report(result, as_json=as_json)
