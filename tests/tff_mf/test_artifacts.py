import dataclasses
import hashlib
import importlib
import json
import os
import struct

import numpy as np
import pytest
import safetensors.numpy
import scipy
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf import artifacts
from tff_mf.base.errors import ArtifactError, InputTypeError, InputValueError

from .test_noise_laws import shapes

B400 = tff_mf.BLT.production("b400")
SMALL = tff_mf.BLT(
    theta=[0.75, 0.5],
    omega=[0.25, 0.125],
    optimized_for=tff_mf.OptimizedFor(rounds=8, participation=tff_mf.MinSep(min_sep=2, max_participations=3)),
)

ONCE = tff_mf.SingleParticipation()


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


def test_the_manifest_says_what_the_file_is(tmp_path):
    manifest, tensors = contents(B400, tmp_path)
    assert manifest.pop("sha256") == artifacts.digest(manifest, tensors)
    assert manifest == {
        "format_version": 1,
        "kind": "blt",
        "optimized_for": {
            "rounds": 4000,
            "participation": {"kind": "min_sep", "min_sep": 400, "max_participations": 5},
            "workload": {"kind": "prefix_sum"},
            "duality_gap": None,
            "converged": None,
            "sensitivity": {
                "value": pytest.approx(4.883132, rel=1e-6),
                "exact": True,
                "rule": "Toeplitz, non-increasing: McMahan et al. (2024), theorem 3.1",
            },
        },
        "versions": {"tff-mf": tff_mf.__version__, "numpy": np.__version__, "scipy": scipy.__version__},
    }
    assert {name: str(tensor.dtype) for name, tensor in tensors.items()} == {"theta": "float64", "omega": "float64"}


@pytest.mark.parametrize("converged", [None, False, True])
@pytest.mark.parametrize("duality_gap", [None, 0.0, 1e-5])
def test_the_status_of_the_search_comes_back(converged, duality_gap, tmp_path, file):
    optimized_for = dataclasses.replace(SMALL.optimized_for, converged=converged, duality_gap=duality_gap)
    mechanism = dataclasses.replace(SMALL, optimized_for=optimized_for)
    tff_mf.save(mechanism, file)
    assert tff_mf.load(file) == mechanism
    assert tff_mf.load(file).optimized_for.converged is converged
    known = {"converged": converged, "duality_gap": duality_gap}
    manifest, _ = contents(mechanism, tmp_path)
    assert {name: manifest["optimized_for"][name] for name in known} == known


SEARCHES = {
    "blt": lambda: tff_mf.optimize_blt(rounds=20, participation=ONCE, buffers=1),
    "scaled_blt": lambda: tff_mf.optimize_scaled_blt(rounds=20, participation=ONCE, buffers=1),
    "banded": lambda: tff_mf.optimize_banded(rounds=20, bands=3),
    "banded_toeplitz": lambda: tff_mf.optimize_banded_toeplitz(rounds=20, bands=3, participation=ONCE),
    "dense": lambda: tff_mf.optimize_dense(rounds=20, participation=ONCE),
    "structured": lambda: tff_mf.optimize_banded_plus_low_rank(
        mechanism=tff_mf.optimize_dense(rounds=20, participation=ONCE), diagonals=2, rank=2
    ),
}


@pytest.mark.parametrize("kind", SEARCHES)
def test_an_artifact_says_how_the_search_ended_and_no_details_of_it(kind, tmp_path):
    mechanism = SEARCHES[kind]()
    assert type(mechanism.optimized_for.converged) is bool
    search = dataclasses.replace(mechanism.optimized_for.search, seconds=1e9, message="another")
    other = dataclasses.replace(mechanism, optimized_for=dataclasses.replace(mechanism.optimized_for, search=search))
    assert (other, hash(other), repr(other)) == (mechanism, hash(mechanism), repr(mechanism))
    for name, each in (("mechanism", mechanism), ("other", other)):
        tff_mf.save(each, tmp_path / name)
    assert (tmp_path / "mechanism").read_bytes() == (tmp_path / "other").read_bytes()
    loaded = tff_mf.load(tmp_path / "other")
    assert loaded == mechanism
    assert loaded.optimized_for.search is None


