"""Verifies a bundle: exports it again, compares every file, and runs the graphs."""

import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import msgspec
import numpy as np
import safetensors.numpy

from tff_mf.base import required_packages
from tff_mf.base.errors import InputError

from .. import reports
from ..output import progress
from ..runs import folders
from ..runs.names import MECHANISM, PLANNED, PLANNED_TEXT, RUN_JSON, VOCABULARY
from . import building
from ._checks import CHECKED, DIGEST, NEARLY, REBUILT, Refusal, Verification, believed, checked_copy, resting
from ._device_file import task_name_of
from ._manifest import DEVICE_POLICY, manifest_text, read_manifest
from ._policies import ParticipationPolicy, read_policy
from ._source import Source, deployed_again
from .runner import INITIAL, MANIFEST

_MODEL = "model__"
# Of the largest number of a tensor: what orthogonal matrices of two machines differ by, and far less than a round does.
_NEARLY = 1e-6
# The files from which all others are made.
_GIVEN = {RUN_JSON: DIGEST, VOCABULARY: DIGEST, MECHANISM: CHECKED}


def same_initial(path: pathlib.Path, again: pathlib.Path) -> bool:
    """Returns whether a file has what was computed again, the model to within 1e-6, and nothing else.

    Formal guarantee: names, types, shapes and all that noise is computed from are equal, bit for bit. The model is
    public, and the guarantee is the same for every initial model.
    """
    content = path.read_bytes()
    try:
        found = safetensors.numpy.load(content)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, OverflowError):
        return False
    expected = safetensors.numpy.load(again.read_bytes())
    written = {name: found[name] for name in expected if name in found}
    return (
        found.keys() == expected.keys()
        and safetensors.numpy.save(written) == content
        and all(_same(name, found[name], value) for name, value in expected.items())
    )


