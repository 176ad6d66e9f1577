"""Which version this is: `0.1.0.dev240+g699c5e88f0c3` tells every commit from every other.

Stands alone: `setup.py` runs this file before anything is installed.
"""

import email.parser
import functools
import importlib.metadata
import os
import pathlib
import subprocess

RELEASE = "0.1.0"

# What is installed, and what decides how: a change elsewhere makes no other program.
_BUILT_FROM = ("setup.py", "pyproject.toml", "requirements.txt", "README.md", "tff_mf", "aggregators", "experiments")
_GIT_SECONDS = 20


@functools.cache
def current() -> str:
    """Returns the version of the code that runs: of the checkout that it is in, else of what is installed."""
    root = pathlib.Path(__file__).resolve().parent.parent
    return of_sources(root) if (root / "setup.py").is_file() else importlib.metadata.version("tff-mf")


def of_sources(root: pathlib.Path) -> str:
    """Returns the version of the sources in a folder.

    In a git checkout: `RELEASE` where its tag is checked out, else `RELEASE.dev<commits>+g<commit>`, and `.dirty` after
    it if a file that is built from differs from the commit. In an unpacked source distribution: what that recorded.

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
    """Returns when the sources in a folder were committed, in seconds since 1970; `None` if that is not known."""
    recorded = root / "PKG-INFO"
    if recorded.is_file():
        return int(recorded.stat().st_mtime)
    seconds = _git(root, "log", "-1", "--format=%ct")
    return int(seconds) if seconds else None


def _git(root: pathlib.Path, *words: str) -> str | None:
    """Returns what git prints; `None` where there is no git, or no repository of this folder's own."""
    # An unpacked archive may lie in a repository of somebody else's.
    if not (root / ".git").exists():
        return None
    # Inside of a hook, git names another index or repository; and a question must not write, also not a cache.
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
