"""The mechanisms of a comparison: each is optimized once, and kept as an artifact."""

import hashlib
import json
import pathlib
import re
from collections.abc import Callable, Sequence

import tff_mf

from ..configuration.run import RunConfiguration
from ._spec import PlannedRun

_KNOWN_BY = (
    *("mechanism", "buffers", "bands", "workload", "rounds", "min_sep", "max_participations"),
    *("restart_every", "unit_norms", "objective"),
)
_KNOWN_BY_WITH_WORKLOAD = ("server_momentum", "server_warmup", "server_cooldown")


def prepared(
    planned: Sequence[PlannedRun], folder: pathlib.Path, say: Callable[[str], None]
) -> dict[str, pathlib.Path]:
    """Returns the artifact of each run by the run's name, and makes those that are missing.

    Args:
        planned: The runs.
        folder: Where artifacts are kept.
        say: Called with a message of one line before each search.

    Raises:
        InputError: If a mechanism cannot be loaded or found.
    """
    artifacts = {}
    for run in planned:
        configuration = run.optimized_for
        path = folder / _name(configuration)
        if not path.is_file():
            say(f"optimizing {run.label}")
            tff_mf.save(configuration.build_mechanism(), path)
        artifacts[run.name] = path
    return artifacts


def _name(configuration: RunConfiguration) -> str:
    fields = _KNOWN_BY + (() if configuration.workload == "prefix_sum" else _KNOWN_BY_WITH_WORKLOAD)
    values = [(field, getattr(configuration, field)) for field in fields]
    values.append(("participation", type(configuration.participation()).__name__))
    digest = hashlib.sha256(json.dumps(values).encode()).hexdigest()[:8]
    slug = re.sub(r"[^A-Za-z0-9]+", "-", pathlib.Path(configuration.mechanism).stem)
    return f"{slug}-{digest}.safetensors"
