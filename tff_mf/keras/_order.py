"""What an order of examples is: the batch of each round, and the guarantee that follows from it."""

import abc
import decimal
import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tff_mf import accounting
from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.mechanisms import Mechanism
from tff_mf.problem.participation import FixedEpoch


class Order(abc.ABC):
    """Which examples are in the batch of each round.

    Formal guarantee: the rounds of every example are a pattern of `participation`, whatever the data.

    Attributes:
        examples: Number N of examples.
        batch_size: Number B of examples in a batch, or its expectation. Sums of gradients are divided by this constant,
            never by the size of a batch.
        rounds: Number of rounds n of the whole training.
    """

    if TYPE_CHECKING:
        # At run time a dataclass would take these properties for the defaults of its fields of the same names.

        @property
        def examples(self) -> int: ...

        @property
        def batch_size(self) -> int: ...

        @property
        def rounds(self) -> int: ...

    @property
    @abc.abstractmethod
    def participation(self) -> FixedEpoch:
        """The schema that each example keeps to."""

    @property
    @abc.abstractmethod
    def epoch_rounds(self) -> int:
        """Number of rounds of an epoch, after which training validates, saves and calls its callbacks."""

    @property
    @abc.abstractmethod
    def is_sampled(self) -> bool:
        """Whether batches differ in size."""

    @property
    @abc.abstractmethod
    def insecure(self) -> bool:
        """Whether the order is repeatable and should not be: no ε is stated for it."""

    @abc.abstractmethod
    def batches(self, begin: int, count: int) -> np.ndarray:
        """Returns the examples in the batches of `count` rounds from round `begin`.

        Returns:
            Indices of examples, int32 `[count, width]`; −1 stands for no example, and fills the end of a row.

        Raises:
            InputTypeError: If an argument is not a whole number.
            InputValueError: If the rounds are not all below `rounds`.
        """

    @property
    @abc.abstractmethod
    def fingerprint(self) -> bytes:
        """Digest of the order: of its fields, and of the places that its seed gives to the examples."""

    def guarantee(
        self, mechanism: Mechanism, *, noise_multiplier: float, adjacency: str = "zero-out"
    ) -> accounting.Guarantee:
        """Returns the guarantee of the whole training, without amplification.

        Formal guarantee: as for `tff_mf.guarantee` for `rounds` and `participation`, with one example in the place of
        a client: zero-out sets the gradients of one example to zero in all rounds. It covers a training that ends
        sooner. The choice of settings, validation and repeated training on the same examples are not covered.

        Args:
            mechanism: The mechanism with strategy matrix C.
            noise_multiplier: σ, standard deviation of a coordinate of z divided by the clip norm; at least 0.
            adjacency: "zero-out" or "replace-one".

        Raises:
            InputTypeError: If an argument is of the wrong type.
            InputValueError: If an argument is out of range.
        """
        return accounting.guarantee(
            mechanism, self.rounds, self.participation, noise_multiplier=noise_multiplier, adjacency=adjacency
        )

    @abc.abstractmethod
    def epsilon(self, mechanism: Mechanism, *, noise_multiplier: float, delta: float) -> float:
        """Returns ε for which the whole training is (ε, δ)-DP, for zero-out of one example.

        Args:
            mechanism: The mechanism with strategy matrix C.
            noise_multiplier: σ, standard deviation of a coordinate of z divided by the clip norm; at least 0.
            delta: δ.

        Raises:
            InputTypeError: If an argument is of the wrong type.
            InputValueError: If an argument is out of range.
        """

    @abc.abstractmethod
    def calibrate_noise_multiplier(self, mechanism: Mechanism, *, epsilon: float, delta: float) -> float:
        """Returns the smallest σ for which the `epsilon` of the whole training is at most a target.

        Args:
            mechanism: The mechanism with strategy matrix C.
            epsilon: The target, greater than 0.
            delta: δ.

        Raises:
            InputTypeError: If an argument is of the wrong type.
            InputValueError: If an argument is out of range.
        """

    def statement(self, mechanism: Mechanism, *, noise_multiplier: float, delta: float) -> str:
        """Returns the guarantee in one line.

        Raises:
            InputValueError: If δ is 1 / `examples` or more, at which an example may be published; and as `epsilon`.
        """
        if validation.open_unit("delta", delta) * self.examples >= 1:
            raise InputValueError(
                f"delta={delta!r} is not below 1/examples=1/{self.examples}: it would allow one example to be "
                "published. Take a smaller delta."
            )
        epsilon = self.epsilon(mechanism, noise_multiplier=noise_multiplier, delta=delta)
        schema = self.participation
        return (
            f"ε≤{_rounded_up(epsilon)} at δ={delta:g} for zero-out of one example; n={self.rounds} rounds, min-sep "
            f"{schema.min_sep}, max-participations {schema.max_participations}, {self._drawn()}"
        )

    def _drawn(self) -> str:
        """Returns how batches are drawn, for `statement`."""
        return "batches in a fixed order"

    def dataset(self, examples: Any, *, begin: int = 0) -> tf.data.Dataset:
        """Returns the batches of the rounds from `begin` on, for a loop of your own.

        Batches of sampled orders are drawn once, now: the data set repeats them if it is iterated again, and so no
        amplification holds then. A loop that continues after round t must take a data set that begins there.

        Args:
            examples: A structure of arrays, each with one entry for each example.
            begin: The first round.

        Returns:
            A data set of structures of tensors, one element for each round; a batch of a sampled order may be empty.

        Raises:
            InputTypeError: If an argument is of the wrong type.
            InputValueError: If an argument is out of range.
        """
        tensors = self.checked(examples)
        rows = self.batches(begin, self.rounds - validation.whole("begin", begin, at_least=0))

        def batch(row: tf.Tensor) -> Any:
            present = tf.boolean_mask(row, row >= 0)
            return tf.nest.map_structure(lambda tensor: tf.gather(tensor, present), tensors)

        return tf.data.Dataset.from_tensor_slices(rows).map(batch)

    def checked(self, examples: Any) -> Any:
        """Returns a structure of arrays as tensors, after checking that each has one entry for each example."""
        tensors = tf.nest.map_structure(_tensor, examples)
        if not tf.nest.flatten(tensors):
            raise InputTypeError(f"examples={examples!r} has no arrays: pass arrays such as x, or (x, y).")
        for tensor in tf.nest.flatten(tensors):
            if tensor.shape.rank == 0 or tensor.shape[0] != self.examples:
                raise InputValueError(
                    f"examples has an array of shape {tensor.shape}, but examples={self.examples} in the order: each "
                    "array must have one entry for each example."
                )
        return tensors

    def _checked_rounds(self, begin: int, count: int) -> tuple[int, int]:
        begin = validation.whole("begin", begin, at_least=0)
        count = validation.whole("count", count, at_least=0)
        if begin + count > self.rounds:
            raise InputValueError(
                f"begin={begin} and count={count} exceed the {self.rounds} rounds that the order was accounted for: "
                "make an order of more epochs, and calibrate the noise for it."
            )
        return begin, count


def digest(order: Order, places: np.ndarray) -> bytes:
    """Returns the digest of the fields of an order, and of places that another version of NumPy could draw otherwise.

    Example:
        >>> from tff_mf.keras import FixedOrder
        >>> one, other = (FixedOrder(examples=4, batch_size=2, epochs=1, seed=seed) for seed in (0, 1))
        >>> one.fingerprint == other.fingerprint
        False
    """
    return hashlib.sha256(repr(order).encode() + places.tobytes()).digest()


def _tensor(leaf: Any) -> tf.Tensor:
    # TensorFlow copies NumPy's arrays, but shares the memory of others, which can change.
    return tf.convert_to_tensor(leaf if tf.is_tensor(leaf) or isinstance(leaf, tf.Variable) else np.array(leaf))


def _rounded_up(value: float) -> str:
    """Returns a number with four digits, at least as large as it is."""
    if not 0 < value < np.inf:
        return f"{value:g}"
    return f"{float(decimal.Context(prec=4, rounding=decimal.ROUND_CEILING).create_decimal_from_float(value)):g}"
