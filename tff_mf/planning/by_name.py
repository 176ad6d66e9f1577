"""The mechanism of a run by its name: optimized for the run's setting, or read from a file."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from tff_mf import artifacts, optimize
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import BLT, Identity, Mechanism, Tree
from tff_mf.problem.participation import Participation
from tff_mf.problem.workloads import (
    LearningRates,
    LinearSchedule,
    Momentum,
    MomentumWithRates,
    PrefixSum,
    ToeplitzWorkload,
    Workload,
)

# Where a server's warmup starts and its cooldown ends, as a part of its rate: banded MF paper, appendix H.
RAMP_FLOOR = 0.05

WORKLOADS = ("prefix-sum", "momentum", "learning-rates", "momentum-with-rates")
_PREFIX = "production:"
_TREES = {f"tree-{variant}": variant for variant in ("full", "online", "vanilla")}
Progress = Callable[[Any], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """How a kind of mechanism is optimized for a setting.

    Attributes:
        optimizer: A function of `rounds`, `participation` and the `options`, all by name.
        options: Options of `search` that it takes; "progress" too, if it has iterations to tell of.
        objective: The loss that it minimizes by default, "rms" or "max".
        toeplitz: Whether it takes only workloads that are constant along diagonals.
    """

    optimizer: Callable[..., Mechanism]
    options: tuple[str, ...]
    objective: str = "rms"
    toeplitz: bool = False


# The kinds that are optimized for a setting, by the names of the command line.
SEARCHES: Mapping[str, Family] = {
    "blt": Family(optimizer=optimize.optimize_blt, options=("buffers", "objective"), objective="max"),
    "scaled-blt": Family(optimizer=optimize.optimize_scaled_blt, options=("buffers", "objective"), objective="max"),
    "banded": Family(optimizer=optimize.optimize_banded, options=("bands", "unit_norms", "workload", "progress")),
    "banded-toeplitz": Family(
        optimizer=optimize.optimize_banded_toeplitz, options=("bands", "objective", "workload"), toeplitz=True
    ),
    "dense": Family(optimizer=optimize.optimize_dense, options=("workload", "progress")),
}


def names() -> tuple[str, ...]:
    """Returns the names that stand for a mechanism: the kinds that are optimized, and those that need no search.

    Example:
        >>> names()[-3:]
        ('tree-online', 'tree-vanilla', 'identity')
    """
    return (*SEARCHES, *_TREES, "identity")


def production() -> tuple[str, ...]:
    """Returns the names of the production mechanisms of McMahan et al. (2024).

    Example:
        >>> production()[0]
        'production:b100'
    """
    return tuple(_PREFIX + name for name in BLT.production_names())


def load(name: str, rounds: int | None = None) -> Mechanism:
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
        return Identity()
    if name in _TREES:
        if rounds is None:
            raise InputValueError(f"rounds missing: the name {name!r} does not say how many a tree has.")
        return Tree(rounds, variant=_TREES[name])
    if name.startswith(_PREFIX):
        validation.one_of("mechanism", name, production())
        return BLT.production(name.removeprefix(_PREFIX))
    if "\0" not in name and os.path.isdir(name):
        artifact = os.path.join(name, "mechanism.safetensors")
        raise InputValueError(f"mechanism={name!r} is a folder: name the artifact in it, such as {artifact!r}.")
    if name in SEARCHES and not os.path.lexists(name):
        raise InputValueError(
            f"mechanism={name!r} is optimized for a setting: write it to a file by `tff-mf optimize {name}`, and name "
            "that file."
        )
    if "\0" not in name and not os.path.lexists(name):
        all_names = (*names(), *production())
        meant = validation.did_you_mean(name, all_names)
        raise InputValueError(f"mechanism={name!r} is not a file, and none of {', '.join(all_names)}{meant}")
    return artifacts.load(name)


def check(name: str, *, rounds: int, **options: Any) -> None:
    """Raises unless there is a mechanism of a name and it takes the options; nothing is optimized.

    Args:
        name: One of `names()`, `production:NAME`, or the path of an artifact.
        rounds: Rounds of a tree.
        options: As for `search`.

    Raises:
        InputError: If there is none, or an option does not go with it.
    """
    check_options(name, **options)
    if name in SEARCHES:
        return
    try:
        load(name, rounds)
    except InputValueError as error:
        raise type(error)(str(error).replace("path=", "mechanism=", 1)) from error


def workload(name: str, *, rounds: int, momentum: float = 0.0, warmup: float = 0.0, cooldown: float = 0.0) -> Workload:
    """Returns the workload A of a server's SGD.

    Args:
        name: `prefix-sum`, `momentum`, `learning-rates` or `momentum-with-rates`.
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
    validation.one_of("workload", name, WORKLOADS)
    rates = LinearSchedule(
        warmup_rounds=round(warmup * rounds),
        warmup_from=RAMP_FLOOR,
        cooldown_rounds=round(cooldown * rounds),
        cooldown_to=RAMP_FLOOR,
    )
    match name:
        case "momentum":
            return Momentum(momentum=momentum)
        case "learning-rates":
            return LearningRates(rates=rates)
        case "momentum-with-rates":
            return MomentumWithRates(rates=rates, momentum=momentum)
        case _:
            return PrefixSum()


