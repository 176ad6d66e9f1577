"""Builds graphs in their own process: names in graphs depend on what a process has built before."""

import contextlib
import json
import logging
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from tff_mf.errors import InputValueError

from ..output import progress

_LOG = logging.getLogger(__name__)
_MODULE = f"{__package__}._graphs"
# The order of Python's sets depends on hashes, and a GPU draws other normals than a processor.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": "-1"}
_LAST_BYTES = 2000


def graphs(folder: pathlib.Path) -> dict[str, Any]:
    """Adds the graphs to a folder that has the other files of a bundle; returns the result of `export_process`.

    Args:
        folder: The folder, with `run.json`, the artifact and the vocabulary.

    Raises:
        InputValueError: If they cannot be exported.
        RuntimeError: If the process fails for another reason.
    """
    with tempfile.TemporaryFile() as log:
        reader, writer = os.pipe()
        with open(reader, encoding="utf-8") as lines:
            try:
                process = _started(folder, writer, log)
            finally:
                os.close(writer)
            with _ended(process):
                for line in map(json.loads, lines):
                    kind, value = line
                    if kind == "exported":
                        return value
                    _heed(kind, value)
        log.seek(0)
        text = log.read()[-_LAST_BYTES:].decode(errors="replace").strip()
    raise RuntimeError(f"Graphs could not be built; the process that builds them ended with: {text}")


def _heed(kind: str, value: str) -> None:
    if kind == "step":
        progress.step(value)
    elif kind == "warning":
        _LOG.warning("%s", value)
    elif kind == "refused":
        raise InputValueError(value)


def _started(folder: pathlib.Path, writer: int, log: Any) -> subprocess.Popen:
    # It imports modules from the same places as this process, in the same order.
    found = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", _MODULE, str(folder.absolute()), str(writer)],
        env={**os.environ, **found, **_ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=[writer],
        # So that processes that it starts can be ended with it.
        start_new_session=True,
    )


@contextlib.contextmanager
def _ended(process: subprocess.Popen) -> Iterator[None]:
    try:
        yield
    finally:
        # Before waiting for it: then its number is free, and another group may get it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
