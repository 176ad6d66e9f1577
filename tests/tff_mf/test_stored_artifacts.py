"""Artifacts of earlier versions hold the same mechanisms, with the same sensitivity, and are saved again unchanged."""

import json
import numbers
import pathlib

import click.testing
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import tff_mf
from tff_mf.experiments.cli import cli

SETTING = ("--rounds", "9", "--min-sep", "3", "--max-participations", "3")
KINDS = {"BLT", "Banded", "BandedToeplitz", "BandedInverse", "Dense", "Structured", "Tree", "Identity"}


@pytest.fixture(scope="module")
def expected(stored):
    """What each artifact was when it was stored, by the name of its file."""
    return json.loads((stored.folder / "artifacts" / "expected.json").read_text())


def files(stored):
    return {path.stem: path for path in (stored.folder / "artifacts").glob("*.safetensors")}


def manifest(path):
    with safetensors.safe_open(path, framework="numpy") as opened:
        return json.loads(opened.metadata()["tff_mf"])


def test_a_version_is_stored():
    # Without one, pytest would skip all tests of stored files.
    assert list((pathlib.Path(__file__).parents[1] / "stored").glob("*/about.json"))


def test_every_kind_is_stored(stored, expected):
    assert {each["class"] for each in expected.values()} >= KINDS
    assert files(stored).keys() == expected.keys()
    optimized = [manifest(path)["made_for"] for path in files(stored).values()]
    assert {"duality_gap", "converged", "workload"} <= {key for each in optimized if each for key in each}


def test_it_is_loaded_as_the_same_mechanism(stored, expected):
    participation = tff_mf.MinSep(min_sep=3, max_participations=3)
    for name, path in files(stored).items():
        mechanism = tff_mf.load(path)
        assert type(mechanism).__name__ == expected[name]["class"]
        np.testing.assert_allclose(mechanism.encoder(9), expected[name]["encoder"], rtol=1e-12, atol=1e-14)
        found = tff_mf.sensitivity(mechanism, 9, participation)
        assert found == pytest.approx(expected[name]["sensitivity"], rel=1e-12), name
        assert tff_mf.artifacts.content_digest(mechanism).hex() == expected[name]["digest"], name


def test_it_is_saved_again_unchanged(stored, tmp_path):
    for name, path in files(stored).items():
        tff_mf.save(tff_mf.load(path), tmp_path / name)
        tensors, again = (safetensors.numpy.load_file(each) for each in (path, tmp_path / name))
        assert tensors.keys() == again.keys()
        assert all(np.array_equal(tensors[key], again[key]) for key in tensors)
        one, other = manifest(path), manifest(tmp_path / name)
        assert one.keys() == other.keys()
        for key in ("format_version", "kind", "made_for"):
            assert one[key] == other[key], (name, key)
        for key in ("sensitivity", "losses"):
            assert (one[key] is None) == (other[key] is None)
            for field, value in (one[key] or {}).items():
                # The name of a rule is text for readers.
                if isinstance(value, numbers.Number):
                    assert other[key][field] == pytest.approx(value, rel=1e-9), (name, field)


def test_show_prints_the_same_numbers_of_it(stored, expected):
    for name, path in files(stored).items():
        result = click.testing.CliRunner().invoke(cli, ["show", str(path), *SETTING, "--json"])
        assert result.exit_code == 0, result.output
        shown = json.loads(result.output)
        assert shown.keys() >= expected[name]["shown"].keys()
        for key, value in expected[name]["shown"].items():
            if isinstance(value, numbers.Number):
                assert shown[key] == pytest.approx(value, rel=1e-9), (name, key)


@pytest.mark.parametrize("name", ["blt", "dense"])
def test_a_changed_one_is_refused(stored, tmp_path, name):
    content = bytearray((stored.folder / "artifacts" / f"{name}.safetensors").read_bytes())
    content[-2] ^= 1
    (tmp_path / "changed.safetensors").write_bytes(content)
    with pytest.raises(tff_mf.ArtifactError, match="sha256"):
        tff_mf.load(tmp_path / "changed.safetensors")