def _word(workload: Workload) -> str:
    return workload.kind.replace("_", "-")


def search(
    name: str, *, rounds: int, participation: Participation | None, progress: Progress | None = None, **options: Any
) -> Mechanism:
    """Returns the best mechanism of a kind, whose `optimized_for` says how the search for it ended.

    Args:
        name: A key of `SEARCHES`.
        rounds: Number of rounds n.
        participation: What each client is bound to; None, for `banded` alone, is participations as far apart as it has
            bands.
        progress: Called after every iteration of the optimizer, if it has iterations.
        options: `buffers` of a BLT, `bands`, `unit_norms` of a `banded`, `objective` ("rms" or "max") or `workload`;
            what is None takes the default of the kind.

    Example:
        >>> import tff_mf
        >>> mechanism = search("dense", rounds=4, participation=tff_mf.SingleParticipation(), objective="rms")
        >>> mechanism.optimized_for.converged
        True

    Raises:
        InputError: If an option does not go with the kind, or the optimizer refuses it.
    """
    kind, arguments = SEARCHES[name], check_options(name, **options)
    workload = arguments.get("workload", PrefixSum())
    if kind.toeplitz and not isinstance(workload, ToeplitzWorkload):
        raise InputValueError(
            f"workload={_word(workload)!r} does not go with mechanism={name!r}, which is constant along diagonals: "
            "take workload='momentum', or banded or dense."
        )
    if progress is not None and "progress" in kind.options:
        arguments["progress"] = progress
    return kind.optimizer(rounds=rounds, participation=participation, **arguments)


def check_options(name: str, **options: Any) -> dict[str, Any]:
    """Returns the options of a search that differ from its defaults.

    Raises:
        InputError: If the mechanism called `name` does not take one of them, or there is no such objective.
    """
    kind, arguments = SEARCHES.get(name), {}
    for option, value in options.items():
        if value is None or isinstance(value, PrefixSum):
            continue
        taken = kind is not None and option in kind.options
        if option == "objective":
            validation.one_of("objective", value, ("rms", "max"))
            if kind is not None and not taken and value == kind.objective:
                continue
        if not taken:
            shown = repr(_word(value) if isinstance(value, Workload) else value)
            goes_with = ", ".join(key for key, search in SEARCHES.items() if option in search.options)
            remedy = "; take workload='prefix-sum'" if option == "workload" else ""
            if option == "objective" and kind is not None:
                remedy = f"; {name} minimizes {'MaxLoss' if kind.objective == 'max' else 'RmsLoss'}"
            raise InputValueError(
                f"{option}={shown} does not go with mechanism={name!r}, only with {goes_with}{remedy}."
            )
        arguments[option] = value
    return arguments
