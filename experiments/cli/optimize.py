"""`tff-mf optimize`: a mechanism optimized for a setting, as an artifact."""

import time

import rich_click as click

from tff_mf.planning import mechanism_names

from ..output import files
from . import _options, _searches
from ._flags import Flags
from ._screens import Answer

_STRUCTURED = "structured"
# What `structured` alone takes.
_OWN = ("diagonals", "rank", "of")


def _kinds() -> list[str]:
    return [*mechanism_names.searched(), _STRUCTURED]


@_options.command()
@click.argument("kind", metavar="KIND", type=_options.Words(_kinds, checked=True))
@_options.setting(
    *(*_options.SETTING, *_options.WORKLOAD, *_options.COHORTS, "bands", "buffers"),
    required=("rounds",),
    more=(*_options.MORE, "unit_norms"),
)
@_options.option("epsilon")
@_options.option("delta")
@click.option("--diagonals", type=int, help="Number h of diagonals of the decoder that `structured` keeps exactly.")
@click.option("--rank", type=int, help="Rank r of the rest of `structured`: noise needs h + r rows of memory.")
@click.option(
    "--of",
    type=_options.MECHANISM,
    metavar="MECHANISM",
    help="What `structured` approximates: a FILE, or any name; dense if not given.",
)
@_options.option("out", required=True)
def optimize(
    kind: str,
    flags: Flags,
    epsilon: float | None,
    delta: float | None,
    out: str,
    diagonals: int | None,
    rank: int | None,
    of: str | None,
) -> Answer:
    """Optimize a mechanism for a setting, and save it.

    KIND is blt (a buffered linear Toeplitz mechanism), banded (BandMF), banded-toeplitz, banded-inverse (noise of a few
    draws per round, without a state of the model's size), dense (of minimal RmsLoss, with a bound on its distance from
    the optimum), or structured: a decoder of a few diagonals plus a low-rank part, which approximates the decoder of
    another mechanism.

    Without --sampling and its parameters, each client is assumed to take part once; for banded, any number of times, as
    many rounds apart as there are bands. The assumed participation is printed. With --epsilon and --delta, so is the
    smallest σ that keeps the whole run within them.

    With --sampling cyclic-poisson and without --groups, banded has the number of bands of least error at (ε, δ) with
    amplification. With --sampling balls-in-bins, blt and banded-toeplitz have the least error at (ε, δ) with
    amplification; without --bands, the number of bands is chosen too.
    """
    own = {"diagonals": diagonals, "rank": rank, "of": of}
    for name in _OWN:
        if own[name] is not None and kind != _STRUCTURED:
            raise click.UsageError(f"--{name} goes with `optimize structured`.")
        if own[name] is None and kind == _STRUCTURED and name != "of":
            raise click.UsageError(f"--{name} is missing: `optimize structured` needs it.")
    target = _searches.target(epsilon, delta, flags)
    files.check_file(out)
    start = time.perf_counter()
    if diagonals is not None and rank is not None:
        found = _searches.structured(flags, of or "dense", diagonals, rank)
    elif kind == "banded" and flags.sampling == "cyclic-poisson":
        found = _searches.amplified(flags, target)
    elif kind in ("blt", "banded-toeplitz") and flags.sampling == "balls-in-bins":
        found = _searches.for_bins(kind, flags, target)
    else:
        found = _searches.of_kind(kind, flags)
    return _searches.answer(found, out, time.perf_counter() - start, flags, target)
