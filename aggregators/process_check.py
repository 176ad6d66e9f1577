"""`check_process`: a learning process of TFF, whose clients are data, judged by `tff_mf.conformance`."""

import contextlib
import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree
from scipy import stats

import tff_mf
from tff_mf import conformance
from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.conformance.trial import CHANCE
from tff_mf.noise.tensorflow import NoiseState

from .factory import MFAggregationFactory
from .resident.context import ResidentContext, resident_context

_LEAST_CLIENTS, _MOST_CLIENTS, _COHORT = 10, 4000, 4
# What data, and the model's weights, are multiplied by, to make updates long; and how many examples there are of each.
_SCALES, _FACTORS, _TIMES = (1.0, 10.0, 1e2, 1e3, 1e8), (0.0, 1.0, 10.0, 100.0), 64
# Rounds in which the direction of a long update is measured; and the share of the claimed bound that a clipped one has.
_MEASURED, _CLIPPED = 8, 0.7


def check_process(
    process: tff.learning.templates.LearningProcess,
    mechanism: tff_mf.Mechanism | str | os.PathLike[str],
    *,
    clip_norm: float,
    noise_multiplier: float,
    clients_per_round: float,
    clients: Sequence[Any],
    rounds: int | None = None,
    server_learning_rate: float | None = None,
    grid: tff_mf.Grid | Literal["auto"] | None = None,
    effort: float = 0.01,
) -> conformance.Verdict:
    """Runs a learning process on made-up cohorts, and judges its releases by the laws of `tff_mf.conformance`.

    It runs in the resident context that it is called in, or in one of its own, and takes some ten seconds for a small
    model.

    What leaves the server is the change of the trainable weights, divided by the server's learning rate; beside it are
    the metrics and the other weights; and of the state, all but the server's optimizer and the noise of this package is
    published, since an exact value there influences later models. Clients are empty, or examples whose numbers, or
    the model's weights, are multiplied until updates are clipped, or NaN, or 64 times as many.

    Each round is the first one of the server's optimizer, which for SGD with any momentum is proportional to the
    aggregate. For Adam it is not, which fails. Rounds have 10 clients, or more if these would not stand out from the
    noise. The grid is judged if weights of zero have long updates, or else by the noise alone.

    Formal guarantee: as for `tff_mf.conformance.Verdict`, if clients draw no numbers of their own, such as dropout. How
    often clients take part, and how ε was computed, is not checked.

    Args:
        process: The process that is to be trained.
        mechanism: The mechanism that it claims to use, or an artifact's path; as passed to `build_mf_aggregator`, like
            the next arguments and `grid`.
        clip_norm: ζ.
        noise_multiplier: σ.
        clients_per_round: The constant divisor.
        clients: Data of two clients or more, as `process.next` takes it; `tf.data.Dataset`s or lists of batches.
        rounds: The last round, which is run too; if `None`, eight rounds are.
        server_learning_rate: Rate of the server's first step. If `None`, the one in the process's `get_hparams`.
        grid: The grid, "auto" or `None`.
        effort: Rounds that are run, as for `tff_mf.conformance.check`: `Outcome.text` says what is found.

    Example:
        arguments = {"clip_norm": 1.0, "noise_multiplier": 0.5, "clients_per_round": 100}
        aggregator = build_mf_aggregator(mechanism, **arguments)
        ...  # a process with model_aggregator=aggregator
        print(check_process(process, mechanism, **arguments, clients=datasets_of_three_clients))

    Raises:
        InputError: If an argument is of the wrong type or out of range.
    """
    if not isinstance(process, tff.learning.templates.LearningProcess):
        raise InputTypeError(f"process={process!r} must be a LearningProcess, such as tff.learning.algorithms builds.")
    if isinstance(mechanism, str | os.PathLike):
        mechanism = tff_mf.load(mechanism)
    validation.instance("mechanism", mechanism, tff_mf.Mechanism, "pass the one given to build_mf_aggregator")
    if len(clients) < 2:
        raise InputValueError(f"clients has {len(clients)} clients: pass example data of two or more.")
    noised = {"clip_norm": clip_norm, "noise_multiplier": noise_multiplier}
    factory = MFAggregationFactory(mechanism, **noised, clients_per_round=clients_per_round, grid=grid)
    current = tff.framework.get_context_stack().current
    with contextlib.nullcontext(current) if isinstance(current, ResidentContext) else resident_context():
        subject = _Process(process, server_learning_rate)
        claim = conformance.Claim(
            **noised,
            mechanism=mechanism,
            divisor=clients_per_round,
            rounds=rounds,
            grid=factory.grid_for(subject.dimension),
        )
        made_up = _MadeUp(subject, claim, clients)
        left_out = {"processes", *(["last_round"] if rounds is None else []), *(["low_bits"] if grid is None else [])}
        laws = [law for law in conformance.LAWS if law not in left_out]
        return conformance.check(subject, claim, like=made_up, clients=made_up.count, laws=laws, effort=effort)


