"""`tff-mf optimize`: a mechanism optimized for a setting, as an artifact."""

import dataclasses
import time
from typing import Any

import rich_click as click

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.planning import MechanismSetting, by_name

from ..output import files, progress
from ..runs import statements
from ..sampling.settings import SECRET
from . import _options, account
from ._flags import Flags
from ._screens import Answer
from .account import Found

# The sampling for which bands are chosen at an amplified ε; for the others, by the schema that holds beside it.
_AMPLIFIED = "cyclic-poisson"
_NO_BANDS = "--bands is missing: give it, or a --sampling, of which --min-sep is used."
_STRUCTURED = "structured"
# What `structured` alone takes.
_OWN = ("diagonals", "rank", "approximates")
_FILE = "The file has the mechanism of one restart; the figures are for the whole run."


# ε and δ, if noise is asked for.
Target = tuple[float, float] | None


# A mechanism in its setting, and the parameters of its kind.
Made = tuple[Found, dict[str, Any]]


def _target_of(epsilon: float | None, delta: float | None, flags: Flags) -> Target:
    """Returns the target of the flags; refuses incomplete ones, flags that need one, and one for an assumed schema.

    A search may assume how often clients take part: at worst, the mechanism is not optimal. Noise must not.
    """
    if (epsilon is None) != (delta is None):
        raise click.UsageError("--epsilon and --delta go together: give both for the noise multiplier, or neither.")
    if epsilon is not None and delta is not None:
        validation.positive("epsilon", epsilon)
        validation.open_unit("delta", delta)
        # Parameters of an amplified search may follow from it.
        if flags.sampling != _AMPLIFIED:
            flags.participation()
        flags.check_amplified()
        return epsilon, delta
    if flags.population is not None and flags.sampling not in SECRET:
        raise click.UsageError("--population goes with --epsilon and --delta, or with a sampling in secret, only.")
    return None


def _of_kind(name: str, flags: Flags) -> Made:
    """Returns the best mechanism of a kind for the setting of the flags."""
    known = by_name.searched()[name].options
    own: dict[str, Any] = {"bands": flags.bands, "buffers": flags.buffers, "unit_norms": flags.unit_norms}
    by_name.check_options(name, **own)
    setting = flags.setting(participation=_participation(name, flags))
    if "bands" in known and flags.bands is None and isinstance(setting.participation, tff_mf.SingleParticipation):
        raise click.UsageError(_NO_BANDS)
    found = flags.named(name, setting)
    if "unit_norms" in known:
        own["unit_norms"] = flags.unit_norms is not False
    entries = {option: getattr(found, option, given) for option, given in own.items() if option in known}
    return _found(found, setting, flags), entries


def _amplified(flags: Flags, target: Target) -> Made:
    """Returns the banded mechanism of the least error with amplification by cyclic Poisson sampling."""
    cohorts, level = _for_amplification(flags, target)
    bands = flags.bands
    by_name.check_options("banded", buffers=flags.buffers)
    if flags.unit_norms is False:
        raise InputValueError("unit_norms=False does not go with --sampling: bands are chosen with columns of norm 1.")
    if flags.objective not in (None, "rms"):
        raise click.UsageError("--set objective=max does not go with --sampling: bands are chosen by their RMS error.")
    rounds = flags.rounds_for()
    known = flags.parameters.get("groups", bands)
    if known is not None and bands not in (None, known):
        raise click.UsageError(f"--bands {bands} must be groups={known}: leave one of the two out.")
    best = tff_mf.amplified_bands(
        rounds=rounds, **cohorts, **level, bands=None if known is None else [validation.whole("groups", known)]
    )[0]
    with progress.search() as report:
        found = by_name.search("banded", rounds=rounds, participation=None, bands=best.bands, progress=report)
    entries = {"bands": best.bands, "unit_norms": True, "amplified_rms_error": best.rms_error}
    drawn = flags.drawn(groups=best.bands)
    setting = flags.setting(participation=drawn.schema(rounds))
    return Found(mechanism=found, setting=setting, flags=flags, drawn=drawn), entries


