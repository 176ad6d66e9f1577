import contextlib
import json
import os

import pytest
import safetensors.numpy

import tff_mf
from tff_mf import artifacts
from tff_mf.base.errors import ArtifactError, InputValueError

B400 = tff_mf.BLT.production("b400")
SMALL = tff_mf.BLT(
    theta=[0.75, 0.5],
    omega=[0.25, 0.125],
    optimized_for=tff_mf.OptimizedFor(rounds=8, participation=tff_mf.MinSep(min_sep=2, max_participations=3)),
)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "mechanism.safetensors"


def contents(mechanism, folder):
    tff_mf.save(mechanism, folder / "contents")
    with safetensors.safe_open(folder / "contents", framework="numpy") as opened:
        return json.loads(opened.metadata()["tff_mf"]), {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def forge(file, manifest, tensors):
    """Writes an artifact of any content, with the right hash."""
    manifest = {**manifest, "sha256": artifacts.digest(manifest, tensors)}
    file.write_bytes(safetensors.numpy.save(tensors, {"tff_mf": json.dumps(manifest)}))


def refuse(file, match=None):
    with pytest.raises(ArtifactError, match=match) as caught:
        tff_mf.load(file)
    message = str(caught.value)
    assert repr(str(file)) in message
    assert "\n" not in message
    assert len(message) < 1000


# Damage of the bytes.


@pytest.mark.once
def test_every_flipped_byte_is_refused_or_harmless(file):
    tff_mf.save(SMALL, file)
    intact = bytearray(file.read_bytes())
    for index in range(len(intact)):
        damaged = bytearray(intact)
        damaged[index] ^= 0xFF if index % 9 == 0 else 1 << index % 8
        file.write_bytes(damaged)
        with contextlib.suppress(ArtifactError):
            assert tff_mf.load(file) == SMALL


def test_a_file_larger_than_any_artifact_is_refused_unread(file, monkeypatch):
    monkeypatch.setattr(artifacts, "MAX_FILE_BYTES", 1000)
    file.write_bytes(b"\0" * 1001)
    refuse(file, "1000")


# Damage of the content, with everything else right.


def claim(manifest, **entries):
    found = manifest["optimized_for"]["sensitivity"]
    return {"sensitivity": {**found, **entries, "value": found["value"] * entries.pop("value", 1)}}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda manifest: {"format_version": 2}, "format_version=2"),
        (lambda manifest: {"kind": "staircase"}, "kind='staircase'"),
        (lambda manifest: {"optimized_for": {"rounds": 4}}, "needs 5 rounds"),
        # What would mislead: a smaller sensitivity, however little, or a milder setting at the old one.
        (lambda manifest: {"optimized_for": claim(manifest, value=1 - 1e-8)}, "sensitivity"),
        (lambda manifest: {"optimized_for": claim(manifest, value=0.2, exact=False)}, "sensitivity"),
        (lambda manifest: {"optimized_for": claim(manifest, value=100)}, "sensitivity"),
        (lambda manifest: {"optimized_for": claim(manifest, value=float("nan"))}, "NaN"),
        (lambda manifest: {"optimized_for": {"participation": {"kind": "single"}}}, "sensitivity"),
        # Another bound that is larger is taken.
        (lambda manifest: {"optimized_for": claim(manifest, value=100, exact=False, rule="another bound")}, None),
    ],
)
def test_forged_manifests_are_refused_although_the_hash_is_right(change, match, tmp_path, file, monkeypatch):
    manifest, tensors = contents(SMALL, tmp_path)
    # A forger's own JSON writer has no scruples about NaN.
    monkeypatch.setattr(artifacts, "_canonical", lambda value: json.dumps(value, sort_keys=True, separators=(",", ":")))
    changed = change(manifest)
    if "optimized_for" in changed:
        changed["optimized_for"] = manifest["optimized_for"] | changed["optimized_for"]
    forge(file, manifest | changed, tensors)
    if match is None:
        assert tff_mf.load(file) == SMALL
    else:
        refuse(file, match)


def test_tensors_that_are_not_those_of_the_hash_are_refused(tmp_path, file):
    manifest, tensors = contents(SMALL, tmp_path)
    file.write_bytes(
        safetensors.numpy.save({**tensors, "omega": tensors["omega"] / 2}, {"tff_mf": json.dumps(manifest)})
    )
    refuse(file, "sha256")


# Paths.


def test_overwriting_can_be_forbidden(file):
    tff_mf.save(B400, file, overwrite=False)
    before = file.read_bytes()
    with pytest.raises(InputValueError, match=file.name):
        tff_mf.save(SMALL, file, overwrite=False)
    assert file.read_bytes() == before
    tff_mf.save(SMALL, file)
    assert tff_mf.load(file) == SMALL
    assert os.listdir(file.parent) == [file.name]
