"""The noise of a run on Flower, and its states as they are saved: with keys in place of rows."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

import tff_mf
from tff_mf.base import checkpoint_files
from tff_mf.base.errors import InputValueError
from tff_mf.noise import numpy as streams

from ..runs.checkpoints import Checkpoints
from ..runs.names import COHORTS
from .settings import TORCH, FlowerSettings


def build(plan: tff_mf.Plan, *, dimension: int, clip_norm: float, settings: FlowerSettings) -> streams.NoiseStream:
    """Returns the stream of a plan's noise, limited to its rounds; PyTorch's has the methods of NumPy's.

    Formal guarantee: as for `streams.NoiseStream` with the plan's noise as run. A state of a run with another clip
    norm, σ, mechanism, grid, generator or engine is refused.
    """
    build_stream: Any = streams.build_stream
    if settings.engine == TORCH:
        from tff_mf.noise import torch

        build_stream = torch.build_stream
    sigma = plan.noise_multiplier_as_run
    stream = build_stream(
        plan.mechanism,
        dimension=dimension,
        # On a grid, in units of the clip norm.
        stddev=sigma * (clip_norm if plan.grid is None else 1.0),
        insecure_seed=plan.insecure_seed,
        grid=plan.grid,
        generator=settings.generator,
    )
    # A stream knows only the product of σ and the clip norm, or σ alone.
    return stream.bound_to(repr(float(clip_norm))).limited_to(plan.rounds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerState:
    """The server's state after a round. Secret: with its keys, the noise can be removed from every released model.

    Model and momentum are float32 `[dimension]`.
    """

    round_number: int
    weights: np.ndarray
    velocity: np.ndarray
    noise: Mapping[str, np.ndarray]

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns what is saved: of the noise, the keys, from which it can be drawn again."""
        return {"weights": self.weights, "velocity": self.velocity, "keys": np.asarray(self.noise["keys"])}


def forget(folder: pathlib.Path) -> None:
    """Deletes all states in the folder of the checkpoints, and what secret cohorts follow from.

    With the keys, the noise can be removed from the models; no round needs them any more.
    """
    checkpoint_files.remove_all(folder)
    (folder / COHORTS).unlink(missing_ok=True)


def loaded(saved: Checkpoints, round_number: int, stream: streams.NoiseStream) -> ServerState:
    """Returns a state that was saved."""
    arrays, _ = saved.load(round_number)
    if arrays.keys() != {"weights", "velocity", "keys"} or len(arrays["keys"]) != round_number:
        raise InputValueError(
            f"checkpoint of round {round_number} has not the keys of its rounds: put the run's own checkpoint back."
        )
    return ServerState(
        round_number=round_number,
        weights=arrays["weights"],
        velocity=arrays["velocity"],
        noise=stream.replay(arrays["keys"]),
    )
