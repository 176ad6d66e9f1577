"""Bundles that somebody changed, manifest and all: a sample of what `tests/fuzz/tampered_bundles.py` tries."""

import pathlib
import shutil
import stat
import sys

import pytest

from tff_mf.experiments import bundles
from tff_mf.experiments.bundles import verification

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "fuzz"))
import tampered_bundles
import tampering
import tampering_graphs
import tampering_ways

EVERY = 3


def sampled(ways):
    """Every third way in CI, and all of them with --long."""
    return [
        pytest.param(way, id=way.name, marks=[pytest.mark.long] if place % EVERY else [])
        for place, way in enumerate(ways)
    ]


@pytest.fixture
def material(bundle):
    return tampering.Material(base=bundle.folder)


@pytest.fixture
def tampered(material, tmp_path):
    """Returns the bundle, changed in one way."""

    def change(way):
        shutil.copytree(material.base, tmp_path / "tampered")
        way.apply(tmp_path / "tampered", material)
        return tmp_path / "tampered"

    yield change
    tampered_bundles.removed(tmp_path / "tampered")


def files_of(folder):
    found = {path.relative_to(folder): path for path in folder.rglob("*")}
    return {
        name: (stat.S_IMODE(path.stat().st_mode), path.read_bytes() if path.is_file() else None)
        for name, path in found.items()
    }


def test_two_exports_are_equal_to_the_byte(bundle, exported_again):
    """One of a file of settings, one of the folder of a run, by the command, elsewhere and later."""
    one, other = files_of(bundle.folder), files_of(exported_again)
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == []


def test_a_bundle_rests_on_what_it_was_made_of(bundle, exported_again, material, tmp_path, monkeypatch):
    """And what is run is a copy: of what becomes of the bundle after it was checked, nothing is believed."""
    shutil.copytree(bundle.folder, tmp_path / "bundle")
    from tff_mf.experiments.bundles import _rounds

    ran, run = [], _rounds.run

    def run_later(folder, rounds):
        (tmp_path / "bundle" / "server" / "update" / "saved_model.pb").write_bytes(b"something else")
        ran.append(folder)
        return run(folder, rounds)

    monkeypatch.setattr(_rounds, "run", run_later)
    with tampered_bundles.built_once(material, exported_again, tmp_path) as built:
        found = verification.verify(tmp_path / "bundle", rounds=2, digest=bundle.digest)
    assert found.refused == []
    assert len(ran) == 1
    assert ran[0] != tmp_path / "bundle"
    assert built == []
    assert {name: kind for name, kind in found.rests_on.items() if kind != "rebuilt"} == {
        "run.json": "digest only",
        "vocabulary.json": "digest only",
        "configuration.toml": "checked against run.json",
        "mechanism.safetensors": "checked against run.json",
    }
    assert found.rests_on.keys() == {*bundles.read_manifest(bundle.folder)[0].files, "manifest.json"}


@pytest.mark.parametrize("way", sampled((*tampering_graphs.WAYS, *tampering_ways.FILES_EXCHANGED)))
def test_a_graph_that_is_not_equal_is_refused_and_never_loaded(
    way, bundle, exported_again, material, tampered, tmp_path, monkeypatch
):
    folder = tampered(way)
    import tensorflow as tf

    def loaded(*arguments, **more):
        raise AssertionError(f"{arguments} was loaded")

    for place, name in ((tf.saved_model, "load"), (tf.lite, "Interpreter")):
        monkeypatch.setattr(place, name, loaded)
    with tampered_bundles.built_once(material, exported_again, tmp_path):
        found = verification.verify(folder, rounds=1)
    assert found.refused
    assert verification.verify(folder, digest=bundle.digest).refused[0].file == "manifest.json"
    assert not pathlib.Path(tampering_graphs.WRITTEN).exists()


@pytest.mark.parametrize("way", sampled(tampering_ways.FOLDERS))
def test_a_folder_that_is_none_of_export_is_refused_in_one_line(way, tampered):
    (first, *more) = bundles.refusals(tampered(way))
    for each in (first, *more):
        assert (each.file + each.reason).isprintable()
        assert len(each.reason) < 300


@pytest.mark.parametrize(
    "way", sampled([way for way in tampering_ways.MANIFESTS if way.name in tampering_ways.FOUND_IN_FILES])
)
def test_a_manifest_that_is_none_is_refused_in_one_line(way, tampered):
    (found,) = bundles.refusals(tampered(way))
    assert found.file == "manifest.json"
    assert found.reason.isprintable()


@pytest.mark.parametrize(
    "way",
    sampled(
        [
            way
            for way in (*tampering_ways.STATEMENTS, *tampering_ways.POLICIES)
            if way.name in tampering_ways.FOUND_IN_FILES
        ]
    ),
)
def test_a_statement_that_does_not_follow_is_refused_without_tensorflow(way, tampered):
    assert bundles.refusals(tampered(way))


def test_versions_of_old_are_refused_by_name(tampered):
    way = next(way for way in tampering_ways.MANIFESTS if way.name == "a version of old")
    assert (
        "version 1 of the format, and this release reads version 2: export" in bundles.refusals(tampered(way))[0].reason
    )


def test_what_other_versions_made_rests_on_the_digest(bundle, exported_again, material, tampered, tmp_path):
    """A bundle that this TensorFlow would make otherwise is refused, unless its digest is known; and is not run."""
    way = tampering.Way(
        name="",
        change=tampering.together(
            tampering.edited("run.json", lambda run: run["versions"].update(tensorflow="2.13.0")),
            tampering.manifested(lambda manifest: manifest["versions"].update(tensorflow="2.13.0")),
            tampering.written("server/update/saved_model.pb", lambda old: old + b"\xf8\x7f\x01"),
        ),
        reported=True,
    )
    folder = tampered(way)
    again = tmp_path / "again"
    shutil.copytree(exported_again, again)
    for name in ("run.json", "planned.json", "planned.md"):
        shutil.copy2(folder / name, again / name)
    tampering.manifested(lambda manifest: manifest["versions"].update(tensorflow="2.13.0"))(again, material)
    tampering.listed(again)
    other = tampering.Material(base=folder)
    with tampered_bundles.built_once(other, again, tmp_path):
        (refused,) = verification.verify(folder, rounds=1).refused
        with_digest = verification.verify(folder, rounds=1, digest=bundles.read_manifest(folder)[1])
    assert refused.file == "server/update/saved_model.pb"
    assert "made with tensorflow 2.13.0 (here: 2.14.1): verify it with those" in refused.reason
    assert with_digest.refused == []
    assert with_digest.rests_on["server/update/saved_model.pb"] == "digest only"
    assert with_digest.rests_on["server/merge/saved_model.pb"] == "rebuilt"


def test_there_are_ways_enough():
    assert len(tampering_ways.WAYS) >= 60
    assert len({way.name for way in tampering_ways.WAYS}) == len(tampering_ways.WAYS)
    assert {way.name for way in tampering_ways.WAYS} >= tampering_ways.FOUND_IN_FILES
