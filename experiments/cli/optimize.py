"""`tff-mf optimize`: a mechanism optimized for a setting, as an artifact."""

import dataclasses
import time
from typing import Any

import msgspec
import rich_click as click

import tff_mf
from tff_mf.base import validation
from tff_mf.planning import MechanismSetting, by_name

from ..output import files
from ..runs import statements
from ..sampling.settings import SECRET
from . import _options, account
from ._flags import Flags
from ._screens import Answer

# The sampling for which bands are chosen at an amplified ε; for the others, by the schema that holds beside it.
_AMPLIFIED = "cyclic-poisson"
_STRUCTURED = "structured"
# What `structured` alone takes.
_OWN = ("diagonals", "rank", "approximates")
_FILE = "The file has the mechanism of one restart; the figures are for the whole run."


@_options.command
@click.argument("kind", metavar="KIND")
@_options.options(
    *(*_options.SETTING, *_options.COHORTS, "bands", "buffers", "epsilon", "delta"),
    required=("rounds",),
    more=(*_options.MORE, "unit_norms", *_OWN),
)
@_options.option("out", required=True)
def optimize(kind: str, out: str, **given: Any) -> Answer:
    """Optimize a mechanism for a setting, and save it.

    KIND is blt (a buffered linear Toeplitz mechanism), banded (BandMF), banded-toeplitz, scaled-blt (less error,
    for exactly so many rounds), dense (of minimal RmsLoss, with a bound on its distance from the optimum), or
    structured: a decoder of a few diagonals plus a low-rank part (--set diagonals=H --set rank=R), which approximates
    the decoder of another mechanism (--set approximates=FILE, or any name; dense if not given).

    Without --sampling and its parameters, each client is assumed to take part once; for banded, any number of times, as
    many rounds apart as there are bands. The assumed participation is printed. With --epsilon and --delta, so is the
    smallest σ that keeps the whole run within them.

    With --sampling cyclic-poisson and without groups, banded has the number of bands of least error at (ε, δ) with
    amplification.
    """
    flags = Flags.of(given)
    _check(kind, flags)
    files.check_file(out)
    start = time.perf_counter()
    if kind == "banded" and flags.sampling == _AMPLIFIED and flags.groups is None:
        flags = _with_best_bands(flags)
    if flags.epsilon is not None:
        # Noise is for a participation that is given: a search may assume one, and is at worst not the best.
        flags.drawn()
        flags.check_amplified()
    setting = flags.setting(None if flags.says_participation else _assumed(kind, flags))
    is_banded = kind in ("banded", "banded-toeplitz")
    if is_banded and flags.bands is None and isinstance(setting.participation, tff_mf.SingleParticipation):
        raise click.UsageError("--bands is missing: give it, or a --sampling, of which --min-sep is used.")
    mechanism = _structured(flags, setting) if kind == _STRUCTURED else flags.named(kind, setting)
    asked = account.Asked(
        mechanism=mechanism,
        setting=setting,
        flags=flags,
        drawn=flags.drawn() if flags.says_participation else None,
    )
    target = None if flags.epsilon is None or flags.delta is None else (flags.epsilon, flags.delta)
    noise = {} if target is None else asked.calibrated(*target)
    tff_mf.save(mechanism, out)
    return _answer(asked, out, noise, time.perf_counter() - start)


def _check(kind: str, flags: Flags) -> None:
    """Refuses options that do not go with a kind, or with each other, before a search."""
    validation.one_of("kind", kind, (*by_name.SEARCHES, _STRUCTURED))
    for name in _OWN:
        value = getattr(flags, name)
        if value is not None and kind != _STRUCTURED:
            raise click.UsageError(f"--set {name}={value} goes with `optimize structured`.")
        if value is None and kind == _STRUCTURED and name != "approximates":
            raise click.UsageError(f"--set {name}=NUMBER is missing: `optimize structured` needs it.")
    if kind != _STRUCTURED:
        by_name.check_options(kind, bands=flags.bands, buffers=flags.buffers, unit_norms=flags.unit_norms)
    elif flags.unit_norms is not None or flags.workload not in (None, "prefix-sum"):
        raise click.UsageError(
            "--workload and --set unit_norms do not go with `optimize structured`: its decoder is for prefix sums."
        )
    if (flags.epsilon is None) != (flags.delta is None):
        raise click.UsageError("--epsilon and --delta go together: give both for the noise multiplier, or neither.")
    if flags.population is not None and flags.epsilon is None and flags.sampling not in SECRET:
        raise click.UsageError("--population goes with --epsilon and --delta, or with a sampling in secret, only.")


