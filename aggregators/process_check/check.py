"""The check: runs rounds of a process, and judges their results one property at a time."""

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import tensorflow_federated as tff

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError

from ..factory import MFAggregationFactory
from ..resident.context import ResidentContext, resident_context
from . import laws
from .laws import Findings, ProcessCheck
from .rounds import Probe

_ROUNDS = 4
_MOST_CLIENTS = 4000
_COHORT = 4
# Of the noise in which as many clients as are made up stand out, for rounding.
_SPARE = 0.98

_SEEN_OF_CLIENTS = ("clipping", "divisor", "weights")
_SEEN_IN_THE_MODEL = ("noise", "fresh_noise", *_SEEN_OF_CLIENTS)
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
    grid: tff_mf.Grid | Literal["auto"] | None = None,
) -> ProcessCheck:
    """Runs a learning process on made-up cohorts, and checks whether its releases are those that the guarantee covers.

    It runs in the resident context that it is called in, or in one of its own, and takes some ten seconds for a small
    model.

    The check sees what a reader of the server's releases sees: the model after a round, and the metrics. It also sees
    the state, since an exact value there influences later models. There are seven checks:

    - `metrics`, `state`: only the trainable weights change if one client's data or number of examples changes, its
      update is NaN, or the client is absent. The noised query alone has metrics. The state contains one stream of
      noise, and no adaptive bound of clipping or zeroing.
    - `noise`: rounds without clients add σζ·C⁻¹z / `clients_per_round`, by χ² tests of the whitened rounds; and the
      state has the fingerprint of that noise and its grid, which covers later rounds too.
    - `fresh_noise`: a state that is stepped twice draws different noise, and so do two initial states.
    - `clipping`: clients with the longest updates that can be made up move the model by `clip_norm` each at most; NaN
      does not move it at all.
    - `divisor`, `weights`: twice as many clients move the model twice as far; clients with more examples move it no
      further.

    A property that could not be measured is `not judged`: it has neither passed nor failed, and the text says once what
    would let it be judged. The server optimizer is only observed in its first step, which for SGD with any momentum is
    proportional to the aggregate; for Adam and similar optimizers it is not, which the check detects. Rounds have
    `40·noise_multiplier` clients or more, so that their changes stand out from the noise; small models need the fewest.
    The noise and clipping of this package do not depend on the size of the model. The effect of a compressing sum does,
    and the check does not look for it: rounding errors of `EncodedSumFactory` add up over coordinates, so that a client
    within `clip_norm` may move a large model several times as far. `build_mf_aggregator` refuses such sums; TFF's own
    `DifferentiallyPrivateFactory` accepts them.

    Formal guarantee: a process that keeps its claims fails the check of `noise` with probability below 1e-9; the bounds
    of `clipping`, `divisor` and `weights` are about six standard deviations from the values of such a process. That all
    checks pass is no proof: a process may behave differently on other data, or, its noise apart, after the fourth
    round. Noise of other packages has no fingerprint, and is measured but not judged. How often clients take part, and
    how ε was computed, is not checked.

    Args:
        process: The process that is to be trained.
        mechanism: The mechanism that it claims to use, or an artifact's path; as passed to `build_mf_aggregator`, like
            the next arguments, `restart_every` and `grid`.
        clip_norm: ζ.
        noise_multiplier: σ.
        clients_per_round: The constant divisor.
        clients: Data of two clients or more, as `process.next` takes it; `tf.data.Dataset`s or lists of batches.
        restart_every: Number of rounds after which noise starts anew, or `None`.
        server_learning_rate: Rate of the server's first step. If `None`, the one in the process's `get_hparams`; if
            that has none, what the model shows is not judged.
        grid: The grid, "auto" or `None`.

    Returns:
        The verdict, `passed`, `failed` or `not judged`; status of each check, and findings. `str` of it is a summary to
        read; it is true only if all checks passed.

    Example:
        arguments = {"clip_norm": 1.0, "noise_multiplier": 0.5, "clients_per_round": 100}
        aggregator = build_mf_aggregator(mechanism, **arguments)
        ...  # a process with model_aggregator=aggregator
        result = check_process(process, mechanism, **arguments, clients=datasets_of_three_clients)
        print(result)
    """
    if not isinstance(process, tff.learning.templates.LearningProcess):
        raise InputTypeError(f"process={process!r} must be a LearningProcess, such as tff.learning.algorithms builds.")
    if isinstance(mechanism, str | os.PathLike):
        mechanism = tff_mf.load(mechanism)
    validation.instance("mechanism", mechanism, tff_mf.Mechanism, "pass the one given to build_mf_aggregator")
    claimed = validation.positive("clip_norm", clip_norm) / validation.positive("clients_per_round", clients_per_round)
    sigma = validation.positive("noise_multiplier", noise_multiplier)
    if server_learning_rate is not None:
        server_learning_rate = validation.positive("server_learning_rate", server_learning_rate)
    if len(clients) < 2:
        raise InputValueError(f"clients has {len(clients)} clients: pass example data of two or more.")
    claim = MFAggregationFactory(
        mechanism,
        clip_norm=clip_norm,
        noise_multiplier=sigma,
        clients_per_round=clients_per_round,
        restart_every=restart_every,
        grid=grid,
    )
    current, findings = tff.framework.get_context_stack().current, Findings()
    with contextlib.nullcontext(current) if isinstance(current, ResidentContext) else resident_context():
        probe = Probe(process, server_learning_rate)
        claim = dataclasses.replace(claim, grid=claim.grid_for(probe.dimension))
        cohort = clients[:_COHORT]
        laws.metrics_and_state(probe, cohort, fingerprint=claim.fingerprint, findings=findings)
        _check_the_model(probe, clients, claimed=claimed, claim=claim, findings=findings)
    return findings.result()