def _for_amplification(flags: Flags, target: Target) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns population and cohort, and ε and δ; refuses what amplified searches do not take."""
    cohorts = {"population": flags.population, "clients_per_round": flags.clients_per_round}
    level = dict(zip(("epsilon", "delta"), target or (None, None), strict=True))
    for name, value in {**cohorts, **level}.items():
        if value is None:
            flag = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{flag} is missing: --sampling {flags.sampling} needs it, to find the mechanism.")
    if flags.chosen_workload(flags.rounds_for()) not in (None, tff_mf.PrefixSum()):
        raise click.UsageError("--workload does not go with --sampling: mechanisms are made for prefix sums.")
    return cohorts, level


def _structured(flags: Flags, of: str, diagonals: int, rank: int) -> Made:
    """Returns the structured mechanism nearest to one that is named, in the setting of the flags."""
    setting = flags.setting(participation=_participation(_STRUCTURED, flags))
    if flags.unit_norms is not None:
        raise InputValueError(
            f"unit_norms={flags.unit_norms} does not go with `optimize structured`, only with banded."
        )
    if setting.workload not in (None, tff_mf.PrefixSum()):
        raise click.UsageError(
            f"--workload {flags.workload} does not go with `optimize structured`: its decoder is for prefix sums."
        )
    near = flags.named(of, setting)
    optimized_for = tff_mf.OptimizedFor(rounds=setting.searched_rounds, participation=setting.searched_participation)
    found = tff_mf.optimize_banded_plus_low_rank(
        mechanism=dataclasses.replace(near, optimized_for=optimized_for), diagonals=diagonals, rank=rank
    )
    return _found(found, setting, flags), {"of": of, "diagonals": diagonals, "rank": rank}


def _found(mechanism: tff_mf.Mechanism, setting: MechanismSetting, flags: Flags) -> Found:
    drawn = flags.drawn() if flags.says_participation else None
    return Found(mechanism=mechanism, setting=setting, flags=flags, drawn=drawn)


def _participation(name: str, flags: Flags) -> tff_mf.Participation:
    """Returns the schema of the flags, or the one that the kind assumes."""
    if flags.says_participation:
        return flags.participation()
    if name != "banded":
        return tff_mf.SingleParticipation()
    if flags.bands is None:
        raise click.UsageError(_NO_BANDS)
    bands, rounds = validation.whole("bands", flags.bands), validation.whole("rounds", flags.rounds_for())
    return tff_mf.MinSep(min_sep=bands, max_participations=-(-rounds // bands))


def _answer(made: Made, out: str, seconds: float, target: Target) -> Answer:
    """Writes the artifact; returns what it holds, and what noise the target needs."""
    asked, entries = made
    setting, mechanism, found = asked.setting, asked.mechanism, asked.mechanism.optimized_for
    assert found is not None
    assert found.search is not None
    message = found.search.message
    noise = {} if target is None else asked.calibrated(*target)
    tff_mf.save(mechanism, out)
    facts = {
        "out": out,
        **asked.described(),
        **entries,
        "objective": found.search.objective,
        "participation_assumed": asked.drawn is None,
        **asked.losses(),
        **noise,
        "seconds": seconds,
        "converged": found.converged,
        "message": message,
        **({} if found.duality_gap is None else {"duality_gap": found.duality_gap}),
    }
    assumed = " (assumed: none was given)" if asked.drawn is None else ""
    words = {
        "participation": f"{statements.participation(setting)}{assumed}",
        **dict.fromkeys(("participation_assumed", "sensitivity_rule", "converged")),
        "message": _ending(message, found.converged),
    }
    note = f" {_FILE}" if setting.is_restarted else ""
    first = ("out", *account.LOSSES, "noise_multiplier")
    claim = None if target is None else asked.claim(noise["noise_multiplier"], target[1])
    return asked.answer(facts, words, claim=claim, first=first, below=[f"{account.AT_EQUAL_PRIVACY}{note}"])


def _ending(message: str, converged: bool | None) -> str:
    """Returns how a search ended, without SciPy's message about success."""
    if not converged:
        return f"not converged: {message}" if message else "not converged"
    said_already = not message or "CONVERGENCE" in message or message.startswith("Stationary")
    return "converged" if said_already else f"converged. {message}"


@_options.command()
@click.argument("kind", metavar="KIND", type=_options.Words([*by_name.searched(), _STRUCTURED]))
@_options.setting(
    *(*_options.SETTING, "workload", *_options.COHORTS, "bands", "buffers"),
    required=("rounds",),
    more=(*_options.MORE, "unit_norms", *_OWN),
)
@_options.option("epsilon")
@_options.option("delta")
@_options.option("out", required=True)
def optimize(kind: str, flags: Flags, epsilon: float | None, delta: float | None, out: str) -> Answer:
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
    for name in _OWN:
        given = getattr(flags, name)
        if given is not None and kind != _STRUCTURED:
            raise click.UsageError(f"--set {name}={given} goes with `optimize structured`.")
        if given is None and kind == _STRUCTURED and name != "approximates":
            raise click.UsageError(f"--set {name}=NUMBER is missing: `optimize structured` needs it.")
    target = _target_of(epsilon, delta, flags)
    files.check_file(out)
    start = time.perf_counter()
    if flags.diagonals is not None and flags.rank is not None:
        found = _structured(flags, flags.approximates or "dense", flags.diagonals, flags.rank)
    elif kind == "banded" and flags.sampling == _AMPLIFIED:
        found = _amplified(flags, target)
    else:
        found = _of_kind(kind, flags)
    return _answer(found, out, time.perf_counter() - start, target)
