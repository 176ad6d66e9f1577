"""`tff-mf account`: the guarantee of a noise multiplier."""

from . import _guarantees, _options
from ._flags import Flags
from ._screens import Answer


@_options.command()
@_options.mechanism
@_options.option("noise_multiplier", required=True)
@_options.setting(*_options.GUARANTEE, required=("rounds",))
@_options.option("delta", required=True)
def account(file: str, noise_multiplier: float, flags: Flags, delta: float) -> Answer:
    """Print the guarantee of a run for each client, in one line and in figures.

    With --sampling, amplified figures are added to the others: they hold only if cohorts are drawn at random and remain
    secret. With --workload, the error of the released values is added, in clip norms.
    """
    found, noise = _guarantees.found(file, flags), (noise_multiplier, delta)
    facts = {
        **found.described(),
        **found.sensitivity(),
        **found.noised(*noise),
        **found.compared(*noise),
        **found.amplified(*noise),
    }
    return found.answer(facts, {"mechanism": _guarantees.title(file, found.mechanism)})
