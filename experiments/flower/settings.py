"""The settings of a run on Flower that its plan does not have, and the settings of an app for a run or a bundle."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from ..runs.names import MECHANISM
from ..runs.run_record import RunRecord, file_hash, read_record
from ..sampling.settings import PARAMETERS, SamplingSettings
from .cohorts import Waiting
from .summands import MODEL, REPLIES

# Parameters of samplings that an app has in its configuration.
_OF_APP = ("min_sep", "max_participations", "groups", "participations", "epochs")
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
class ServerOptimizer:
    """Server momentum, in float32 as `tff.learning.optimizers.build_sgdm` computes it.

    With the noised mean x̂ of a round: v ← momentum·v − x̂ and w ← w − learning_rate·v. With `learning_rate=1` and
    `momentum=0` it is plain FedAvg. It reads noised values only, so that it costs no privacy.

    Attributes:
        learning_rate: Learning rate of the server.
        momentum: From 0 to below 1.

    Raises:
        InputTypeError: If a value is not a number.
        InputValueError: If one is out of range.

    Example:
        >>> step = ServerOptimizer(learning_rate=1.0, momentum=0.5)
        >>> step.next(np.float32([0]), np.float32([2]), np.float32([1]))
        (array([0.], dtype=float32), array([0.], dtype=float32))
    """

    learning_rate: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        validation.positive("learning_rate", self.learning_rate)
        if not 0 <= validation.real("momentum", self.momentum) < 1 or not math.isfinite(self.learning_rate):
            raise InputValueError(f"momentum={self.momentum!r} must lie in [0, 1).")

    def next(self, weights: np.ndarray, velocity: np.ndarray, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns weights and velocity after a step.

        Args:
            weights: float32 `[dimension]`.
            velocity: float32 `[dimension]`; zeros before the first step.
            mean: Noised mean of the updates, float32 `[dimension]`.
        """
        velocity = np.float32(self.momentum) * velocity - mean
        return weights - np.float32(self.learning_rate) * velocity, velocity


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlowerSettings:
    """How a strategy trains, and how it talks to nodes.

    Attributes:
        optimizer: The server's optimizer.
        replies: `model` if nodes reply with the model that they trained, as Flower's own strategies expect; `update`
            if they reply with its difference from the model that they were sent; `integers`, with a grid, if they reply
            with that difference in integers, as `mods.integers_mod` makes them. Floats become integers of a grid on
            the server.
        generator: Generator of the noise, as in `tff_mf.noise.numpy.build_stream`: by default AES, a cryptographic one,
            whose package Flower itself needs.
        floating_point: Whether a plan without a grid stays in floating point, where the guarantee holds for real
            numbers only. Otherwise updates, their sums and the noise are integers.
        waiting: How long rounds wait.
        arrayrecord_key: Name of the record of arrays in messages and replies.
        configrecord_key: Name of the record of settings in messages.

    Raises:
        InputTypeError: If a value is of the wrong type.
        InputValueError: If one is out of range.

    Example:
        >>> FlowerSettings(optimizer=ServerOptimizer(momentum=0.9)).replies
        'model'
    """

    optimizer: ServerOptimizer = dataclasses.field(default_factory=ServerOptimizer)
    replies: str = MODEL
    generator: str = "aes"
    floating_point: bool = False
    waiting: Waiting = dataclasses.field(default_factory=Waiting)
    arrayrecord_key: str = "arrays"
    configrecord_key: str = "config"

    def __post_init__(self) -> None:
        validation.instance("optimizer", self.optimizer, ServerOptimizer, "pass ServerOptimizer(...)")
        validation.instance("waiting", self.waiting, Waiting, "pass Waiting(...)")
        validation.one_of("replies", self.replies, REPLIES)
        validation.one_of("generator", self.generator, _GENERATORS)
        validation.instance("floating_point", self.floating_point, bool, "pass True or False")
        validation.instance("arrayrecord_key", self.arrayrecord_key, str, "name the record")
        validation.instance("configrecord_key", self.configrecord_key, str, "name the record")

    def as_json(self) -> dict[str, Any]:
        """Returns what a resumed run must share, as JSON."""
        return {
            "server_learning_rate": self.optimizer.learning_rate,
            "server_momentum": self.optimizer.momentum,
            "replies": self.replies,
            "generator": self.generator,
        }


def sampling_of(config: Mapping[str, Any]) -> SamplingSettings:
    """Returns how the nodes of an app take part: `sampling` of its configuration, and the parameters that are not 0.

    Raises:
        InputError: If there is no such sampling, or it needs another parameter or does not take one of these.

    Example:
        >>> sampling_of({"sampling": "min-sep", "min-sep": 4, "max-participations": 3, "rounds": 12}).schema(12)
        MinSep(min_sep=4, max_participations=3)
    """
    given = {name: config.get(name.replace("_", "-")) for name in PARAMETERS}
    return SamplingSettings(sampling=config["sampling"], **{name: value for name, value in given.items() if value})


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
    # How cohorts of a sampling at random were drawn; of all others, the schema that their guarantee is for.
    drawn = record.drawn
    chosen = drawn if drawn is not None and drawn.is_secret else SamplingSettings.of(record.schema)
    return {
        "mechanism": str((folder / MECHANISM).absolute()),
        "rounds": record.rounds,
        "sampling": chosen.sampling,
        **{name.replace("_", "-"): chosen.parameters.get(name, 0) for name in _OF_APP},
        "secret-cohorts": record.is_secret,
        "clients-per-round": record.cohort,
        "population": record.population or _fewest(record),
        "noise-multiplier": record.noise_multiplier,
        "restart-every": record.restart_every or 0,
        "delta": record.delta,
        "grid": "none" if record.grid_bits is None else record.grid_bits,
        "clip-norm": record.clip_norm,
        **_server(record),
    }


def _server(record: RunRecord) -> dict[str, float]:
    """Returns the server's rate and momentum, of a run of `tff-mf train` or of one on Flower."""
    if record.settings is not None and record.resolved is not None:
        rate, momentum = record.resolved.server_learning_rate, record.settings.server_momentum
    else:
        rate, momentum = record.about.get("server_learning_rate", 1.0), record.about.get("server_momentum", 0.0)
    return {"server-learning-rate": float(rate), "server-momentum": float(momentum)}


def _fewest(record: RunRecord) -> int:
    """Returns how many nodes the rounds need at least."""
    return -(-record.cohort * record.rounds // record.max_participations)
