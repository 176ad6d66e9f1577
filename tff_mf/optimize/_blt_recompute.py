"""Loss of a finished BLT, from its own parameters rather than the optimizer's."""

import numpy as np

from tff_mf.mechanisms import BLT, BLTParameters, OptimizedFor
from tff_mf.optimize._blt_closed_form import BLTClosedForm

# Largest number of rounds for which every coefficient is summed; it takes about 20 ms.
_DIRECT_ROUNDS = 2**20

# Each power of θ is a power within a block times the first power of that block: one matrix product, few powers.
_BLOCK = 1024

# Far from underflow when squared, and negligible in any loss.
_LEAST_DECAY = 1e-100


def recomputed_loss(mechanism: BLT, optimized_for: OptimizedFor, objective: str) -> float:
    """Returns MaxLoss or RmsLoss of a BLT with non-increasing coefficients, for prefix sums.

    Up to 2²⁰ rounds it is the direct sum over the coefficients of C and B, which shares no code with the loss that the
    optimizer minimized. Beyond, it is the closed form for (θ, ω) and for the (θ̂, ω̂) that `BLT.inverse_parameters`
    computes from them.

    Source: McMahan et al. (2024), theorem 3.1 and proposition 3.2.

    Args:
        mechanism: The BLT.
        optimized_for: The setting of the loss.
        objective: "max" or "rms".
    """
    squared = _direct if optimized_for.rounds <= _DIRECT_ROUNDS else _closed_form
    return float(np.sqrt(squared(mechanism, optimized_for, objective)))


def _direct(mechanism: BLT, optimized_for: OptimizedFor, objective: str) -> float:
    rounds, participation = optimized_for.rounds, optimized_for.participation
    column = _coefficients(BLTParameters(np.asarray(mechanism.theta), np.asarray(mechanism.omega)), rounds)
    min_sep = min(participation.min_sep, rounds)
    epochs = -(-rounds // min_sep)
    by_epoch = np.pad(column, (0, epochs * min_sep - rounds))
    summed = np.cumsum(by_epoch.reshape(epochs, -1), axis=0)
    summed[participation.max_participations :] -= summed[: -participation.max_participations].copy()
    sensitive = summed.ravel()[:rounds]

    errors = np.cumsum(_coefficients(mechanism.inverse_parameters(), rounds)) ** 2
    if objective == "rms":
        errors *= 1 - np.arange(rounds) / rounds
    return (sensitive @ sensitive) * errors.sum()


def _closed_form(mechanism: BLT, optimized_for: OptimizedFor, objective: str) -> float:
    form = BLTClosedForm(optimized_for, objective)
    theta = np.asarray(mechanism.theta)
    inverse = mechanism.inverse_parameters()
    # Rounding can move a θ̂ out of (0, 1).
    inverse_theta = np.clip(inverse.theta, _LEAST_DECAY, np.nextafter(1, 0))
    constant = np.prod((1 - theta) / (1 - inverse_theta))
    beta = np.concatenate([[constant], -inverse.omega / (1 - inverse_theta)])
    error = form.squared_error(beta, np.concatenate([[0.0], -np.log(inverse_theta)]))
    return error.value * form.squared_sensitivity(np.asarray(mechanism.omega), -np.log(theta)).value


def _coefficients(parameters: BLTParameters, rounds: int) -> np.ndarray:
    theta, omega = parameters
    blocks = -(-rounds // _BLOCK)
    begins = omega * np.power.outer(theta, _BLOCK * np.arange(blocks)).T
    within = np.power.outer(theta, np.arange(_BLOCK))
    return np.concatenate([[1.0], (begins @ within).ravel()[: rounds - 1]])
