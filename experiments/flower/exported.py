"""The deployment of a run, or of a bundle, as settings of a Flower app."""

import pathlib
from collections.abc import Mapping

import tff_mf
from tff_mf.errors import InputValueError

from ..run_folder.names import MECHANISM
from ..run_folder.run_record import RunRecord, file_hash, read_record


def settings_of(folder: pathlib.Path) -> Mapping[str, str | int | float]:
    """Returns what a Flower app is configured with to run the deployment that a run or a bundle stands for.

    Formal guarantee: the app has the mechanism, σ, rounds, participation schema, restarts, bits of the grid and clip
    norm of the folder's `run.json`, with the whole cohort that its σ is for. What Flower does not run is refused.

    Args:
        folder: The folder of a run or of a bundle.

    Raises:
        InputValueError: If a file is missing or damaged, or the run has what is not supported on Flower: a seed,
            adaptive clipping, no noise, an adjacency other than zero-out, or a schema that is not `MinSep`.
        OSError: If a file cannot be read.
    """
    record = read_record(folder)
    if file_hash(folder / MECHANISM) != record.mechanism_sha256:
        raise InputValueError(f"{MECHANISM} in {str(folder)!r} differs from its run.json: take an intact folder.")
    for name in ("adaptive_count_stddev", "insecure_seed"):
        if getattr(record, name) is not None:
            raise InputValueError(f"{name}={getattr(record, name)!r} of {str(folder)!r} is not supported on Flower.")
    if not record.noise_multiplier:
        raise InputValueError(
            f"noise_multiplier={record.noise_multiplier!r} of {str(folder)!r} is not supported by the app, where "
            "0 stands for the noise of its epsilon."
        )
    if record.adjacency != "zero-out":
        raise InputValueError(
            f"adjacency={record.adjacency!r} of {str(folder)!r} is not supported by the app: its report would state a "
            "smaller ε, of zero-out. Pass adjacency to open_strategy in an app of your own."
        )
    if isinstance(record.schema, tff_mf.FixedEpoch):
        raise InputValueError(
            f"participation={record.participation!r} of {str(folder)!r} is not supported by the app: its nodes are "
            "drawn as MinSep, for which less noise would be too little."
        )
    single = isinstance(record.schema, tff_mf.SingleParticipation)
    return {
        "mechanism": str((folder / MECHANISM).absolute()),
        "rounds": record.rounds,
        # With one participation, any separation is the same.
        "min-sep": 1 if single else record.min_sep,
        "max-participations": record.max_participations,
        "clients-per-round": record.cohort,
        "population": record.population or _fewest(record),
        "noise-multiplier": record.noise_multiplier,
        "restart-every": record.restart_every or 0,
        "delta": record.delta,
        "grid": "none" if record.grid_bits is None else record.grid_bits,
        "clip-norm": record.clip_norm,
        "server-learning-rate": float(record.settings.get("server_learning_rate", 1.0)),
        "server-momentum": float(record.settings.get("server_momentum", 0.0)),
    }


def _fewest(record: RunRecord) -> int:
    """Returns how many nodes the rounds need at least."""
    return -(-record.cohort * record.rounds // record.max_participations)
