"""Artifacts: strategy matrices as safetensors files, with a manifest in JSON.

The tensors are the parameters of C. The manifest, the only metadata, states kind, setting, sensitivity, versions
and hash; of these, kind and setting are used, and the sensitivity is recomputed.
"""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import stat
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from tff_mf import sensitivities
from tff_mf.base import files, strict_json, tensor_files, validation
from tff_mf.base.errors import ArtifactError, InputError, InputTypeError, InputValueError
from tff_mf.mechanisms import Mechanism, OptimizedFor, UnknownKindError, of_kind
from tff_mf.problem.participation import FixedEpoch, MinSep, Participation, SingleParticipation
from tff_mf.problem.workloads import LearningRates, LinearSchedule, Momentum, MomentumWithRates, PrefixSum, Workload

FORMAT_VERSION = 1

# Four times the size of a dense C of 4096 rounds and its decoder.
MAX_FILE_BYTES = 2**30
MAX_HEADER_BYTES = 2**20

_METADATA_KEY = "tff_mf"
# A damaged file can put arbitrarily long text into a message.
_LONGEST_REASON = 300
# The rounding of float64 is far smaller.
_SENSITIVITY_TOLERANCE = 1e-9

_PARTICIPATIONS: dict[str, type[Participation]] = {
    "fixed_epoch": FixedEpoch,
    "min_sep": MinSep,
    "single": SingleParticipation,
}
_WORKLOADS: dict[str, type[Workload]] = {
    workload.kind: workload for workload in (LearningRates, Momentum, MomentumWithRates, PrefixSum)
}

_Positive = Annotated[float, msgspec.Meta(gt=0)]


