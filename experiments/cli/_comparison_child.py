"""The process of one run of a comparison: it ends when the comparison ends, even if that is killed."""

import ctypes
import os
import pathlib
import signal
import sys

from ..output import files
from . import main

_PR_SET_PDEATHSIG = 1


def _run(parent: str, lock: str, *arguments: str) -> None:
    # Linux sends the signal when the parent ends; it may have ended already.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(1)
    with files.held(pathlib.Path(lock)):
        sys.argv[1:] = arguments
        main()


if __name__ == "__main__":
    _run(*sys.argv[1:])
