"""The plan of a run on Flower, the settings that the plan does not have, and both from a run or a bundle."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.planning import checked_cohort

from .. import guard
from ..configuration.settings import AUTO, grid_of
from ..run_folder.names import MECHANISM, RUN_JSON
from ..run_folder.run_record import RunRecord, file_hash, read_record
from ..sampling.settings import PARAMETERS, SamplingSettings
from .cohorts import Waiting
from .server_step import ServerOptimizer
from .summands import MODEL, REPLIES
from .updates import model_arrays

# Samplings whose schema nodes keep that are drawn uniformly from those that it allows.
_DRAWN = ("min-sep", "single", "fixed-epochs")
_GENERATORS = ("aes", "philox", "tensorflow")


def checked_clip_norm(value: object) -> np.float32:
    """Returns the largest float32 that is at most a clip norm.

    Raises:
        InputTypeError: If it is not a number.
        InputValueError: If it is out of range.

    Example:
        >>> float(checked_clip_norm(0.5))
        0.5
    """
    clip_norm = validation.clip_norm(value)
    result = np.float32(clip_norm)
    return np.nextafter(result, np.float32(0)) if float(result) > clip_norm else result


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlowerSettings:
    """How a strategy trains, and how it talks to nodes.

    Attributes:
        clip_norm: Clip norm ζ, to which the server clips every update.
        optimizer: The server's optimizer.
        replies: `model` if nodes reply with the model that they trained, as Flower's own strategies expect; `update`
            if they reply with its difference from the model that they were sent; `integers`, with a grid, if they reply
            with that difference in integers, as `mods.integers_mod` makes them. Floats become integers of a grid on
            the server.
        generator: Generator of the noise, as in `tff_mf.noise.numpy.build_stream`: by default AES, a cryptographic one,
            whose package Flower itself needs.
        waiting: How long rounds wait.
        arrayrecord_key: Name of the record of arrays in messages and replies.
        configrecord_key: Name of the record of settings in messages.

    Raises:
        InputTypeError: If a value is of the wrong type.
        InputValueError: If one is out of range.

    Example:
        >>> FlowerSettings(clip_norm=0.5, optimizer=ServerOptimizer(momentum=0.9)).replies
        'model'
    """

    clip_norm: float
    optimizer: ServerOptimizer = dataclasses.field(default_factory=ServerOptimizer)
    replies: str = MODEL
    generator: str = "aes"
    waiting: Waiting = dataclasses.field(default_factory=Waiting)
    arrayrecord_key: str = "arrays"
    configrecord_key: str = "config"

    def __post_init__(self) -> None:
        checked_clip_norm(self.clip_norm)
        validation.instance("optimizer", self.optimizer, ServerOptimizer, "pass ServerOptimizer(...)")
        validation.instance("waiting", self.waiting, Waiting, "pass Waiting(...)")
        validation.one_of("replies", self.replies, REPLIES)
        validation.one_of("generator", self.generator, _GENERATORS)
        validation.instance("arrayrecord_key", self.arrayrecord_key, str, "name the record")
        validation.instance("configrecord_key", self.configrecord_key, str, "name the record")

    def as_json(self) -> dict[str, Any]:
        """Returns what a resumed run must share, as JSON."""
        return {
            "clip_norm": self.clip_norm,
            "server_learning_rate": self.optimizer.learning_rate,
            "server_momentum": self.optimizer.momentum,
            "replies": self.replies,
            "generator": self.generator,
        }


def plan_run(
    folder: pathlib.Path | str,
    *,
    initial_arrays: ArrayRecord,
    clients_per_round: int,
    cohort: int | None = None,
    grid: int | str = AUTO,
    **more: Any,
) -> tff_mf.Plan:
    """Returns the plan of a run: `tff_mf.plan(...)` with the grid that fits its model, as `tff-mf train` takes it.

    A run that was begun in floating point stays in floating point, whatever `grid` is, and σ comes from `run.json` if
    calibrating it again gives the same but for last bits.

    Formal guarantee: as for `tff_mf.plan` with the plan's grid.

    Args:
        folder: The run's folder, which may not exist.
        initial_arrays: The model that training starts from: a grid's cost depends on its number of parameters.
        clients_per_round: Nodes that train in a round.
        cohort: Nodes that a round stands for; `clients_per_round` if not given.
        grid: Bits of the grid on which updates, their sums and the noise are integers: a number, "auto", or "none" for
            floating point, where the guarantee holds for real numbers only.
        more: The other arguments of `tff_mf.plan`.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or `run.json` of the folder is damaged.

    Example:
        >>> import numpy as np
        >>> import tff_mf
        >>> from flwr.app import Array
        >>> plan = plan_run("runs/new", initial_arrays=ArrayRecord({"w": Array(np.zeros(3, np.float32))}),
        ...                 mechanism=tff_mf.Identity(), rounds=4, sampling=tff_mf.SingleParticipation(),
        ...                 delta=1e-6, clients_per_round=2, noise_multiplier=8.0)
        >>> plan.grid, plan.dimension
        (Grid(bits=14, max_clients=1000), 3)
    """
    dimension = sum(value.size for value in model_arrays(initial_arrays).values())
    chosen = grid_of(grid, dimension=dimension, cohort=checked_cohort(clients_per_round, cohort))
    begun = pathlib.Path(folder) / RUN_JSON
    if begun.is_file() and read_record(begun.parent).grid is None:
        chosen = None
    plan = tff_mf.plan(
        clients_per_round=clients_per_round,
        cohort=cohort,
        grid=chosen,
        dimension=None if chosen is None else dimension,
        **more,
    )
    return guard.begun_plan(folder, plan)


def sampling_of(config: Mapping[str, Any]) -> SamplingSettings:
    """Returns how the nodes of an app take part: `sampling` of its configuration, and the parameters that are not 0.

    Raises:
        InputError: If there is no such sampling, it needs another parameter or does not take one of these, or nodes
            cannot be drawn by it.

    Example:
        >>> sampling_of({"sampling": "min-sep", "min-sep": 4, "max-participations": 3, "rounds": 12}).schema(12)
        MinSep(min_sep=4, max_participations=3)
    """
    given = {name: config.get(name.replace("_", "-")) for name in PARAMETERS}
    chosen = SamplingSettings(sampling=config["sampling"], **{name: value for name, value in given.items() if value})
    if chosen.sampling not in _DRAWN:
        raise InputValueError(
            f"sampling={chosen.sampling!r} is not supported by the app, whose nodes decide when they are connected: "
            f"take {', '.join(_DRAWN)}, or pass draw=cohorts.planned(...) to open_strategy in an app of your own."
        )
    return chosen


def settings_of(folder: pathlib.Path) -> Mapping[str, str | int | float]:
    """Returns what a Flower app is configured with to run the deployment that a run or a bundle stands for.

    Formal guarantee: the app has the mechanism, σ, rounds, participation schema, restarts, bits of the grid and clip
    norm of the folder's `run.json`, with the whole cohort that its σ is for. What Flower does not run is refused.

    Args:
        folder: The folder of a run or of a bundle.

    Raises:
        InputValueError: If a file is missing or damaged, or the run has what is not supported on Flower: a seed,
            adaptive clipping, no noise, or an adjacency other than zero-out.
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
    single = isinstance(record.schema, tff_mf.SingleParticipation)
    epochs = isinstance(record.schema, tff_mf.FixedEpoch)
    return {
        "mechanism": str((folder / MECHANISM).absolute()),
        "rounds": record.rounds,
        "sampling": "single" if single else "fixed-epochs" if epochs else "min-sep",
        "min-sep": 0 if single else record.min_sep,
        "max-participations": 0 if single else record.max_participations,
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
