"""Finds the other two layers in a checkout that is used without installation.

Python searches the current folder first. In the root of a checkout, `import tff_mf` therefore finds this folder, and
the other layers lie beside it instead of inside.
"""

import importlib.machinery
import importlib.util
import pathlib
import sys
from collections.abc import Sequence
from types import ModuleType

_LAYERS = ("aggregators", "experiments")


class _Layers:
    """Finds the layers of one checkout, and no other folder beside `tff_mf`."""

    def __init__(self, root: pathlib.Path) -> None:
        self._folders = {f"{__package__}.{layer}": root / layer for layer in _LAYERS}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        folder = self._folders.get(name)
        if folder is None:
            return None
        return importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )


def find_layers() -> None:
    """Makes all layers come from the checkout that this one comes from; does nothing in an installed package.

    Formal guarantee: the layers of a checkout are never mixed with those of another version, such as an editable
    installation of another checkout, because then the code that states an ε would not match the code that adds noise.
    """
    package = pathlib.Path(__file__).resolve().parent
    root = package.parent
    beside = all((root / layer / "__init__.py").is_file() for layer in _LAYERS)
    inside = any((package / layer / "__init__.py").is_file() for layer in _LAYERS)
    if beside and not inside and (root / "setup.py").is_file():
        sys.meta_path.insert(0, _Layers(root))
