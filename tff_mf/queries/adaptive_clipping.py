"""A clip norm that adapts to the clients' updates, and changes only when the noise is restarted."""

import collections
import dataclasses
from typing import Any, NamedTuple

import dp_accounting
import numpy as np
import tensorflow as tf

from tff_mf import accounting
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Identity, Mechanism
from tff_mf.noise.tensorflow import NoiseState, build_stream
from tff_mf.problem.grids import Grid
from tff_mf.problem.participation import Participation
from tff_mf.queries.clipping import Clipped, checked_clip_norm, passes
from tff_mf.queries.query import MatrixFactorizationQuery

_REPORT = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
    """How the clip norm adapts to the clients' updates.

    Attributes:
        count_stddev: Standard deviation of the noise of each round's count of records below the clip norm.
        target_quantile: Fraction of records that should be below the clip norm.
        learning_rate: η: at a restart the clip norm is multiplied by exp(η·(target_quantile − observed fraction)).
    """

    count_stddev: float
    target_quantile: float = 0.5
    learning_rate: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "count_stddev", validation.nonnegative("count_stddev", self.count_stddev))
        object.__setattr__(self, "target_quantile", validation.open_unit("target_quantile", self.target_quantile))
        object.__setattr__(self, "learning_rate", validation.nonnegative("learning_rate", self.learning_rate))


class AdaptiveClippingState(NamedTuple):
    """Global state of an `AdaptiveClippingQuery`. Secret, because both kinds of noise can be subtracted with it.

    Attributes:
        noise: Noise of the sums, for a clip norm of 1.
        clip_norm: Bound ζ since the last restart, float32 `[]`.
        count_noise: Noise of the counts.
        count: Sum of the noised counts since the last restart, float32 `[]`.
    """

    noise: NoiseState
    clip_norm: tf.Tensor
    count_noise: NoiseState
    count: tf.Tensor