@dataclasses.dataclass(frozen=True)
class _Client:
    """Data of a client, and the factor of the weights of the model that it is sent."""

    data: Any
    factor: float


class _Process:
    """A process as a subject, whose aggregator's state goes on, while all else is as in the first round."""

    def __init__(self, process: tff.learning.templates.LearningProcess, rate: float | None) -> None:
        self._process, self._first = process, process.initialize()
        missing = [
            name for name in ("global_model_weights", "aggregator", "finalizer") if not hasattr(self._first, name)
        ]
        if missing:
            raise InputTypeError(
                f"process has a state without {' and '.join(missing)}: pass one from tff.learning.algorithms or "
                "tff.learning.templates.compose_learning_process."
            )
        if rate is None:
            finalizer = process.get_hparams(self._first).get("finalizer", {})
            rate = finalizer.get(tff.learning.optimizers.LEARNING_RATE_KEY) if isinstance(finalizer, dict) else None
        if rate is None:
            raise InputValueError("server_learning_rate=None: process does not tell the rate of its first round.")
        self._rate = validation.positive("server_learning_rate", float(np.asarray(rate)))
        self.like = [np.zeros(leaf.shape) for leaf in _trainable(process.get_model_weights(self._first))]
        self.dimension = sum(leaf.size for leaf in self.like)
        self._starts: dict[float, Any] = {}

    def start(self) -> Any:
        return self._process.initialize()

    def step(self, state: Any, updates: Sequence[_Client]) -> tuple[Any, conformance.Released]:
        before = self._at(max((client.factor for client in updates), default=0.0))
        output = self._process.next(before._replace(aggregator=state.aggregator), [client.data for client in updates])
        pairs = zip(_trainable(output.state.global_model_weights), _trainable(before.global_model_weights), strict=True)
        changes = [(after.astype(np.float64) - leaf) / self._rate for after, leaf in pairs]
        fixed = getattr(output.state.global_model_weights, "non_trainable", ())
        beside = {"metrics": _by_path(output.metrics), "weights": _by_path(fixed)}
        return output.state, conformance.Released(
            estimate=[change.astype(np.float32) for change in changes], beside=beside
        )

    def published(self, state: Any) -> dict[str, Any]:
        seen = _by_path(state._replace(global_model_weights=(), finalizer=()))
        # One stream of our noise, which is recognized by its field names: TFF does not always keep classes.
        last = f"/{NoiseState._fields[0]}"
        ours = [path.removesuffix(last) for path in seen if path.startswith("aggregator/") and path.endswith(last)][:1]
        return {path: leaf for path, leaf in seen.items() if not any(path.startswith(f"{noise}/") for noise in ours)}

    def _at(self, factor: float) -> Any:
        """Returns the first state, with the first weights times a factor."""
        if factor not in self._starts:
            weights = tf.nest.map_structure(
                lambda leaf: leaf * np.asarray(factor, leaf.dtype) if np.issubdtype(leaf.dtype, np.floating) else leaf,
                tf.nest.map_structure(np.asarray, self._process.get_model_weights(self._first)),
            )
            self._starts[factor] = self._process.set_model_weights(self._first, weights)
        return self._starts[factor]


def _trainable(weights: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in tf.nest.flatten(getattr(weights, "trainable", weights))]


def _by_path(structure: Any) -> dict[str, Any]:
    return {"/".join(map(str, path)): leaf for path, leaf in tree.flatten_with_path(structure)}


