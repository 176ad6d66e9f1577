"""A Flower app to begin with: next-word prediction on docstrings, in NumPy, and the files of its deployment."""

import importlib.resources
import pathlib

from tff_mf.errors import InputValueError

from ..output import files

_TEMPLATE = "template"


def write(folder: pathlib.Path | str) -> list[pathlib.Path]:
    """Writes the app to a folder, and returns its files.

    Args:
        folder: A folder that does not exist, or is empty.

    Raises:
        InputValueError: If it has files.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as out:
        ...     sorted(path.name for path in write(out) if path.suffix == ".toml")
        ['pyproject.toml']
    """
    folder = pathlib.Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputValueError(f"folder={str(folder)!r} is not empty: name another one.")
    root = importlib.resources.files("tff_mf.experiments.flower") / _TEMPLATE
    with importlib.resources.as_file(root) as template:
        written = []
        for path in sorted(each for each in template.rglob("*") if each.is_file() and each.suffix != ".pyc"):
            target = folder / path.relative_to(template)
            target.parent.mkdir(parents=True, exist_ok=True)
            files.write_atomically(target, path.read_bytes())
            written.append(target)
    return written