class _Strict(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What has exactly these keys, of exactly these types."""


class _Sensitivity(_Strict):
    value: _Positive
    exact: bool
    rule: str


class _Setting(_Strict):
    """What C was optimized for, and its figures there."""

    rounds: int
    participation: dict[str, Any]
    workload: dict[str, Any]
    duality_gap: Annotated[float, msgspec.Meta(ge=0)] | None
    converged: bool | None
    sensitivity: _Sensitivity


class _Manifest(_Strict):
    format_version: int
    kind: str
    optimized_for: _Setting | None
    versions: dict[str, str]
    sha256: str


def save(mechanism: Mechanism, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
    """Writes `mechanism` to a safetensors file; equal mechanisms give equal bytes in one environment.

    For its readers the file also has the sensitivity in the setting that the mechanism was optimized for, and the
    versions that computed it.

    The file appears complete or not at all, even if the process is interrupted.

    Args:
        mechanism: The mechanism, with the setting that it was optimized for, if any.
        path: File to write.
        overwrite: Whether an existing file may be replaced.

    Example:
        >>> import pathlib, tempfile
        >>> from tff_mf import BLT
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(BLT.production("b400"), pathlib.Path(folder) / "blt.safetensors")

    Raises:
        InputTypeError: If the class of the mechanism has no kind of its own.
        InputValueError: If the file cannot be written, or exists and may not be replaced.
    """
    validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    validation.instance("overwrite", overwrite, bool, "True or False")
    text = _path(path)
    mechanism.check_kind()
    # The hash and the writer of the file take memory as it lies, and `load` reads it row by row.
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in mechanism.tensors().items()}
    data = pack(_described(mechanism, tensors), tensors)
    try:
        _write(text, data, overwrite=overwrite)
    except FileExistsError:
        raise InputValueError(f"path={text!r} exists already: choose another, or allow it to be overwritten.") from None
    except OSError as error:
        raise InputValueError(f"path={text!r} cannot be written: {error.strerror or error}.") from error
    except InputValueError as error:
        raise InputValueError(f"path={text!r} cannot be written: {error}.") from None


def load(path: str | os.PathLike[str]) -> Mechanism:
    """Returns the mechanism of a file that `save` wrote, with bit-identical parameters.

    Nothing in the file is executed or imported, and memory is proportional to its size. The module of a class from
    outside of this package must have been imported before.

    Formal guarantee: the parameters of C are all that privacy depends on, and all that is taken from the file. The
    sensitivity that it states, for the setting that C was optimized for, is recomputed, and a file that states another
    one is refused, even if its hash is right. The hash detects damage; it does not prove who wrote the file.

    Args:
        path: File to read.

    Example:
        >>> import pathlib, tempfile
        >>> from tff_mf import BLT
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder) / "blt.safetensors"
        ...     save(BLT.production("b400"), file)
        ...     load(file) == BLT.production("b400")
        True

    Raises:
        ArtifactError: If there is no such file, it is damaged, or its kind or version is unknown.
    """
    text = _path(path)
    try:
        return _decoded(*unpack(_read(text)))
    except OSError as error:
        reason = error.strerror or error
        raise ArtifactError(f"path={text!r} cannot be read: {reason}. Give the path of an artifact.") from None
    except UnknownKindError as error:
        raise ArtifactError(f"path={text!r} cannot be loaded: {_shortened(str(error))}.") from None
    except (InputError, msgspec.ValidationError, RecursionError, UnicodeEncodeError) as error:
        reason = str(error)
        if isinstance(error, RecursionError):
            reason = "it nests too deeply"
        elif isinstance(error, UnicodeEncodeError):
            reason = "it has half of a surrogate pair, which is no text"
        raise ArtifactError(
            f"path={text!r} is not a valid artifact: {_shortened(reason.rstrip('.'))}. Regenerate it or copy it again."
        ) from None


def pack(manifest: str, tensors: Mapping[str, np.ndarray]) -> bytes:
    """Returns the bytes of a safetensors file, whose only metadata is the manifest."""
    return tensor_files.encoded(tensors, {_METADATA_KEY: manifest})


def unpack(data: bytes) -> tuple[str, dict[str, np.ndarray]]:
    """Returns manifest and tensors of the bytes of a safetensors file.

    Raises:
        InputValueError: If they are not what `pack` gives.
    """
    length = int.from_bytes(data[: tensor_files.LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise InputValueError(f"its header claims {length} bytes, which is too many for an artifact")
    tensors, metadata = tensor_files.decoded(data)
    if metadata.keys() != {_METADATA_KEY}:
        raise InputValueError("it is a safetensors file, but tff-mf did not write it")
    for name, tensor in tensors.items():
        if tensor.dtype != np.float64:
            raise InputValueError(f"its tensor {name!r} is of type {tensor.dtype} where float64 is needed")
        if not tensor.size:
            raise InputValueError(f"its tensor {name!r} has the shape {list(tensor.shape)}: it is empty")
    return metadata[_METADATA_KEY], tensors


def digest(manifest: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> str:
    """Returns the SHA-256 of a manifest, but for its `sha256`, and of the tensors."""
    unsigned = {key: value for key, value in manifest.items() if key != "sha256"}
    layout = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in sorted(tensors)]
    sha256 = hashlib.sha256(_canonical([unsigned, layout]).encode())
    for name in sorted(tensors):
        sha256.update(tensors[name].tobytes())
    return sha256.hexdigest()


def _described(mechanism: Mechanism, tensors: Mapping[str, np.ndarray]) -> str:
    """Returns the manifest of a mechanism as canonical JSON."""
    # As `load` will see it: the memory layout of an array can change the rounding of its sums.
    mechanism = type(mechanism).of_tensors(tensors, mechanism.optimized_for)
    manifest = _Manifest(
        format_version=FORMAT_VERSION,
        kind=mechanism.kind,
        optimized_for=None if mechanism.optimized_for is None else _setting(mechanism, mechanism.optimized_for),
        # Of the packages that computed the figures.
        versions={name: importlib.metadata.version(name) for name in ("tff-mf", "numpy", "scipy")},
        sha256="",
    )
    fields = msgspec.to_builtins(manifest)
    return _canonical({**fields, "sha256": digest(fields, tensors)})


def _decoded(text: str, tensors: Mapping[str, np.ndarray]) -> Mechanism:
    """Returns the mechanism of a file, after checking its hash and recomputing the sensitivity that it states."""
    fields = _parsed(text)
    # First, because another format may have other keys.
    if (version := fields.get("format_version")) != FORMAT_VERSION or type(version) is not int:
        raise InputValueError(
            f"its format_version={version!r} is not {FORMAT_VERSION}, the one that tff-mf "
            f"{importlib.metadata.version('tff-mf')} reads"
        )
    manifest = msgspec.convert(fields, _Manifest)
    kind = of_kind(manifest.kind)
    for name, tensor in tensors.items():
        if not np.all(np.isfinite(tensor)):
            raise InputValueError(f"its tensor {name!r} has NaN or infinity")
    if manifest.sha256 != digest(fields, tensors):
        raise InputValueError("its content does not match its sha256: it was damaged or modified")
    setting = manifest.optimized_for
    mechanism = kind.of_tensors(tensors, None if setting is None else _optimized_for(setting))
    if setting is None or mechanism.optimized_for is None:
        return mechanism
    claim, actual = setting.sensitivity, _sensitivity(mechanism, mechanism.optimized_for).value
    # A larger upper bound is valid, though the rules of this package are tighter.
    too_large = claim.value > actual * (1 + _SENSITIVITY_TOLERANCE) and claim.exact
    if claim.value < actual * (1 - _SENSITIVITY_TOLERANCE) or too_large:
        raise InputValueError(f"it states the sensitivity {claim.value!r}, but its parameters give {actual!r}")
    return mechanism


def _sensitivity(mechanism: Mechanism, optimized_for: OptimizedFor) -> sensitivities.SensitivityResult:
    return sensitivities.explain_sensitivity(mechanism, optimized_for.rounds, optimized_for.participation)


def _setting(mechanism: Mechanism, optimized_for: OptimizedFor) -> _Setting:
    sensitivity = _sensitivity(mechanism, optimized_for)
    return _Setting(
        rounds=optimized_for.rounds,
        participation=_fields("participation", optimized_for.participation, _PARTICIPATIONS),
        workload=_fields("workload", optimized_for.workload, _WORKLOADS),
        duality_gap=optimized_for.duality_gap,
        converged=optimized_for.converged,
        sensitivity=_Sensitivity(value=sensitivity.value, exact=sensitivity.exact, rule=sensitivity.rule),
    )


def _optimized_for(setting: _Setting) -> OptimizedFor:
    return OptimizedFor(
        rounds=setting.rounds,
        participation=_of_kind("optimized_for.participation", setting.participation, _PARTICIPATIONS),
        workload=_of_kind("optimized_for.workload", setting.workload, _WORKLOADS),
        duality_gap=setting.duality_gap,
        converged=setting.converged,
    )


def _fields(name: str, value: Any, kinds: Mapping[str, type]) -> dict[str, Any]:
    # By the exact class: a subclass may have another meaning.
    for kind, class_ in kinds.items():
        if type(value) is class_:
            return {"kind": kind, **dataclasses.asdict(value)}
    raise InputTypeError(f"optimized_for.{name}={value!r} is of a class that artifacts do not support.")


def _of_kind(name: str, fields: dict[str, Any], kinds: Mapping[str, type]) -> Any:
    kind = validation.one_of(f"{name}.kind", fields.get("kind"), tuple(kinds))
    arguments = {key: value for key, value in fields.items() if key != "kind"}
    if isinstance(arguments.get("rates"), dict):
        arguments["rates"] = _built(f"{name}.rates", arguments["rates"], LinearSchedule)
    return _built(name, arguments, kinds[kind])


def _built(name: str, fields: dict[str, Any], kind: Any) -> Any:
    expected = {field.name for field in dataclasses.fields(kind)}
    if set(fields) != expected:
        raise InputValueError(f"{name} has the keys {sorted(fields)} instead of {sorted(expected)}")
    return kind(**fields)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _parsed(text: str) -> dict[str, Any]:
    """Returns the object of JSON text; refuses texts that JSON parsers disagree on, as msgspec does not.

    Raises:
        InputValueError: If it is no JSON object, repeats a key, or has NaN or infinity.
        RecursionError: If it nests too deeply.
    """
    try:
        fields = strict_json.loads(text)
    except ValueError as error:
        raise InputValueError(f"it is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InputTypeError("its manifest or header is not a JSON object")
    return fields


def _path(path: object) -> str:
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise InputTypeError(f"path={path!r} must be the path of a file.")
    text = os.fspath(path)
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        encoded = b""
    if not encoded or b"\0" in encoded:
        raise InputValueError(f"path={path!r} is not a valid path of a file.")
    return text


def _read(path: str) -> bytes:
    # Opening a pipe for reading would wait for a writer.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise InputValueError("it is not a regular file")
    with open(path, "rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InputValueError(f"it is larger than {MAX_FILE_BYTES} bytes, the maximum size of an artifact")
    return data


def _write(path: str, data: bytes, *, overwrite: bool) -> None:
    """Writes the file atomically: a reader, or a crash, finds the old file or the new one, never a part."""
    target = os.path.realpath(path)
    if os.path.exists(target) and not os.path.isfile(target):
        raise InputValueError("it is not a regular file")
    with files.atomic_file(target, overwrite=overwrite) as file:
        file.write(data)
    # Not every system has that for folders.
    with contextlib.suppress(OSError):
        files.sync_folder(os.path.dirname(target))


def _shortened(reason: str) -> str:
    return reason if len(reason) <= _LONGEST_REASON else reason[:_LONGEST_REASON] + " …"