@pytest.mark.parametrize(
    ("module", "kind", "limit"),
    [
        ("blt", "blt", "_STATIONARY"),
        ("_descent", "scaled_blt", "_STATIONARY"),
        ("_descent", "banded", "_STATIONARY"),
        ("_descent", "banded_toeplitz", "_STATIONARY"),
        ("dense", "dense", "_GAP"),
        ("banded_plus_low_rank", "structured", "_STATIONARY"),
    ],
)
def test_a_search_that_did_not_converge_says_so(module, kind, limit, monkeypatch):
    searched = importlib.import_module(f"tff_mf.optimize.{module}")
    monkeypatch.setattr(searched, limit, -1.0)
    if module == "_descent":
        monkeypatch.setattr(searched, "_STATIONARY_IF_ENDED", -1.0)
    assert SEARCHES[kind]().optimized_for.converged is False


def test_how_a_matrix_lies_in_memory_does_not_matter(tmp_path):
    matrix = np.tril(np.random.default_rng(0).random((40, 40)) / 10) + np.eye(40)
    optimized_for = tff_mf.OptimizedFor(rounds=40, participation=tff_mf.MinSep(min_sep=7, max_participations=4))
    for name, order in (("rows", "C"), ("columns", "F")):
        tff_mf.save(tff_mf.Dense(matrix=np.array(matrix, order=order), optimized_for=optimized_for), tmp_path / name)
    assert (tmp_path / "rows").read_bytes() == (tmp_path / "columns").read_bytes()
    assert np.array_equal(tff_mf.load(tmp_path / "columns").matrix, matrix)


def test_as_many_rates_as_a_workload_may_have_fit_into_a_file(file):
    workload = tff_mf.LearningRates(rates=np.random.default_rng(0).random(2**14))
    optimized_for = tff_mf.OptimizedFor(rounds=2**14, participation=tff_mf.SingleParticipation(), workload=workload)
    tff_mf.save(tff_mf.Identity(optimized_for=optimized_for), file)
    assert tff_mf.load(file).optimized_for.workload == workload


def test_a_setting_of_an_unknown_kind_is_not_written(file):
    class Workload(tff_mf.PrefixSum):
        pass

    class Schema(tff_mf.MinSep):
        pass

    once, schema = tff_mf.SingleParticipation(), Schema(min_sep=2, max_participations=2)
    for optimized_for, name in [
        (tff_mf.OptimizedFor(rounds=4, participation=once, workload=Workload()), "workload"),
        (tff_mf.OptimizedFor(rounds=4, participation=schema), "participation"),
    ]:
        with pytest.raises(InputTypeError, match=f"optimized_for.{name}="):
            tff_mf.save(tff_mf.Identity(optimized_for=optimized_for), file)
    assert not file.exists()


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


def test_every_truncation_is_refused(file):
    tff_mf.save(SMALL, file)
    intact = file.read_bytes()
    for length in range(len(intact)):
        file.write_bytes(intact[:length])
        refuse(file)


def test_trailing_bytes_are_refused(file):
    tff_mf.save(SMALL, file)
    file.write_bytes(file.read_bytes() + b"\0")
    refuse(file)


@given(st.binary(max_size=400))
def test_noise_is_refused(tmp_path_factory, data):
    file = tmp_path_factory.mktemp("noise") / "noise"
    file.write_bytes(data)
    refuse(file)
    file.write_bytes(struct.pack("<Q", len(data)) + data)
    refuse(file)


def header(text, data=b""):
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "data",
    {
        "empty": b"",
        "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
        "header of 2^63 bytes": struct.pack("<Q", 2**63) + b"{}",
        "header of 200 MB": struct.pack("<Q", 200 * 2**20) + b"{}",
        "huge tensor": header(b'{"theta":{"dtype":"F64","shape":[1099511627776],"data_offsets":[0,8796093022208]}}'),
        "huge empty tensor": header(b'{"theta":{"dtype":"F64","shape":[0,1099511627776],"data_offsets":[0,0]}}'),
        "overflowing shape": header(
            b'{"theta":{"dtype":"F64","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,8]}}', b"\0" * 8
        ),
        "overlapping tensors": header(
            b'{"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}',
            b"\0" * 8,
        ),
        "negative offsets": header(b'{"a":{"dtype":"F64","shape":[1],"data_offsets":[-8,0]}}', b"\0" * 8),
        "deep header": header(b"[" * 100_000 + b"]" * 100_000),
        "deep object": header(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        "list": header(b"[]"),
        "null": header(b"null"),
        "long number": header(b'{"a":' + b"1" * 10_000 + b"}"),
        "no metadata": header(b"{}"),
        "metadata of others": header(b'{"__metadata__":{"format":"pt"}}'),
        "metadata besides ours": header(b'{"__metadata__":{"tff_mf":"{}","format":"pt"}}'),
        "empty manifest": header(b'{"__metadata__":{"tff_mf":""}}'),
        "manifest of a list": header(b'{"__metadata__":{"tff_mf":"[]"}}'),
        "deep manifest": header(b'{"__metadata__":{"tff_mf":"' + b"[" * 100_000 + b"]" * 100_000 + b'"}}'),
        "repeated key": header(b'{"__metadata__":{"tff_mf":"{}"},"__metadata__":{"tff_mf":"{}"}}'),
        "not UTF-8": header(b'{"\xff\xfe":1}'),
    }.items(),
    ids=lambda pair: pair[0],
)
def test_bytes_that_no_save_wrote_are_refused(data, file):
    file.write_bytes(data[1])
    refuse(file)


