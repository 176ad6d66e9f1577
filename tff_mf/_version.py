"""The version of the running code; `0.1.0.dev240+g699c5e88f0c3` identifies a commit.

This file imports nothing else of the package: `setup.py` runs it before anything is installed.
"""

import email.parser
import functools
import importlib.metadata
import os
import pathlib
import subprocess

RELEASE = "0.1.0"

# The files that are installed or determine the installation: changes elsewhere do not change the program.
_BUILT_FROM = ("setup.py", "pyproject.toml", "requirements.txt", "README.md", "tff_mf", "aggregators", "experiments")
_GIT_SECONDS = 20


@functools.cache
def current() -> str:
    """Returns the version of the running code: that of its checkout, or else of the installed distribution."""
    root = pathlib.Path(__file__).resolve().parent.parent
    return of_sources(root) if (root / "setup.py").is_file() else importlib.metadata.version("tff-mf")


def of_sources(root: pathlib.Path) -> str:
    """Returns the version of the sources in a folder.

    In a git checkout it is `RELEASE` if its tag is checked out, and otherwise `RELEASE.dev<commits>+g<commit>`,
    followed by `.dirty` if a file of the build differs from the commit. In an unpacked source distribution it is the
    recorded version.

    Args:
        root: The folder of `setup.py`.
    """
    recorded = root / "PKG-INFO"
    if recorded.is_file():
        return email.parser.HeaderParser().parsestr(recorded.read_text(encoding="utf-8"))["Version"]
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    if not commit:
        return f"{RELEASE}.dev0+unknown"
    clean = _git(root, "status", "--porcelain", "--untracked-files=all", "--", *_BUILT_FROM) == ""
    if clean and f"v{RELEASE}" in (_git(root, "tag", "--points-at", "HEAD") or "").split():
        return RELEASE
    count = _git(root, "rev-list", "--count", "HEAD")
    return f"{RELEASE}.dev{count}+g{commit}{'' if clean else '.dirty'}"


def seconds_of_sources(root: pathlib.Path) -> int | None:
    """Returns when the sources in a folder were committed, in seconds since 1970; `None` if unknown."""
    recorded = root / "PKG-INFO"
    if recorded.is_file():
        return int(recorded.stat().st_mtime)
    seconds = _git(root, "log", "-1", "--format=%ct")
    return int(seconds) if seconds else None


def _git(root: pathlib.Path, *words: str) -> str | None:
    """Returns the output of git; `None` if there is no git, or the folder is not the root of a repository."""
    # An unpacked archive may lie inside an unrelated repository.
    if not (root / ".git").exists():
        return None
    # Variables that git sets in a hook may name another index or repository. Optional locks would write to the index.
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words],
            capture_output=True,
            text=True,
            check=True,
            timeout=_GIT_SECONDS,
            env={**surroundings, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
