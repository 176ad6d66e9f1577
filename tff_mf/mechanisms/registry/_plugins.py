"""Modules that register mechanisms, imported because their user names them."""

import importlib
import importlib.util
import os
import pathlib
import sys
from collections.abc import Iterable

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

# Separated as in PATH.
VARIABLE = "TFF_MF_PLUGINS"


def import_plugins(names: Iterable[str] = ()) -> None:
    """Imports the plugins that the environment variable `TFF_MF_PLUGINS` names, and then `names`.

    Processes that this one starts find all of them in the variable, also from another folder.

    Args:
        names: As for `import_plugin`.
    """
    found = [*filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)), *names]
    for name in found:
        import_plugin(name)
    if found:
        absolute = [os.path.abspath(name) if name.endswith(".py") else name for name in found]
        os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(absolute))


def import_plugin(name: str) -> None:
    """Imports a module that registers mechanisms; once, however often it is asked for.

    This is all that ever imports code from outside of this package: the user names it, no artifact does.

    Args:
        name: The path of a file that ends in `.py`, or the dotted name of an installed module.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder) / "nothing_registered.py"
        ...     _ = file.write_text("print('imported')")
        ...     import_plugin(str(file))
        imported

    Raises:
        InputValueError: If there is no such file or module, or another module has its name.
    """
    validation.instance("plugin", name, str, "give the path of a .py file, or the name of a module")
    if name.endswith(".py"):
        _import_file(pathlib.Path(name))
        return
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Of a module that is there, the error is its own.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise InputValueError(
            f"plugin={name!r} is no installed module: give the path of a .py file, or its name."
        ) from None


def _import_file(path: pathlib.Path) -> None:
    if not path.is_file():
        raise InputValueError(f"plugin={str(path)!r} is no file: give the path of a .py file, or the name of a module.")
    known = sys.modules.get(path.stem)
    if known is not None:
        if known.__file__ is not None and os.path.samefile(known.__file__, path):
            return
        raise InputValueError(f"plugin={str(path)!r} has the name of the module {path.stem!r}: rename the file.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputValueError(f"plugin={str(path)!r} cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