class AdaptiveClippingQuery(MatrixFactorizationQuery):
    """Correlated noise with a clip norm that adapts at each restart: wrap it in a `RestartedQuery`.

    Correlated noise cancels only between rounds with the same clip norm. The norm is therefore constant between
    restarts, and without restarts it never changes. Each client also reports whether its record was below the norm, as
    +½ or −½; the next norm is computed from the sum of these reports, which has independent noise.

    Formal guarantee: the base class's guarantee for the sums, with the clip norm of each restart, composed with the
    counts' guarantee: a client adds ½ or −½ to the count of each round that it takes part in, and each count has
    independent Gaussian noise of standard deviation `count_stddev`. A record that is zeroed out counts as one below the
    clip norm, so zeroing it out changes a count by up to 1. `guarantee` and `dp_event` compose both. Clip norms are
    post-processing of the counts.

    With a grid, units are 2^-bits of the clip norm since the last restart, so that records have a norm of at most
    2^bits units under every clip norm. A count is a sum of ±2^(bits − 1), in units of 2^-bits, with integer noise of
    its own, and its charge is in `guarantee` too.

    Other arguments are as of the base class.

    Args:
        clip_norm: Bound on the L2 norm of a record until the first restart.
        clipping: How the clip norm adapts to the records.
        clients_per_round: Expected number of records in a round, by which counts are divided.

    Source: Andrew et al. (2021), section 2, with the geometric update; across restarts as in TensorFlow Privacy's
    `QAdaClipTreeResSumQuery`, but with independent noise of the counts.

    Example:
        >>> import tff_mf
        >>> from tff_mf import queries
        >>> adaptive = AdaptiveClippingQuery(tff_mf.Tree(16), record_specs=tf.TensorSpec([2]), clip_norm=1.0,
        ...     noise_multiplier=8.0, clipping=AdaptiveClipping(count_stddev=5.0), clients_per_round=100)
        >>> query = queries.RestartedQuery(adaptive, restart_every=16)
        >>> event = query.dp_event(64, tff_mf.MinSep(min_sep=16, max_participations=4))
        >>> round(event.noise_multiplier, 3)
        1.455
    """

    def __init__(
        self,
        mechanism: Mechanism,
        *,
        record_specs: Any,
        clip_norm: float,
        noise_multiplier: float,
        clipping: AdaptiveClipping,
        clients_per_round: float,
        insecure_seed: int | None = None,
        grid: Grid | None = None,
    ) -> None:
        super().__init__(
            mechanism,
            record_specs=record_specs,
            clip_norm=1.0,
            noise_multiplier=noise_multiplier,
            insecure_seed=insecure_seed,
            grid=grid,
        )
        self._first_clip_norm = checked_clip_norm(clip_norm)
        validation.instance("clipping", clipping, AdaptiveClipping, "pass queries.AdaptiveClipping(count_stddev=...)")
        self._clipping = clipping
        self._clients_per_round = validation.positive("clients_per_round", clients_per_round)
        self._counts = build_stream(
            Identity(), dimension=1, stddev=clipping.count_stddev, insecure_seed=insecure_seed, grid=grid
        )
        self._stream = self._stream.bound_to(repr((float(self._first_clip_norm), clipping, self._clients_per_round)))

    def guarantee(
        self, rounds: int, participation: Participation, *, restart_every: int | None = None
    ) -> accounting.Guarantee:
        sums = super().guarantee(rounds, participation, restart_every=restart_every)
        stddev = self._clipping.count_stddev
        counts = accounting.adaptive_clipping_guarantee(rounds, participation, count_stddev=stddev, grid=self.grid)
        return accounting.compose_guarantees(sums, counts)

    def initial_global_state(self) -> AdaptiveClippingState:
        super().initial_global_state()
        return self._begin(tf.constant(self._first_clip_norm))

    def derive_sample_params(self, global_state: AdaptiveClippingState) -> tf.Tensor:
        """Returns the clip norm, float32 `[]`: all that clients receive."""
        return global_state.clip_norm

    def initial_sample_state(self, template: Any = None) -> tuple[Any, tf.Tensor]:
        """Returns an empty sum and an empty count; `template` is a record's."""
        return super().initial_sample_state(template), tf.zeros([], self._summands.summed_type(tf.float32))

    def preprocess_record(self, params: tf.Tensor, record: Any) -> tuple[Any, tf.Tensor]:
        """Returns the clipped record, and ½ if it was below the clip norm or −½ otherwise; on a grid, in its units."""
        below = passes(self._checked("record", record), params)
        return super().preprocess_record(params, record), self._report(below)

    def _report(self, below: tf.Tensor) -> tf.Tensor:
        if self.grid is None:
            return tf.where(below, _REPORT, -_REPORT)
        half = tf.constant(self.grid.largest_norm // 2, self._summands.summed_type(tf.float32))
        return tf.where(below, half, -half)

    def clip_again(self, record: tuple[Any, tf.Tensor]) -> tuple[Any, Clipped]:
        """Returns what a client sent after it was clipped on the server as well, and how it was clipped.

        Raises:
            InputValueError: Without a grid: the clip norm is in the state, to which a server that adds has no access.
        """
        if self.grid is None:
            raise InputValueError("grid=None: only clients can enforce an adaptive clip norm in floating point.")
        records, report = record
        bounded, clipped = super().clip_again(records)
        return (bounded, self._report(report > 0)), clipped

    def get_noised_result(
        self, sample_state: tuple[Any, tf.Tensor], global_state: AdaptiveClippingState
    ) -> tuple[Any, AdaptiveClippingState, dp_accounting.DpEvent]:
        """Returns the noised sum, the state of the next round, and `UnsupportedDpEvent`: see the class."""
        total, count = sample_state
        row, noise = self._stream.next(global_state.noise)
        count_row, count_noise = self._counts.next(global_state.count_noise)
        if self.grid is None:
            row, noised_count = global_state.clip_norm * row, count + count_row[0]
        else:
            _, unit = self._summands.opened(total, np.float32(1))
            noised_count = self._summands.noised(count, count_row[0], unit, tf.float32)
        state = global_state._replace(noise=noise, count_noise=count_noise, count=global_state.count + noised_count)
        return self._noised(total, row, global_state.clip_norm), state, dp_accounting.UnsupportedDpEvent()

    def reset_state(self, noised_results: Any, global_state: AdaptiveClippingState) -> AdaptiveClippingState:
        """Returns the state before round 0, with the clip norm that follows from the counts so far."""
        del noised_results
        records = tf.cast(global_state.noise.round, tf.float32) * self._clients_per_round
        below = 0.5 + tf.math.divide_no_nan(global_state.count, records)
        exponent = self._clipping.learning_rate * (self._clipping.target_quantile - tf.clip_by_value(below, 0.0, 1.0))
        clip_norm = global_state.clip_norm * tf.exp(exponent)
        return self._begin(tf.clip_by_value(clip_norm, validation.SMALLEST_CLIP_NORM, validation.LARGEST_CLIP_NORM))

    def derive_metrics(self, global_state: AdaptiveClippingState) -> collections.OrderedDict[str, tf.Tensor]:
        """Returns the metrics of the base class and the clip norm, which is post-processing of what was released."""
        metrics = super().derive_metrics(global_state)
        metrics["noise_stddev"] *= global_state.clip_norm
        metrics["clip_norm"] = global_state.clip_norm
        return metrics

    def _begin(self, clip_norm: tf.Tensor) -> AdaptiveClippingState:
        return AdaptiveClippingState(
            noise=self._stream.init(),
            clip_norm=clip_norm,
            count_noise=self._counts.init(),
            count=tf.zeros([], tf.float32),
        )
