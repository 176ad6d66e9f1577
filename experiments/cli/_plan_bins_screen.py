"""Output of `tff-mf plan --sampling balls_in_bins`, as JSON and as text."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from ..output import digits
from ..planning import integers
from ..planning.balls_in_bins import BinsOption, CertifiedOption
from ..planning.deployment import Deployment
from ..privacy import statements
from . import _screens

_ONLY_IF = (
    "Only if each of {clients:,} clients is put at random into one of {bins} groups, independently, once for the run, "
    "no other client takes part, and nobody ever learns a group or a cohort: amplification by balls_in_bins sampling. "
    "It does not hold if clients decide when they are available. Estimates at {level}:"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BinsScreen:
    """Mechanisms compared with balls in bins, and the certificate of one.

    Attributes:
        deployment: What is known before the run.
        epsilon: ε that was asked for.
        options: Every mechanism with estimates, the one with the least error first.
        certified: The one that is recommended.
        refused: Whether no guarantee is stated, for which the plan names the reason.
    """

    deployment: Deployment
    epsilon: float
    options: Sequence[BinsOption]
    certified: CertifiedOption
    refused: bool

    def as_dict(self) -> dict[str, Any]:
        """Returns the comparison with all digits."""
        found, known = self.certified, self.certified.epsilon_if_known
        return {
            "sampling": "balls_in_bins",
            "bins": found.sampling.groups,
            "amplified": [
                {
                    "name": each.name,
                    "memory_rows": each.memory_rows,
                    "amplified_noise_multiplier_estimate": each.noise_multiplier,
                    f"{self.deployment.objective}_error_estimate": each.error,
                }
                for each in self.options
            ],
            "amplified_chosen": {
                "name": found.option.name,
                "amplified_noise_multiplier": found.noise_multiplier,
                "amplified_epsilon": found.level.epsilon,
                "amplified_bound": found.level.theorem,
                "amplified_failure": found.level.failure,
                "epsilon_if_cohorts_are_known": known if math.isfinite(known) else None,
                f"{self.deployment.objective}_error": found.error,
            },
        }

    def lines(self) -> Iterator[str]:
        """Yields the lines of the text."""
        objective = {"rms": "RMS error", "max": "max error"}[self.deployment.objective]
        bins, level = self.certified.sampling.groups, statements.level("epsilon", self.epsilon)
        # Of more clients, cohorts would be larger than the room of a sum on the grid is for.
        clients = bins * self.deployment.clients_per_round
        yield from _screens.folded(_ONLY_IF.format(bins=bins, clients=clients, level=level))
        yield ""
        rows = []
        for each in self.options:
            copies = "–" if each.memory_rows is None else str(each.memory_rows)
            rows.append([each.name, digits.nearest(each.error), digits.upwards(each.noise_multiplier), copies])
        yield from _screens.table(["", objective, "amplified σ", "copies"], rows)
        yield ""
        found = self.certified
        if self.refused:
            return
        yield from _screens.folded(
            f"Certified: {found.option.name}, amplified σ = {digits.upwards(found.noise_multiplier)}, "
            f"{objective} {digits.nearest(found.error)} clip norms, amplified ε "
            f"{digits.upwards(found.level.epsilon)} ({found.level.theorem} bound), "
            f"and {digits.upwards(found.epsilon_if_known)} if cohorts are known; "
            f"{integers.included(found.grid)}. "
            "`tff-mf optimize blt` or `banded-toeplitz` with --sampling balls_in_bins saves the mechanism."
        )
