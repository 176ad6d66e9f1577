"""Former names of public objects, which keep working for one release with a warning."""

import sys
import warnings
from collections.abc import Mapping
from typing import Any


def found(module: str, name: str, renamed: Mapping[str, str]) -> Any:
    """Returns the object that a former name of a module stands for, and warns.

    Args:
        module: Name of the module.
        name: The requested name.
        renamed: Current names by former names.

    Raises:
        AttributeError: If the module never had the name.
    """
    if name not in renamed:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    warnings.warn(
        f"{module}.{name} is now {module}.{renamed[name]}; the old name will be removed in the next release.",
        DeprecationWarning,
        stacklevel=3,
    )
    return getattr(sys.modules[module], renamed[name])
