"""Noise that starts anew after every so many rounds, and what that guarantees."""

import dp_accounting
import tensorflow as tf
import tensorflow_privacy as tfp

from tff_mf import _validate
from tff_mf.errors import InputTypeError
from tff_mf.noise import NoiseState
from tff_mf.participation import Participation
from tff_mf.queries._base import MatrixFactorizationQuery


class RestartedQuery(tfp.RestartQuery):
    """Restarts the noise of a query after every `restart_every` rounds: DP-FTRL-TR, for any mechanism.

    A mechanism of r rounds then runs for any number of them. TensorFlow Privacy's `RestartQuery` takes our queries
    too, with any indicator. Of when that restarts nothing here knows, so that its user has to account
    for it; `query.dp_event` of the query inside it is that of a run without a restart, and too small.

    Formal guarantee: that of the query (see its class) for the strategy matrix of the whole run, which is
    block-diagonal: C for each restart, with keys of its own. Participation is that of the whole run: a client may
    come back after a restart, and `dp_event` adds up what it does in all of them.

    Args:
        query: The query; its mechanism is defined for `restart_every` rounds at least.
        restart_every: Number of rounds from a restart to the next, at least 1.

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

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If `restart_every` is below 1, or more rounds than the mechanism has.
    """

    def __init__(self, query: MatrixFactorizationQuery, *, restart_every: int) -> None:
        if not isinstance(query, MatrixFactorizationQuery):
            raise InputTypeError(f"query={query!r} must be a query of tff_mf: restarts are accounted by its mechanism.")
        self._restart_every = query.mechanism.check(_validate.whole("restart_every", restart_every))
        query = query.bound_to(f"restart_every={self._restart_every}")
        super().__init__(query, tfp.restart_query.PeriodicRoundRestartIndicator(period=self._restart_every))

    @property
    def insecure(self) -> bool:
        """Whether the noise is repeatable, and the query therefore for tests only."""
        return self._inner_query.insecure

    @property
    def fingerprint(self) -> bytes:
        """Digest of everything that the noise depends on but its keys: mechanism, clip norm, σ, restarts and so on."""
        return self._inner_query.fingerprint

    def replay(self, keys: tf.Tensor) -> NoiseState:
        """Returns the state of the noise after the rounds since a restart, which drew `keys`: `NoiseStream.replay`."""
        return self._inner_query.replay(keys)

    def dp_event(self, rounds: int, participation: Participation) -> dp_accounting.DpEvent:
        """Returns the event of a whole run of `rounds` rounds, over all its restarts.

        Raises:
            InputValueError: If the noise is repeatable, or the participation does not fit the rounds.
        """
        return self._inner_query.guarantee(rounds, participation, restart_every=self._restart_every).dp_event()
