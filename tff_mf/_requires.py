"""One message for whoever asks for a layer whose packages are not installed."""

import importlib.util

from tff_mf.errors import MissingDependencyError

INSTALL_COMMAND = "tff-mf doctor --requirements > requirements.txt && pip install --no-deps -r requirements.txt"


def packages(feature: str, *names: str) -> None:
    """Raises `MissingDependencyError` unless every package in `names` can be imported."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"{feature} needs {', '.join(missing)}, not installed here. On Linux with Python 3.11: {INSTALL_COMMAND}"
        )