def same_model(found: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    """Returns whether two models are the same to within 1e-6 of the largest number of each tensor."""
    return len(found) == len(expected) and all(map(_nearly, found, expected))


def _same(name: str, found: np.ndarray, expected: np.ndarray) -> bool:
    if name.startswith(_MODEL):
        return _nearly(found, expected)
    return (found.dtype, found.shape) == (expected.dtype, expected.shape) and found.tobytes() == expected.tobytes()


def _nearly(found: np.ndarray, expected: np.ndarray) -> bool:
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return False
    most = _NEARLY * float(np.abs(expected).max(initial=0.0))
    # A number that is not finite is no nearer than any bound.
    return bool(np.all(np.abs(found.astype(np.float64) - expected) <= most))


# Files with numbers that another machine computes with other last bits: what such a file rests on, and the rule for it
# that `checked_copy` leaves, by which the report, its page and policies were compared with the other files.
_BY_RULE = {
    PLANNED: (CHECKED, lambda path, again: True),
    PLANNED_TEXT: (CHECKED, lambda path, again: True),
    DEVICE_POLICY: (CHECKED, lambda path, again: True),
    INITIAL: (NEARLY, same_initial),
}


def verify(folder: pathlib.Path, *, rounds: int = 3, digest: str | None = None) -> Verification:
    """Returns the reasons why a bundle must not be deployed, or the evidence for each of its files.

    The files are checked first (see `refusals`). Then the bundle is exported again, from `run.json`,
    the artifact and the vocabulary, and every file must be equal byte for byte. Only recomputed
    numbers, whose last bits depend on the machine, are compared by rules: in the planned report and the policy of
    clients as `refusals` does, and in the initial model, which `server/initial.safetensors` alone contains, to within
    1e-6. Equal graphs are run for some rounds, in TensorFlow and in TFF, as a second line of defense.

    Formal guarantee: if nothing is refused, every file that is "rebuilt" equals the one that `tff-mf export` makes here
    from `run.json`, the artifact and the vocabulary, and only such graphs, forms and models of the bundle
    were loaded or executed. All that noise is computed from is equal to the bit. Everything is read from a copy that is
    made while files are hashed. Only the bundle's digest shows that `run.json`, the artifact and the vocabulary are the
    intended ones.

    Other versions of the packages may make other graphs. A bundle that was made with other versions is then refused, by
    the names of the versions to verify it with. If its correct digest is given, it is not refused: files that could not
    be built again rest on that digest, and no graph is run.

    Args:
        folder: The bundle.
        rounds: Largest number of rounds to run; a bundle has at most as many as its run.
        digest: The bundle's digest, if it is known from elsewhere.
    """
    with checked_copy(folder, digest=digest) as (copy, found):
        if copy is None:
            return Verification(refused=found)
        required_packages.packages("Verifying", "tensorflow", "tensorflow_privacy", "tensorflow_federated")
        progress.step("export again")
        with tempfile.TemporaryDirectory(prefix="tff-mf-export-") as again:
            try:
                rebuild(copy, pathlib.Path(again))
            except InputError as error:
                reason = f"cannot be exported again: {error}".replace(str(copy), str(folder))
                return Verification(refused=[Refusal(file=RUN_JSON, reason=reason)])
            different = list(differing(copy, pathlib.Path(again)))
            rests_on = {name: _evidence(name, copy, pathlib.Path(again), different) for name in resting(copy)}
        other = _other_versions(copy) if different else ""
        if different and not (digest and other):
            reason = "is not the file that tff-mf export makes from run.json, the artifact and the vocabulary"
            if other:
                reason += f"; the bundle states that it was made with {other}: verify it with those, or give its digest"
            return Verification(refused=[Refusal(file=name, reason=reason) for name in different])
        if different:
            return believed(copy, rests_on)
        # Takes ten seconds to import.
        from . import _rounds

        rounds = min(rounds, reports.read_record(copy).rounds)
        found = _rounds.run(copy, rounds)
        return Verification(refused=found) if found else believed(copy, rests_on, rounds=rounds)


def rebuild(bundle: pathlib.Path, to: pathlib.Path) -> None:
    """Exports a bundle again, from its record and vocabulary, with its artifact as it is."""
    settings, privacy, vocabulary = deployed_again(bundle)
    run = reports.read_record(bundle)
    assert run.settings is not None
    source = Source(settings=settings, privacy=privacy, vocabulary=vocabulary, asked=run.settings)
    policy = ParticipationPolicy.of(privacy.participation, round_minutes=read_policy(bundle).round_minutes)
    # Written again, it would have the versions of this machine.
    shutil.copyfile(bundle / MECHANISM, to / MECHANISM)
    building.write(source, to, policy, run.population, run.versions, task_name_of(bundle))


def differing(bundle: pathlib.Path, again: pathlib.Path) -> Iterator[str]:
    """Yields the files in which a bundle differs from another; the manifest only if no other file differs."""
    manifest, rebuilt = read_manifest(bundle)[0], read_manifest(again)[0]
    names = sorted(manifest.files.keys() | rebuilt.files.keys())
    unequal = [name for name in names if manifest.files.get(name) != rebuilt.files.get(name)]
    by_rule = [name for name in unequal if name in _BY_RULE and _BY_RULE[name][1](bundle / name, again / name)]
    different = [name for name in unequal if name not in by_rule]
    yield from different
    expected = msgspec.structs.replace(
        rebuilt, files={**rebuilt.files, **{name: manifest.files[name] for name in by_rule}}
    )
    if not different and (bundle / MANIFEST).read_bytes() != manifest_text(msgspec.to_builtins(expected)):
        yield MANIFEST


def _evidence(name: str, copy: pathlib.Path, again: pathlib.Path, different: list[str]) -> str:
    if name in different or (different and name == MANIFEST):
        return DIGEST
    equal = name == MANIFEST or (copy / name).read_bytes() == (again / name).read_bytes()
    return _GIVEN.get(name, REBUILT if equal else _BY_RULE[name][0])


def _other_versions(copy: pathlib.Path) -> str:
    """Returns the versions with which a bundle was made and that differ from those here, or an empty text."""
    made, here = reports.read_record(copy).versions, folders.versions()
    return ", ".join(
        f"{name} {version} (here: {here.get(name, 'none')})"
        for name, version in made.items()
        if here.get(name) != version
    )
