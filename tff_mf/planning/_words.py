"""A plan in words: for whoever decides whether to run it."""

import dataclasses
from typing import TYPE_CHECKING

from tff_mf.numerics import digits

if TYPE_CHECKING:
    from tff_mf.planning._plan import Plan

_MOST_SHOWN = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alternative:
    """A mechanism that could have been chosen, at the same (ε, δ) or σ.

    Attributes:
        name: Its name.
        loss: Its loss as a multiple of the chosen mechanism's: how much more noise is in the sums at equal privacy;
            `None` if it was not searched.
        memory_rows: Copies of the model that its noise keeps as state.
        note: Why it was not searched, or what it is for; or empty.
    """

    name: str
    loss: float | None
    memory_rows: int | None
    note: str = ""

    def __str__(self) -> str:
        if self.loss is None:
            return f"{self.name} ({self.note})"
        unit = "copy" if self.memory_rows == 1 else "copies"
        copies = "" if self.memory_rows is None else f" and {self.memory_rows} {unit} of the model"
        return f"{self.name}: {digits.nearest(self.loss, 3)} times the noise{copies}"


def shown(plan: "Plan") -> str:
    """Returns a plan as lines of text, with levels of privacy as numbers: a report states what holds of a run.

    Formal guarantee: no number is smaller than what the plan has.
    """
    drawn = f"{plan.clients_per_round:,}" + ("" if plan.population is None else f" of {plan.population:,}")
    known = "secret" if plan.secret_cohorts else "may be known"
    numbers = "floats, until the size of the model is known: for_model(dimension)"
    if plan.grid is not None:
        numbers = f"integers of {plan.grid.bits} bits, for models of up to {plan.dimension:,} parameters"
    privacy = "TEST ONLY: the noise is repeatable, and nothing is private"
    if not plan.insecure:
        privacy = f"epsilon={digits.rounded_up(plan.epsilon)}, delta={plan.delta!r}, if the run keeps to the plan"
    lines = {
        "privacy": privacy,
        "cohorts": f"{drawn} clients in each of {plan.rounds:,} rounds, by {plan.sampling}; {known}",
        "mechanism": plan.why or plan.mechanism.kind,
        "noise": f"σ = {digits.upwards(plan.noise_multiplier)} times the clip norm, {plan.clip_norm!r}: the standard "
        "deviation of the independent noise that the mechanism correlates",
        "numbers": numbers,
    }
    if plan.cohort != plan.clients_per_round:
        as_run = digits.rounded_up(plan.epsilon_as_run)
        lines["simulates"] = f"{plan.cohort:,} clients a round; of those that train, epsilon_as_run={as_run}"
    searched = [each for each in plan.alternatives if each.loss is not None]
    independent = [each for each in searched[_MOST_SHOWN:] if each.name == "identity"]
    found = searched[:_MOST_SHOWN] + independent
    if found:
        lines["instead"] = "; ".join(map(str, found))
    if "RmsLoss" in plan.why:
        lines["RmsLoss"] = "noise in the model after a round, as a root mean square over all rounds, at equal privacy"
    return "\n".join(f"{name:<10} {text}" for name, text in lines.items())
