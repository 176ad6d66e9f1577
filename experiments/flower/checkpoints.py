"""The noise of a run on Flower, and its checkpoints: on disk before a model is released, with keys in place of rows."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec
import numpy as np

from tff_mf.base import checkpoint_files, files
from tff_mf.base.errors import InputValueError
from tff_mf.noise import numpy as streams
from tff_mf.noise.numpy import NoiseState

from ..output import typed
from ..privacy.plan import PrivacyPlan
from ..run_folder.folders import check_same
from ..run_folder.ledger import ReportCounts
from ..run_folder.names import CHECKPOINTS


class Noise(Protocol):
    """What the streams of runs with and without restarts share."""

    @property
    def fingerprint(self) -> bytes: ...

    def init(self) -> NoiseState: ...

    def next(self, state: Mapping[str, np.ndarray]) -> tuple[np.ndarray, NoiseState]: ...


# From the keys since the last restart, and the number of rounds that are finished, to the state after them.
Replay = Callable[[np.ndarray, int], NoiseState]


def build(plan: PrivacyPlan, *, dimension: int, clip_norm: float, generator: str) -> tuple[Noise, Replay]:
    """Returns the stream of a plan's noise, limited to its rounds, and what draws the noise of past rounds again.

    Formal guarantee: as for `streams.NoiseStream` with the plan's noise as run, and of `streams.RestartedStream` with
    restarts. A state of a run with another clip norm, σ, mechanism, grid, generator or restarts is refused.

    Args:
        plan: The plan.
        dimension: Number of model parameters.
        clip_norm: Clip norm ζ.
        generator: As in `streams.build_stream`.
    """
    sigma = plan.noise_multiplier_as_run
    stream = streams.build_stream(
        plan.mechanism,
        dimension=dimension,
        # On a grid, in units of the clip norm.
        stddev=sigma * (clip_norm if plan.grid is None else 1.0),
        insecure_seed=plan.insecure_seed,
        grid=plan.grid,
        generator=generator,
    )
    # A stream knows only the product of σ and the clip norm, or σ alone.
    stream = stream.bound_to(repr(float(clip_norm)))
    if plan.restart_every is None:
        limited = stream.limited_to(plan.rounds)
        return limited, lambda keys, done: limited.replay(keys)
    restarted = streams.RestartedStream(stream, restart_every=plan.restart_every, rounds=plan.rounds)
    return restarted, lambda keys, done: restarted.replay(keys, rounds_done=done)


def keys_since_restart(plan: PrivacyPlan, done: int) -> int:
    """Returns how many keys a checkpoint has after so many rounds.

    Example:
        >>> import tff_mf
        >>> from tff_mf.experiments.privacy import plan_privacy
        >>> plan = plan_privacy(mechanism=tff_mf.Tree(4), rounds=8, participation=tff_mf.SingleParticipation(),
        ...                     delta=1e-6, clients_per_round=2, noise_multiplier=8.0, restart_every=4)
        >>> keys_since_restart(plan, 3), keys_since_restart(plan, 4)
        (3, 0)
    """
    return done if plan.restart_every is None else done % plan.restart_every


def as_json(plan: PrivacyPlan) -> dict[str, Any]:
    """Returns what of the noise a resumed run is told about by name, beside the fingerprint."""
    return {name: getattr(plan, name) for name in ("grid_bits", "grid_max_clients", "restart_every")}


_PREFIX, _SUFFIX = "checkpoint_", ".safetensors"
_KEEP = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerState:
    """The server's state after a round. Secret: with its keys, the noise can be removed from every released model.

    Attributes:
        round_number: Rounds that are finished.
        weights: The model, float32 `[dimension]`.
        velocity: Momentum of the server's optimizer, float32 `[dimension]`.
        noise: State of the noise stream.
    """

    round_number: int
    weights: np.ndarray
    velocity: np.ndarray
    noise: Mapping[str, np.ndarray]


def keys_alone(state: ServerState) -> np.ndarray:
    """Returns the keys of the rounds since the last restart, from which the noise can be drawn again."""
    return np.asarray(state.noise["keys"])


def remove_checkpoints(out: pathlib.Path) -> None:
    """Deletes every checkpoint of a run, the newest last, so that a crash in between leaves the newest."""
    folder = out / CHECKPOINTS
    files.remove_unfinished(folder)
    for number in _rounds(folder):
        (folder / f"{_PREFIX}{number}{_SUFFIX}").unlink()


def _rounds(folder: pathlib.Path) -> list[int]:
    names = [path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX) for path in folder.glob(f"{_PREFIX}*")]
    return sorted(int(name) for name in names if name.isdecimal())


class Checkpoints:
    """The checkpoints of one run, which only a run with the same settings can resume.

    Formal guarantee: `save` returns when the state would survive a power failure. A file in which a bit has changed, or
    that is of another run, is refused.

    Args:
        out: The run's folder.
        settings: Everything that determines how the run proceeds, as JSON.
        run: The run's identifier, as in its ledger.
        keys_after: How many keys there are after a number of rounds.
    """

    def __init__(
        self, out: pathlib.Path, *, settings: Mapping[str, Any], run: str, keys_after: Callable[[int], int]
    ) -> None:
        self._folder, self._keys_after = out / CHECKPOINTS, keys_after
        self._settings, self._run = json.loads(json.dumps(settings)), run
        checkpoint_files.make_private(self._folder)

    def rounds(self) -> list[int]:
        """Returns the rounds after which a state was saved, in order."""
        return _rounds(self._folder)

    def save(self, state: ServerState, reports: ReportCounts) -> None:
        """Saves the state after a round, and deletes all but the newest checkpoints.

        Args:
            state: The state.
            reports: Counts of the replies in the round.
        """
        about = {
            "settings": self._settings,
            "run": self._run,
            "round": state.round_number,
            "reports": msgspec.to_builtins(reports),
        }
        checkpoint_files.write(
            self._path(state.round_number), [state.weights, state.velocity, keys_alone(state)], about
        )
        for old in self.rounds()[:-_KEEP]:
            self._path(old).unlink()

    def load(
        self, round_number: int, replay: Callable[[np.ndarray, int], Mapping[str, np.ndarray]]
    ) -> tuple[ServerState, ReportCounts]:
        """Returns the state after a round and the counts of its replies.

        Args:
            round_number: One of `rounds`.
            replay: From the keys since the last restart, and the round, to the state of the noise stream after it.

        Raises:
            InputValueError: If the file is damaged, or of another run or one with other settings.
        """
        path = self._path(round_number)
        tensors, about = checkpoint_files.read(path)
        if (about["run"], about["round"]) != (self._run, round_number):
            raise InputValueError(
                f"checkpoint {str(path)!r} is of round {about['round']} of run {about['run']:.8}, and not of this one, "
                f"{self._run:.8}: put the run's own checkpoint back."
            )
        check_same(self._settings, about["settings"], run=str(self._folder.parent))
        weights, velocity, keys = tensors
        if len(keys) != self._keys_after(round_number):
            raise InputValueError(
                f"checkpoint {str(path)!r} has keys of {len(keys)} rounds, not of {self._keys_after(round_number)}: "
                "put the run's own checkpoint back."
            )
        noise = replay(keys, round_number)
        state = ServerState(round_number=round_number, weights=weights, velocity=velocity, noise=noise)
        return state, typed.convert(about["reports"], ReportCounts, f"checkpoint {str(path)!r}")

    def _path(self, round_number: int) -> pathlib.Path:
        return self._folder / f"{_PREFIX}{round_number}{_SUFFIX}"