def _with_best_bands(flags: Flags) -> Flags:
    """Returns flags with the number of bands, and of groups, of the least error with amplification at (ε, δ)."""
    needed: dict[str, Any] = {
        name: getattr(flags, name) for name in ("rounds", "population", "clients_per_round", "epsilon", "delta")
    }
    for name, value in needed.items():
        if value is None:
            flag = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{flag} is missing: --sampling {_AMPLIFIED} needs it, to find the mechanism.")
    flags.check_prefix_sums()
    flags.check_amplified()
    bands = None if flags.bands is None else [flags.bands]
    best = tff_mf.amplified_bands(**needed, bands=bands)[0]
    return msgspec.structs.replace(flags, bands=best.bands, groups=best.bands)


def _assumed(kind: str, flags: Flags) -> tff_mf.OptimizedFor:
    """Returns the rounds and the participation that a kind is optimized for where nothing says how clients come."""
    assert flags.rounds is not None
    participation: tff_mf.Participation = tff_mf.SingleParticipation()
    if kind == "banded" and flags.bands is not None:
        participation = tff_mf.MinSep(min_sep=flags.bands, max_participations=-(-flags.rounds // flags.bands))
    return tff_mf.OptimizedFor(rounds=flags.rounds, participation=participation)


def _structured(flags: Flags, setting: MechanismSetting) -> tff_mf.Mechanism:
    """Returns the structured mechanism nearest to one that is named, or to the dense one."""
    assert flags.diagonals is not None
    assert flags.rank is not None
    near = flags.named(flags.approximates or "dense", setting)
    made_for = tff_mf.OptimizedFor(rounds=setting.searched_rounds, participation=setting.searched_participation)
    return tff_mf.optimize_banded_plus_low_rank(
        mechanism=dataclasses.replace(near, optimized_for=made_for), diagonals=flags.diagonals, rank=flags.rank
    )


def _answer(asked: account.Asked, out: str, noise: dict[str, Any], seconds: float) -> Answer:
    """Returns what the artifact holds, and what noise the target needs."""
    setting, mechanism, made_for = asked.setting, asked.mechanism, asked.mechanism.optimized_for
    assert made_for is not None
    assert made_for.search is not None
    options = {name: getattr(asked.flags, name) for name in ("unit_norms", *_OWN)}
    facts = {
        "out": out,
        **asked.described(),
        **{name: getattr(mechanism, name) for name in ("buffers", "bands") if hasattr(mechanism, name)},
        **{name: value for name, value in options.items() if value is not None},
        "objective": made_for.search.objective,
        "participation_assumed": asked.drawn is None,
        **asked.losses(),
        **noise,
        "seconds": seconds,
        "converged": made_for.converged,
        "message": made_for.search.message,
        **({} if made_for.duality_gap is None else {"duality_gap": made_for.duality_gap}),
    }
    assumed = " (assumed: none was given)" if asked.drawn is None else ""
    words = {
        "participation": f"{statements.participation(setting)}{assumed}",
        **dict.fromkeys(("participation_assumed", "sensitivity_rule", "converged")),
        "message": "converged" if made_for.converged else f"not converged: {made_for.search.message}",
    }
    note = f" {_FILE}" if setting.is_restarted else ""
    claim = asked.claim(noise["noise_multiplier"], noise["delta"]) if noise else None
    first = ("out", *account.LOSSES, "noise_multiplier")
    return asked.answer(facts, words, claim=claim, first=first, below=[f"{account.AT_EQUAL_PRIVACY}{note}"])
