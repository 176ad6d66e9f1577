"""The files of a bundle are checked against its manifest before any of them is loaded."""

import hashlib
import json
import pathlib
import stat
from collections.abc import Iterator
from typing import Any

from ._errors import RefusedError
from ._files import read_regular
from ._names import MANIFEST, MANIFEST_VERSION
from ._stages import Stages


def check_files(folder: pathlib.Path, digest: str | None = None) -> Stages:
    """Returns the stages of a bundle, once its files are known to be exactly those that its manifest names.

    Args:
        folder: The bundle.
        digest: The bundle's digest, if it is known from elsewhere. It is compared before any file but the
            manifest is read.

    Raises:
        RefusedError: If a file is missing, was changed, is not named or is not a regular file, or the manifest is of
            another version.
    """
    stages = Stages(folder)
    where, manifest = f"bundle={str(folder)!r}", stages.manifest
    version = manifest.get("version")
    if type(version) is not int or version != MANIFEST_VERSION:
        raise RefusedError(
            f"{where} has a {MANIFEST} of version {version!r:.20}, and this runner reads version {MANIFEST_VERSION}: "
            "export the bundle again, with `tff-mf export`."
        )
    content = {name: value for name, value in manifest.items() if name != "digest"}
    if hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest() != manifest.get("digest"):
        raise RefusedError(f"{where}: {MANIFEST} was changed.")
    if digest not in (None, manifest["digest"]):
        raise RefusedError(f"digest={digest!r:.80} is not the bundle's digest, {manifest['digest']}.")
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(map(_is_entry, files.values())):
        raise RefusedError(f"{where}: {MANIFEST} is damaged: each of its files needs sha256 and bytes.")
    _check_names(folder, frozenset(files))
    for name, entry in files.items():
        size = (folder / name).lstat().st_size
        # A file that grows meanwhile is not read beyond the size in the manifest.
        if size != entry["bytes"] or entry["sha256"] != hashlib.sha256(read_regular(folder / name, size)).hexdigest():
            raise RefusedError(f"{where}: {name} was changed.")
    return stages


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or entry.keys() != {"sha256", "bytes"}:
        return False
    return isinstance(entry["sha256"], str) and type(entry["bytes"]) is int


def _check_names(folder: pathlib.Path, named: frozenset[str]) -> None:
    """Raises unless a folder holds the named regular files, the manifest, and nothing else."""
    where = f"bundle={str(folder)!r}"
    folders = {str(above) for name in named for above in pathlib.PurePosixPath(name).parents}
    missing = set(named)
    for path in sorted(_entries(folder)):
        name, mode = path.relative_to(folder).as_posix(), path.lstat().st_mode
        if stat.S_ISDIR(mode) and name in folders:
            continue
        if name not in named and name != MANIFEST:
            raise RefusedError(f"{where}: {name!r:.200} is not named by {MANIFEST}: remove it.")
        if not stat.S_ISREG(mode):
            raise RefusedError(f"{where}: {name} is not a regular file.")
        missing.discard(name)
    if missing:
        raise RefusedError(f"{where}: {min(missing)!r:.200} is missing.")


def _entries(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields every path in a folder, without following links."""
    for path in folder.iterdir():
        yield path
        if stat.S_ISDIR(path.lstat().st_mode):
            yield from _entries(path)
