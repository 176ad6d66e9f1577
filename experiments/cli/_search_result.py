"""The result of `tff-mf optimize`: the artifact, and what is printed."""

from typing import Any

import tff_mf

from . import _guarantees, _options
from ._flags import Flags
from ._searches import Search, Target

_FILE = "The file has the mechanism of one restart; the figures are those of the whole run."


def save(search: Search, out: str, seconds: float, flags: Flags, target: Target, *, as_json: bool) -> None:
    """Writes the artifact and prints what it holds, and what noise the target needs."""
    setting, mechanism, found = search.setting, search.mechanism, search.mechanism.optimized_for
    assert found is not None
    assert found.search is not None
    tff_mf.save(mechanism, out)
    exact, error = setting.sensitivity(mechanism), setting.errors(mechanism)
    as_float32 = setting.sensitivity(mechanism.cast_to_float32()).value
    workload = tff_mf.PrefixSum() if setting.workload is None else setting.workload
    result = {
        "out": out,
        "mechanism": mechanism.kind,
        **search.entries,
        "objective": found.search.objective,
        **_guarantees.described(setting),
        "workload": repr(workload),
        "rms_loss": exact.value * error.rms,
        "max_loss": exact.value * error.max,
        "sensitivity": exact.value,
        # That of the parameters in float32, with which the noise runs: the accounting uses it.
        "sensitivity_as_run": as_float32,
        **_guarantees.replace_one(setting, as_float32),
        **_noise(search, flags, target),
        "seconds": seconds,
        "converged": found.converged,
        "message": found.search.message,
    }
    if found.duality_gap is not None:
        result["duality_gap"] = found.duality_gap
    assumed = " (assumed: none was given)" if search.assumed else ""
    words = {**_guarantees.in_words(setting), **_guarantees.unstated(result)}
    words |= {"mechanism": mechanism.kind.replace("_", "-"), "statement": None, "amplified_statement": None}
    words |= {
        "participation": f"{words['participation']}{assumed}",
        "converged": None,
        "message": _ending(found.search, converged=found.converged is True),
    }
    below = [str(result[name]) for name in ("statement", "amplified_statement") if name in result]
    note = f" {_FILE}" if setting.is_restarted else ""
    below.append(f"{_guarantees.AT_EQUAL_PRIVACY}{note}")
    shown = _guarantees.stated(result) if as_json else result
    _options.report(shown, as_json=as_json, words=words, below=below)


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


def _ending(found: tff_mf.SearchStatus, *, converged: bool) -> str:
    """Returns how a search ended, without SciPy's message about success."""
    if not converged:
        return f"not converged: {found.message}"
    said_already = "CONVERGENCE" in found.message or found.message.startswith("Stationary")
    return "converged" if said_already else f"converged. {found.message}"
