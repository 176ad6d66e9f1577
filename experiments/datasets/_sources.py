"""Which Python modules the `pydoc` data set is made of, and where their source text is.

Nothing is ever imported: distributions are known by what `importlib.metadata` recorded when they
were installed, and the standard library by its folder.
"""

import dataclasses
import importlib.metadata
import os
import pathlib
import re
import sysconfig
from collections.abc import Iterable, Iterator

from tff_mf.errors import InputTypeError, InputValueError

STDLIB = "stdlib"

_OWN_NAME = "tff-mf"
# Test code has few docstrings, and those repeat the names of the tests; `lib2to3` even keeps Python 2 there.
_SKIPPED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
# Written by protoc: their docstrings are comments of .proto files, already in the .proto's own words and layout.
_SKIPPED_ENDINGS = ("_pb2", "_pb2_grpc", "_test", "_tests")


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Source:
    """One module: its dotted `name` and the file that its text is in."""

    name: str
    path: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Package:
    """A distribution, or the standard library, whose text is wanted."""

    name: str
    version: str
    distribution: importlib.metadata.Distribution | None

    def sources(self) -> Iterator[Source]:
        """Yields the modules whose docstrings may be prose, in no particular order."""
        found = _stdlib_files() if self.distribution is None else _distribution_files(self.distribution)
        for parts, path in found:
            name = _module_name(parts)
            if name is not None:
                yield Source(name=name, path=path)


def packages(names: Iterable[str] | None = None) -> list[Package]:
    """Returns the packages called `names`, sorted by name; all that are installed for None.

    Args:
        names: Names of distributions, spelled in any of the ways pip allows; `stdlib` is the
            standard library. None is the standard library and every distribution but tff-mf.

    Raises:
        InputTypeError: If `names` is not an iterable of strings.
        InputValueError: If a name is not installed here, or none is given.
    """
    installed = _installed()
    if names is None:
        return [installed[name] for name in sorted(installed)]
    listed = list(names) if isinstance(names, Iterable) and not isinstance(names, str) else [names]
    if isinstance(names, str) or not all(isinstance(name, str) for name in listed):
        raise InputTypeError(f"packages={names!r} must be a list of names, or None for all that are installed.")
    if not listed:
        raise InputValueError("packages=[] names nothing; leave packages out to use all that is installed.")
    wanted = {}
    for name in listed:
        found = installed.get(_normalized(name))
        if found is None:
            raise InputValueError(
                f"packages={name!r} is not installed here; name a distribution that `pip list` shows, "
                f"other than {_OWN_NAME}, or {STDLIB!r} for the standard library."
            )
        wanted[found.name] = found
    return [wanted[name] for name in sorted(wanted)]


def sources(chosen: Iterable[Package]) -> list[Source]:
    """Returns the modules of the `chosen` packages, each file once, sorted by name."""
    by_path = {source.path: source for package in chosen for source in package.sources()}
    return sorted(by_path.values())


def _installed() -> dict[str, Package]:
    version = sysconfig.get_config_var("py_version") or sysconfig.get_python_version()
    found = {STDLIB: Package(name=STDLIB, version=version, distribution=None)}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if not name or _normalized(name) == _OWN_NAME:
            continue
        name = _normalized(name)
        # The first one on the path is the one that an import finds.
        found.setdefault(name, Package(name=name, version=distribution.version, distribution=distribution))
    return found


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _stdlib_files() -> Iterator[tuple[tuple[str, ...], str]]:
    root = sysconfig.get_path("stdlib")
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if name not in _SKIPPED_FOLDERS]
        above = pathlib.PurePath(folder).relative_to(root).parts
        for file in files:
            yield (*above, file), os.path.join(folder, file)


def _distribution_files(distribution: importlib.metadata.Distribution) -> Iterator[tuple[tuple[str, ...], str]]:
    for file in distribution.files or ():
        if file.name.endswith(".py"):
            yield file.parts, str(distribution.locate_file(file))


def _module_name(parts: tuple[str, ...]) -> str | None:
    *folders, file = parts
    stem, ending = os.path.splitext(file)
    if ending != ".py" or stem.endswith(_SKIPPED_ENDINGS) or stem.startswith("test_"):
        return None
    if not _SKIPPED_FOLDERS.isdisjoint(folders):
        return None
    names = folders if stem == "__init__" else [*folders, stem]
    # Scripts outside any package ("../../bin/x.py") are nothing that can be imported.
    if not names or not all(name.isidentifier() for name in names):
        return None
    return ".".join(names)
