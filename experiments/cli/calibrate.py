"""`tff-mf calibrate`: the noise multiplier for a guarantee."""

from . import _guarantees, _options
from ._flags import Flags
from ._screens import Answer


@_options.command()
@_options.mechanism
@_options.option("epsilon", required=True)
@_options.option("delta", required=True)
@_options.setting(*_options.GUARANTEE, required=("rounds",))
def calibrate(file: str, epsilon: float, delta: float, flags: Flags) -> Answer:
    """Print the smallest noise multiplier with which a run stays within (ε, δ).

    With --sampling, the noise multiplier with amplification is added to the other: it suffices only if cohorts are
    drawn at random and remain secret. With --workload, the error of the released values is added, in clip norms.
    """
    found = _guarantees.found(file, flags)
    facts = {**found.described(), **found.sensitivity(), **found.calibrated(epsilon, delta)}
    return found.answer(facts, {"mechanism": _guarantees.title(file, found.mechanism)})