class _MadeUp(conformance.Updates):
    """Clients made up of examples: their updates are known only by what they do to a release."""

    def __init__(self, subject: _Process, claim: conformance.Claim, examples: Sequence[Any]) -> None:
        self._subject, self._claim = subject, claim
        noise = claim.noise_multiplier / float(claim.mechanism.encoder(1)[0, 0])
        needed = math.ceil(noise * max(12.0, 3 * subject.dimension**0.25))
        most = _MOST_CLIENTS if claim.grid is None else min(_MOST_CLIENTS, claim.grid.max_clients // 2)
        self.count = min(max(_LEAST_CLIENTS, needed), most)
        super().__init__(subject.like, claim.clip_norm, self.count)
        example = examples[0]
        scales = [scale for scale in _SCALES if scaled(example, scale) is not None] or [1.0]
        self._tried = [
            _Client(example if scale == 1 else scaled(example, scale), factor)
            for factor, scale in itertools.product(_FACTORS, scales)
        ]
        lengths = []
        for client in self._tried:
            one, other = (self._sums(client) for _ in range(2))
            lengths.append(math.sqrt(max(0.0, float(one @ other))) / self.count)
            if lengths[-1] > _CLIPPED:
                break
        self.long = self._tried[len(lengths) - 1 if lengths[-1] > _CLIPPED else int(np.argmax(lengths))]
        sums = np.stack([self._sums(self.long) for _ in range(_MEASURED)])
        mean = sums.mean(0)
        length = float(np.linalg.norm(mean)) or 1.0
        self.direction = mean / length
        self.cosine = math.sqrt(max(0.01, 1 - len(mean) * noise**2 / (_MEASURED * length**2)))
        self.zeros = _Client(example.take(0) if isinstance(example, tf.data.Dataset) else [], 0.0)
        # No shorter one is known to be half as long.
        self.half = self.long
        self.cohort = [_Client(data, 1.0) for data in examples[:_COHORT]]
        odd = {
            "a long update": self.long.data,
            f"data that are {_SCALES[-1]:g} times as large": scaled(example, _SCALES[-1]),
            "NaN": scaled(example, np.nan),
            f"{_TIMES} times the examples": enlarged(self.long.data),
        }
        self.odd = {name: _Client(data, self.long.factor) for name, data in odd.items() if data is not None}
        degrees = (_MEASURED - 1) * len(mean)
        if needed > most:
            self.lacking = (
                f"A round of {needed} clients would stand out from the noise, and one of {most} is made up. For this "
                f"check alone, build the aggregator with noise_multiplier={claim.noise_multiplier * most / needed:.3g}"
            )
            self.lacking += "." if claim.grid is None else ", or with a grid of more max_clients."
        elif lengths[-1] <= _CLIPPED:
            self.lacking = (
                "No made-up client has an update that is long enough to be clipped: pass clients= with longer ones, or "
                "raise the learning rate of client_optimizer_fn."
            )
        elif stats.chi2.sf(np.sum((sums - mean) ** 2) / (1.01 * noise**2), degrees) < CHANCE:
            self.lacking = "Rounds of the same clients differ by more than the noise: check a model without dropout."

    def _sums(self, client: _Client) -> np.ndarray:
        """Returns what a first round of such clients releases, in clip norms."""
        _, released = self._subject.step(self._subject.start(), [client] * self.count)
        sums = np.concatenate([leaf.ravel() for leaf in released.estimate]).astype(np.float64)
        return np.nan_to_num(sums, posinf=0.0, neginf=0.0) * (self._claim.divisor / self._claim.clip_norm)

    def single(self, rounds: int, clients: int) -> Iterator[list[Any]]:
        return iter(())

    def hostile(self) -> Iterator[tuple[str, Any]]:
        for index, client in enumerate(self._tried):
            yield f"update {index + 1} of those that were tried", client


def _over(dataset: tf.data.Dataset, change: Callable[[Any], Any]) -> tf.data.Dataset:
    """Returns a data set with each tensor changed, as constants: it contains no `map`."""
    parts = [tf.data.Dataset.from_tensors(tf.nest.map_structure(change, element)) for element in dataset]
    return functools.reduce(tf.data.Dataset.concatenate, parts)


def scaled(client: Any, factor: float) -> Any | None:
    """Returns a client with the first batch of an example, its floating-point numbers times a factor, or `None`.

    Only one batch, since a client that takes several steps on such numbers would overflow, which makes its update zero.
    It is `None` if there are no such numbers.
    """

    def changed(leaf: Any) -> Any:
        return leaf * tf.cast(factor, leaf.dtype) if leaf.dtype.is_floating else leaf

    if isinstance(client, tf.data.Dataset):
        has_floats = any(spec.dtype.is_floating for spec in tf.nest.flatten(client.element_spec))
        return _over(client.take(1), changed) if has_floats else None
    batch = tree.map_structure(tf.convert_to_tensor, client[0])
    has_floats = any(leaf.dtype.is_floating for leaf in tree.flatten(batch))
    return [tree.map_structure(lambda leaf: changed(leaf).numpy(), batch)] if has_floats else None


def enlarged(client: Any) -> Any | None:
    """Returns a client with each batch repeated many times, or `None` if the size of batches is fixed."""
    if not isinstance(client, tf.data.Dataset):
        return None
    free = all(spec.shape.rank and spec.shape[0] is None for spec in tf.nest.flatten(client.element_spec))
    return _over(client, lambda leaf: tf.concat([leaf] * _TIMES, axis=0)) if free else None
