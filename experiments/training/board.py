"""What TensorBoard shows of a run."""

import pathlib
from collections.abc import Mapping

import numpy as np
import tensorflow_federated as tff

import tff_mf
from tff_mf.numerics import digits

from .. import reports
from ..runs import ledger
from ..runs.names import LEDGER, TENSORBOARD
from ..runs.settings import RunSettings
from . import task


class Board(tff.program.ReleaseManager):
    """Releases the rows of `metrics.csv`, each with noise, clipping and, where it was evaluated, ε so far.

    Formal guarantee: clip norm and noise are settings, and ε follows from who took part and from settings, as in the
    run's report. Nothing that is computed from clients' updates is released, such as how many were clipped.
    """

    def __init__(self, folder: pathlib.Path, settings: RunSettings, privacy: tff_mf.Plan) -> None:
        self._folder = folder
        self._manager = tff.program.TensorBoardReleaseManager(folder / TENSORBOARD)
        # The standard deviation of Z in the mean that the server's rate multiplies, for a clip norm of 1.
        self._stddev = privacy.noise_multiplier_as_run / privacy.clients_per_round
        self._fixed = None if settings.adaptive_clipping is not None else settings.clip_norm

    async def release(self, value: Mapping[str, float], key: int) -> None:
        """Releases the row `value` of the round `key`, which the ledger has as released."""
        evaluated = task.ACCURACY in value
        clip_norm = self._logged_clip_norm(key) if self._fixed is None else self._fixed
        noise = {"clip_norm": clip_norm, "noise_stddev_of_z_in_the_mean": self._stddev * clip_norm}
        await self._manager.release({**value, **noise, **(self._epsilon() if evaluated else {})}, key)

    def _logged_clip_norm(self, round_number: int) -> float:
        """Returns the clip norm of a round, which follows from noised counts, by the ledger."""
        begun = ledger.read_ledger(self._folder / LEDGER).begun
        return next(each.clip_norm for each in reversed(begun) if each.round == round_number)

    def _epsilon(self) -> dict[str, float]:
        claim = reports.claim_so_far(self._folder)
        if claim is None:
            return {}
        found = {"epsilon_so_far": claim.epsilon}
        if claim.cohort != claim.clients_per_round:
            found["epsilon_so_far_of_those_that_train"] = claim.epsilon_as_run
        return {name: _upwards(epsilon) for name, epsilon in found.items() if epsilon is not None}


def _upwards(epsilon: float) -> float:
    """Returns ε as a report prints it, rounded up once more to what TensorBoard keeps: float32."""
    shown = float(digits.rounded_up(epsilon))
    kept = np.float32(shown)
    return float(kept if kept >= shown else np.nextafter(kept, np.float32(np.inf)))
