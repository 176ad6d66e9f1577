"""Output of `tff-mf plan`, as JSON and as text."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tff_mf

from ..output import digits
from ..planning import integers
from ..planning.amplified import AmplifiedOption
from ..planning.balls_in_bins import BinsOption, CertifiedOption
from ..planning.deployment import Deployment
from ..planning.options import Option
from ..privacy import statements
from . import _guarantees, _screens

_NONE = "–"
_CASES = {"half_min_sep": "b/2", "twice_min_sep": "2b", "half_as_many_rounds_again": "1.5n"}
_ONLY_IF = (
    "Only if cohorts are drawn at random and remain secret: amplification by {kind} sampling{turns}. It does not "
    "hold if clients decide when they are available."
)
_ONLY_IN_BINS = (
    "Only if each of {clients:,} clients is put at random into one of {bins} groups, independently, once for the run, "
    "no other client takes part, and nobody ever learns a group or a cohort: amplification by balls-in-bins sampling. "
    "It does not hold if clients decide when they are available. Estimates at {level}:"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanScreen:
    """A plan, and how it is shown.

    Attributes:
        deployment: What is known before the run.
        options: Every mechanism, the one with the least loss first.
        chosen: The recommended mechanism.
        why: The reason.
        statement: Its guarantee in one line, or the reason why there is none.
        refused: Whether there is none.
        signal: Signal and noise, see `signal_to_noise.of_option`.
        numbers: The grid and what it costs, see `integers.of_option`.
        notes: Further remarks.
        epsilon: ε from which the noise follows, if ε does not follow from the noise.
        sampling: The kind of --sampling, if given.
        sampled: Numbers of bands with amplification, if --sampling was given.
        grid: The grid whose cost the amplified figures include, if any.
        in_bins: Estimates with balls in bins, the mechanism with the least error first, if --sampling named it.
        certified: The one of them that is recommended.
    """

    deployment: Deployment
    options: list[Option]
    chosen: Option
    why: str
    statement: str
    refused: bool
    signal: Mapping[str, Any]
    numbers: Mapping[str, Any]
    notes: Sequence[str]
    epsilon: float | None
    sampling: str | None
    sampled: Sequence[AmplifiedOption] | None
    grid: tff_mf.Grid | None = None
    in_bins: Sequence[BinsOption] = ()
    certified: CertifiedOption | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns the plan with all digits."""
        known, setting = self.deployment, self.deployment.setting
        workload = tff_mf.PrefixSum() if setting.workload is None else setting.workload
        result = {
            "population": known.population,
            "clients_per_round": known.clients_per_round,
            **_guarantees.described(setting),
            "min_sep": known.min_sep,
            "delta": known.delta,
            "workload": repr(workload),
            "objective": known.objective,
            "recommended": self.chosen.name,
            "why": self.why,
            "statement": self.statement,
            "signal": self.signal,
            "numbers": _finite(self.numbers),
            "notes": self.notes,
            "mechanisms": [self._row(option) for option in self.options],
        }
        if self.sampled is not None:
            result |= {"sampling": self.sampling, "amplified": [_amplified(each) for each in self.sampled]}
        if self.certified is not None:
            result |= _bins(known, self.in_bins, self.certified)
        return statements.without_epsilon(result) if self.refused else result

    def lines(self) -> Iterator[str]:
        """Yields the lines of the text."""
        yield from _screens.blocks(
            self._title(),
            _screens.table(*self._table()),
            "Losses compare mechanisms at equal privacy. The last three columns are ε if the estimates are wrong: "
            "clients come back after b/2 or 2b rounds, or the run has 1.5n.",
            *(f"{each.name}: {each.note}." for each in self.options if each.note and each.mechanism is not None),
            *(self.why, self.signal["line"], self.numbers["line"], self.statement, *self.notes),
            *(() if self.sampled is None else self._amplified_blocks(self.sampled)),
        )
        if self.certified is not None and self.epsilon is not None:
            yield ""
            yield from bins_lines(self.deployment, self.epsilon, self.in_bins, self.certified, refused=self.refused)

    def _row(self, option: Option) -> dict[str, Any]:
        return {
            "name": option.name,
            "note": option.note,
            **_finite(option.figures),
            "epsilon_if_wrong": _finite(option.if_wrong),
            f"{self.deployment.objective}_loss_if_wrong": _finite(option.loss_if_wrong),
        }

    def _title(self) -> str:
        known, words = self.deployment, _guarantees.in_words(self.deployment.setting)
        return (
            f"{known.clients_per_round:,} of {known.population:,} clients a round; n = {known.rounds:,} rounds, "
            f"{words['participation']}; δ = {known.delta}, {known.adjacency}; {words['workload']}"
        )

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """Returns the header and the rows of the table of mechanisms."""
        noise = {"noise_multiplier": "σ"} if self.epsilon is not None else {"zcdp_rho": "ρ", "epsilon": "ε"}
        with_memory = self.chosen.figures["memory_bytes"] is not None
        header = ["", "RmsLoss", "MaxLoss", *noise.values(), "copies", *(["memory"] if with_memory else []), "search"]
        header += [f"ε: {case}" for case in _CASES.values()]
        rows = []
        for option in self.options:
            if option.mechanism is None:
                rows.append([option.name, option.note])
                continue
            figures = option.figures
            epsilons = [figures["epsilon"], *(option.if_wrong[case] for case in _CASES)]
            # Without a stated guarantee, no column has an ε.
            shown = [_NONE if self.refused else digits.upwards(each) for each in epsilons]
            cells = [option.name, digits.nearest(figures["rms_loss"]), digits.nearest(figures["max_loss"])]
            cells += [digits.upwards(figures[name]) for name in noise if name != "epsilon"]
            cells += [] if self.epsilon is not None else shown[:1]
            cells.append(str(figures["memory_rows"]))
            cells += [f"{digits.nearest(figures['memory_bytes'] / 1e6, 3)} MB"] if with_memory else []
            rows.append([*cells, f"{figures['seconds']:.1f} s", *shown[1:]])
        return header, rows

    def _amplified_blocks(self, sampled: Sequence[AmplifiedOption]) -> Iterator[str | Iterator[str]]:
        turns = "" if self.sampling == "poisson" else ", as many groups of clients in turn as there are bands"
        yield _ONLY_IF.format(kind=self.sampling, turns=turns)
        yield f"In the table below, {integers.included(self.grid)}."
        header = ["", "RMS error", "σ" if self.epsilon is None else "amplified σ", "amplified ε", "ε if known"]
        rows = []
        for each in sampled:
            epsilons = [each.epsilon, each.epsilon_if_known]
            shown = [_NONE if self.refused else digits.upwards(value) for value in epsilons]
            name = "1 band" if each.bands == 1 else f"{each.bands} bands"
            rows.append([name, digits.nearest(each.rms_error), digits.upwards(each.noise_multiplier), *shown])
        yield _screens.table(header, rows)
        figures = self.chosen.figures
        error = figures["rms_loss"] / figures["sensitivity"] * figures["noise_multiplier"]
        yield f"Without amplification, {self.chosen.name} has an RMS error of {digits.nearest(error)} clip norms."


