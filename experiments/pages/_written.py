"""The file of a page: checked before work begins, and written whole or not at all."""

import pathlib

from tff_mf.errors import InputValueError

from ..output import files

_ENDINGS = (".html", ".htm")


def check_page(path: str) -> pathlib.Path:
    """Returns the path of a page if it can be written, so that no work is wasted.

    Args:
        path: The file.

    Raises:
        InputValueError: If it has another ending, which browsers show as text, or cannot be written.

    Example:
        >>> check_page("report.pdf")
        Traceback (most recent call last):
        tff_mf.errors.InputValueError: html='report.pdf' must end in .html: browsers go by that.
    """
    found = pathlib.Path(path)
    if found.suffix.lower() not in _ENDINGS:
        raise InputValueError(f"html={path!r} must end in .html: browsers go by that.")
    files.check_file(found, "html")
    return found


def write_page(path: pathlib.Path, page: str) -> None:
    """Writes a page atomically.

    Args:
        path: As `check_page` returned it.
        page: The whole page.

    Raises:
        InputValueError: If it cannot be written any more.
    """
    try:
        files.write_atomically(path, page)
    except OSError as error:
        raise InputValueError(f"html={str(path)!r} cannot be written: {error.strerror or error}.") from error
