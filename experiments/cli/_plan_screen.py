"""The result of `tff-mf plan`, as JSON and in words."""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tff_mf
from tff_mf.base.strict_json import finite
from tff_mf.numerics import digits
from tff_mf.optimize.least_loss import least_loss
from tff_mf.planning.compare import Option

from ..output.console import Block, Facts, Table
from ..planning.amplified import Amplified
from ..planning.balls_in_bins import BinsOption, recommended
from ..planning.deployment import Deployment
from ..planning.signal_to_noise import Signal, warning
from ..runs import statements
from . import account

_NONE = "–"
_CASES = {"half_min_sep": "b/2", "twice_min_sep": "2b", "half_as_many_rounds_again": "1.5n"}
_ONLY_IF = (
    "Only if cohorts are drawn at random and remain secret: amplification by {kind} sampling{turns}. It does not "
    "hold if clients decide when they are available."
)
_ONLY_IN_BINS = (
    "Only if each of {clients:,} clients is put at random into one of {bins} groups, independently, once for the run, "
    "no other client takes part, and nobody ever learns a group or a cohort: amplification by balls-in-bins sampling. "
    "It does not hold if clients decide when they are available. Estimates at {level}, for real numbers:"
)

_LOSSES = (
    "Losses compare mechanisms at equal privacy. The last three columns are ε if the estimates are wrong: clients come "
    "back after b/2 or 2b rounds, or the run has 1.5n."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanScreen:
    """A plan, and how it is shown.

    Attributes:
        deployment: What is known before the run.
        options: Every mechanism, the one with the least loss first.
        chosen: The recommended mechanism.
        why: The reason.
        claim: Its guarantee.
        largest_dimension: Of a model that learns, see `signal_to_noise.of_option`.
        signal: Signal and noise, if the dimension is known.
        notes: Further remarks.
        level: The ε that the noise follows from, or the σ that ε follows from; the other one is None.
        sampling: The kind of --sampling, if given.
        sampled: Numbers of bands with amplification, if --sampling was given.
        in_bins: Estimates with balls in bins, the mechanism with the least error first, if --sampling named it.
        certified: The one of them that is recommended.
    """

    deployment: Deployment
    options: list[Option]
    chosen: Option
    why: str
    claim: statements.Claim
    largest_dimension: int | None
    signal: Signal | None
    notes: Sequence[str]
    level: Mapping[str, Any]
    sampling: str | None
    sampled: Mapping[int, Amplified] | None
    in_bins: Sequence[BinsOption] = ()
    certified: Amplified | None = None

    @property
    def epsilon(self) -> float | None:
        """The ε that was asked for."""
        return self.level["epsilon"]

    @property
    def refused(self) -> bool:
        """Whether no ε is stated."""
        return self.claim.state == statements.REFUSED

    def as_dict(self) -> dict[str, Any]:
        """Returns the plan with all digits."""
        known, setting = self.deployment, self.deployment.setting
        result = {
            "population": known.population,
            "clients_per_round": known.clients_per_round,
            **account.described(setting),
            "min_sep": known.min_sep,
            "delta": known.delta,
            "workload": repr(account.workload_of(setting)),
            "objective": known.objective,
            "recommended": self.chosen.name,
            "claim": statements.facts(self.claim),
            "signal": {
                "largest_dimension": self.largest_dimension,
                **({"hopeless": False} if self.signal is None else self.signal.as_dict()),
            },
            "numbers": self._numbers(),
            "mechanisms": [self._row(option) for option in self.options],
            "frontier": self._frontier(),
            "least_loss": self._least_loss,
        }
        if self.sampled is not None:
            result |= {"sampling": self.sampling, "amplified": [_amplified(*each) for each in self.sampled.items()]}
        if self.certified is not None:
            result |= _bins(known, self.in_bins, self.certified)
        return statements.without_epsilon(result) if self.refused else result

    def words(self, *, written: str | None = None) -> list[Block]:
        """Returns the plan in words, with the folder that it was written to."""
        known = self.deployment
        setting = (
            f"{known.clients_per_round:,} of {known.population:,} clients a round, {known.setting.rounds:,} rounds, "
            f"{statements.participation(known.setting)}; {account.workload(known.setting)}"
        )
        rows = [
            ("setting", setting),
            ("why", self.why.removeprefix(f"{self.chosen.name}: ")),
            ("learns", self._learns()),
            ("numbers", self._in_integers()),
            *(("note", note) for note in self.notes),
            ("written", written or ""),
        ]
        blocks: list[Block] = [
            "# Plan",
            f"{self._whose()}: {statements.line(self.claim)}",
            Facts(rows),
            "## Mechanisms",
            Table(*self._table()),
            _LOSSES,
            self._by_copies(),
            "\n".join(f"- {option.name}: {option.note}." for option in self.options if option.note),
            *([] if self.sampled is None else self._amplified(self.sampled)),
            *self._in_bins(),
        ]
        if self.claim.not_checked:
            only = "" if self.sampling is None else ", or only the amplified figures hold"
            kept = f"something enforces the participation, {statements.participation(known.setting)}{only}"
            blocks += ["## What it rests on", "\n".join(f"- {text}" for text in (kept, *self.claim.not_checked))]
        return blocks

    def _whose(self) -> str:
        """Returns the recommended mechanism, with the cohorts that it is for if another sampling was asked for."""
        if self.sampling is None:
            return self.chosen.name
        often = statements.participation(self.deployment.setting)
        return f"{self.chosen.name}, for known cohorts with {often}, in place of {self.sampling} sampling"

    def _numbers(self) -> dict[str, Any]:
        """Returns the grid, and what its integers cost in the guarantee of the recommended mechanism."""
        setting, mechanism = self.deployment.setting, self.chosen.mechanism
        assert mechanism is not None
        if setting.grid is None:
            return {"grid": None}
        charge = setting.charge(mechanism, self.chosen.figures["noise_multiplier"])
        cost = {} if charge is None else {"mu": charge.mu, "tail": charge.tail}
        return {"grid": dataclasses.asdict(setting.grid), "dimension": setting.dimension, **cost}

    def _in_integers(self) -> str:
        grid, dimension = self.deployment.setting.grid, self.deployment.setting.dimension
        if grid is None:
            return "floats; figures hold for real numbers only, and --grid auto closes that gap"
        assumed = " (--dimension)" if self.signal is None else ""
        but = ", the estimates with secret groups excepted" if self.in_bins else ""
        return f"integers of {grid.bits} bits, for {dimension:,} parameters{assumed}: figures include their cost{but}"

    def _learns(self) -> str:
        if self.signal is not None:
            said = (re.sub(r"\s{3,}", ": ", each.removeprefix("WARNING").strip()) for each in warning(self.signal))
            return " ".join("; ".join(said).split())
        if self.largest_dimension is None:
            return ""
        largest = f"{float(f'{self.largest_dimension:.1e}'):,.0f}"
        return f"models of up to about {largest} parameters; --dimension judges a model of your size"

    def _row(self, option: Option) -> dict[str, Any]:
        return {
            "name": option.name,
            "note": option.note,
            **finite(option.figures),
            "epsilon_if_wrong": finite(option.if_wrong),
            f"{self.deployment.objective}_loss_if_wrong": finite(option.loss_if_wrong),
        }

    def _frontier(self) -> list[dict[str, Any]]:
        """Returns each mechanism that has less loss than all with fewer copies, or as few."""
        name = f"{self.deployment.objective}_loss"
        known = [each for each in self.options if math.isfinite(each.figures.get(name, math.inf))]
        found: list[dict[str, Any]] = []
        for each in sorted(known, key=lambda option: (option.figures["memory_rows"], option.figures[name])):
            if not found or each.figures[name] < found[-1][name]:
                found.append({"name": each.name} | {key: each.figures[key] for key in ("memory_rows", name)})
        return found

    @functools.cached_property
    def _least_loss(self) -> float | None:
        """Returns what no mechanism's loss is below; None where no bound is known."""
        setting = self.deployment.setting
        if not isinstance(account.workload_of(setting), tff_mf.PrefixSum):
            return None
        return least_loss(setting.rounds, setting.participation, self.deployment.objective) or None

    def _by_copies(self) -> str:
        name, bound = self.deployment.objective, self._least_loss
        found = [
            f"{digits.nearest(each[f'{name}_loss'])} with {each['memory_rows']} ({each['name']})"
            for each in self._frontier()
        ]
        below = "" if bound is None else f" No mechanism's is below {digits.downwards(bound)}."
        return f"Least {name.capitalize()}Loss by copies: {', '.join(found)}.{below}"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """Returns the header and the rows of the table of mechanisms."""
        with_memory = self.chosen.figures["memory_bytes"] is not None
        header = ["", "RmsLoss", "MaxLoss", "ε" if self.epsilon is None else "σ", "memory" if with_memory else "copies"]
        header += [f"ε: {case}" for case in _CASES.values()]
        rows = []
        for option in self.options:
            figures, wrong = option.figures, option.if_wrong
            if option.mechanism is None:
                continue
            # Without a stated guarantee, no column has an ε.
            epsilons = [figures["epsilon"], *(wrong[case] for case in _CASES)]
            epsilon, *if_wrong = [_NONE if self.refused else digits.upwards(each) for each in epsilons]
            rows.append(
                [
                    option.name,
                    *(digits.nearest(figures[name]) for name in ("rms_loss", "max_loss")),
                    epsilon if self.epsilon is None else digits.upwards(figures["noise_multiplier"]),
                    f"{digits.nearest(figures['memory_bytes'] / 1e6, 3)} MB"
                    if with_memory
                    else str(figures["memory_rows"]),
                    *if_wrong,
                ]
            )
        return header, rows

    def _amplified(self, sampled: Mapping[int, Amplified]) -> list[Block]:
        turns = "" if self.sampling == "poisson" else ", as many groups of clients in turn as there are bands"
        header = ["", "RMS error", "σ" if self.epsilon is None else "amplified σ", "amplified ε", "ε if known"]
        rows = []
        for bands, each in sampled.items():
            epsilons = [each.level.epsilon, each.epsilon_if_known]
            shown = [_NONE if self.refused else digits.upwards(value) for value in epsilons]
            name = "1 band" if bands == 1 else f"{bands} bands"
            rows.append([name, digits.nearest(each.errors["rms"]), digits.upwards(each.noise_multiplier), *shown])
        figures = self.chosen.figures
        error = digits.nearest(figures["rms_loss"] / figures["sensitivity"] * figures["noise_multiplier"])
        return [
            "## With secret cohorts",
            _ONLY_IF.format(kind=self.sampling, turns=turns),
            Table(header, rows),
            f"Without amplification, {self.chosen.name} has an RMS error of {error} clip norms.",
        ]

    def _in_bins(self) -> list[Block]:
        """Returns the part on balls in bins: estimates of every mechanism, and the recommended one's certificate."""
        known, found = self.deployment, self.certified
        if found is None or self.epsilon is None:
            return []
        objective = {"rms": "RMS error", "max": "max error"}[known.objective]
        bins, level = known.min_sep, statements.level("epsilon", self.epsilon)
        rows = []
        for each in self.in_bins:
            sigma = digits.upwards(each.noise_multiplier)
            rows.append([each.name, digits.nearest(each.error), sigma, str(each.memory_rows)])
        certified = ""
        if not self.refused:
            certified = (
                f"Certified: {recommended(self.in_bins).name}, amplified σ = {digits.upwards(found.noise_multiplier)}, "
                f"{objective} {digits.nearest(found.errors[known.objective])} clip norms, amplified ε "
                f"{digits.upwards(found.level.epsilon)} ({found.level.theorem} bound), and "
                f"{digits.upwards(found.epsilon_if_known)} if cohorts are known."
            )
        return [
            "## With secret groups",
            # Of more clients, cohorts would be larger than the room of a sum on the grid is for.
            _ONLY_IN_BINS.format(bins=bins, clients=bins * known.clients_per_round, level=level),
            Table(["", objective, "amplified σ", "copies"], rows),
            certified,
        ]


def _bins(known: Deployment, options: Sequence[BinsOption], found: Amplified) -> dict[str, Any]:
    return {
        "sampling": "balls-in-bins",
        "groups": known.min_sep,
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
            "name": recommended(options).name,
            "amplified_noise_multiplier": found.noise_multiplier,
            "amplified_epsilon": found.level.epsilon,
            "amplified_bound": found.level.theorem,
            "amplified_failure": found.level.failure,
            "epsilon_if_cohorts_are_known": finite(found.epsilon_if_known),
            f"{known.objective}_error": found.errors[known.objective],
        },
    }


def _amplified(bands: int, option: Amplified) -> dict[str, Any]:
    return {
        "bands": bands,
        "amplified_noise_multiplier": option.noise_multiplier,
        "amplified_epsilon": finite(option.level.epsilon),
        "epsilon_if_cohorts_are_known": finite(option.epsilon_if_known),
        "rms_error": finite(option.errors["rms"]),
    }
