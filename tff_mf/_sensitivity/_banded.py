"""Sensitivity of banded strategy matrices."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from tff_mf import _matrices, validation
from tff_mf._sensitivity import _fixed_epoch, general
from tff_mf._sensitivity._result import SensitivityResult
from tff_mf._sensitivity.scale import scaled
from tff_mf.mechanisms import BandedMechanism
from tff_mf.participation import FixedEpoch, Participation


def banded(mechanism: BandedMechanism, rounds: int, participation: Participation) -> SensitivityResult:
    """Returns the sensitivity by the diagonals that are not all zero, whatever the mechanism says of its bands."""
    found = mechanism.diagonals(validation.listable(rounds))
    diagonals = np.array(_matrices.shaped("diagonals", found, (mechanism.bands, rounds))[:rounds])
    for offset, diagonal in enumerate(diagonals):
        diagonal[rounds - offset :] = 0
    diagonals, scale = scaled(mechanism, diagonals)
    bands = 1 + int(np.max(np.nonzero(np.any(diagonals, axis=1))[0], initial=0))
    result = _banded(diagonals[:bands], participation)
    return dataclasses.replace(result, value=result.value * scale)


def _banded(diagonals: np.ndarray, participation: Participation) -> SensitivityResult:
    bands, rounds = diagonals.shape
    if participation.max_participations == 1 or bands <= participation.min_sep:
        squared_norms = np.sum(np.square(diagonals), axis=0)
        value = general.of_orthogonal(squared_norms, participation)
        return SensitivityResult(value=value, exact=True, rule=general.BANDED)
    if isinstance(participation, FixedEpoch):
        return _fixed_epoch.fixed_epoch(
            _touched(diagonals, participation.min_sep),
            participation,
            lambda pattern: _sum_of_columns(diagonals, pattern),
        )
    validation.dense(rounds)
    return general.of_matrix(_dense(diagonals), participation)


def _touched(diagonals: np.ndarray, min_sep: int) -> Iterator[np.ndarray]:
    """Yields the diagonals 0, b, 2b, … of CᵀC, as far as bands overlap."""
    bands, rounds = diagonals.shape
    for apart in range(0, bands, min_sep):
        yield np.einsum("it,it->t", diagonals[apart:, : rounds - apart], diagonals[: bands - apart, apart:])


def _sum_of_columns(diagonals: np.ndarray, pattern: range) -> np.ndarray:
    bands, rounds = diagonals.shape
    total = np.zeros(rounds + bands)
    for column in pattern:
        total[column : column + bands] += diagonals[:, column]
    return total


def _dense(diagonals: np.ndarray) -> np.ndarray:
    matrix = np.zeros((diagonals.shape[1],) * 2)
    for offset, diagonal in enumerate(diagonals):
        np.fill_diagonal(matrix[offset:], diagonal)
    return matrix
