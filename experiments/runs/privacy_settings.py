"""The settings that every private training has, of clients or of examples."""

from typing import Any

import msgspec
import numpy as np

import tff_mf
from tff_mf.base import validation
from tff_mf.planning import MechanismSetting, by_name, check_level

from ..output import progress, typed
from ..output.typed import Number, Record, Size, Whole
from .together import check_together

_OF_MECHANISM = ("buffers", "bands", "unit_norms", "objective")


class PrivacySettings(Record, kw_only=True):
    """The settings of every private training, of clients or of examples, that its mechanism and noise follow from.

    Attributes:
        delta: δ of the guarantee; well below 1 / population.
        mechanism: `blt`, `scaled-blt`, `banded`, `banded-toeplitz` or `dense`, optimized for the run;
            `tree-full`, `tree-online`, `tree-vanilla`, `identity`, `production:NAME`, or a file.
        buffers: Buffers of an optimized `blt`; chosen by the optimizer if not given.
        bands: Bands of an optimized banded kind; min-sep if not given.
        unit_norms: Whether the columns of a `banded` have norm 1; if false, their norms are fitted to the
            participation.
        objective: Loss to minimize, `rms` or `max`; by default `max` for a BLT, `rms` for all others.
        workload: Workload of the losses, for which the mechanism is optimized: `prefix-sum`, `momentum`,
            `learning-rates` or `momentum-with-rates`.
        min_sep: Smallest difference b between two rounds of one client.
        groups: Number of groups of clients; of `cyclic-poisson`, as many as bands.
        epsilon: Largest ε of the whole run; or a noise multiplier.
        noise_multiplier: σ: standard deviation of Z divided by the clip norm, for the cohort.
        clip_norm: Bound ζ on the L2 norm of a client's update; the first one, if it adapts.
    """

    delta: Number
    mechanism: str = "blt"
    buffers: Size | None = None
    bands: Size | None = None
    unit_norms: bool | None = None
    objective: str | None = None
    workload: str = "prefix-sum"
    min_sep: Whole | None = None
    groups: Whole | None = None
    epsilon: Number | None = None
    noise_multiplier: Number | None = None
    clip_norm: Number = 1.0

    def __post_init__(self) -> None:
        # Of what is not read from a file, msgspec checks nothing by itself; it knows no scalars of NumPy.
        values = msgspec.structs.asdict(self).items()
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in values}
        typed.convert(plain, typed.partial(type(self)))
        validation.clip_norm(self.clip_norm)

    def mechanism_setting(self) -> MechanismSetting:
        """Returns the setting that the mechanism is optimized for."""
        raise NotImplementedError

    def check(self) -> None:
        """Refuses a mechanism or a level of noise that does not go with the other settings."""

        def check_noise() -> None:
            check_level(epsilon=self.epsilon, noise_multiplier=self.noise_multiplier, delta=self.delta)

        def check_mechanism() -> None:
            setting = self.mechanism_setting()
            by_name.check(
                self.mechanism, rounds=setting.searched_rounds, workload=setting.searched_workload, **self._options
            )

        check_together([check_noise, check_mechanism])

    def build_mechanism(self) -> tff_mf.Mechanism:
        """Returns the mechanism, for one restart if there are restarts, optimized if it is of such a kind."""
        with progress.search() as report:
            return self.mechanism_setting().named(self.mechanism, **self._options, progress=report)

    @property
    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _OF_MECHANISM}