def test_a_file_larger_than_any_artifact_is_refused_unread(file, monkeypatch):
    monkeypatch.setattr(artifacts, "MAX_FILE_BYTES", 1000)
    file.write_bytes(b"\0" * 1001)
    refuse(file, "1000")


# Damage of the content, with everything else right.


def changed(**entries):
    return lambda manifest: {**manifest, **entries}


def without(key):
    return lambda manifest: {name: value for name, value in manifest.items() if name != key}


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
        (changed(format_version=2, new_key=1), "format_version=2"),
        (changed(format_version=0), "format_version=0"),
        (changed(format_version=1.0), "format_version=1.0"),
        (changed(format_version="1"), "format_version='1'"),
        (changed(format_version=True), "format_version=True"),
        (without("format_version"), "format_version=None"),
        (changed(kind="staircase"), "kind='staircase'"),
        (changed(kind=None), "kind"),
        (changed(kind="identity"), "tensors"),
        (changed(kind="k" * 100_000), "kind="),
        (changed(comment="hello"), "comment"),
        (changed(versions=None), "versions"),
        (changed(versions={"scipy": 1.9}), "versions"),
        (without("versions"), "versions"),
        (changed(losses={"rms": 1.0, "max": 1.0}), "losses"),
        (setting(converged=1), "converged"),
        (setting(duality_gap=-1.0), "duality_gap"),
        (setting(duality_gap="0"), "duality_gap"),
        (without("optimized_for"), "optimized_for"),
        (changed(sensitivity={"value": 1.0, "exact": True, "rule": ""}), "sensitivity"),
        (setting(sensitivity=None), "sensitivity"),
        (changed(optimized_for=[]), "optimized_for"),
        (setting(rounds=4), "needs 5 rounds"),
        (setting(rounds=8.0), "rounds"),
        (setting(rounds=0), "rounds=0"),
        (setting(rounds=10**18), f"rounds={10**18}"),
        (setting(more=1), "more"),
        (setting(participation="min_sep"), "participation"),
        (schema(kind="poisson"), "kind='poisson'"),
        (schema(kind="min_sep"), "keys"),
        (schema(kind="single", min_sep=2), "keys"),
        (schema(kind="min_sep", min_sep=2, max_participations=3.5), "max_participations=3.5"),
        (schema(kind="min_sep", min_sep=2, max_participations=float("nan")), "NaN"),
        (schema(kind="fixed_epoch", min_sep=4, max_participations=3), "needs 9 rounds"),
        (setting(workload=None), "workload"),
        (setting(workload="momentum"), "workload"),
        (setting(workload={"kind": "sgd"}), "kind='sgd'"),
        (setting(workload={"kind": "momentum"}), "keys"),
        (setting(workload={"kind": "momentum", "momentum": 1.5}), "momentum=1.5"),
        (setting(workload={"kind": "prefix_sum", "momentum": 0.5}), "keys"),
        (setting(workload={"kind": "learning_rates", "rates": [1.0] * 7}), "rounds=8 exceeds the 7 rounds"),
        (setting(workload={"kind": "learning_rates", "rates": None}), "rates=None"),
        (setting(workload={"kind": "learning_rates", "rates": [None] * 8}), "rates"),
        (setting(workload={"kind": "learning_rates", "rates": {"warmup_rounds": 1}}), "keys"),
        # The claims that would mislead: a smaller sensitivity, or a milder setting at the old one.
        (claim(value=1.0), "sensitivity.*1.0"),
        (claim(value=0.0), "sensitivity"),
        (claim(value=-2.5), "sensitivity"),
        (claim(value="2"), "sensitivity"),
        (claim(value=None), "sensitivity"),
        (claim(value=100.0), "sensitivity.*100.0"),
        (claim(value=1.0, exact=False), "sensitivity.*1.0"),
        (claim(value=float("nan")), "NaN"),
        (claim(value=float("inf")), "Infinity"),
        (claim(exact=1), "exact"),
        (claim(rule=None), "rule"),
        (claim(source="me"), "source"),
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