def bins_lines(
    known: Deployment, epsilon: float, options: Sequence[BinsOption], found: CertifiedOption, *, refused: bool
) -> Iterator[str]:
    """Yields the lines about balls in bins: estimates of every mechanism, and the certificate of the recommended one.

    Args:
        known: What is known before the run.
        epsilon: ε that was asked for.
        options: Every mechanism.
        found: The recommended one.
        refused: Whether no guarantee is stated, for which the plan names the reason.
    """
    objective = {"rms": "RMS error", "max": "max error"}[known.objective]
    bins, level = found.sampling.groups, statements.level("epsilon", epsilon)
    rows = []
    for each in options:
        copies = _NONE if each.memory_rows is None else str(each.memory_rows)
        rows.append([each.name, digits.nearest(each.error), digits.upwards(each.noise_multiplier), copies])
    yield from _screens.blocks(
        # Of more clients, cohorts would be larger than the room of a sum on the grid is for.
        _ONLY_IN_BINS.format(bins=bins, clients=bins * known.clients_per_round, level=level),
        _screens.table(["", objective, "amplified σ", "copies"], rows),
        None if refused else _certificate(found, objective),
    )


def _certificate(found: CertifiedOption, objective: str) -> str:
    return (
        f"Certified: {found.option.name}, amplified σ = {digits.upwards(found.noise_multiplier)}, "
        f"{objective} {digits.nearest(found.error)} clip norms, amplified ε {digits.upwards(found.level.epsilon)} "
        f"({found.level.theorem} bound), and {digits.upwards(found.epsilon_if_known)} if cohorts are known; "
        f"{integers.included(found.grid)}. `tff-mf optimize blt` or `banded-toeplitz` with --sampling "
        "balls-in-bins saves the mechanism."
    )


def _bins(known: Deployment, options: Sequence[BinsOption], found: CertifiedOption) -> dict[str, Any]:
    return {
        "sampling": "balls-in-bins",
        "groups": found.sampling.groups,
        "amplified": [
            {
                "name": each.name,
                "memory_rows": each.memory_rows,
                "amplified_noise_multiplier_estimate": each.noise_multiplier,
                f"{known.objective}_error_estimate": each.error,
            }
            for each in options
        ],
        "amplified_chosen": {
            "name": found.option.name,
            "amplified_noise_multiplier": found.noise_multiplier,
            "amplified_epsilon": found.level.epsilon,
            "amplified_bound": found.level.theorem,
            "amplified_failure": found.level.failure,
            "epsilon_if_cohorts_are_known": _finite_value(found.epsilon_if_known),
            f"{known.objective}_error": found.error,
        },
    }


def _amplified(option: AmplifiedOption) -> dict[str, Any]:
    return {
        "bands": option.bands,
        "amplified_noise_multiplier": option.noise_multiplier,
        "amplified_epsilon": _finite_value(option.epsilon),
        "epsilon_if_cohorts_are_known": _finite_value(option.epsilon_if_known),
        "rms_error": _finite_value(option.rms_error),
    }


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _finite_value(value) for name, value in values.items()}


def _finite_value(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
