"""Sensitivity of any strategy matrix, by its entries."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from tff_mf import validation
from tff_mf._sensitivity import _fixed_epoch, _min_sep
from tff_mf._sensitivity._result import SensitivityResult
from tff_mf._sensitivity.scale import scaled
from tff_mf.mechanisms import Mechanism
from tff_mf.participation import FixedEpoch, Participation

BANDED = "banded, no more bands than b: Choquette-Choo et al. (2023), theorem 2"


def of_entries(mechanism: Mechanism, rounds: int, participation: Participation) -> SensitivityResult:
    """Returns the sensitivity of a mechanism by the entries of C.

    Args:
        mechanism: The mechanism.
        rounds: Number of rounds, checked by the mechanism and by `participation`.
        participation: The participation schema.
    """
    encoder, scale = scaled(mechanism, mechanism.encoder(validation.dense(rounds)))
    result = of_matrix(encoder, participation)
    return dataclasses.replace(result, value=result.value * scale)


def of_matrix(matrix: np.ndarray, participation: Participation) -> SensitivityResult:
    """Returns the sensitivity of any matrix, float64 `[rows, rounds]`, by the tightest rule that applies."""
    min_sep = participation.min_sep
    squared_norms = np.sum(np.square(matrix), axis=0)
    if participation.max_participations == 1:
        rule = "one participation: largest column norm"
        return SensitivityResult(value=float(np.sqrt(np.max(squared_norms))), exact=True, rule=rule)
    if not np.any(np.tril(matrix, -min_sep)) and not np.any(np.triu(matrix, 1)):
        return SensitivityResult(value=of_orthogonal(squared_norms, participation), exact=True, rule=BANDED)
    if isinstance(participation, FixedEpoch):
        gram = _touched(matrix, participation)
        return _fixed_epoch.fixed_epoch(gram, participation, lambda pattern: np.sum(matrix[:, pattern], axis=1))
    return _min_sep.upper_bound(matrix, participation)


def of_orthogonal(squared_norms: np.ndarray, participation: Participation) -> float:
    """Returns the exact sensitivity if the columns of one client's rounds are orthogonal."""
    if isinstance(participation, FixedEpoch):
        return _fixed_epoch.orthogonal_columns(squared_norms, participation)
    return _min_sep.orthogonal_columns(squared_norms, participation)


def _touched(matrix: np.ndarray, participation: FixedEpoch) -> Iterator[np.ndarray]:
    """Yields the diagonals 0, b, 2b, … of CᵀC; the other diagonals are not computed."""
    min_sep, rounds = participation.min_sep, matrix.shape[1]
    epochs = min(participation.max_participations, -(-rounds // min_sep))
    diagonals = [np.empty(rounds - each * min_sep) for each in range(epochs)]
    for place in range(min_sep):
        columns = np.ascontiguousarray(matrix[:, place::min_sep])
        gram = columns.T @ columns
        for each in range(min(epochs, len(gram))):
            diagonals[each][place::min_sep] = np.diagonal(gram, each)
    yield from diagonals