def test_half_of_a_surrogate_pair_is_refused_as_a_key(tmp_path, file):
    """JSON allows it, and no library can show it in UTF-8."""
    manifest, tensors = contents(SMALL, tmp_path)
    forge(file, {**manifest, "\ud800": 1}, tensors)
    refuse(file, "surrogate")


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


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"theta": THETA},
        {"theta": THETA, "omega": OMEGA, "extra": OMEGA},
        {"theta": THETA, "Omega": OMEGA},
        {"theta": THETA.astype(np.float32), "omega": OMEGA},
        {"theta": THETA.astype(np.float16), "omega": OMEGA},
        {"theta": THETA.view(np.int64), "omega": OMEGA},
        {"theta": THETA[:, None], "omega": OMEGA},
        {"theta": THETA[:1], "omega": OMEGA},
        {"theta": THETA[:0], "omega": OMEGA[:0]},
        {"theta": np.array(0.5), "omega": np.array(0.5)},
        {"theta": THETA, "omega": np.array([np.nan, 0.1])},
        {"theta": THETA, "omega": np.array([np.inf, 0.1])},
        {"theta": np.array([1.5, 0.5]), "omega": OMEGA},
        {"theta": THETA, "omega": -OMEGA},
        {"theta": THETA, "omega": 2 * OMEGA},
    ],
)
def test_other_tensors_are_refused_although_the_hash_is_right(tensors, tmp_path, file):
    manifest, _ = contents(SMALL, tmp_path)
    forge(file, manifest, tensors)
    refuse(file)


def test_identity_with_tensors_is_refused(tmp_path, file):
    manifest, _ = contents(tff_mf.Identity(), tmp_path)
    forge(file, manifest, {"theta": THETA})
    refuse(file, "tensors")


@pytest.mark.parametrize("tensors", [{"theta": OMEGA, "omega": THETA / 4}, {"theta": THETA, "omega": OMEGA / 2}])
def test_a_wrong_hash_is_refused(tensors, tmp_path, file):
    manifest, _ = contents(SMALL, tmp_path)
    forge(file, manifest, tensors, sign=False)
    refuse(file, "sha256")
    forge(file, {**manifest, "sha256": hashlib.sha256().hexdigest()}, {"theta": THETA, "omega": OMEGA}, sign=False)
    refuse(file, "sha256")


# Paths.


def test_paths_that_cannot_be_read_are_refused(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "plain" / "below", tmp_path / "pipe"):
        refuse(path)


@pytest.mark.parametrize("name", ["", "folder", "missing/file", "plain/below", "n" * 300, "nul\0", "\ud800"])
def test_paths_that_cannot_be_written_are_refused(name, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain").write_bytes(b"plain")
    path = os.path.join(tmp_path, name) if name else ""
    with pytest.raises(InputValueError, match="path="):
        tff_mf.save(B400, path)
    assert sorted(os.listdir(tmp_path)) == ["folder", "plain"]
    assert (tmp_path / "plain").read_bytes() == b"plain"


def test_overwriting_can_be_forbidden(file):
    tff_mf.save(B400, file, overwrite=False)
    before = file.read_bytes()
    with pytest.raises(InputValueError, match=file.name):
        tff_mf.save(SMALL, file, overwrite=False)
    assert file.read_bytes() == before
    tff_mf.save(SMALL, file)
    assert tff_mf.load(file) == SMALL
    assert os.listdir(file.parent) == [file.name]


def test_a_link_is_written_through(tmp_path, file):
    (tmp_path / "link").symlink_to(file)
    tff_mf.save(B400, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert tff_mf.load(file) == B400


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("disk full"), SystemExit])
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_interrupted_save_leaves_what_was_there(step, error, file, monkeypatch):
    tff_mf.save(SMALL, file)
    before = file.read_bytes()

    def fail(*arguments):
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises((KeyboardInterrupt, SystemExit, InputValueError)):
        tff_mf.save(B400, file)
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]
