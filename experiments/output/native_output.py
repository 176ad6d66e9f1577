"""Lines of native libraries on standard error, which no setting of theirs keeps off the screen."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def without(beginning: str) -> Iterator[None]:
    """Keeps lines with that beginning, which the block's native code writes, off standard error; all others follow it.

    For short blocks: if the process dies inside of one, what was written in it is lost.
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
