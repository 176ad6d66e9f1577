"""A query around a query: noise that is restarted."""

from typing import Any

import dp_accounting
import tensorflow as tf
import tensorflow_privacy as tfp

from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError
from tff_mf.noise.tensorflow import NoiseState
from tff_mf.problem.participation import Participation
from tff_mf.queries._query import MatrixFactorizationQuery


class RestartedQuery(tfp.RestartQuery):
    """Restarts the noise of a query after every `restart_every` rounds: DP-FTRL-TR, for any mechanism.

    With restarts, a mechanism of r rounds runs for any number of rounds. TensorFlow Privacy's `RestartQuery` also takes
    the queries of this package, with any indicator, but then its user must account for the restarts: `dp_event` of the
    inner query describes a run without restarts, whose ε is too small.

    Formal guarantee: the query's guarantee (see its class) for the strategy matrix of the whole run, which is
    block-diagonal: C for each restart, with keys of its own. Participation refers to the whole run: a client may
    take part before and after a restart, and `dp_event` accounts for both.

    Args:
        query: The query; its mechanism must be defined for at least `restart_every` rounds. If it was limited
            (`limited_to`), the whole run is.
        restart_every: Number of rounds between restarts, at least 1.
        rounds: Number of rounds of the whole run, over all restarts: the graph refuses the next one. `None` for any
            number.

    Source: Kairouz et al. (2021), appendix D.

    Example:
        >>> import tensorflow as tf
        >>> import tff_mf
        >>> from tff_mf import queries
        >>> tree = queries.build_query(tff_mf.Tree(16), record_specs=tf.TensorSpec([2]), clip_norm=1.0,
        ...                            noise_multiplier=8.0)
        >>> event = RestartedQuery(tree, restart_every=16).dp_event(64, tff_mf.MinSep(min_sep=16, max_participations=4))
        >>> round(event.noise_multiplier, 3)
        1.789
    """

    def __init__(self, query: MatrixFactorizationQuery, *, restart_every: int, rounds: int | None = None) -> None:
        if not isinstance(query, MatrixFactorizationQuery):
            raise InputTypeError(
                f"query={query!r} must be a query of tff_mf: restarts are accounted for by its mechanism."
            )
        self._restart_every = query.mechanism.check(validation.whole("restart_every", restart_every))
        given = None if rounds is None else validation.whole("rounds", rounds)
        self._rounds = min((each for each in (given, query.run_rounds) if each is not None), default=None)
        query = query.bound_to(f"restart_every={self._restart_every}")
        super().__init__(query, tfp.restart_query.PeriodicRoundRestartIndicator(period=self._restart_every))

    def get_noised_result(self, sample_state: Any, global_state: Any) -> tuple[Any, Any, dp_accounting.DpEvent]:
        """Returns the noised sum and the state of the next round, restarted after every `restart_every` rounds."""
        # Here, since the function with both branches gets the state as an argument.
        global_state.inner_query_state.noise.refuse_constant()
        if self._rounds is None:
            return super().get_noised_result(sample_state, global_state)
        done, inner = global_state.indicator_state, global_state.inner_query_state
        message = f"The restarted run is defined for {self._rounds} rounds, and all of them have run."
        check = tf.debugging.assert_less(done, self._rounds, message=message)
        with tf.control_dependencies([] if check is None else [check]):
            # Everything that draws noise reads this number, and therefore after the check.
            noise = inner.noise._replace(round=tf.identity(inner.noise.round))
        checked = global_state._replace(inner_query_state=inner._replace(noise=noise))
        results, state, event = super().get_noised_result(sample_state, checked)
        # As in `NoiseStream.next`: if assertions are stripped from the graph, the release is NaN.
        return tf.nest.map_structure(lambda leaf: _or_nan(done < self._rounds, leaf), results), state, event

    @property
    def insecure(self) -> bool:
        """Whether the noise is repeatable, and the query therefore for tests only."""
        return self._inner_query.insecure

    @property
    def fingerprint(self) -> bytes:
        """Digest of everything that the noise depends on except its keys: mechanism, clip norm, σ, restarts etc."""
        return self._inner_query.fingerprint

    def replay(self, keys: tf.Tensor) -> NoiseState:
        """Returns the state of the noise after the rounds since a restart, given their keys; see `NoiseStream`."""
        return self._inner_query.replay(keys)

    def dp_event(self, rounds: int, participation: Participation) -> dp_accounting.DpEvent:
        """Returns the event of a whole run of `rounds` rounds, over all its restarts.

        Raises:
            InputValueError: If the noise is repeatable, or the participation does not fit the rounds.
        """
        return self._inner_query.guarantee(rounds, participation, restart_every=self._restart_every).dp_event()


def _or_nan(valid: tf.Tensor, leaf: tf.Tensor) -> tf.Tensor:
    return tf.where(valid, leaf, tf.constant(float("nan"), leaf.dtype))
