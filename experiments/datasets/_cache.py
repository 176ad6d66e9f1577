"""The folder that data sets are kept in."""

import os
import pathlib

from tff_mf.errors import InputValueError


def folder(cache_dir: str | os.PathLike | None = None) -> pathlib.Path:
    """Returns the folder, made if need be: `cache_dir`, else TFF_MF_CACHE, else `.cache/tff-mf` in the current one.

    Raises:
        InputValueError: If it cannot be made.
    """
    path = pathlib.Path(cache_dir or os.environ.get("TFF_MF_CACHE") or pathlib.Path(".cache", "tff-mf"))
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputValueError(
            f"cache_dir={str(path)!r} cannot be made ({error.strerror}); set TFF_MF_CACHE to a folder that can."
        ) from error
    return path
