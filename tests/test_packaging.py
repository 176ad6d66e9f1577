"""Builds of a commit: the sdist builds the same wheel, the metadata is correct, the version names the commit."""

import email.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from . import installation

HERE = pathlib.Path(__file__).resolve().parent.parent
BUILD = """
import sys
from setuptools import build_meta
for kind in sys.argv[1:]:
    getattr(build_meta, f"build_{kind}")("out")
"""
ENDINGS = {"sdist": "*.tar.gz", "wheel": "*.whl"}

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="a version needs git")


def git(folder, *words):
    return subprocess.run(
        ["git", "-C", folder, "-c", "user.name=A", "-c", "user.email=a@example.com", *words],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A repository with one commit of the whole checkout."""
    folder = tmp_path_factory.mktemp("packaging") / "checkout"
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns(".git", "PKG-INFO", *installation.NOT_OURS))
    git(folder.parent, "init", "--quiet", folder)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=x")
    return folder


def build(folder, *kinds):
    surroundings = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run([sys.executable, "-c", BUILD, *kinds], cwd=folder, env=surroundings, check=True, capture_output=True)
    return [next((folder / "out").glob(ENDINGS[kind])) for kind in kinds]


@pytest.fixture(scope="module")
def built(checkout):
    """The sdist and the wheel of a clone of the checkout."""
    clone = checkout.parent / "clone"
    git(checkout.parent, "clone", "--quiet", checkout, clone)
    return build(clone, "sdist", "wheel")


@pytest.fixture(scope="module")
def metadata(built):
    with zipfile.ZipFile(built[1]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return email.parser.HeaderParser().parsestr(wheel.read(name).decode())


def test_the_sdist_has_all_files_and_builds_the_same_wheel(checkout, built, tmp_path):
    sources, wheel = built
    with tarfile.open(sources) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    tracked = set(git(checkout, "ls-files").splitlines())
    assert {name for name in tracked if not (unpacked / name).is_file()} == set()
    # Left by an earlier build: a module that no longer exists.
    (unpacked / "build" / "lib" / "tff_mf").mkdir(parents=True)
    (unpacked / "build" / "lib" / "tff_mf" / "gone.py").touch()
    (again,) = build(unpacked, "wheel")
    assert (again.name, again.read_bytes()) == (wheel.name, wheel.read_bytes())


def test_metadata(metadata, built):
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra")) == {"aes", "flower", "jax", "plot", "test", "torch"}
    assert all(url.split(", ")[1].startswith("https://arxiv.org/abs/") for url in metadata.get_all("Project-URL"))
    with zipfile.ZipFile(built[1]) as wheel:
        names = {re.sub(r"^tff_mf-[^/]*\.dist-info/", "", name) for name in wheel.namelist()}
        assert {"licenses/LICENSE", "tff_mf/py.typed", "tff_mf/requirements.txt"} <= names
        assert {name.split("/")[0] for name in names if name.endswith(".py")} == {"tff_mf"}


def version_of(folder):
    """Returns the version that a build in a folder would have."""
    done = subprocess.run(
        [sys.executable, "-m", "setuptools_scm"], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_versions_name_the_commit_and_the_release(checkout, built, tmp_path):
    folder = tmp_path / "checkout"
    git(tmp_path, "clone", "--quiet", checkout, folder)
    first = version_of(folder)
    base, commit = first.split("+g")
    assert base == "0.1.0.dev1"
    assert git(folder, "rev-parse", "HEAD").startswith(commit)
    assert built[1].name == f"tff_mf-{first}-py3-none-any.whl"
    (folder / "setup.py").write_text("")
    assert re.fullmatch(re.escape(first) + r"\.d\d{8}", version_of(folder))
    git(folder, "checkout", "--quiet", ".")
    git(folder, "tag", "v0.1.0")
    assert version_of(folder) == "0.1.0"
