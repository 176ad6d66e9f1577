"""The mechanism of a run by its name: optimized for the run, or read from a file."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import tff_mf
from tff_mf import _validate
from tff_mf.errors import InputValueError
from tff_mf.mechanisms import _production
from tff_mf.workloads import ToeplitzWorkload

from ..output import progress

# Where a server's warmup starts and its cooldown ends, as a part of its rate: banded MF paper, appendix H.
RAMP_FLOOR = 0.05

WORKLOADS = ("prefix_sum", "momentum", "learning_rates", "momentum_with_rates")
_PREFIX = "production:"
PRODUCTION = tuple(f"{_PREFIX}{name}" for name in _production.SETTINGS)
_TREES = ("tree-full", "tree-online")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of mechanism that is optimized for a setting.

    Attributes:
        optimizer: A function of `rounds`, `participation` and some of `options`.
        options: Options that the optimizer takes.
        objective: The loss that it minimizes by default.
        toeplitz: Whether a workload must be constant along diagonals.
    """

    optimizer: Callable[..., tff_mf.OptimizationResult]
    options: tuple[str, ...]
    objective: str = "rms"
    toeplitz: bool = False


KINDS = {
    "blt": Kind(optimizer=tff_mf.optimize_blt_result, options=("buffers", "objective"), objective="max"),
    "banded": Kind(optimizer=tff_mf.optimize_banded_result, options=("bands", "unit_norms", "workload", "progress")),
    "banded-toeplitz": Kind(
        optimizer=tff_mf.optimize_banded_toeplitz_result, options=("bands", "objective", "workload"), toeplitz=True
    ),
    "banded-inverse": Kind(
        optimizer=tff_mf.optimize_banded_inverse_result, options=("bands", "objective", "workload"), toeplitz=True
    ),
    "dense": Kind(optimizer=tff_mf.optimize_dense_result, options=("workload", "progress")),
}
NAMES = (*KINDS, *_TREES, "identity")


def load(name: str, rounds: int | None = None) -> tff_mf.Mechanism:
    """Returns the mechanism of an artifact, of `identity`, of `production:NAME`, or a tree.

    Args:
        name: The name, or the path of an artifact.
        rounds: Rounds of a tree, which its name does not give.

    Example:
        >>> load("tree-full", 8)
        Tree(optimized_for=None, rounds=8, variant='full')

    Raises:
        ArtifactError: If a file does not hold an intact artifact.
        InputValueError: If there is no such file or production mechanism (the message names the nearest), or a tree has
            no rounds.
    """
    if name == "identity":
        return tff_mf.Identity()
    if name in _TREES:
        if rounds is None:
            raise InputValueError(f"rounds missing: the name {name!r} does not give the rounds of a tree.")
        return tff_mf.Tree(rounds, variant=name.removeprefix("tree-"))
    if name.startswith(_PREFIX):
        _validate.one_of("mechanism", name, PRODUCTION)
        return tff_mf.BLT.production(name.removeprefix(_PREFIX))
    _check_exists(name, (*NAMES, *PRODUCTION))
    return tff_mf.load(name)


def check(name: str, *, rounds: int, **options: Any) -> None:
    """Raises unless there is a mechanism of a name and it takes the options; nothing is optimized.

    Args:
        name: As for `build`.
        rounds: Rounds of a tree.
        options: As for `search`.

    Raises:
        InputError: If there is none, or an option does not go with it.
    """
    refuse_options(name, **options)
    if name in KINDS:
        return
    try:
        load(name, rounds)
    except InputValueError as error:
        raise type(error)(str(error).replace("path=", "mechanism=", 1)) from error


def _check_exists(name: str, known: Sequence[str]) -> None:
    if "\0" not in name and not os.path.lexists(name):
        meant = _validate.did_you_mean(name, known)
        raise InputValueError(f"mechanism={name!r} is not a file, and none of {', '.join(known)}{meant}")


