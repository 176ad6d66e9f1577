"""`tff-mf optimize`: a mechanism optimized for a setting, as an artifact."""

import functools
import time
from collections.abc import Callable
from typing import Any

import rich_click as click

from tff_mf.planning import mechanism_names

from ..output import files
from . import _options, _searches
from ._boundary import Group
from ._flags import Flags

# Options of a search that are flags of its kind alone.
_OWN = ("bands", "buffers")
_SEARCHED = (*_options.SETTING, *_options.WORKLOAD, *_options.COHORTS)


class _Kinds(Group):
    """The commands below, and one for each registered kind that has a search and none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        registered = [name for name in mechanism_names.searched() if name not in self.commands]
        return [*super().list_commands(ctx), *registered]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in mechanism_names.searched():
            return _of_registered(cmd_name)
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Kinds)
def optimize() -> None:
    """Optimize a mechanism for a setting, and save it.

    Without --sampling and its parameters, each client is assumed to take part once; for `banded`, any number of times,
    as many rounds apart as there are bands. The assumed participation is printed.
    """


def _kind(search: Callable[..., _searches.Search]) -> click.Command:
    """Returns a command that saves the mechanism that `search` finds, with its own options and the shared ones."""

    @functools.wraps(search)
    def command(flags: Flags, epsilon: float | None, delta: float | None, out: str, as_json: bool, **own: Any) -> None:
        target = _searches.target(epsilon, delta, flags)
        files.check_file(out)
        start = time.perf_counter()
        found = search(flags, target=target, **own)
        seconds = time.perf_counter() - start
        _searches.save(found, out, seconds, flags, target, as_json=as_json)

    added: Callable[..., Any] = _options.as_json(_options.option("out", required=True)(command))
    added = _options.option("epsilon", help="Also print the smallest σ that keeps the whole run within this ε.")(added)
    added = _options.option("delta")(added)
    return click.command()(_options.setting(*_SEARCHED, required=("rounds",))(added))


def _of_registered(name: str) -> click.Command:
    """Returns the command of a kind that a plugin registered."""

    def found(flags: Flags, *, target: _searches.Target, **own: Any) -> _searches.Search:
        return _searches.of_kind(name, flags, **own)

    found.__name__, found.__doc__ = name, f"A mechanism of the kind {name}, which a plugin registered."
    for option in mechanism_names.searched()[name].options:
        if option in _OWN:
            found = _options.option(option)(found)
    return _kind(found)


def _built_in(search: Callable[..., _searches.Search]) -> click.Command:
    command = _kind(search)
    optimize.add_command(command)
    return command


@_built_in
@_options.option("buffers")
def blt(flags: Flags, *, target: _searches.Target, buffers: int | None) -> _searches.Search:
    """A buffered linear Toeplitz mechanism (BLT).

    With --sampling balls-in-bins, the one of least error at (ε, δ) with amplification.
    """
    if flags.sampling == "balls-in-bins":
        return _searches.for_bins("blt", flags, target, buffers)
    return _searches.of_kind("blt", flags, buffers=buffers)


@_built_in
@_options.option("bands")
@click.option(
    "--unit-norms/--free-norms",
    default=True,
    show_default=True,
    help=_options.UNIT_NORMS,
)
def banded(flags: Flags, *, target: _searches.Target, bands: int | None, unit_norms: bool) -> _searches.Search:
    """A banded matrix (BandMF) of minimal RmsLoss.

    Without --sampling and its parameters, clients take part at most once in --bands rounds. With --sampling
    cyclic-poisson and without --groups, the number of bands is the one of least error at (ε, δ) with amplification.
    """
    if flags.sampling == "cyclic-poisson":
        return _searches.amplified(flags, target, bands=bands, unit_norms=unit_norms)
    return _searches.of_kind("banded", flags, bands=bands, unit_norms=unit_norms)


@_built_in
@_options.option("bands")
def banded_toeplitz(flags: Flags, *, target: _searches.Target, bands: int | None) -> _searches.Search:
    """A banded Toeplitz matrix.

    With --sampling balls-in-bins, the one of least error at (ε, δ) with amplification; without --bands, the number of
    bands is chosen too.
    """
    if flags.sampling == "balls-in-bins":
        return _searches.for_bins("banded-toeplitz", flags, target, bands)
    return _searches.of_kind("banded-toeplitz", flags, bands=bands)


@_built_in
@_options.option("bands")
def banded_inverse(flags: Flags, *, target: _searches.Target, bands: int | None) -> _searches.Search:
    """A Toeplitz matrix with a banded inverse: noise of a few draws per round, without a state of the model's size."""
    return _searches.of_kind("banded-inverse", flags, bands=bands)


@_built_in
def dense(flags: Flags, *, target: _searches.Target) -> _searches.Search:
    """A dense matrix of minimal RmsLoss, with a bound on its distance from the optimum."""
    return _searches.of_kind("dense", flags)


@_built_in
@click.option(
    "--diagonals", type=int, required=True, help="Number h of diagonals of the decoder that are kept exactly."
)
@click.option("--rank", type=int, required=True, help="Rank r of the rest: noise needs h + r rows of memory.")
@click.option(
    "--of",
    type=_options.MECHANISM,
    default="dense",
    show_default=True,
    metavar="MECHANISM",
    help="The approximated mechanism: a FILE, or any name.",
)
def structured(flags: Flags, *, target: _searches.Target, diagonals: int, rank: int, of: str) -> _searches.Search:
    """A decoder of a few diagonals plus a low-rank part, which approximates the decoder of another mechanism."""
    return _searches.structured(flags, of, diagonals, rank)
