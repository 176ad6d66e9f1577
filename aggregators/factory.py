"""The aggregator of a mechanism, for the `model_aggregator=` argument of TFF's learning algorithms."""

import dataclasses
import functools
import os
import warnings
from typing import Any, Literal, Self

import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

import tff_mf
from tff_mf import queries
from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.noise import tensorflow as noise

from . import record_sums
from .metrics import withhold_measurements
from .resident.worker import end_with_program

_Query = queries.MatrixFactorizationQuery | queries.RestartedQuery
_ONE_NUMBER = tf.TensorSpec([], tf.float32)
_AUTO = "auto"
_EQUAL_WEIGHTS = (
    "tff.aggregators.as_weighted_aggregator(aggregator), which ignores the weights and counts each client equally"
)
_WITHOUT = {
    "grid": 'Without grid=, ε is about real numbers and not about the floats that are released: pass grid="auto".',
    "rounds": "Without rounds=, no round is the last one, and ε grows with each: pass the number that noise_multiplier "
    "was calibrated for.",
}


class WeakGuaranteeWarning(UserWarning):
    """An aggregator was built without an argument that keeps its ε true for the whole run and for what is released."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MFAggregationFactory(tff.aggregators.UnweightedAggregationFactory):
    """Sums clipped client values, adds a mechanism's noise, divides by a constant.

    The noise is added to the sum, before the division. The divisor is the constant `clients_per_round` and never the
    number of clients that reported: that number depends on who took part, and dropouts would change the noise.

    Formal guarantee: the query's guarantee (`tff_mf.queries`), over the `next` calls that each take the state returned
    by the one before. A value is one client's contribution to one round. The caller has to bound how often a client
    takes part; `dp_event` accounts for the bound that it is given. Measurements are the number of rounds, the scale of
    the noise, and the number of its stored rows. What `record_aggregation_factory` measures about clients is exact and
    withheld: only the noised mean is released.

    Args:
        mechanism: The mechanism.
        clip_norm: Bound ζ on the L2 norm of a client's value, over all its tensors together.
        noise_multiplier: σ: standard deviation of each coordinate of Z divided by `clip_norm`.
        clients_per_round: Constant by which the noised sum is divided.
        restart_every: Number of rounds after which noise starts anew, or `None`; see `queries.RestartedQuery`.
        adaptive_clipping: How the clip norm changes at each restart, or `None`; see `queries.AdaptiveClippingQuery`.
        insecure_seed: Makes the noise repeatable. TEST ONLY: there is no privacy with it.
        record_aggregation_factory: Sums the clipped values. If `None`, a sum whose `accumulate` clips each value again,
            whatever a client sends (with `adaptive_clipping` and no grid, TFF's plain sum, which does not). Otherwise
            `tff.aggregators.SumFactory()`, the plain sum, or, with a grid, `tff.aggregators.SecureSumFactory(2**bits)`.
            Other sums may enlarge a clipped value.
        rounds: Number of rounds of the run, which `noise_multiplier` was calibrated for: the graph fails in any later
            round, whatever the mechanism. If `None`, it is `mechanism.optimized_for.rounds`; where the mechanism was
            not optimized, or there are restarts, as many rounds as it is defined for: any number, for many mechanisms.
        grid: The integers that values are rounded to, summed in and noised in (`tff_mf.Grid`), or "auto" for the one
            that `grid_for` returns: the guarantee then covers the numbers that are released, and sums do not depend on
            the order of clients or on how they are split. `None` for floating point, which an adversary
            who knows all other values can tell from the guarantee's real numbers; see docs/explanation/guarantee.md.
    """

    mechanism: tff_mf.Mechanism
    _: dataclasses.KW_ONLY
    clip_norm: float
    noise_multiplier: float
    clients_per_round: float
    restart_every: int | None = None
    adaptive_clipping: queries.AdaptiveClipping | None = None
    insecure_seed: int | None = None
    record_aggregation_factory: tff.aggregators.UnweightedAggregationFactory | None = None
    rounds: int | None = None
    grid: tff_mf.Grid | Literal["auto"] | None = None

    def __post_init__(self) -> None:
        if self.record_aggregation_factory is not None:
            record_sums.check(self.record_aggregation_factory, on_grid=self.grid is not None)
        divisor = validation.positive("clients_per_round", self.clients_per_round)
        object.__setattr__(self, "clients_per_round", divisor)
        if self.grid is not None and self.grid != _AUTO:
            validation.instance("grid", self.grid, tff_mf.Grid, 'pass tff_mf.Grid(...), "auto" or None')
        if self.adaptive_clipping is not None and self.restart_every is None:
            raise InputValueError("adaptive_clipping needs restart_every: the clip norm changes only at restarts.")
        # Built once for a single number, so that a bad argument is refused here and not when the model is known.
        self._query(_ONE_NUMBER)

    @classmethod
    def of_plan(cls, plan: tff_mf.Plan, **changes: Any) -> Self:
        """Returns the aggregator with the noise of a plan, for the clients that train and for its rounds alone.

        Args:
            plan: `tff_mf.plan(...)`.
            changes: Arguments of the class that the plan does not have, or that shall be others.

        Example:
            >>> plan = tff_mf.plan(mechanism=tff_mf.Tree(4), rounds=4, sampling=tff_mf.SingleParticipation(),
            ...                    delta=1e-6, clients_per_round=2, noise_multiplier=8.0)
            >>> MFAggregationFactory.of_plan(plan).rounds
            4
        """
        same = ("clip_norm", "clients_per_round", "restart_every", "insecure_seed", "rounds", "grid")
        arguments: dict[str, Any] = {"noise_multiplier": plan.noise_multiplier_as_run}
        arguments |= {name: getattr(plan, name) for name in same}
        return cls(plan.mechanism, **{**arguments, **changes})

    @property
    def insecure(self) -> bool:
        """Whether the noise is repeatable, and the aggregator therefore for tests only."""
        return self.insecure_seed is not None

    def grid_for(self, dimension: int) -> tff_mf.Grid | None:
        """Returns the grid for values of `dimension` coordinates, `None` without one.

        "auto" means `Grid.with_room` for `clients_per_round` clients.

        Example:
            >>> factory = build_mf_aggregator(tff_mf.Identity(), clip_norm=1.0, noise_multiplier=1.0,
            ...                               clients_per_round=6500, grid="auto")
            >>> factory.grid_for(4_050_748)
            Grid(bits=16, max_clients=13000)
        """
        if self.grid != _AUTO:
            return self.grid
        return tff_mf.Grid.with_room(dimension=dimension, cohort=self.clients_per_round)

    def dp_event(
        self, rounds: int, participation: tff_mf.Participation, *, dimension: int | None = None
    ) -> dp_accounting.DpEvent:
        """Returns the event of a whole run of `rounds` rounds; see `tff_mf.queries` for what it covers.

        Args:
            rounds: Number of rounds.
            participation: The participation schema.
            dimension: Number of coordinates of the values, over all their tensors together: with a grid, the guarantee
                depends on it.

        Raises:
            InputValueError: If the noise is repeatable, the participation does not fit the rounds, or there is a grid
                and no dimension.
        """
        if self.grid is not None and dimension is None:
            raise InputValueError("dimension=None: with a grid, pass the number of coordinates of the clients' values.")
        return self._query(_flat(dimension or 1)).dp_event(rounds, participation)

    @property
    def fingerprint(self) -> str:
        """Digest of everything that determines the noise except its keys: mechanism, clip norm, σ, restarts and so on.

        The server's state contains it as well, and the graph of a round refuses a state with a different one.

        Raises:
            InputValueError: If the grid is "auto", which depends on the values.
        """
        if self.grid == _AUTO:
            raise InputValueError('grid="auto" depends on the values: pass grid=factory.grid_for(dimension) instead.')
        return self._query(_ONE_NUMBER).fingerprint.hex()

    def replay(self, keys: np.ndarray, *, dimension: int) -> noise.NoiseState:
        """Returns the state of the noise after the rounds that drew `keys`, by drawing their noise again.

        TFF's current context computes it: in a resident context the rows of noise are drawn in the worker and stay
        there. It takes as long as the noise of those rounds did.

        Formal guarantee: as for `noise.tensorflow.NoiseStream.replay`: no new key is drawn and nothing is released.

        Args:
            keys: Keys of the past rounds, int64 `[rounds, 2]`, as recorded in the state.
            dimension: Number of coordinates of the values, over all their tensors together.
        """
        end_with_program()
        return self.replay_computation(dimension=dimension)(keys)

    def replay_computation(self, *, dimension: int) -> tff.Computation:
        """Returns the computation that `replay` runs, from keys int64 `[rounds, 2]` to the state of the noise.

        Example:
            >>> import tff_mf
            >>> blt = tff_mf.BLT.production("b400")
            >>> factory = build_mf_aggregator(blt, clip_norm=1.0, noise_multiplier=7.379, clients_per_round=6500)
            >>> str(factory.replay_computation(dimension=3).type_signature.result.rows[0])
            'float32[3]'
        """
        # The keys are those since the last restart; nothing of the noise before it is left.
        query = self._query(_flat(dimension))
        return tff.tensorflow.computation(query.replay, tff.TensorType(np.int64, [None, 2]))

    def create(self, value_type: tff.Type, weight_type: tff.Type | None = None) -> tff.templates.AggregationProcess:
        """Returns the process that aggregates values of `value_type`, a structure of float tensors.

        Args:
            value_type: Type of a client's value.
            weight_type: Refused; algorithms with weights pass one, and the error names the remedy.

        Raises:
            InputTypeError: If a tensor of `value_type` is not of a float type, or a weight is given.
            InputValueError: If the shape of a tensor is not fixed, `record_aggregation_factory` has a state, or a
                secure sum has other thresholds than ±2^bits of the grid.
        """
        if weight_type is not None:
            raise InputTypeError(
                "model_aggregator takes no weights: no noise would cover exact weights. For build_fed_sgd and "
                f"build_weighted_fed_avg pass {_EQUAL_WEIGHTS}."
            )
        one_stream = self._query_of_a_stream(tff.types.type_to_tf_tensor_specs(value_type))
        query = tfp.NormalizedQuery(self._whole(one_stream), denominator=self.clients_per_round)
        process = tff.aggregators.DifferentiallyPrivateFactory(query, self._record_sum(one_stream)).create(value_type)
        end_with_program()
        return process

    def _record_sum(self, query: queries.MatrixFactorizationQuery) -> tff.aggregators.UnweightedAggregationFactory:
        """Returns the sum of the clients' clipped values, one that clips again where the server knows the bound."""
        if self.record_aggregation_factory is not None:
            if query.grid is not None:
                record_sums.check_integers(self.record_aggregation_factory, query.grid)
            return withhold_measurements(self.record_aggregation_factory)
        if self.adaptive_clipping is not None and query.grid is None:
            # The adaptive clip norm is in the state, to which a sum has no access. On a grid, the bound is constant.
            return tff.aggregators.SumFactory()
        return record_sums.ClippingSum(query.clip_again)

    def _query(self, record_specs: object) -> _Query:
        return self._whole(self._query_of_a_stream(record_specs))

    def _whole(self, query: queries.MatrixFactorizationQuery) -> _Query:
        """Returns the query of the whole run, with its restarts and rounds."""
        if self.restart_every is not None:
            return queries.RestartedQuery(query, restart_every=self.restart_every, rounds=self.rounds)
        optimized_for = self.mechanism.optimized_for
        rounds = optimized_for.rounds if self.rounds is None and optimized_for is not None else self.rounds
        return query if rounds is None else query.limited_to(rounds)

    def _query_of_a_stream(self, record_specs: object) -> queries.MatrixFactorizationQuery:
        arguments = {
            "record_specs": record_specs,
            "clip_norm": self.clip_norm,
            "noise_multiplier": self.noise_multiplier,
            "insecure_seed": self.insecure_seed,
            "grid": self.grid_for(
                max(1, sum(spec.shape.num_elements() or 0 for spec in tf.nest.flatten(record_specs)))
            ),
        }
        if self.adaptive_clipping is None:
            return queries.build_query(self.mechanism, **arguments)
        return queries.AdaptiveClippingQuery(
            self.mechanism,
            clipping=self.adaptive_clipping,
            clients_per_round=self.clients_per_round,
            **arguments,
        )


def build_mf_aggregator(
    mechanism: tff_mf.Mechanism | str | os.PathLike[str],
    *,
    clip_norm: float,
    noise_multiplier: float,
    clients_per_round: float,
    restart_every: int | None = None,
    adaptive_clipping: queries.AdaptiveClipping | None = None,
    insecure_seed: int | None = None,
    record_aggregation_factory: tff.aggregators.UnweightedAggregationFactory | None = None,
    rounds: int | None = None,
    grid: tff_mf.Grid | Literal["auto"] | None = None,
) -> MFAggregationFactory:
    """Returns the aggregator of a mechanism or artifact, for `model_aggregator=` of TFF's learning algorithms.

    Takes the arguments of `MFAggregationFactory` and has its guarantee. A `WeakGuaranteeWarning` says, once a program,
    that `grid` is left out, or `rounds` where neither the mechanism nor its optimization has a last round. There is
    none where there is no guarantee: with `insecure_seed` or without noise.

    Example:
        >>> import numpy as np
        >>> factory = build_mf_aggregator(tff_mf.BLT.production("b400"), clip_norm=1.0,
        ...                               noise_multiplier=7.379, clients_per_round=6500)
        >>> process = factory.create(tff.TensorType(np.float32, [3]))
        >>> str(process.next.type_signature.result.result)
        'float32[3]@SERVER'
    """
    if isinstance(mechanism, str | os.PathLike):
        mechanism = tff_mf.load(mechanism)
    factory = MFAggregationFactory(
        mechanism,
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        clients_per_round=clients_per_round,
        restart_every=restart_every,
        adaptive_clipping=adaptive_clipping,
        insecure_seed=insecure_seed,
        record_aggregation_factory=record_aggregation_factory,
        rounds=rounds,
        grid=grid,
    )
    # The graph refuses no round.
    is_endless = rounds is None and (
        restart_every is not None or (factory.mechanism.max_rounds is None and factory.mechanism.optimized_for is None)
    )
    if insecure_seed is None and noise_multiplier > 0:
        _tell(tuple(name for name, missing in (("grid", grid is None), ("rounds", is_endless)) if missing))
    return factory


@functools.cache
def _tell(missing: tuple[str, ...]) -> None:
    if missing:
        # At the line that calls `build_mf_aggregator`.
        warnings.warn(" ".join(_WITHOUT[name] for name in missing), WeakGuaranteeWarning, stacklevel=3)


def _flat(dimension: int) -> tf.TensorSpec:
    return tf.TensorSpec([validation.whole("dimension", dimension)], tf.float32)
