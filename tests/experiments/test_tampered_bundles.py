"""Bundles that somebody changed, manifest and all: a sample of what `python tests/fuzz bundles` tries."""

import json
import pathlib
import shutil
import stat

import pytest
import tampered_bundles
import tampering
import tampering_graphs
import tampering_ways
from click.testing import CliRunner

from tff_mf.experiments import bundles, reports
from tff_mf.experiments.bundles import runner, verification
from tff_mf.experiments.cli import cli

from .shared import result_of

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


def verified(folder, *arguments):
    return CliRunner().invoke(cli, ["verify", *map(str, (folder, *arguments))])


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


# Long: the test above compares two exports of one setting.
@pytest.mark.long
@pytest.mark.parametrize(
    ("chosen", "integers"),
    [
        ('model = "lstm"\nmechanism = "banded"\nbands = 4\ngrid = "none"', None),
        ('model = "lstm"\nmechanism = "tree-full"', "int32"),
        ('model = "conv"\nmechanism = "blt"\nbuffers = 2\ngrid = 20', "int64"),
    ],
)
def test_bundles_of_other_settings_are_exported_again_to_the_byte(chosen, integers, small_data, tmp_path):
    """By both commands, each of which builds the graphs in a process of its own."""
    config = tmp_path / "settings.toml"
    config.write_text(
        f'[run]\ndataset = "sqlite:{small_data}"\nclients_per_round = 2\ndelta = 1e-6\nrounds = 32\nmin_sep = 8\n'
        "max_participations = 4\nnoise_multiplier = 8.0\nvocab_size = 60\nembedding_size = 4\nunits = 4\n"
        f"batch_size = 2\nmax_examples = 4\n{chosen}\n"
    )
    made = result_of("export", config, "--out", tmp_path / "new", "--longest-round", 15, "--population", 80)
    assert (made["grid"] or {"integers": None})["integers"] == integers
    found = result_of("verify", tmp_path / "new", "--digest", made["digest"])
    assert (found["refused"], found["rounds"]) == ([], 3)


def test_files_that_are_given_rest_on_the_digest(bundle, exported_again, material, tmp_path, monkeypatch):
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
    assert found.rounds == 2
    assert len(ran) == 1
    assert ran[0] != tmp_path / "bundle"
    assert built == []
    assert {name: kind for name, kind in found.rests_on.items() if kind != "rebuilt"} == {
        "run.json": "digest only",
        "vocabulary.json": "digest only",
        "mechanism.safetensors": "checked against run.json",
    }
    assert found.rests_on.keys() == {*bundles.read_manifest(bundle.folder)[0].files, "manifest.json"}


@pytest.mark.sampled(most=8)
@pytest.mark.parametrize(
    "way", sampled((*tampering_graphs.WAYS, *tampering_ways.FILES_EXCHANGED, *tampering_ways.RUNNERS))
)
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


@pytest.mark.parametrize("way", tampering_ways.FOLDERS, ids=lambda way: way.name)
def test_a_tampered_folder_is_refused_in_one_line_and_by_the_runner(way, tampered):
    folder = tampered(way)
    for each in (found := bundles.refusals(folder)):
        assert (each.file + each.reason).isprintable()
        assert len(each.reason) < 300
    # What a manifest names that export does not write is for `verify` to find.
    if found[0].file != "manifest.json" or not way.listed:
        with pytest.raises(runner.InputError):
            runner.check_files(folder)


@pytest.mark.parametrize("way", tampering_ways.MANIFESTS, ids=lambda way: way.name)
def test_a_tampered_manifest_is_refused_in_one_line_and_its_lists_by_the_runner(way, tampered):
    folder = tampered(way)
    (found,) = bundles.refusals(folder)
    file = {"by one": "runner.pyz", "another hash": "run.json"}
    assert found.file == next((file[each] for each in file if each in way.name), "manifest.json")
    assert found.reason.isprintable()
    if way in tampering_ways.LISTS:
        with pytest.raises(runner.InputError):
            runner.start(folder.parent / "run", folder)
        assert not (folder.parent / "run").exists()


@pytest.mark.parametrize(
    "way",
    sampled([way for way in (*tampering_ways.STATEMENTS, *tampering_ways.POLICIES) if way.name != "another artifact"]),
)
def test_a_statement_that_does_not_follow_is_refused_without_tensorflow(way, tampered):
    assert bundles.refusals(tampered(way))


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(next(way for way in ways if not way.needs), id=name)
        for name, ways in tampering_ways.GROUPS.items()
        if name != "graphs, forms and models of another bundle"
    ],
)
def test_the_digest_detects_every_kind(way, bundle, tampered):
    """Without a look at any graph; another name of the task, which nothing else finds, too."""
    found = verified(tampered(way), "--files-only", "--digest", bundle.digest, "--json")
    assert (found.exit_code, json.loads(found.stdout)["verified"]) == (1, False)


def test_what_protects_a_bundle_is_the_digest_alone(bundle):
    for arguments, by in (((), None), (("--digest", bundle.digest), "digest")):
        assert json.loads(verified(bundle.folder, "--files-only", "--json", *arguments).stdout)["protected_by"] == by
        shown = verified(bundle.folder, "--files-only", *arguments).stdout
        assert f"\nprotected  {'by the digest' if by else 'not against'}" in shown
    other = json.loads(verified(bundle.folder, "--files-only", "--json", "--digest", 64 * "0").stdout)
    assert (other["verified"], other["protected_by"]) == (False, None)


def test_files_of_other_versions_rest_on_the_digest(bundle, exported_again, material, tampered, tmp_path):
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
        shown = verified(folder, "--digest", bundles.read_manifest(folder)[1]).stdout
    assert refused.file == "server/update/saved_model.pb"
    assert "made with tensorflow 2.13.0 (here: 2.14.1): verify it with those" in refused.reason
    assert with_digest.refused == []
    assert with_digest.rests_on["server/update/saved_model.pb"] == "digest only"
    assert with_digest.rounds == 0
    assert "verified, its files only, nothing was run" in " ".join(shown.split())
    assert "rounds in TensorFlow" not in shown
    assert with_digest.rests_on["server/merge/saved_model.pb"] == "rebuilt"


def test_the_digest_is_that_of_what_was_checked(bundle, tmp_path, monkeypatch):
    """Whatever the folder has become meanwhile: an operator keeps the digest that is printed."""
    folder = tmp_path / "copy"
    shutil.copytree(bundle.folder, folder)
    check = bundles.check_files

    def exchanged(*given, **options):
        found = check(*given, **options)
        (folder / "manifest.json").write_text("{}")
        return found

    monkeypatch.setattr(bundles, "check_files", exchanged)
    shown = json.loads(verified(folder, "--files-only", "--json").stdout)
    assert (shown["verified"], shown["digest"]) == (True, bundle.digest)


def test_the_guarantee_of_a_bundle_is_shown(bundle, tmp_path):
    planned = json.loads((bundle.folder / "planned.json").read_text())
    shown = verified(bundle.folder, "--files-only")
    assert f"guarantee {reports.headline(planned)}" in " ".join(shown.stdout.split())
    assert json.loads(verified(bundle.folder, "--files-only", "--json").stdout)["headline"] == reports.headline(planned)
