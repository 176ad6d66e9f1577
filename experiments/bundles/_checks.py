"""Checks the files of a bundle against each other, without TensorFlow."""

import contextlib
import dataclasses
import itertools
import json
import math
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping

import msgspec

import tff_mf
from tff_mf.base import strict_json, validation
from tff_mf.base.errors import InputError, InputValueError
from tff_mf.problem import grids

from .. import reports
from ..output import agreement
from ..output.files import file_hash
from ..runs.names import MECHANISM, PLANNED, PLANNED_TEXT, RUN_JSON, VOCABULARY
from ..runs.run_record import RunRecord
from . import runner
from ._device_file import device_policy_problem
from ._manifest import DEVICE_POLICY, POLICY, Manifest, Tensor, manifest_file
from ._policies import read_policy
from ._source import deployed_again
from .runner import MANIFEST

REBUILT = "rebuilt"
CHECKED = "checked against run.json"
DIGEST = "digest only"
NEARLY = "digest, and computed again to within 1e-6"

_TOTAL = "__total__"
_MOST_REFUSALS = 50
# Settings that, unless they are given, are computed from the others.
_COMPUTED = ("noise_multiplier", "server_learning_rate")
# Settings of runs that no deployment can have.
_NEVER = ("restart_every", "adaptive_count_stddev")
# Files that follow from run.json and the artifact, and are compared with them here.
_FOLLOWING = (MECHANISM, PLANNED, PLANNED_TEXT, POLICY, DEVICE_POLICY)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal:
    r"""A reason why a bundle must not be deployed.

    Attributes:
        file: The file that is wrong, in one line.
        reason: What is wrong with it, in one line.

    Example:
        >>> Refusal(file="device/a\nverified", reason="is not in the manifest").file
        'device/a\\nverified'
    """

    file: str
    reason: str

    def __post_init__(self) -> None:
        # Names and values come from the author of the bundle: they must not add lines, or move a terminal's cursor.
        for name in ("file", "reason"):
            text = getattr(self, name)
            line = "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
            object.__setattr__(self, name, line)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verification:
    """The reasons why a bundle is refused, and otherwise the evidence for each file.

    Attributes:
        refused: The reasons why it must not be deployed; empty if it may be.
        rests_on: The evidence for each file, if nothing is refused: "rebuilt" if it equals, byte for byte, the one
            that `tff-mf export` makes here from the other files; "checked against run.json" if it agrees with that;
            "digest, and computed again to within 1e-6" for a public model whose last bits depend on the machine;
            "digest only" if only the bundle's digest shows that it was not replaced.
        rounds: Rounds that were run, in TensorFlow and in TFF; 0 if no graph was run.
        digest: The digest of the checked copy, even if the folder has changed since; None if it is refused.
        headline: The headline of its planned report; an empty text if it is refused.
    """

    refused: list[Refusal]
    rests_on: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rounds: int = 0
    digest: str | None = None
    headline: str = ""


def refusals(folder: pathlib.Path, *, digest: str | None = None) -> list[Refusal]:
    """Returns the reasons why the files of a bundle must not be deployed; an empty list if they may be.

    Formal guarantee: as for `checked_copy`. That a whole bundle was rewritten is detected by its `digest`, which
    `tff-mf export` printed, and by nothing else; graphs are not looked into.
    """
    return check_files(folder, digest=digest).refused


def check_files(folder: pathlib.Path, *, digest: str | None = None) -> Verification:
    """Returns what `refusals` returns, with the evidence for each file if nothing is refused."""
    with checked_copy(folder, digest=digest) as (copy, refused):
        if copy is None:
            return Verification(refused=refused)
        return believed(copy, resting(copy))


@contextlib.contextmanager
def checked_copy(
    folder: pathlib.Path, *, digest: str | None = None
) -> Iterator[tuple[pathlib.Path | None, list[Refusal]]]:
    """Yields a checked copy of a bundle in a temporary folder, or None, and the reasons why it is refused.

    A reader of the copy reads what was checked, even if `folder` changes meanwhile.

    Formal guarantee: if there is a copy, every file in it is the one that the manifest names by SHA-256 and size, and
    there was no other file, no folder, no link and nothing that other users may write; the report follows from
    `run.json` and from the artifact beside it; its settings ask for the run that it claims; the device's policy
    enforces the participation schema of that report; and `device-policy.json` follows from that policy.
    """
    if digest is not None:
        validation.digest("digest", digest)
    if not folder.is_dir():
        raise InputValueError(f"bundle={str(folder)!r} is not a folder: name the one that tff-mf export wrote.")
    if not os.path.lexists(folder / MANIFEST):
        raise InputValueError(f"bundle={str(folder)!r} is not a bundle of tff-mf export: {MANIFEST} is missing.")
    with tempfile.TemporaryDirectory(prefix="tff-mf-verify-") as own:
        copy = pathlib.Path(own) / "bundle"
        copy.mkdir()
        found = _copied(folder, copy, digest)
        yield (None if found else copy), found


