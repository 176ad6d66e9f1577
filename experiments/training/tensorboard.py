"""Curves for TensorBoard: the metrics of a run, and beside them what its privacy is so far."""

import pathlib
from collections.abc import Mapping

import numpy as np
import tensorflow_federated as tff

from .. import reports
from ..configuration.settings import TrainingSettings
from ..output import digits
from ..privacy.plan import PrivacyPlan
from ..run_folder.names import TENSORBOARD
from . import task


class Board(tff.program.ReleaseManager):
    """Releases the rows of `metrics.csv`, each with noise, clipping and, where it was evaluated, ε so far.

    Formal guarantee: clip norm and noise are settings, and ε follows from who took part and from settings, as in the
    run's report. Nothing that is computed from clients' updates is released, such as how many were clipped.
    """

    def __init__(self, folder: pathlib.Path, settings: TrainingSettings, privacy: PrivacyPlan) -> None:
        self._folder = folder
        self._manager = tff.program.TensorBoardReleaseManager(folder / TENSORBOARD)
        stddev = privacy.noise_multiplier_as_run * settings.clip_norm
        self._settings = {
            "clip_norm": settings.clip_norm,
            # Of Z, that the mechanism correlates, in the mean that the server's rate multiplies.
            "noise_stddev_of_z_in_the_mean": stddev / privacy.clients_per_round,
        }

    async def release(self, value: Mapping[str, float], key: int) -> None:
        """Releases the row `value` of the round `key`, which the ledger has as released."""
        evaluated = task.ACCURACY in value
        await self._manager.release({**value, **self._settings, **(self._epsilon() if evaluated else {})}, key)

    def _epsilon(self) -> dict[str, float]:
        claim = reports.claim_so_far(self._folder)
        if claim is None:
            return {}
        found = {"epsilon_so_far": claim.epsilon}
        if claim.is_simulated:
            found["epsilon_so_far_of_those_that_train"] = claim.epsilon_as_run
        return {name: _upwards(epsilon) for name, epsilon in found.items() if epsilon != float("inf")}


def _upwards(epsilon: float) -> float:
    """Returns ε as a report prints it, rounded up once more to what TensorBoard keeps: float32."""
    shown = float(digits.rounded_up(epsilon))
    kept = np.float32(shown)
    return float(kept if kept >= shown else np.nextafter(kept, np.float32(np.inf)))
