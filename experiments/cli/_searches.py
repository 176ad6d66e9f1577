"""What the commands of `tff-mf optimize` share: a search in the setting of the flags."""

import dataclasses
from typing import Any

import click

import tff_mf
from tff_mf import registry
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from ..configuration import mechanism_names
from ..configuration.mechanism_names import MechanismSetting
from . import _guarantees, _screens
from ._flags import Flags

_FILE = "The file has the mechanism of one restart; the figures are for the whole run."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A privacy target; both None if there is none."""

    epsilon: float | None
    delta: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """The result of a search.

    Attributes:
        mechanism: The mechanism, whose `optimized_for` says how the search ended.
        setting: The setting of the whole run.
        entries: Parameters of the kind.
        assumed: Whether participation was not given.
        groups: Groups of clients of --sampling, if that was given.
    """

    mechanism: tff_mf.Mechanism
    setting: MechanismSetting
    entries: dict[str, Any]
    assumed: bool
    groups: int | None = None


def target(epsilon: float | None, delta: float | None, flags: Flags) -> Target:
    """Returns the target of the flags; refuses incomplete ones, flags that need one, and one for an assumed schema.

    A search may assume how often clients take part: at worst, the mechanism is not optimal. Noise must not.
    """
    if (epsilon is None) != (delta is None):
        raise click.UsageError("--epsilon and --delta go together: give both for the noise multiplier, or neither.")
    if epsilon is not None:
        validation.positive("epsilon", epsilon)
        validation.open_unit("delta", delta)
        if flags.sampling is None:
            flags.participation()
    if epsilon is None and flags.population is not None and flags.sampling is None:
        raise click.UsageError("--population goes with --epsilon and --delta, or with --sampling, only.")
    return Target(epsilon=epsilon, delta=delta)


def of_kind(name: str, flags: Flags, **own: Any) -> Search:
    """Returns the best mechanism of a kind for the setting of the flags."""
    if flags.sampling is not None:
        flags.sampled()
        raise click.UsageError(
            f"--sampling does not go with `optimize {name}`: it chooses the bands of `optimize banded`; account and "
            "calibrate accept it for any mechanism."
        )
    flags.sampled()
    schema = _participation(name, flags, own)
    setting = flags.setting(schema)
    if own.get("bands", 0) is None:
        own["bands"] = _bands(flags, setting)
    searched = None if name == "banded" and not flags.says_participation else setting.searched_participation
    found = mechanism_names.search(
        name,
        rounds=setting.searched_rounds,
        participation=searched,
        workload=setting.searched_workload,
        objective=flags.objective,
        **own,
    )
    if "buffers" in own:
        assert isinstance(found, tff_mf.BLT)
        own["buffers"] = found.buffers
    return Search(mechanism=found, setting=setting, entries=own, assumed=not flags.says_participation)


def amplified(flags: Flags, target: Target, *, bands: int | None, unit_norms: bool) -> Search:
    """Returns the banded mechanism of the least error with amplification by cyclic Poisson sampling."""
    if flags.in_bins:
        raise click.UsageError(
            "--sampling balls_in_bins does not go with `optimize banded`: take `optimize banded-toeplitz` or "
            "`optimize blt`."
        )
    flags.refuse_b_min_sep("optimize banded")
    if flags.sampling == "poisson":
        raise click.UsageError(
            "--sampling poisson amplifies one band only, which is `identity`: use --sampling cyclic_poisson."
        )
    sampled = flags.sampled()
    assert sampled is not None
    if target.epsilon is None or target.delta is None:
        raise click.UsageError("--epsilon and --delta are missing: the best number of bands depends on them.")
    if not unit_norms:
        raise click.UsageError("--free-norms does not go with --sampling: bands are chosen with columns of norm 1.")
    assert flags.rounds is not None
    workload = flags.chosen_workload(flags.rounds)
    if workload not in (None, tff_mf.PrefixSum()):
        raise click.UsageError("--workload does not go with --sampling: bands are chosen by the error of prefix sums.")
    if flags.objective not in (None, "rms"):
        raise click.UsageError("--objective max does not go with --sampling: bands are chosen by their RMS error.")
    if bands is None and flags.min_sep is not None:
        bands = flags.min_sep
    best = tff_mf.amplified_bands(
        rounds=flags.rounds,
        population=sampled["population"],
        clients_per_round=sampled["clients_per_round"],
        epsilon=target.epsilon,
        delta=target.delta,
        bands=None if bands is None else [bands],
    )[0]
    found = mechanism_names.search("banded", rounds=flags.rounds, participation=None, bands=best.bands)
    schema = flags.sampled_participation(best.bands)
    return Search(
        mechanism=found,
        setting=flags.setting(schema),
        entries={"bands": best.bands, "unit_norms": True, "amplified_rms_error": best.rms_error},
        assumed=False,
        groups=best.bands,
    )


def for_bins(name: str, flags: Flags, target: Target, count: int | None) -> Search:
    """Returns the mechanism of the least error with amplification by balls in bins, with its certified noise."""
    flags.sampled()
    assert flags.rounds is not None
    if target.epsilon is None or target.delta is None:
        raise click.UsageError("--epsilon and --delta are missing: the best mechanism depends on them.")
    workload = flags.chosen_workload(flags.rounds)
    if workload not in (None, tff_mf.PrefixSum()):
        raise click.UsageError("--workload does not go with --sampling: mechanisms are made for prefix sums.")
    setting = {"rounds": flags.rounds, "bins": flags.bins(), "objective": flags.objective or "rms"}
    level = {"epsilon": target.epsilon, "delta": target.delta}
    if name == "blt":
        found = tff_mf.optimize_amplified_blt(**setting, **level, buffers=count)
        assert isinstance(found.mechanism, tff_mf.BLT)
        entries: dict[str, Any] = {"buffers": found.mechanism.buffers}
    else:
        found = tff_mf.optimize_amplified_banded_toeplitz(**setting, **level, bands=count)
        assert isinstance(found.mechanism, tff_mf.BandedToeplitz)
        entries = {"bands": found.mechanism.bands}
    return Search(
        mechanism=found.mechanism,
        setting=flags.setting(flags.bins_participation(found.bins)),
        entries={**entries, "amplified_error_estimate": found.estimated_error},
        assumed=False,
        groups=found.bins,
    )


def structured(flags: Flags, of: str, diagonals: int, rank: int) -> Search:
    """Returns the structured mechanism nearest to one that is named, in the setting of the flags."""
    if flags.sampling is not None:
        raise click.UsageError("--sampling does not go with `optimize structured`: it has no bands; use banded.")
    flags.sampled()
    schema = flags.participation() if flags.says_participation else tff_mf.SingleParticipation()
    setting = flags.setting(schema)
    if setting.workload not in (None, tff_mf.PrefixSum()):
        raise click.UsageError(
            f"--workload {flags.workload} does not go with `optimize structured`: its decoder is for prefix sums."
        )
    near = flags.named(of, setting)
    optimized_for = tff_mf.OptimizedFor(rounds=setting.searched_rounds, participation=setting.searched_participation)
    found = tff_mf.optimize_banded_plus_low_rank(
        mechanism=dataclasses.replace(near, optimized_for=optimized_for), diagonals=diagonals, rank=rank
    )
    entries = {"of": of, "diagonals": diagonals, "rank": rank}
    return Search(mechanism=found, setting=setting, entries=entries, assumed=not flags.says_participation)


def _participation(name: str, flags: Flags, own: dict[str, Any]) -> tff_mf.Participation:
    """Returns the schema of the flags, or the one that the kind assumes."""
    if flags.says_participation:
        return flags.participation()
    if name != "banded":
        return tff_mf.SingleParticipation()
    bands, rounds = validation.whole("bands", _bands_given(own)), flags.rounds
    assert rounds is not None
    return tff_mf.MinSep(min_sep=bands, max_participations=-(-validation.whole("rounds", rounds) // bands))


def _bands_given(own: dict[str, Any]) -> int:
    if own["bands"] is None:
        raise click.UsageError(
            "--bands is missing: give it, or --min-sep and --max-participations, of which --min-sep is used."
        )
    return own["bands"]


def _bands(flags: Flags, setting: MechanismSetting) -> int:
    """Returns `min_sep` as the number of bands."""
    if not flags.says_participation or flags.min_sep is None:
        _bands_given({"bands": None})
    return min(setting.participation.min_sep, setting.searched_rounds)


def save(search: Search, out: str, seconds: float, flags: Flags, target: Target, *, as_json: bool) -> None:
    """Writes the artifact and prints what it holds, and what noise the target needs."""
    setting, mechanism, found = search.setting, search.mechanism, search.mechanism.optimized_for
    if found is None:
        raise InputValueError(
            f"mechanism of kind {mechanism.kind!r}: its optimizer must return it with optimized_for, the setting."
        )
    # Optimizers from outside of this package need not say how their search ended.
    ended = found.search
    kind = registry.registered(mechanism).search
    objective = ended.objective if ended is not None else flags.objective or (kind.objective if kind else "rms")
    tff_mf.save(mechanism, out)
    exact, error = setting.sensitivity(mechanism), setting.errors(mechanism)
    as_float32 = setting.sensitivity(mechanism.cast_to_float32()).value
    workload = tff_mf.PrefixSum() if setting.workload is None else setting.workload
    result = {
        "out": out,
        "mechanism": mechanism.kind,
        **search.entries,
        "objective": objective,
        **_guarantees.described(setting),
        "participation_assumed": search.assumed,
        "workload": repr(workload),
        "rms_loss": exact.value * error.rms,
        "max_loss": exact.value * error.max,
        "sensitivity": exact.value,
        # The sensitivity of the parameters in float32, with which the noise runs: the accounting uses it.
        "sensitivity_as_run": as_float32,
        **_guarantees.replace_one(setting, as_float32),
        **_noise(search, flags, target),
        "seconds": seconds,
        "converged": found.converged,
        "message": "" if ended is None else ended.message,
    }
    if found.duality_gap is not None:
        result["duality_gap"] = found.duality_gap
    assumed = " (assumed: none was given)" if search.assumed else ""
    words = {**_guarantees.in_words(setting), **_guarantees.unstated(result)}
    words |= {"mechanism": mechanism.kind.replace("_", "-"), "statement": None, "amplified_statement": None}
    words |= {
        "participation": f"{words['participation']}{assumed}",
        "participation_assumed": None,
        "converged": None,
        "message": _ending("" if ended is None else ended.message, found.converged),
    }
    below = [str(result[name]) for name in ("statement", "amplified_statement") if name in result]
    note = f" {_FILE}" if setting.is_restarted else ""
    below.append(f"{_guarantees.AT_EQUAL_PRIVACY}{note}")
    shown = _guarantees.stated(result) if as_json else result
    _screens.report(shown, as_json=as_json, words=words, below=below)


def _noise(search: Search, flags: Flags, target: Target) -> dict[str, Any]:
    """Returns the noise multiplier of the target, and the amplified one beside it if --sampling was given."""
    if target.epsilon is None or target.delta is None:
        return {}
    mechanism, setting = search.mechanism, search.setting
    sampled = flags.sampled()
    found = _guarantees.Found(
        name=mechanism.kind,
        mechanism=mechanism,
        setting=setting,
        sampled=None if sampled is None else {**sampled, "groups": search.groups},
        says_workload=False,
    )
    return found.calibrated(target.epsilon, target.delta, flags.population)


def _ending(message: str, converged: bool | None) -> str:
    """Returns how a search ended, without SciPy's message about success."""
    if converged is None and not message:
        return "the optimizer does not say whether it converged"
    if not converged:
        return f"not converged: {message}" if message else "not converged"
    said_already = not message or "CONVERGENCE" in message or message.startswith("Stationary")
    return "converged" if said_already else f"converged. {message}"