def _check_the_model(
    probe: Probe,
    clients: Sequence[Any],
    *,
    claimed: float,
    claim: MFAggregationFactory,
    findings: Findings,
) -> None:
    """Makes the checks of what rounds add to the model."""
    limits = (claim.mechanism.max_rounds, claim.restart_every)
    encoder = claim.mechanism.encoder(min([_ROUNDS, *(limit for limit in limits if limit is not None)]))
    runs, rows = laws.noise_without_clients(probe, len(encoder))
    noisy = laws.is_seen(rows, findings)
    if noisy and not laws.is_normal(rows):
        text = "The server's step is not proportional to the aggregate, or the noise is not normal."
        findings.unjudged(_SEEN_IN_THE_MODEL, text, _SGD)
        return
    if noisy:
        laws.fresh_noise(probe, runs, findings)
    if probe.rate is None:
        text = "The server's learning rate is not known."
        findings.unjudged(
            ("noise", *_SEEN_OF_CLIENTS), text, "Pass server_learning_rate=, the rate of the first round."
        )
        return
    scale, first = probe.rate * claimed, claim.noise_multiplier / float(encoder[0, 0])
    if noisy:
        whitened = rows / (scale * claim.noise_multiplier)
        laws.noise(whitened, encoder=encoder, on_grid=claim.grid is not None, findings=findings)
    count, grid = laws.count_for(first, probe.dimension), claim.grid_for(probe.dimension)
    if count > (_MOST_CLIENTS if grid is None else min(_MOST_CLIENTS, grid.max_clients)):
        findings.unjudged(_SEEN_OF_CLIENTS, *more_room(count, claim.noise_multiplier, grid))
        return
    seen = float(np.sqrt(np.mean(rows[0] ** 2))) if noisy else None
    laws.clients(probe, clients, claimed=scale, noise=seen, count=count, findings=findings)


def more_room(count: int, noise_multiplier: float, grid: tff_mf.Grid | None) -> tuple[str, str]:
    """Returns why no rounds of `count` clients, which would stand out from the noise, are made, and what helps."""
    changes = []
    if count > _MOST_CLIENTS:
        text = f"A round of {count} clients would stand out from the noise, and at most {_MOST_CLIENTS} are made up."
        changes.append(f"noise_multiplier={noise_multiplier * _SPARE * _MOST_CLIENTS / count:.3g}")
    else:
        assert grid is not None
        text = f"A round of {count} clients would stand out from the noise, and the grid has room for "
        text += f"{grid.max_clients}."
    needed = min(count, _MOST_CLIENTS)
    if grid is not None and grid.max_clients < needed:
        changes.append(f"grid={dataclasses.replace(grid, max_clients=needed)!r}")
    return text, f"For this check alone, give build_mf_aggregator and check_process {' and '.join(changes)}."
