"""One message for whoever asks for a layer whose packages are not installed."""

import importlib.util

from tff_mf.errors import MissingDependencyError

INSTALL_COMMAND = "tff-mf doctor --requirements > requirements.txt && pip install --no-deps -r requirements.txt"
# Quoted: some shells take brackets for a pattern of file names.
PLOT_COMMAND = "pip install 'tff-mf[plot]'"


def is_installed(name: str) -> bool:
    """Returns whether a package can be found; it is not imported."""
    return importlib.util.find_spec(name) is not None


def packages(feature: str, *names: str) -> None:
    """Raises `MissingDependencyError` unless every package in `names` can be imported."""
    missing = [name for name in names if not is_installed(name)]
    if not missing:
        return
    # Beside TensorFlow the pinned version is the one that fits.
    alone = missing == ["matplotlib"] and not is_installed("tensorflow")
    remedy = f"Run: {PLOT_COMMAND}" if alone else f"On Linux with Python 3.11: {INSTALL_COMMAND}"
    raise MissingDependencyError(f"{feature} needs {', '.join(missing)}, not installed here. {remedy}")
