"""The manifest of an artifact, in JSON: kind, setting, stated sensitivity and losses, versions and hash."""

import dataclasses
import hashlib
import importlib.metadata
import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from tff_mf import losses, registry, validation
from tff_mf._sensitivity import SensitivityResult, explain_sensitivity
from tff_mf.artifacts import _schemas
from tff_mf.errors import InputTypeError, InputValueError
from tff_mf.mechanisms import Mechanism, OptimizedFor
from tff_mf.participation import Participation
from tff_mf.workloads import LinearSchedule, PrefixSum, Workload

FORMAT_VERSION = 1

Decoded = TypeVar("Decoded", Participation, Workload)

_KEYS = {"format_version", "kind", "made_for", "sensitivity", "losses", "versions", "sha256"}
# Rounding of float64 is far smaller; rules that become tighter between releases change the value by more.
_SENSITIVITY_TOLERANCE = 1e-9

# Packages that compute the figures in a manifest.
_PACKAGES = {"tff_mf": "tff-mf", "numpy": "numpy", "scipy": "scipy"}
_LOSSES = {"rms", "max"}
# Matrices of more rounds would take minutes and gigabytes, for figures that nothing depends on.
_MOST_ROUNDS_OF_MATRICES = 2**13


def describe(mechanism: Mechanism, tensors: Mapping[str, np.ndarray]) -> str:
    """Returns the manifest of `mechanism` as canonical JSON."""
    optimized_for = mechanism.optimized_for
    # As `load` will see it: the memory layout of an array can change the rounding of its sums.
    mechanism = registry.mechanism_of(registry.registered(mechanism), tensors, optimized_for)
    found = None if optimized_for is None else _sensitivity(mechanism, optimized_for)
    manifest: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "kind": mechanism.kind,
        "made_for": None if optimized_for is None else _encode_optimized_for(optimized_for),
        "sensitivity": None if found is None else dataclasses.asdict(found),
        "losses": None if found is None or optimized_for is None else _losses(mechanism, optimized_for, found.value),
        "versions": {name: importlib.metadata.version(package) for name, package in _PACKAGES.items()},
    }
    return _canonical({**manifest, "sha256": _digest(manifest, tensors)})


