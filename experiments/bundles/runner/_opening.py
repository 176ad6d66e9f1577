"""Deployments are started, and opened again."""

import contextlib
import pathlib
import secrets
from collections.abc import Iterator
from typing import Any

from ._bundle_files import check_files
from ._deployment import Deployment
from ._errors import RefusedError
from ._files import alone, read_regular
from ._journal import Journal
from ._names import JOURNAL, LOCK, STATES
from ._states import StateStore


def start(
    folder: pathlib.Path, bundle: pathlib.Path, *, digest: str | None = None, test_only: bool = False
) -> dict[str, Any]:
    """Starts a deployment of a bundle.

    Args:
        folder: A new folder, or an empty one.
        bundle: The bundle.
        digest: The bundle's digest, if it is known from elsewhere.
        test_only: Whether to accept a bundle whose noise is repeatable, which protects nobody.

    Raises:
        RefusedError: If the bundle was changed or is TEST ONLY, or the folder is not empty.
    """
    stages = check_files(bundle, digest)
    if stages.manifest["test_only"] is not False and not test_only:
        raise RefusedError(
            f"bundle={str(bundle)!r} is TEST ONLY: its noise is repeatable and protects nobody. Export it without "
            "--insecure-seed, or pass --test-only if no device has a person's data."
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    with alone(folder):
        # A process that was killed here leaves the state of round 0, and perhaps part of the first line.
        known = (LOCK, STATES, *(() if _begun_journal(folder) else (JOURNAL,)))
        if any(path.name not in known for path in folder.iterdir()):
            raise RefusedError(f"deployment={str(folder)!r} is not empty: resume it, or name another folder.")
        states = StateStore(folder / STATES, stages)
        if states.rounds() not in ([], [0]):
            raise RefusedError(f"deployment={str(folder)!r} has states but no journal: put its journal back.")
        states.remove_all()
        run = secrets.token_hex(16)
        state = states.save(stages.initialize(), 0, {"run": run, "round": 0})
        Journal(folder / JOURNAL).add("opened", run=run, bundle=stages.manifest["digest"], state=state)
        return Deployment(folder, stages).status()


@contextlib.contextmanager
def opened(folder: pathlib.Path, bundle: pathlib.Path) -> Iterator[Deployment]:
    """Yields a deployment that was started; no other process can open it meanwhile.

    Raises:
        RefusedError: If there is none, or it cannot continue.
    """
    if not _begun_journal(folder):
        raise RefusedError(f"deployment={str(folder)!r} is not a deployment: begin one with start.")
    stages = check_files(bundle)
    with alone(folder):
        yield Deployment(folder, stages)


def _begun_journal(folder: pathlib.Path) -> bool:
    """Returns whether a deployment was started: whether its journal has a whole line."""
    path = folder / JOURNAL
    return path.is_file() and b"\n" in read_regular(path)