def workload(
    name: str, *, rounds: int, momentum: float = 0.0, warmup: float = 0.0, cooldown: float = 0.0
) -> tff_mf.Workload:
    """Returns the workload A of a server's SGD.

    Args:
        name: `prefix_sum`, `momentum`, `learning_rates` or `momentum_with_rates`.
        rounds: Number of rounds n.
        momentum: The server's momentum.
        warmup: Part of the rounds over which its rate rises.
        cooldown: Part of the rounds over which it falls.

    Example:
        >>> workload("momentum", rounds=8, momentum=0.9)
        Momentum(momentum=0.9)

    Raises:
        InputValueError: If there is no workload of that name.
    """
    _validate.one_of("workload", name, WORKLOADS)
    rates = tff_mf.LinearSchedule(
        warmup_rounds=round(warmup * rounds),
        warmup_from=RAMP_FLOOR,
        cooldown_rounds=round(cooldown * rounds),
        cooldown_to=RAMP_FLOOR,
    )
    match name:
        case "momentum":
            return tff_mf.Momentum(momentum=momentum)
        case "learning_rates":
            return tff_mf.LearningRates(rates=rates)
        case "momentum_with_rates":
            return tff_mf.MomentumWithRates(rates=rates, momentum=momentum)
        case _:
            return tff_mf.PrefixSum()


def build(
    name: str,
    *,
    rounds: int,
    participation: tff_mf.Participation,
    buffers: int | None = None,
    bands: int | None = None,
    objective: str | None = None,
    optimized_for: tff_mf.Workload | None = None,
) -> tff_mf.Mechanism:
    """Returns the mechanism called `name`, optimized for the run where it can be.

    Args:
        name: One of `NAMES`, `production:NAME`, or the path of an artifact.
        rounds: Number of rounds n.
        participation: What each client is bound to.
        buffers: Buffers of a `blt`; None lets the optimizer choose.
        bands: Bands of the banded kinds; None takes the min-sep of `participation`.
        objective: Loss to minimize, "rms" or "max"; None is that of the kind.
        optimized_for: The workload; None is the prefix sum.

    Example:
        >>> schema = tff_mf.MinSep(min_sep=4, max_participations=2)
        >>> build("banded", rounds=8, participation=schema).bands
        4

    Raises:
        InputError: If an option does not go with the mechanism, or the optimizer refuses it.
    """
    options = {"buffers": buffers, "bands": bands, "objective": objective, "workload": optimized_for}
    if name in KINDS:
        if bands is None and "bands" in KINDS[name].options:
            options["bands"] = min(participation.min_sep, rounds)
        return search(name, rounds=rounds, participation=participation, **options).mechanism
    refuse_options(name, **options)
    return load(name, rounds)


def search(
    name: str, *, rounds: int, participation: tff_mf.Participation | None, **options: Any
) -> tff_mf.OptimizationResult:
    """Returns the best mechanism of a kind, and how the search for it ended.

    Args:
        name: A key of `KINDS`.
        rounds: Number of rounds n.
        participation: What each client is bound to; None, for `banded` alone, is participations as far apart as it has
            bands.
        options: `bands`, `buffers`, `objective`, `workload`, `unit_norms`: what is None is not given.

    Example:
        >>> search("dense", rounds=4, participation=tff_mf.SingleParticipation(), objective="rms").converged
        True

    Raises:
        InputError: If an option does not go with the kind, or the optimizer refuses it.
    """
    kind = KINDS[name]
    given = {option: value for option, value in options.items() if value is not None}
    if isinstance(given.get("workload"), tff_mf.PrefixSum):
        del given["workload"]
    if "objective" in given:
        _validate.one_of("objective", given["objective"], ("rms", "max"))
        if "objective" not in kind.options and given["objective"] == kind.objective:
            del given["objective"]
    refuse_options(name, **given)
    if kind.toeplitz and not isinstance(given.get("workload", tff_mf.PrefixSum()), ToeplitzWorkload):
        raise InputValueError(
            f"workload={given['workload'].kind!r} does not go with mechanism={name!r}, which is constant along "
            "diagonals: take workload='momentum', or banded or dense."
        )
    with progress.search() as report:
        if "progress" in kind.options:
            given["progress"] = report
        return kind.optimizer(rounds=rounds, participation=participation, **given)


def refuse_options(name: str, **options: Any) -> None:
    """Raises if an option of `search` is given that the mechanism called `name` does not take.

    Raises:
        InputValueError: If one is.
    """
    known = KINDS[name].options if name in KINDS else ()
    for option, value in options.items():
        if value is None or option in known or isinstance(value, tff_mf.PrefixSum):
            continue
        shown = repr(value.kind if isinstance(value, tff_mf.Workload) else value)
        goes_with = ", ".join(each for each, kind in KINDS.items() if option in kind.options)
        remedy = "; take workload='prefix_sum'" if option == "workload" else ""
        if option == "objective" and name in KINDS:
            remedy = f"; {name} minimizes RmsLoss"
        raise InputValueError(f"{option}={shown} does not go with mechanism={name!r}, only with {goes_with}{remedy}.")