def parse(text: str) -> Any:
    """Returns the value of JSON text; refuses texts that JSON parsers disagree on.

    Raises:
        InputValueError: If it is not JSON, repeats a key, or has NaN or infinity.
        RecursionError: If it nests too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_distinct, parse_constant=_refuse_constant, parse_float=_finite_float)
    except InputValueError:
        raise
    except ValueError as error:
        raise InputValueError(f"it is not JSON: {error}") from None


def kind_of(manifest: Any) -> registry.MechanismKind:
    """Returns what is registered for the kind that a parsed manifest names, after checking keys and format version.

    Raises:
        InputValueError: If this release cannot read it.
        InputTypeError: If an entry is of the wrong type.
    """
    if not isinstance(manifest, dict):
        raise InputTypeError("its manifest is not a JSON object")
    # First, because another format may have other keys.
    version = manifest.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        raise InputValueError(
            f"its format_version={version!r:.80}, and tff-mf {importlib.metadata.version('tff-mf')} reads "
            f"{FORMAT_VERSION}: use the release that wrote it, or optimize the mechanism again"
        )
    _require_keys("its manifest", manifest, _KEYS)
    return registry.named(manifest["kind"])


def build(manifest: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Mechanism:
    """Returns the mechanism, after checking the hash and recomputing the stated sensitivity.

    Formal guarantee: a file that states a sensitivity below that of its own C, in the setting that C was optimized for,
    is refused even if its hash is right. Nothing is computed from the stated value.

    Raises:
        InputValueError: If the hash, a stated figure or a parameter is wrong.
        InputTypeError: If an entry is of the wrong type.
    """
    unsigned = {key: value for key, value in manifest.items() if key != "sha256"}
    if manifest["sha256"] != _digest(unsigned, tensors):
        raise InputValueError("its content does not match its sha256: it was damaged or modified")
    _check_versions(manifest["versions"])
    optimized_for = None if manifest["made_for"] is None else _decode_optimized_for(manifest["made_for"])
    mechanism = registry.mechanism_of(registry.named(manifest["kind"]), tensors, optimized_for)
    _check_claim(manifest["sensitivity"], mechanism)
    _check_losses(manifest["losses"], optimized_for)
    return mechanism


def _check_versions(versions: Any) -> None:
    _require_keys("versions", versions, set(_PACKAGES))
    for name, version in versions.items():
        validation.instance(f"versions.{name}", version, str, "the release that wrote the file")


def _check_losses(claimed: Any, optimized_for: OptimizedFor | None) -> None:
    """Refuses losses that are not positive; they are for readers of the file.

    Nothing is computed from them, and recomputing them would take longer than the rest of loading.
    """
    if optimized_for is None:
        if claimed is not None:
            raise InputValueError("it has losses, but no setting that they are for")
        return
    _require_keys("losses", claimed, _LOSSES)
    for name, loss in claimed.items():
        if loss is not None:
            validation.positive(f"losses.{name}", loss)


def _losses(mechanism: Mechanism, optimized_for: OptimizedFor, sensitivity: float) -> dict[str, float | None]:
    unknown: dict[str, float | None] = dict.fromkeys(_LOSSES)
    if optimized_for.rounds > _MOST_ROUNDS_OF_MATRICES and losses.takes_matrices(mechanism, optimized_for.workload):
        return unknown
    try:
        errors = losses.errors(mechanism, optimized_for.rounds, optimized_for.workload)
    except InputValueError:
        # Too many rounds to sum one by one. The mechanism can be saved without losses.
        return unknown
    found = {"rms": sensitivity * errors.rms, "max": sensitivity * errors.max}
    # JSON has no infinity, and a workload of zeros has no loss.
    return {name: loss if 0 < loss < math.inf else None for name, loss in found.items()}


def _check_claim(claim: Any, mechanism: Mechanism) -> None:
    if mechanism.optimized_for is None:
        if claim is not None:
            raise InputValueError("it states a sensitivity, but no setting that it is for")
        return
    _require_keys("sensitivity", claim, {"value", "exact", "rule"})
    validation.instance("sensitivity.exact", claim["exact"], bool, "true or false")
    validation.instance("sensitivity.rule", claim["rule"], str, "the name of a rule")
    claimed = validation.positive("sensitivity.value", claim["value"])
    actual = _sensitivity(mechanism, mechanism.optimized_for).value
    if not math.isclose(claimed, actual, rel_tol=_SENSITIVITY_TOLERANCE):
        raise InputValueError(f"it states the sensitivity {claimed!r}, but that of its parameters is {actual!r}")


def _sensitivity(mechanism: Mechanism, optimized_for: OptimizedFor) -> SensitivityResult:
    return explain_sensitivity(mechanism, optimized_for.rounds, optimized_for.participation)


def _encode_optimized_for(optimized_for: OptimizedFor) -> dict[str, Any]:
    schemas = {schema: kind for kind, schema in _schemas.PARTICIPATIONS.items()}
    entry: dict[str, Any] = {
        "rounds": optimized_for.rounds,
        "participation": _encode_fields("made_for.participation", optimized_for.participation, schemas),
    }
    if optimized_for.workload != PrefixSum():
        # Omitted for prefix sums, as in files from before there were other workloads.
        workloads = {workload: kind for kind, workload in _schemas.WORKLOADS.items()}
        entry["workload"] = _encode_fields("made_for.workload", optimized_for.workload, workloads)
    if optimized_for.duality_gap is not None:
        entry["duality_gap"] = optimized_for.duality_gap
    if optimized_for.converged is not None:
        entry["converged"] = optimized_for.converged
    return entry


def _encode_fields(name: str, value: Any, kinds: Mapping[type, str]) -> dict[str, Any]:
    # A subclass may have another meaning.
    if type(value) not in kinds:
        raise InputTypeError(f"{name}={value!r} is of a class that artifacts do not support.")
    return {"kind": kinds[type(value)], **dataclasses.asdict(value)}


def _decode_optimized_for(entry: Any) -> OptimizedFor:
    validation.instance("made_for", entry, dict, "an object")
    present = {"workload", "duality_gap", "converged"} & set(entry)
    _require_keys("made_for", entry, {"rounds", "participation"} | present)
    optional: dict[str, Any] = {}
    if "workload" in present:
        fields = entry["workload"]
        if isinstance(fields, dict) and isinstance(fields.get("rates"), dict):
            fields = {**fields, "rates": _decode_schedule(fields["rates"])}
        optional["workload"] = _decode_fields("made_for.workload", fields, _schemas.WORKLOADS)
    if "duality_gap" in present:
        optional["duality_gap"] = validation.nonnegative("made_for.duality_gap", entry["duality_gap"])
    if "converged" in present:
        validation.instance("made_for.converged", entry["converged"], bool, "true or false")
        optional["converged"] = entry["converged"]
    participation = _decode_fields("made_for.participation", entry["participation"], _schemas.PARTICIPATIONS)
    return OptimizedFor(rounds=entry["rounds"], participation=participation, **optional)


def _decode_schedule(fields: Mapping[str, Any]) -> LinearSchedule:
    _require_keys("made_for.workload.rates", fields, {field.name for field in dataclasses.fields(LinearSchedule)})
    return LinearSchedule(**fields)


def _decode_fields(name: str, fields: Any, kinds: Mapping[str, type[Decoded]]) -> Decoded:
    validation.instance(name, fields, dict, "an object with its kind")
    kind = validation.one_of(f"{name}.kind", fields.get("kind"), tuple(kinds))
    names = {field.name for field in dataclasses.fields(kinds[kind])}
    _require_keys(name, fields, names | {"kind"})
    return kinds[kind](**{name: fields[name] for name in names})


def _require_keys(name: str, entry: Any, keys: set[str]) -> None:
    validation.instance(name, entry, dict, "an object")
    if set(entry) != keys:
        raise InputValueError(f"{name} has the keys {sorted(entry)} instead of {sorted(keys)}")


def _digest(manifest: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> str:
    layout = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in sorted(tensors)]
    digest = hashlib.sha256(_canonical([manifest, layout]).encode())
    for name in sorted(tensors):
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise InputValueError("it repeats a key")
    return entries


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InputValueError(f"it has the number {text}, which float64 cannot hold")
    return value


def _refuse_constant(name: str) -> None:
    raise InputValueError(f"it has {name}")
