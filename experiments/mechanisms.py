"""The mechanism of a run by its name: optimized for the run, or read from a file."""

import os
from collections.abc import Callable, Sequence

import tff_mf
from tff_mf import _validate
from tff_mf.errors import InputValueError
from tff_mf.mechanisms import _production

from . import progress

# Where a server's warmup starts and its cooldown ends, as a part of its rate: banded MF paper, appendix H.
RAMP_FLOOR = 0.05

WORKLOADS = ("prefix_sum", "momentum", "learning_rates", "momentum_with_rates")
_PREFIX = "production:"
PRODUCTION = tuple(f"{_PREFIX}{name}" for name in _production.SETTINGS)
_OPTIONS = {
    "blt": ("buffers",),
    "banded": ("bands",),
    "banded-toeplitz": ("bands",),
    "banded-inverse": ("bands",),
    "dense": (),
    "tree-full": (),
    "tree-online": (),
    "identity": (),
}
NAMES = tuple(_OPTIONS)
# What can be had without a setting to optimize for.
LOADABLE = ("identity", *PRODUCTION)


def load(name: str) -> tff_mf.Mechanism:
    """Returns the mechanism of an artifact, of `identity`, or of `production:NAME`.

    Raises:
        ArtifactError: If a file does not hold an intact artifact.
        InputValueError: If there is no such file or production mechanism; the message has the nearest name.
    """
    if name == "identity":
        return tff_mf.Identity()
    if name.startswith(_PREFIX):
        _validate.one_of("mechanism", name, PRODUCTION)
        return tff_mf.BLT.production(name.removeprefix(_PREFIX))
    _check_exists(name, LOADABLE)
    return tff_mf.load(name)


def _check_exists(name: str, known: Sequence[str]) -> None:
    meant = _validate.did_you_mean(name, known)
    if meant != "." and "\0" not in name and not os.path.lexists(name):
        raise InputValueError(f"mechanism={name!r} is no file, and none of {', '.join(known)}{meant}")


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
    optimized_for: tff_mf.Workload | None = None,
) -> tff_mf.Mechanism:
    """Returns the mechanism called `name`, optimized for the run where it can be.

    Args:
        name: One of `NAMES`, `production:NAME`, or the path of an artifact.
        rounds: Number of rounds n.
        participation: What each client is bound to.
        buffers: Buffers of a `blt`; None lets the optimizer choose.
        bands: Bands of the banded kinds; None takes the separation of `participation`.
        optimized_for: The workload; None is the prefix sum.

    Example:
        >>> schema = tff_mf.MinSep(min_sep=4, max_participations=2)
        >>> build("banded", rounds=8, participation=schema).bands
        4

    Raises:
        InputError: If an option does not go with the mechanism, or the optimizer refuses it.
    """
    known = _OPTIONS.get(name, ())
    for option, value in (("buffers", buffers), ("bands", bands)):
        if value is not None and option not in known:
            goes_with = ", ".join(kind for kind, options in _OPTIONS.items() if option in options)
            raise InputValueError(f"{option}={value!r} does not go with mechanism={name!r}, only with {goes_with}.")
    if isinstance(optimized_for, tff_mf.PrefixSum):
        optimized_for = None
    if optimized_for is not None and name not in _WORKLOAD_OPTIMIZERS:
        raise InputValueError(
            f"workload={optimized_for.kind!r} does not go with mechanism={name!r}: only "
            f"{', '.join(_WORKLOAD_OPTIMIZERS)} can be optimized for it; take workload='prefix_sum'."
        )
    if name in _WORKLOAD_OPTIMIZERS:
        bands = min(participation.separation, rounds) if bands is None else bands
        return _WORKLOAD_OPTIMIZERS[name](rounds, participation, bands, optimized_for)
    if name == "blt":
        return tff_mf.optimize_blt(rounds=rounds, participation=participation, buffers=buffers)
    if name in ("tree-full", "tree-online"):
        return tff_mf.Tree(rounds, variant=name.removeprefix("tree-"))
    if name not in NAMES and not name.startswith(_PREFIX):
        _check_exists(name, NAMES)
    return load(name)


def _banded(
    rounds: int, participation: tff_mf.Participation, bands: int, optimized_for: tff_mf.Workload | None
) -> tff_mf.Mechanism:
    with progress.search() as report:
        return tff_mf.optimize_banded(
            rounds=rounds, bands=bands, participation=participation, workload=optimized_for, progress=report
        )


def _dense(
    rounds: int, participation: tff_mf.Participation, bands: int, optimized_for: tff_mf.Workload | None
) -> tff_mf.Mechanism:
    del bands
    with progress.search() as report:
        return tff_mf.optimize_dense(
            rounds=rounds, participation=participation, workload=optimized_for, progress=report
        )


def _toeplitz(
    optimize: Callable[..., tff_mf.Mechanism],
) -> Callable[[int, tff_mf.Participation, int, tff_mf.Workload | None], tff_mf.Mechanism]:
    return lambda rounds, participation, bands, optimized_for: optimize(
        rounds=rounds, bands=bands, participation=participation, workload=optimized_for
    )


_WORKLOAD_OPTIMIZERS: dict[
    str, Callable[[int, tff_mf.Participation, int, tff_mf.Workload | None], tff_mf.Mechanism]
] = {
    "banded": _banded,
    "banded-toeplitz": _toeplitz(tff_mf.optimize_banded_toeplitz),
    "banded-inverse": _toeplitz(tff_mf.optimize_banded_inverse),
    "dense": _dense,
}
