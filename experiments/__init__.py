"""Experiments: data sets, client sampling, training, privacy reports, deployment bundles and the `tff-mf` command."""

import importlib
import warnings
from types import ModuleType

# Documented modules that moved; each old name works for one release.
_MOVED = {
    "guarded_source": "guard.guarded_source",
    "ledger": "run_folder.ledger",
    "run_log": "run_folder.run_log",
}


def __getattr__(name: str) -> ModuleType:
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        f"{__name__}.{name} is now {__name__}.{_MOVED[name]}; the old name will be removed in the next release.",
        DeprecationWarning,
        stacklevel=2,
    )
    return importlib.import_module(f"{__name__}.{_MOVED[name]}")
