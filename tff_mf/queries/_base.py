"""What all queries have in common: records are clipped, and correlated noise is added to their sum."""

import collections
import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import dp_accounting
import tensorflow as tf
import tensorflow_privacy as tfp

from tff_mf import _validate, guarantees, registry
from tff_mf.errors import InputTypeError, InputValueError
from tff_mf.mechanisms import Mechanism
from tff_mf.noise import NoiseState, build_stream
from tff_mf.participation import Participation
from tff_mf.queries import clipping


class QueryState(NamedTuple):
    """Global state of a query. Secret, for the sake of `noise`."""

    noise: NoiseState


class MatrixFactorizationQuery(tfp.SumAggregationDPQuery):
    """Clips each record to `clip_norm` and adds row t of σζ·C⁻¹z to the sum of round t, for any registered mechanism.

    The queries of single kinds differ from it only in what they take. How much memory and time the noise needs is up to
    the mechanism, for a model of d parameters.

    Formal guarantee: over the rounds of one stream (`initial_global_state`, then one
    `get_noised_result` after another, each on the state of the one before), what is released is
    G + σζ·C⁻¹z, where row t of G is the sum of round t's clipped records: post-processing of the
    Gaussian mechanism CG + σζ·z. For a client whose rounds fit `participation`, zeroing out its
    records moves CG by at most ζ·sens_Π(C), so that the whole run, all rounds together, is one
    Gaussian mechanism with noise multiplier σ / sens_Π(C): `dp_event` returns it. Sensitivity is
    taken over the parameters as cast to float32. A state of a query with another mechanism, clip norm, noise multiplier
    or restart is refused in the graph, whatever it was loaded with. Arithmetic is that of float32, and Philox is not a
    cryptographic generator; neither is covered by the statement.

    The event of a single round, returned by `get_noised_result`, is `NoOpDpEvent`. Rounds must not be
    composed: their noise is correlated on purpose, later rounds subtracting what earlier ones added,
    so that no round has a guarantee of its own, and any sum of such guarantees is void.

    Args:
        mechanism: The mechanism.
        record_specs: Structure of `tf.TensorSpec`, float and of fixed shape: one client's record.
        clip_norm: Bound ζ on the L2 norm of a record, over all leaves together; from 1e-20 to 1e20.
        noise_multiplier: σ: standard deviation of each coordinate of Z divided by `clip_norm`. With 0
            there is no noise and no privacy.
        insecure_seed: Makes the noise repeatable. TEST ONLY: there is no privacy with it.

    Raises:
        InputTypeError: If an argument, or a leaf of `record_specs`, is of the wrong type.
        InputValueError: If an argument is out of range, or a leaf's shape is not fixed.
    """

    _kinds: ClassVar[tuple[str, ...]] = ()
    _settings: ClassVar[Mapping[str, object]] = {}

    def __init_subclass__(cls, *, kinds: tuple[str, ...] = (), **settings: object) -> None:
        """Declares the kinds of mechanisms that a query is for, and the fields that they must have; all without any."""
        super().__init_subclass__()
        cls._kinds, cls._settings = kinds, settings

    @classmethod
    def takes(cls, mechanism: Mechanism) -> bool:
        """Returns whether the query is for this mechanism."""
        record = registry.find(mechanism)
        fits = not cls._kinds or (record is not None and record.kind in cls._kinds)
        return fits and all(getattr(mechanism, name) == value for name, value in cls._settings.items())

    def __init__(
        self,
        mechanism: Mechanism,
        *,
        record_specs: Any,
        clip_norm: float,
        noise_multiplier: float,
        insecure_seed: int | None = None,
    ) -> None:
        _validate.instance("mechanism", mechanism, Mechanism, "pass a mechanism, such as the result of tff_mf.load")
        if not self.takes(mechanism):
            fields = "".join(f" with {name}={value!r}" for name, value in self._settings.items())
            raise InputTypeError(
                f"mechanism={mechanism!r} is not what {type(self).__name__} takes: a mechanism of the kind "
                f"{' or '.join(self._kinds)}{fields}. Use queries.build_query, which picks the query."
            )
        self._mechanism = mechanism
        self._specs = record_specs
        self._leaves = _leaf_specs(record_specs)
        self._clip_norm = clipping.checked_clip_norm(clip_norm)
        self._noise_multiplier = _validate.nonnegative("noise_multiplier", noise_multiplier)
        self._insecure = insecure_seed is not None
        self._stream = build_stream(
            mechanism,
            dimension=sum(leaf.shape.num_elements() for leaf in self._leaves),
            stddev=self._noise_multiplier * float(self._clip_norm),
            insecure_seed=insecure_seed,
        ).bound_to(repr((float(self._clip_norm), self._noise_multiplier)))

    def bound_to(self, setting: str) -> Self:
        """Returns the same query for states of its own: see `NoiseStream.bound_to`."""
        bound = copy.copy(self)
        bound._stream = self._stream.bound_to(setting)
        return bound

    def repeating(self, keys: Any) -> Self:
        """Returns the same query with the keys of past rounds, for verification only: see `NoiseStream.repeating`."""
        repeating = copy.copy(self)
        repeating._stream = self._stream.repeating(keys)
        return repeating

    def limited_to(self, rounds: int) -> Self:
        """Returns the same query, whose graph refuses the round after `rounds`: see `NoiseStream.limited_to`."""
        limited = copy.copy(self)
        limited._stream = self._stream.limited_to(rounds)
        return limited

    @property
    def fingerprint(self) -> bytes:
        """Digest of everything that the noise depends on but its keys: mechanism, clip norm, σ, restarts and so on."""
        return self._stream.fingerprint

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism."""
        return self._mechanism

    @property
    def noise_multiplier(self) -> float:
        """σ: standard deviation of each coordinate of Z divided by the clip norm."""
        return self._noise_multiplier

    @property
    def insecure(self) -> bool:
        """Whether the noise is repeatable, and the query therefore for tests only."""
        return self._insecure

    def dp_event(self, rounds: int, participation: Participation) -> dp_accounting.DpEvent:
        """Returns the event of a whole run of `rounds` rounds: see the guarantee of the class.

        Raises:
            InputValueError: If the noise is repeatable, or the participation does not fit the rounds.
        """
        return self.guarantee(rounds, participation).dp_event()

    def guarantee(
        self, rounds: int, participation: Participation, *, restart_every: int | None = None
    ) -> guarantees.Guarantee:
        """Returns the guarantee of a whole run, restarted after every `restart_every` rounds if that is given.

        Raises:
            InputValueError: If the noise is repeatable, or the participation does not fit the rounds.
        """
        if self._insecure:
            raise InputValueError("insecure_seed was given: TEST ONLY, such a run has no privacy to account for.")
        return guarantees.guarantee(
            self._mechanism,
            rounds,
            participation,
            noise_multiplier=self._noise_multiplier,
            restart_every=restart_every,
        )

    def initial_global_state(self) -> Any:
        """Returns the state before round 0.

        Raises:
            InputValueError: If an optimizer of TensorFlow Privacy asks for it; `VariableQuery` is what it takes.
        """
        _refuse_optimizers()
        return QueryState(noise=self._stream.init())

    def derive_sample_params(self, global_state: Any) -> tf.Tensor:
        """Returns the clip norm, float32 `[]`: all that clients are told."""
        del global_state
        return tf.constant(self._clip_norm)

    def initial_sample_state(self, template: Any = None) -> Any:
        """Returns a sum of no records, in the types that records are summed in.

        Raises:
            InputValueError: If the template has other shapes than `record_specs`.
        """
        template = self._specs if template is None else template
        # TensorSpecs, or a record: TensorFlow Privacy's queries also take Python's numbers.
        like = [leaf if hasattr(leaf, "dtype") else tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(template)]
        self._check_shapes("template", like)
        zeros = [tf.zeros(leaf.shape, clipping.summed_type(tf.as_dtype(leaf.dtype))) for leaf in like]
        return tf.nest.pack_sequence_as(template, zeros)

    def preprocess_record(self, params: tf.Tensor, record: Any) -> Any:
        """Returns the record clipped to the norm `params`, in float32 or wider; one that is not finite becomes zero.

        Raises:
            InputValueError: If the record has other shapes than `record_specs`.
        """
        return tf.nest.pack_sequence_as(record, clipping.clip_record(self._checked("record", record), params))

    def get_noised_result(self, sample_state: Any, global_state: Any) -> tuple[Any, Any, dp_accounting.DpEvent]:
        """Returns the noised sum, the state of the next round, and `NoOpDpEvent`: see the class.

        Raises:
            InputValueError: If the sum has other shapes than `record_specs`.
        """
        row, noise = self._stream.next(global_state.noise)
        return self._add(sample_state, row), QueryState(noise=noise), dp_accounting.NoOpDpEvent()

    def _add(self, total: Any, row: tf.Tensor) -> Any:
        """Returns the structure `total` plus the flat row of noise."""
        parts = tf.split(row, [leaf.shape.num_elements() for leaf in self._leaves])
        noised = [
            clipping.add(part_of_total, tf.reshape(part, leaf.shape), leaf.dtype)
            for part_of_total, part, leaf in zip(self._checked("sample_state", total), parts, self._leaves, strict=True)
        ]
        return tf.nest.pack_sequence_as(total, noised)

    def _checked(self, name: str, value: Any) -> list[tf.Tensor]:
        """Returns the leaves of a record or a sum, in the shapes of `record_specs`; a graph checks them when it runs.

        TensorFlow would broadcast others: one draw of noise to many coordinates, or one clipped value to many.
        """
        leaves = _tensors(value)
        self._check_shapes(name, leaves)
        return [tf.ensure_shape(leaf, spec.shape) for leaf, spec in zip(leaves, self._leaves, strict=True)]

    def _check_shapes(self, name: str, leaves: Sequence[Any]) -> None:
        found = [tf.TensorShape(leaf.shape) for leaf in leaves]
        expected = [spec.shape for spec in self._leaves]
        if len(found) != len(expected) or not all(map(tf.TensorShape.is_compatible_with, found, expected)):
            raise InputValueError(
                f"{name} has tensors of the shapes {[str(shape) for shape in found]}, and record_specs those of "
                f"{[str(shape) for shape in expected]}: build the query with the specs of its records."
            )

    def replay(self, keys: tf.Tensor) -> NoiseState:
        """Returns the state of the noise after the rounds that drew `keys`; see `NoiseStream.replay`."""
        return self._stream.replay(keys)

    def reset_state(self, noised_results: Any, global_state: Any) -> Any:
        """Returns the state before round 0: a restart, as TensorFlow Privacy's `RestartQuery` asks for it.

        A restart makes another run, with noise of its own. `dp_event` does not cover both: `RestartedQuery` does.
        """
        del noised_results, global_state
        return QueryState(noise=self._stream.init())

    def derive_metrics(self, global_state: Any) -> collections.OrderedDict[str, tf.Tensor]:
        """Returns figures of the noise alone, which say nothing about any client.

        `round` is the number of rounds drawn since the start or the last restart, `noise_stddev` the standard deviation
        σζ of each coordinate of Z, and `rows_in_use` how many rows of earlier noise are remembered.
        """
        step = global_state.noise.round
        return collections.OrderedDict(
            round=step, noise_stddev=tf.constant(self._stream.stddev), rows_in_use=self._stream.rows_in_use(step)
        )


def _refuse_optimizers() -> None:
    """Raises if one of TensorFlow Privacy's optimizers is on the stack: a state has nothing else to know it by."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("tensorflow_privacy.privacy.optimizers"):
            raise InputValueError(
                "query is given to an optimizer of TensorFlow Privacy, which repeats the first round of its noise in "
                "every step and returns its keys from get_config: wrap it in tff_mf.queries.VariableQuery."
            )
        frame = frame.f_back


def _tensors(record: Any) -> list[tf.Tensor]:
    """Returns the leaves of a record, numbers of Python among them, as tensors."""
    return [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(record)]


def _leaf_specs(record_specs: Any) -> list[tf.TensorSpec]:
    leaves = tf.nest.flatten(record_specs)
    for leaf in leaves:
        if not isinstance(leaf, tf.TensorSpec):
            raise InputTypeError(f"record_specs has the leaf {leaf!r}; each leaf must be a tf.TensorSpec.")
        if leaf.dtype not in clipping.LEAF_TYPES:
            names = ", ".join(dtype.name for dtype in clipping.LEAF_TYPES)
            raise InputTypeError(f"record_specs has a leaf of type {leaf.dtype.name}; noise needs one of {names}.")
        if not leaf.shape.is_fully_defined():
            raise InputValueError(f"record_specs has a leaf of shape {leaf.shape}; every dimension must be known.")
    if not any(leaf.shape.num_elements() for leaf in leaves):
        raise InputValueError(f"record_specs={record_specs!r} has no values to add noise to.")
    return leaves
