"""`python -m tff_mf.experiments.flower FOLDER` writes a Flower app: next-word prediction on docstrings."""

import argparse
import importlib.resources
import pathlib
import shutil
import sys

from tff_mf.base.errors import InputError

from ..output.files import check_new_folder

# Nodes have no tff-mf: what they need of it is part of the app.
_FOR_NODES, _PACKAGE = ("clipping.py", "mods.py"), "next_word"


def write(folder: pathlib.Path | str) -> list[pathlib.Path]:
    """Writes the app to a folder that does not exist, or is empty, and returns its files.

    Raises:
        InputValueError: If the folder has files.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as out:
        ...     sorted(path.name for path in write(out) if path.suffix == ".toml")
        ['pyproject.toml']
    """
    folder = pathlib.Path(folder)
    check_new_folder(folder)
    with importlib.resources.as_file(importlib.resources.files("tff_mf.experiments.flower")) as package:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package / "template", folder, ignore=ignored, dirs_exist_ok=True)
        for name in _FOR_NODES:
            shutil.copyfile(package / name, folder / _PACKAGE / name)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def main() -> None:
    """Writes the app to the folder in the command."""
    parser = argparse.ArgumentParser(prog="python -m tff_mf.experiments.flower", description="Writes a Flower app.")
    parser.add_argument("folder", metavar="FOLDER", help="folder of the app; must be new or empty")
    folder = parser.parse_args().folder
    try:
        write(folder)
    except InputError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"Next: cd {folder} && flwr run .")


if __name__ == "__main__":
    main()
