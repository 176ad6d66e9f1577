"""A Flower app to begin with: next-word prediction on docstrings, in NumPy, and the files of its deployment."""

import importlib.resources
import pathlib

from tff_mf.errors import InputValueError

from ..output import files

_TEMPLATE = "template"
# Nodes have no tff-mf: what they need of it is part of the app.
_FOR_NODES, _PACKAGE = ("clipping.py", "integers.py", "mods.py"), "next_word"


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
    root = importlib.resources.files("tff_mf.experiments.flower")
    with importlib.resources.as_file(root) as package:
        template = package / _TEMPLATE
        found = [each for each in template.rglob("*") if each.is_file() and each.suffix != ".pyc"]
        targets = {folder / each.relative_to(template): each for each in found}
        targets |= {folder / _PACKAGE / name: package / name for name in _FOR_NODES}
        for target, path in sorted(targets.items()):
            target.parent.mkdir(parents=True, exist_ok=True)
            files.write_atomically(target, path.read_bytes())
    return sorted(targets)
