"""Installs three layers, kept apart at the top of the checkout, under the one import name `tff_mf`.

What is the same in every build is in pyproject.toml. Two builds of one commit are equal to the byte.
"""

import gzip
import os
import pathlib
import re
import runpy
import shutil
import tarfile

import setuptools
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).parent
LAYERS = {"tff_mf": "tff_mf", "tff_mf.aggregators": "aggregators", "tff_mf.experiments": "experiments"}
VERSION = runpy.run_path(str(HERE / "tff_mf" / "_version.py"))
DATE = int(os.environ.setdefault("SOURCE_DATE_EPOCH", str(VERSION["seconds_of_sources"](HERE) or 0)))

# The files of metadata keep the permissions that they are made with.
os.umask(0o022)

IN_SOURCES = "Files that are named here without a link are in the source distribution of this version.\n\n"


class BuildWithPins(build_py):
    """Puts the pins into the wheel: `tff-mf doctor --requirements` prints them where there is no checkout."""

    def run(self) -> None:
        if self.editable_mode:
            super().run()
            return
        built = pathlib.Path(self.build_lib)
        # What an earlier build left would be installed again, modules that are gone by now included.
        shutil.rmtree(built, ignore_errors=True)
        super().run()
        shutil.copy(HERE / "requirements.txt", built / "tff_mf" / "requirements.txt")
        _readable(built)


class SameWheel(bdist_wheel):
    """Writes wheels in which no permission is that of a file in somebody's checkout."""

    def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
        super().egg2dist(egginfo_path, distinfo_path)
        _readable(pathlib.Path(distinfo_path))


class WithLicense(egg_info):
    """Names the license as setuptools does by itself only with a newer `packaging` than TensorFlow Federated's pin."""

    def run(self) -> None:
        self.distribution.metadata.license_expression = self.distribution.metadata.license
        super().run()


class SameSources(sdist):
    """Writes archives without what differs from build to build: times, owners, permissions."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):
        if format != "gztar":
            return super().make_archive(base_name, format, root_dir, base_dir, owner, group)
        path = pathlib.Path(f"{base_name}.tar.gz")
        path.parent.mkdir(parents=True, exist_ok=True)
        files = sorted(each for each in pathlib.Path(base_dir).rglob("*") if each.is_file())
        with (
            path.open("wb") as raw,
            gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=DATE) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for each in files:
                archive.add(each, filter=_plain)
        return str(path)


def _readable(folder: pathlib.Path) -> None:
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = DATE
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry


def packages() -> list[str]:
    found = []
    for name, folder in LAYERS.items():
        found.append(name)
        found.extend(f"{name}.{inner}" for inner in setuptools.find_packages(str(HERE / folder)))
    return found


def description() -> str:
    """Returns the README without the links that lead nowhere outside of the sources."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    heading, rest = text.split("\n\n", 1)
    linked = re.sub(r"!?\[([^]]+)\]\((?!https?://|#)([^)]+)\)", _named, rest)
    return f"{heading}\n\n{IN_SOURCES}{linked}"


def _named(link: re.Match[str]) -> str:
    text, path = link[1], link[2].partition("#")[0]
    return f"`{path}`" if text == path else f"{text} (`{path}`)"


setuptools.setup(
    version=VERSION["of_sources"](HERE),
    license="Apache-2.0",
    long_description=description(),
    long_description_content_type="text/markdown",
    package_dir=LAYERS,
    packages=packages(),
    package_data={
        "tff_mf": ["py.typed"],
        "tff_mf.normals": ["tables.npz"],
        "tff_mf.experiments.bundles": ["*.json"],
        "tff_mf.experiments.central_training": ["presets/*.toml"],
        "tff_mf.experiments.comparison.specs": ["*.toml"],
        "tff_mf.experiments.configuration.presets": ["*.toml"],
        "tff_mf.experiments.flower": ["template/**/*", "template_torch/**/*"],
        "tff_mf.experiments.pages": ["*.css", "*.js"],
    },
    cmdclass={"bdist_wheel": SameWheel, "build_py": BuildWithPins, "egg_info": WithLicense, "sdist": SameSources},
)
