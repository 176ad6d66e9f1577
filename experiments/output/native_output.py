"""Removes lines of native libraries from standard error that no setting of theirs suppresses."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def without(beginning: str) -> Iterator[None]:
    """Removes lines that native code of the block writes to standard error and that begin so; others are written later.

    For short blocks: if the process dies in the block, its output is lost.
    """
    sys.stderr.flush()
    shown = os.dup(2)
    with tempfile.TemporaryFile() as aside:
        os.dup2(aside.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            os.close(shown)
            aside.seek(0)
            for line in aside:
                if line.strip() and not line.startswith(beginning.encode()):
                    os.write(2, line)