def _copied(folder: pathlib.Path, copy: pathlib.Path, digest: str | None) -> list[Refusal]:
    try:
        manifest, known, content = manifest_file(folder)
    except InputValueError as error:
        return [Refusal(file=MANIFEST, reason=str(error))]
    if digest is not None and digest != known:
        return [Refusal(file=MANIFEST, reason=f"the bundle's digest is {known}, not the {digest} that was given")]
    needed = sum(entry.bytes for entry in manifest.files.values())
    if needed > shutil.disk_usage(copy).free:
        raise InputValueError(
            f"bundle={str(folder)!r} has {needed} bytes, and there is no room for a copy in {str(copy.parent)!r}: name "
            "another folder for temporary files in TMPDIR"
        )
    listed = {name: msgspec.to_builtins(entry) for name, entry in manifest.files.items()}
    try:
        found = itertools.islice(runner.changes(folder, listed, copy), _MOST_REFUSALS)
        changed = [Refusal(file=name, reason=reason) for name, reason in found]
    except OSError as error:
        raise InputValueError(f"bundle={str(folder)!r} cannot be read: {error.strerror or error}.") from error
    # The content whose digest was compared.
    (copy / MANIFEST).write_bytes(content)
    return sorted(changed, key=lambda each: each.file) or [
        # The copy is deleted before anyone reads this.
        Refusal(file=each.file, reason=each.reason.replace(str(copy), str(folder)))
        for each in _inconsistent(copy, manifest)
    ]


def believed(copy: pathlib.Path, rests_on: Mapping[str, str], *, rounds: int = 0) -> Verification:
    """Returns the result for a bundle that is not refused, from its checked copy."""
    headline = reports.headline(strict_json.loads((copy / PLANNED).read_text(encoding="utf-8")))
    digest = manifest_file(copy)[1]
    return Verification(refused=[], rests_on=rests_on, rounds=rounds, digest=digest, headline=headline)


def resting(copy: pathlib.Path) -> dict[str, str]:
    """Returns the evidence for each file of a bundle if its graphs are not built again."""
    manifest, _, _ = manifest_file(copy)
    return {name: CHECKED if name in _FOLLOWING else DIGEST for name in (*sorted(manifest.files), MANIFEST)}


def _inconsistent(folder: pathlib.Path, manifest: Manifest) -> list[Refusal]:
    try:
        run = reports.read_record(folder)
    except InputError as error:
        return [Refusal(file=RUN_JSON, reason=str(error))]
    try:
        tff_mf.load(folder / MECHANISM)
    except InputError as error:
        return [Refusal(file=MECHANISM, reason=str(error))]
    found = []
    if file_hash(folder / MECHANISM) != run.mechanism_sha256:
        reason = f"is not the artifact that {RUN_JSON} names: its hash differs"
        found.append(Refusal(file=MECHANISM, reason=reason))
    for name in _NEVER:
        if getattr(run, name) is not None:
            found.append(Refusal(file=RUN_JSON, reason=f"has {name}, which no bundle supports"))
    if manifest.test_only != (run.insecure_seed is not None):
        found.append(Refusal(file=MANIFEST, reason=f"test_only differs from {RUN_JSON}"))
    if reason := grid_problem(manifest, run):
        found.append(Refusal(file=MANIFEST, reason=reason))
    try:
        read_policy(folder)
    except InputError as error:
        found.append(Refusal(file=POLICY, reason=str(error)))
    else:
        # Only if the policy that it is compared with is right.
        if problem := device_policy_problem(folder):
            found.append(Refusal(file=DEVICE_POLICY, reason=problem))
    return [*found, *_report(folder)] or _settings(folder, manifest)


