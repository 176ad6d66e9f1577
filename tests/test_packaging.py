"""Builds of a commit: the sdist builds the same wheel, the metadata is correct, the version names the commit."""

import email.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tff_mf import _version

HERE = pathlib.Path(__file__).resolve().parent.parent
NOT_OURS = (
    ".git",
    ".venv*",
    "build",
    "dist",
    "runs",
    "__pycache__",
    "*.egg-info",
    ".*cache",
    ".hypothesis",
    "PKG-INFO",
)
# Read by CI and git only.
NOT_SHIPPED = {".ci/run", ".gitignore"}
BUILD = "import sys; from setuptools import build_meta; build_meta.build_sdist('out'); build_meta.build_wheel('out')"
LAYERS = """
import importlib.util
import tff_mf
from tff_mf import experiments
print(tff_mf.__file__, experiments.__file__, importlib.util.find_spec("tff_mf.aggregators").origin)
print(tff_mf.__version__)
print([name for name in ("docs", "setup", "tests", "tff_mf") if importlib.util.find_spec(f"tff_mf.{name}")])
"""

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="a version needs git")


def git(folder, *words):
    return subprocess.run(
        ["git", "-C", folder, "-c", "user.name=A", "-c", "user.email=a@example.com", *words],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def commit(folder):
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=x")
    return git(folder, "rev-parse", "--short=12", "HEAD")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A repository with one commit of the whole checkout."""
    folder = tmp_path_factory.mktemp("packaging") / "checkout"
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns(*NOT_OURS))
    git(folder.parent, "init", "--quiet", folder)
    commit(folder)
    return folder


def build(folder):
    subprocess.run([sys.executable, "-c", BUILD], cwd=folder, check=True, capture_output=True)
    (sources,) = (folder / "out").glob("*.tar.gz")
    (wheel,) = (folder / "out").glob("*.whl")
    return sources, wheel


@pytest.fixture(scope="module")
def built(checkout):
    """The sdist and the wheel of a clone of the checkout."""
    clone = checkout.parent / "clone"
    git(checkout.parent, "clone", "--quiet", checkout, clone)
    return build(clone)


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
    assert {name for name in tracked - NOT_SHIPPED if not (unpacked / name).is_file()} == set()
    _, again = build(unpacked)
    assert (again.name, again.read_bytes()) == (wheel.name, wheel.read_bytes())


def test_two_builds_are_equal_to_the_byte_wherever_and_whenever(checkout, built, tmp_path):
    other = tmp_path / "elsewhere"
    git(tmp_path, "clone", "--quiet", checkout, other)
    for path in (other / "LICENSE", *(other / "tff_mf").rglob("*.py")):
        os.utime(path, (10**9, 10**9))
        path.chmod(0o600)
    # Left by an earlier build: a module that no longer exists.
    (other / "build" / "lib" / "tff_mf").mkdir(parents=True)
    (other / "build" / "lib" / "tff_mf" / "gone.py").touch()
    git(other, "config", "core.fileMode", "false")
    assert [each.read_bytes() for each in build(other)] == [each.read_bytes() for each in built]


def test_metadata(metadata, built):
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Author"]
    assert metadata["Keywords"]
    assert set(metadata.get_all("Provides-Extra")) == {"aes", "flower", "fuzz", "plot", "test"}
    assert all(url.split(", ")[1].startswith("https://arxiv.org/abs/") for url in metadata.get_all("Project-URL"))
    with zipfile.ZipFile(built[1]) as wheel:
        names = {re.sub(r"^tff_mf-[^/]*\.dist-info/", "", name) for name in wheel.namelist()}
        schema = "tff_mf/experiments/bundles/device-policy.schema.json"
        assert {"licenses/LICENSE", "tff_mf/py.typed", "tff_mf/requirements.txt", schema} <= names
        assert {name.split("/")[0] for name in names if name.endswith(".py")} == {"tff_mf"}


def test_only_pythons_that_are_tested_are_claimed(metadata):
    classifiers = metadata.get_all("Classifier")
    named = {each.rsplit(" ", 1)[1] for each in classifiers if re.search(r":: Python :: 3\.\d+$", each)}
    allowed = {
        f"3.{minor}" for minor in range(30) if Version(f"3.{minor}.5") in SpecifierSet(metadata["Requires-Python"])
    }
    assert named == allowed == {"3.11", "3.12", "3.13"}
    assert "Typing :: Typed" in classifiers


def test_the_links_of_the_description_are_valid(metadata, checkout):
    text = metadata.get_payload()
    assert [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("https://")] == []
    named = re.findall(r"\]\(([^)]+)\)", (checkout / "README.md").read_text())
    relative = [path for path in named if not path.startswith("https://")]
    assert relative
    for path in relative:
        file, _, _ = path.partition("#")
        assert (checkout / file).is_file(), path
        assert f"`{file}`" in text, path
    assert ".md#" not in text


def test_the_citation_has_the_required_fields_and_the_papers_of_the_metadata():
    text = (HERE / "CITATION.cff").read_text()
    keys = dict(re.findall(r"^([a-z-]+):(.*)$", text, re.M))
    assert {"cff-version", "message", "title", "authors"} <= set(keys)
    assert keys["cff-version"].strip() == "1.2.0"
    urls = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]["urls"]
    assert re.findall(r"^    url: (.*)$", text, re.M) == list(urls.values())
    assert text.count("\n    year: ") == text.count("\n  - type: ") == len(urls)


def test_versions_differ_between_commits_and_mark_changes(checkout, built, tmp_path):
    folder = tmp_path / "checkout"
    git(tmp_path, "clone", "--quiet", checkout, folder)
    first = _version.of_sources(folder)
    assert first == f"{_version.RELEASE}.dev1+g{git(folder, 'rev-parse', '--short=12', 'HEAD')}"
    assert f"tff_mf-{first}-py3-none-any.whl" == built[1].name
    (folder / "docs" / "notes.md").touch()
    assert _version.of_sources(folder) == first
    (folder / "tff_mf" / "new.py").touch()
    assert _version.of_sources(folder) == f"{first}.dirty"
    second = commit(folder)
    assert _version.of_sources(folder) == f"{_version.RELEASE}.dev2+g{second}"
    assert Version(_version.of_sources(folder)) > Version(first)
    git(folder, "tag", f"v{_version.RELEASE}")
    assert _version.of_sources(folder) == _version.RELEASE
    (folder / "setup.py").write_text("")
    assert _version.of_sources(folder) == f"{_version.RELEASE}.dev2+g{second}.dirty"


def test_no_version_is_taken_from_an_enclosing_repository(checkout, tmp_path, monkeypatch):
    inner = checkout / "tests"
    assert _version.of_sources(inner) == f"{_version.RELEASE}.dev0+unknown"
    monkeypatch.setenv("GIT_DIR", str(checkout / ".git"))  # As in a hook.
    assert _version.of_sources(tmp_path) == f"{_version.RELEASE}.dev0+unknown"


@pytest.fixture(scope="module")
def installed(built):
    """A folder with the wheel installed."""
    folder = built[1].parent.parent.parent / "installed"
    with zipfile.ZipFile(built[1]) as wheel:
        wheel.extractall(folder)
    return folder


def run(code, folder, installed):
    """Returns the output of Python in a folder, with the wheel installed beside this checkout."""
    surroundings = {**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=surroundings, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


def test_in_the_root_of_a_checkout_all_layers_are_those_of_the_checkout(checkout, installed):
    files, version, more = run(LAYERS, checkout, installed)
    assert files.split() == [
        str(checkout / layer / "__init__.py") for layer in ("tff_mf", "experiments", "aggregators")
    ]
    assert version == _version.of_sources(checkout)
    assert more == "[]"


def test_elsewhere_all_layers_are_the_installed_ones(built, installed, tmp_path):
    files, version, more = run(LAYERS, tmp_path, installed)
    inner = ("__init__.py", "experiments/__init__.py", "aggregators/__init__.py")
    assert files.split() == [str(installed / "tff_mf" / path) for path in inner]
    assert built[1].name == f"tff_mf-{version}-py3-none-any.whl"
    assert more == "[]"


def test_the_version_is_shown_and_recorded(checkout, installed, tmp_path):
    show = "import sys; sys.argv = ['tff-mf', '--version']; from tff_mf.experiments.cli import main; main()"
    (line,) = run(show, checkout, installed)
    assert line == f"tff-mf, version {_version.of_sources(checkout)}"
    record = (
        "import tff_mf; from tff_mf.experiments.run_folder import versions\n"
        "from tff_mf.artifacts import _manifest\n"
        "print(versions.versions()['tff-mf'], _manifest._release('tff-mf'))"
    )
    (line,) = run(record, checkout, installed)
    assert line.split() == 2 * [_version.of_sources(checkout)]
