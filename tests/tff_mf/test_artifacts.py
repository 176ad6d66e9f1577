import hashlib
import json
import os

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given

import tff_mf
from tff_mf import artifacts
from tff_mf.base.errors import ArtifactError, InputValueError

from .test_noise_laws import shapes

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


def forge(file, manifest, tensors, *, sign=True):
    """Writes an artifact of any content, with the right hash unless `sign` is false."""
    manifest = dict(manifest)
    if sign:
        manifest["sha256"] = artifacts.digest(manifest, tensors)
    file.write_bytes(safetensors.numpy.save(tensors, {"tff_mf": json.dumps(manifest)}))


def refuse(file, match=None):
    with pytest.raises(ArtifactError, match=match) as caught:
        tff_mf.load(file)
    message = str(caught.value)
    assert repr(str(file)) in message
    assert "\n" not in message
    assert len(message) < 1000


@given(shapes())
def test_a_mechanism_of_any_kind_and_shape_comes_back_to_the_bit(tmp_path_factory, shape):
    mechanism, rounds = shape
    folder = tmp_path_factory.mktemp("artifact")
    tff_mf.save(mechanism, folder / "a")
    loaded = tff_mf.load(str(folder / "a"))
    assert loaded == mechanism
    assert type(loaded) is type(mechanism)
    assert hash(loaded) == hash(mechanism)
    assert loaded.optimized_for == mechanism.optimized_for
    assert loaded.encoder(rounds).tobytes() == mechanism.encoder(rounds).tobytes()
    tff_mf.save(loaded, folder / "b")
    assert (folder / "a").read_bytes() == (folder / "b").read_bytes()


# Damage of the bytes.


@pytest.mark.once
def test_every_flipped_byte_is_refused_or_harmless(file):
    tff_mf.save(SMALL, file)
    intact = bytearray(file.read_bytes())
    for index in range(len(intact)):
        for mask in (1 << index % 8, 0xFF):
            damaged = bytearray(intact)
            damaged[index] ^= mask
            file.write_bytes(damaged)
            try:
                assert tff_mf.load(file) == SMALL
            except ArtifactError:
                continue


def test_a_file_larger_than_any_artifact_is_refused_unread(file, monkeypatch):
    monkeypatch.setattr(artifacts, "MAX_FILE_BYTES", 1000)
    file.write_bytes(b"\0" * 1001)
    refuse(file, "1000")


# Damage of the content, with everything else right.


def changed(**entries):
    return lambda manifest: {**manifest, **entries}


def setting(**entries):
    return lambda manifest: {**manifest, "optimized_for": {**manifest["optimized_for"], **entries}}


def schema(**entries):
    return setting(participation=entries)


def claim(**entries):
    return lambda manifest: setting(sensitivity={**manifest["optimized_for"]["sensitivity"], **entries})(manifest)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (changed(format_version=2), "format_version=2 is not 1"),
        (changed(kind="staircase"), "kind='staircase'"),
        (setting(sensitivity=None), "sensitivity"),
        (setting(rounds=4), "needs 5 rounds"),
        (schema(kind="fixed_epoch", min_sep=4, max_participations=3), "needs 9 rounds"),
        # The claims that would mislead: a smaller sensitivity, or a milder setting at the old one.
        (claim(value=1.0), "sensitivity.*1.0"),
        (claim(value=0.0), "sensitivity"),
        (claim(value=100.0), "sensitivity.*100.0"),
        (claim(value=1.0, exact=False), "sensitivity.*1.0"),
        (claim(value=float("nan")), "NaN"),
        (claim(value=float("inf")), "Infinity"),
        (schema(kind="min_sep", min_sep=1, max_participations=3), "sensitivity"),
        (schema(kind="single"), "sensitivity"),
    ],
)
def test_forged_manifests_are_refused_although_the_hash_is_right(change, match, tmp_path, file, monkeypatch):
    manifest, tensors = contents(SMALL, tmp_path)
    # A forger's own JSON writer has no scruples about NaN.
    monkeypatch.setattr(artifacts, "_canonical", lambda value: json.dumps(value, sort_keys=True, separators=(",", ":")))
    forge(file, change(manifest), tensors)
    refuse(file, match)


def test_the_dangerous_claim_is_refused_however_little_smaller(tmp_path, file):
    manifest, tensors = contents(SMALL, tmp_path)
    value = manifest["optimized_for"]["sensitivity"]["value"]
    forge(file, claim(value=value * (1 - 1e-8))(manifest), tensors)
    refuse(file, "sensitivity")


def test_a_larger_upper_bound_is_taken(tmp_path, file):
    manifest, tensors = contents(SMALL, tmp_path)
    forge(file, claim(value=100.0, exact=False, rule="another bound")(manifest), tensors)
    assert tff_mf.load(file) == SMALL


THETA, OMEGA = np.array(SMALL.theta), np.array(SMALL.omega)


@pytest.mark.parametrize("tensors", [{"theta": OMEGA, "omega": THETA / 4}, {"theta": THETA, "omega": OMEGA / 2}])
def test_a_wrong_hash_is_refused(tensors, tmp_path, file):
    manifest, _ = contents(SMALL, tmp_path)
    forge(file, manifest, tensors, sign=False)
    refuse(file, "sha256")
    forge(file, {**manifest, "sha256": hashlib.sha256().hexdigest()}, {"theta": THETA, "omega": OMEGA}, sign=False)
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