def _settings(folder: pathlib.Path, manifest: Manifest) -> list[Refusal]:
    """Compares what `run.json` says with what follows from the settings in it."""
    try:
        settings, privacy, _ = deployed_again(folder)
        asked = reports.read_record(folder).settings
        assert asked is not None
        planned = asked.privacy_plan(privacy.mechanism, privacy.insecure_seed)
        # The ε that was asked for is one of the settings.
        planned = dataclasses.replace(planned, clients_per_round=planned.cohort, target_epsilon=None)
        again = asked.resolved(planned, asked.chosen_rate(planned))
    except InputError as error:
        text = str(error)
        return [Refusal(file=VOCABULARY if VOCABULARY in text else RUN_JSON, reason=text)]
    for name, value in msgspec.structs.asdict(manifest.local_data).items():
        if value != getattr(settings, name):
            return [Refusal(file=MANIFEST, reason=f"{name} differs from {RUN_JSON}")]
    computed = {name for name in _COMPUTED if not isinstance(getattr(asked, name), float)}
    for stated, follows in ((settings, again), (privacy, planned)):
        for name in type(follows).__annotations__:
            one, other = getattr(stated, name), getattr(follows, name)
            if one != other and not (name in computed and math.isclose(one, other, rel_tol=agreement.TOO_SMALL)):
                return [Refusal(file=RUN_JSON, reason=f"{name} does not follow from its settings")]
    return []


def _report(folder: pathlib.Path) -> Iterator[Refusal]:
    """Yields how the report and its page differ from those that follow from the other files."""
    for each in reports.check(folder):
        # Another release has other words, and whoever rewrote all files is found by the digest alone.
        if each.field == "report" and each.code != "page_in_other_words":
            file = each.values["file"]
            yield Refusal(file=file, reason=each.text.removeprefix(f"{file} "))


def totals(manifest: Manifest) -> Mapping[str, Tensor]:
    """Returns the types of the parts of a sum: the records, and on a grid, last, the number of clients."""
    return {name: spec for name, spec in manifest.stages["zero"].outputs.items() if _TOTAL in name}


def grid_problem(manifest: Manifest, run: RunRecord) -> str:
    """Returns how the grid in a manifest differs from the grid of `run.json` or of the graphs, or an empty text.

    Formal guarantee: if the text is empty, the manifest has a grid exactly if `run.json` has one, with the same bits
    and room; its sampler is the one that this release computes the charge of; devices send, and sums are, integers of
    its width and nothing else, or floats without a grid; a sum has room for the whole cohort; and a record has no more
    coordinates than the charge in the report is computed for. That the graphs have the types of the manifest, and round
    to this grid, is for `verify` to find.
    """
    try:
        expected = None if run.grid is None else grids.description(run.grid)
    except InputError as error:
        return str(error)
    if (manifest.grid is None) != (expected is None):
        return f"grid={manifest.grid!r:.80} is not the {'floating point' if expected is None else 'grid'} of run.json"
    if manifest.grid is None or expected is None or run.grid is None:
        return _kinds(manifest, "float")
    for name, value in expected.items():
        if (stated := getattr(manifest.grid, name)) != value:
            return f"grid.{name}={stated!r} is not the {value!r} of run.json and this release"
    if run.clients_per_round > run.grid.max_clients:
        return f"grid.max_clients={run.grid.max_clients} is less than the {run.clients_per_round} clients of a round"
    return _kinds(manifest, run.grid.integers) or _sizes(manifest, run)


def _kinds(manifest: Manifest, kind: str) -> str:
    """Returns which part of an update or a sum is of another type, or an empty text."""
    for name, spec in {**manifest.stages["work"].outputs, **totals(manifest)}.items():
        if not spec.dtype.startswith(kind):
            return f"{name} is {spec.dtype}, unlike the {kind} of run.json"
    return ""


def _sizes(manifest: Manifest, run: RunRecord) -> str:
    """Returns how the shapes of a record or a sum of integers are wrong, or an empty text."""
    summed = [spec.shape for spec in totals(manifest).values()]
    sent = [spec.shape for spec in manifest.stages["work"].outputs.values()]
    if not summed or summed != sent or summed[-1] != [] or None in [size for shape in summed for size in shape]:
        return "work does not return a record and the number of its clients, as its sum needs"
    found = sum(math.prod(size or 0 for size in shape) for shape in summed[:-1])
    if run.dimension is None or found > run.dimension:
        return f"a record has {found} coordinates, more than the dimension={run.dimension} of run.json"
    return ""
