"""The folder that data sets are kept in."""

import os
import pathlib
import tempfile

from tff_mf.errors import InputValueError

VARIABLE = "TFF_MF_CACHE"


def cache_folder(cache_dir: str | os.PathLike | None = None) -> pathlib.Path:
    """Returns the folder, made if need be: one for all folders that a user works in.

    That is `cache_dir`, else TFF_MF_CACHE, else `tff-mf` in XDG_CACHE_HOME, else `~/.cache/tff-mf`. As the XDG Base
    Directory Specification says, an XDG_CACHE_HOME that is empty or relative counts as not set.

    Raises:
        InputValueError: If it cannot be made, or not be written to.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    of_user = pathlib.Path(base if os.path.isabs(base) else "~/.cache", "tff-mf")
    path = pathlib.Path(cache_dir or os.environ.get(VARIABLE) or of_user)
    try:
        path = path.expanduser()
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    # Of a user without a home folder, a RuntimeError.
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputValueError(
            f"the cache of data sets, {str(path)!r}, cannot be written ({reason}); set {VARIABLE} to a folder that can."
        ) from error
    return path
