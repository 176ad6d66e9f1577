"""BLTs whose columns are scaled: one factor for each round, and no more memory than the BLT."""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import series
from tff_mf.mechanisms.blt import BLT
from tff_mf.mechanisms.recursion import NEW, Recursion
from tff_mf.mechanisms.scaled_columns import ScaledColumns

# π, also as a float32.
_MOST_ANGLE = float(np.float32(math.pi))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScaledBLT(ScaledColumns):
    """C = LtToep(c)·diag(d) for a BLT c, or one with pairs of buffers that turn.

    c₀ = 1 and c_i = Σ_j ω_j θ_j^(i−1) cos(φ_j·(i−1) + ψ_j). A buffer whose φ is 0 is one of a BLT, and a row of memory.
    One that turns is a pair of rows: it makes coefficients oscillate, so that they may vanish where a client comes
    again.

    Attributes:
        theta: Decay θ of each buffer, in (0, 1].
        omega: Weight ω of each buffer, at least 0.
        scales: d, above 0, one number for each round.
        turn: Angle φ by which each buffer turns in a round, from 0 to π; empty if none turns.
        phase: Angle ψ of each buffer, from −π to π; empty if all are 0.

    Example:
        >>> ScaledBLT(theta=[0.5], omega=[0.25], scales=[1.0, 2.0, 4.0]).encoder(3)
        array([[1.   , 0.   , 0.   ],
               [0.25 , 2.   , 0.   ],
               [0.125, 0.5  , 4.   ]])
    """

    kind: ClassVar[str] = "scaled_blt"
    theta: Sequence[float]
    omega: Sequence[float]
    turn: Sequence[float] = ()
    phase: Sequence[float] = ()

    def __post_init__(self) -> None:
        blt = BLT(theta=self.theta, omega=self.omega)
        for name in ("theta", "omega"):
            object.__setattr__(self, name, getattr(blt, name))
        for name, least in (("turn", 0.0), ("phase", -_MOST_ANGLE)):
            object.__setattr__(self, name, self._angles(name, least))
        super().__post_init__()

    def _angles(self, name: str, least: float) -> tuple[float, ...]:
        given = getattr(self, name)
        angles = (
            (0.0,) * len(self.theta)
            if isinstance(given, tuple) and not given
            else series.numbers(name, given, each="buffer")
        )
        if len(angles) != len(self.theta):
            raise InputValueError(
                f"{name} has {len(angles)} values and theta has {len(self.theta)}: give one of each per buffer."
            )
        for index, value in enumerate(angles):
            if not least <= value <= _MOST_ANGLE:
                raise InputValueError(f"{name}[{index}]={value!r} must be at least {least} and at most {_MOST_ANGLE}.")
        return angles

    @property
    def buffers(self) -> int:
        """Number of rows of memory: two for each buffer that turns."""
        return len(self.theta) + np.count_nonzero(self.turn)

    def unscaled_column(self, rounds: int) -> np.ndarray:
        powers = np.arange(validation.listable(rounds) - 1)
        column = np.eye(1, rounds)[0]
        for theta, omega, turn, phase in zip(self.theta, self.omega, self.turn, self.phase, strict=True):
            column[1:] += omega * theta**powers * np.cos(turn * powers + phase)
        return column

    def cast_to_float32(self) -> Self:
        """Returns the mechanism whose rounds have weights in float32: of a pair, both parts are rounded."""
        theta, turn = _of_float32(self.theta, self.turn, most=1.0)
        omega, phase = _of_float32(self.omega, self.phase)
        return dataclasses.replace(
            self, theta=theta, turn=turn, omega=omega, phase=phase, scales=series.float32(self.scales)
        )

    def recursion(self) -> Recursion:
        """L_t = Σ_j ω_j (cos ψ_j·u_j − sin ψ_j·v_j) for rows u_j and v_j, which a round turns by φ_j."""
        past: list[float] = []
        after: list[list[tuple[int, float]]] = []
        for theta, omega, turn, phase in zip(self.theta, self.omega, self.turn, self.phase, strict=True):
            row = len(after)
            past.append(omega * math.cos(phase))
            if turn == 0:
                after.append([(row, theta), (NEW, 1.0)])
                continue
            past.append(-omega * math.sin(phase))
            same, other = theta * math.cos(turn), theta * math.sin(turn)
            after += [[(row, same), (row + 1, -other), (NEW, 1.0)], [(row, other), (row + 1, same)]]
        return Recursion.linear(past=past, after=after).with_scaled_columns(np.array(self.scales))


def _of_float32(
    lengths: Sequence[float], angles: Sequence[float], most: float = math.inf
) -> tuple[Sequence[float], Sequence[float]]:
    """Returns lengths and angles of complex numbers whose parts are float32, and whose lengths are at most `most`.

    Rounding the result again changes no bit: its parts are float32 up to rounding errors of float64.
    """
    # π as a float32 is above π, where the sign of the sine is another.
    given = np.array(lengths) * np.exp(1j * np.clip(angles, -math.pi, math.pi))
    parts = np.stack([given.real, given.imag])
    rounded = parts.astype(np.float32)
    inwards = np.where(np.abs(rounded) > np.abs(parts), np.nextafter(rounded, np.float32(0)), rounded)
    real, imaginary = np.where(np.hypot(*rounded.astype(float)) > most, inwards, rounded).astype(float)
    turns = np.array(angles) != 0
    return (
        np.where(turns, np.hypot(real, imaginary), series.float32(lengths)).tolist(),
        np.where(turns, np.arctan2(imaginary, real), 0.0).tolist(),
    )
