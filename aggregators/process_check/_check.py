"""The check: which rounds are run, and in which order their results are judged."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

import tff_mf
from tff_mf import _validate
from tff_mf.errors import InputTypeError, InputValueError

from ..factories.factory import build_mf_aggregator
from . import _bound, _cohorts, _leaves, _noise
from ._probe import Probe
from ._result import Findings, ProcessCheck

_ROUNDS = 4
_SAMPLES = 1000
_MOST_CLIENTS = 4000
_COHORT = 4

_SEEN_IN_THE_MODEL = ("noise", "fresh_noise", "clipping", "divisor", "weights")
_SGD = "Build the process with server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0), and check that one."


def check_process(
    process: tff.learning.templates.LearningProcess,
    mechanism: tff_mf.Mechanism | str | os.PathLike[str],
    *,
    clip_norm: float,
    noise_multiplier: float,
    clients_per_round: float,
    clients: Sequence[Any],
    restart_every: int | None = None,
    server_learning_rate: float | None = None,
    hostile: Any = None,
) -> ProcessCheck:
    """Runs a learning process on made-up cohorts, and says whether what leaves it is what the guarantee counts on.

    It sees what a reader of the server's releases sees: the model after a round, and the metrics. It sees the state
    too, since what is exact there reaches later models. Seven checks:

    - `metrics`, `state`: nothing but the trainable weights changes when one client's data or examples change, or it is
      absent. The state remembers one stream of noise, and no bound of clipping or zeroing that adapts.
    - `noise`: rounds without clients add σζ·C⁻¹z / `clients_per_round`, by χ² of the whitened rounds; and the state has
      the fingerprint of that noise, which speaks for later rounds too.
    - `fresh_noise`: the same state, stepped twice, draws other noise; so do two initial states.
    - `clipping`: many clients with updates as long as can be made up move the model by `clip_norm` each at most; NaN
      moves it not at all.
    - `divisor`, `weights`: twice as many clients move it twice as far; clients with more examples no further.

    What could not be seen is `not judged`, and never passes. A server optimizer is looked through at its first step
    from its initial state, which for SGD with any momentum is in proportion to the aggregate; for Adam and its like it
    is not, which is found out. Rounds have `40·noise_multiplier` clients or more, so that the noise does not hide what
    they add, and a small model needs the fewest. Our own noise and clipping do not depend on the model's size. What a
    `record_aggregation_factory` that compresses makes of clipped updates does: the rounding of `EncodedSumFactory` adds
    up over coordinates, so that a client that keeps to `clip_norm` in a small model may move a large one several times
    as far. That is not looked for.

    Formal guarantee: a process that does what is claimed fails the check of `noise` with probability below 1e-9; the
    bounds of `clipping`, `divisor` and `weights` lie some six standard deviations away from what it shows. That
    all checks pass is no proof: a process may behave otherwise on other data, or beside its noise in a later round than
    the fourth. Noise that is not ours has no fingerprint, and is measured but not judged. Who takes part how often is
    not looked at, nor how the ε was computed.

    Args:
        process: The process, as it is to train.
        mechanism: What it claims to run, or an artifact's path; as passed to `build_mf_aggregator`, like the next ones.
        clip_norm: ζ.
        noise_multiplier: σ.
        clients_per_round: The constant divisor.
        clients: Data of two clients or more, as `process.next` takes it; `tf.data.Dataset`s or lists of batches.
        restart_every: Number of rounds after which noise starts anew, or `None`.
        server_learning_rate: Rate of the server's first step. If `None` it is what the process's `get_hparams` says, or
            else found from how far clients move the model.
        hostile: Data of a client with an update longer than `clip_norm`, where none can be made of `clients`.

    Returns:
        Status of each check, and findings. `str` of it is for people.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If one is out of range.

    Example:
        arguments = {"clip_norm": 1.0, "noise_multiplier": 0.5, "clients_per_round": 100}
        aggregator = build_mf_aggregator(mechanism, **arguments)
        ...  # a process with model_aggregator=aggregator
        result = check_process(process, mechanism, **arguments, clients=datasets_of_three_clients)
        print(result)
    """
    if not isinstance(process, tff.learning.templates.LearningProcess):
        raise InputTypeError(f"process={process!r} must be a LearningProcess: what tff.learning.algorithms build.")
    if isinstance(mechanism, str | os.PathLike):
        mechanism = tff_mf.load(mechanism)
    _validate.instance("mechanism", mechanism, tff_mf.Mechanism, "pass what build_mf_aggregator was given")
    claimed = _validate.positive("clip_norm", clip_norm) / _validate.positive("clients_per_round", clients_per_round)
    sigma = _validate.positive("noise_multiplier", noise_multiplier)
    if server_learning_rate is not None:
        server_learning_rate = _validate.positive("server_learning_rate", server_learning_rate)
    if len(clients) < 2:
        raise InputValueError(f"clients has {len(clients)} clients: give example data of two or more.")
    rounds = min([_ROUNDS, *(limit for limit in (mechanism.max_rounds, restart_every) if limit is not None)])
    encoder = mechanism.encoder(rounds)
    claim = build_mf_aggregator(
        mechanism,
        clip_norm=clip_norm,
        noise_multiplier=sigma,
        clients_per_round=clients_per_round,
        restart_every=restart_every,
    )
    probe, findings = Probe(process, server_learning_rate), Findings()
    _leaves.check(probe, _cohorts.neighbours(clients[:_COHORT], hostile), claim.fingerprint, findings)
    _aggregate(probe, clients, hostile, encoder=encoder, claimed=claimed, sigma=sigma, findings=findings)
    return findings.result()


def _aggregate(
    probe: Probe,
    clients: Sequence[Any],
    hostile: Any,
    *,
    encoder: np.ndarray,
    claimed: float,
    sigma: float,
    findings: Findings,
) -> None:
    """Makes the checks that look at what rounds add to the model."""
    runs = _noise.rounds_without_clients(probe, len(encoder), _SAMPLES)
    rows = _noise.rows_of(runs)
    noisy = _noise.is_seen(rows, findings)
    if noisy and not _noise.is_normal(rows):
        text = "The server's step is not in proportion to the aggregate, or the noise not normal."
        findings.unjudged(_SEEN_IN_THE_MODEL, text, _SGD)
        return
    count = _bound.count_for(sigma / float(encoder[0, 0]), probe.dimension)
    if count > _MOST_CLIENTS:
        text = f"{count} clients a round would be needed to see them in the noise."
        findings.unjudged(_SEEN_IN_THE_MODEL, text, "Check a smaller model, or one with less noise.")
        return
    scale = None if probe.rate is None else probe.rate * claimed
    seen = float(np.sqrt(np.mean(rows[0] ** 2))) if noisy else None
    unit = _bound.check(probe, clients, hostile, claimed=scale, noise=seen, count=count, findings=findings)
    if noisy:
        _noise.fresh(probe, runs, findings)
        _covariance(rows, encoder, sigma, unit if scale is None else _bound.Unit(size=scale, error=0.0), findings)


def _covariance(
    rows: np.ndarray, encoder: np.ndarray, sigma: float, unit: _bound.Unit | None, findings: Findings
) -> None:
    if unit is None:
        text = "The server's learning rate is not known."
        findings.unjudged(("noise",), text, "Pass server_learning_rate=, that of the first round.")
        return
    whitened = rows / (unit.size * sigma)
    _noise.covariance(whitened, encoder=encoder, room=unit.error, findings=findings)
