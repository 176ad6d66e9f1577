"""Checks the files of a bundle against each other, without TensorFlow."""

import dataclasses
import pathlib

import tff_mf
from tff_mf import _validate
from tff_mf.errors import InputError, InputValueError

from .. import reports
from ..reports import _strict
from ..reports._configuration import CONFIGURATION, MECHANISM, file_hash
from ._device_file import DEVICE_POLICY, device_policy_problem
from ._manifest import MANIFEST, PLANNED, PLANNED_TEXT, POLICY, Manifest, file_hashes, read_manifest
from ._policy import read_policy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a bundle must not be deployed.

    Attributes:
        file: The file that is wrong.
        reason: What is wrong with it.
    """

    file: str
    reason: str


def refusals(folder: pathlib.Path, *, digest: str | None = None) -> list[Refusal]:
    """Returns why the files of a bundle must not be deployed; nothing if they may.

    Formal guarantee: if nothing is returned, every file is the one that the manifest names by its SHA-256, and there is
    no other; the report is the one that follows from `run.json` and from the artifact beside it; what
    the device's policy allows is covered by the participation schema of that report; and `device-policy.json` is no
    weaker than that policy, and says what it needs of the server. Whoever writes a whole bundle anew
    is found out by its `digest` alone, which `tff-mf export` printed.

    Args:
        folder: The bundle.
        digest: The bundle's digest, if it is known from elsewhere.

    Raises:
        InputValueError: If the folder holds no bundle, or the digest is none.
    """
    if digest is not None:
        _validate.digest("digest", digest)
    if not (folder / MANIFEST).is_file():
        raise InputValueError(f"bundle={str(folder)!r} has no {MANIFEST}: it is no bundle of tff-mf export.")
    try:
        manifest, found = read_manifest(folder)
    except InputValueError as error:
        return [Refusal(file=MANIFEST, reason=str(error))]
    if digest is not None and digest != found:
        return [Refusal(file=MANIFEST, reason=f"the bundle's digest is {found}, not the {digest} that was given")]
    return _changed(folder, manifest) or _inconsistent(folder, manifest)


def _changed(folder: pathlib.Path, manifest: Manifest) -> list[Refusal]:
    found, listed = file_hashes(folder), manifest.files
    reasons = {name: "is not in the manifest" for name in found if name not in listed}
    reasons |= {name: "is missing" for name in listed if name not in found}
    changed = "was changed: its SHA-256 is not that of the manifest"
    reasons |= {name: changed for name in listed if name in found and found[name] != listed[name]}
    return [Refusal(file=name, reason=reason) for name, reason in sorted(reasons.items())]


def _inconsistent(folder: pathlib.Path, manifest: Manifest) -> list[Refusal]:
    try:
        configuration = reports.read_configuration(folder)
    except InputError as error:
        return [Refusal(file=CONFIGURATION, reason=str(error))]
    try:
        tff_mf.load(folder / MECHANISM)
    except InputError as error:
        return [Refusal(file=MECHANISM, reason=str(error))]
    found = []
    if file_hash(folder / MECHANISM) != configuration.mechanism_sha256:
        reason = f"is another artifact than the one of {CONFIGURATION}: its hash differs"
        found.append(Refusal(file=MECHANISM, reason=reason))
    if manifest.test_only != (configuration.insecure_seed is not None):
        found.append(Refusal(file=MANIFEST, reason=f"says another test_only than {CONFIGURATION}"))
    try:
        weaker = read_policy(folder).weaker_than(configuration.schema)
    except InputError as error:
        weaker = str(error)
    if weaker:
        found.append(Refusal(file=POLICY, reason=weaker))
    # What it is compared with must be right itself.
    elif problem := device_policy_problem(folder):
        found.append(Refusal(file=DEVICE_POLICY, reason=problem))
    return [*found, *_report(folder)]


def _report(folder: pathlib.Path) -> list[Refusal]:
    """Compares the report with the one that follows from the other files."""
    try:
        stored = _strict.loads((folder / PLANNED).read_text(encoding="utf-8"))
        shown = (folder / PLANNED_TEXT).read_text(encoding="utf-8")
    except (OSError, ValueError, RecursionError) as error:
        return [Refusal(file=PLANNED, reason=f"is missing or damaged: {error}")]
    if next(reports.problems(stored), None) is not None:
        return [Refusal(file=PLANNED, reason=f"is no report: {next(reports.problems(stored))}")]
    expected = reports.build(folder, realised=False)
    if stored["mechanism"]["sha256"] != expected["mechanism"]["sha256"]:
        return [Refusal(file=PLANNED, reason=f"is the report of another artifact than {MECHANISM}")]
    # A later version of this package may check a report that an earlier one wrote.
    differing = reports.differences(stored, expected)
    if differing:
        return [Refusal(file=PLANNED, reason=f"says another {differing[0]} than follows from the artifact")]
    # Part of its page, too: no text may stand there that follows from nothing.
    if stored["digest"] != reports.digest(stored):
        return [Refusal(file=PLANNED, reason="was edited: its digest is not that of what it says")]
    if shown != reports.markdown(stored):
        other = reports.other_version(stored)
        more = f": it was worded by {other}, and cannot be checked by this release; export it anew" if other else ""
        return [Refusal(file=PLANNED_TEXT, reason=f"says something else than {PLANNED}{more}")]
    return []
