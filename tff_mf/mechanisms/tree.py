"""Tree aggregation: each prefix sum is a sum of few nodes of a binary tree, which have independent noise."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar, Self

import numpy as np

from tff_mf import validation
from tff_mf.errors import InputValueError
from tff_mf.mechanisms import tree_factors
from tff_mf.mechanisms._mechanism import Mechanism

# Checking the sensitivity of a file must not take more memory than a computer has.
_MOST_ROUNDS = 2**20


@dataclasses.dataclass(frozen=True)
class Tree(Mechanism):
    """Binary tree aggregation over `rounds` leaves, with one of three decoders.

    `vanilla` adds up the nodes that a prefix sum consists of: Kairouz et al. (2021), appendix B.1. `online` estimates
    each of these nodes from the nodes below it ("Honaker from below"), as TensorFlow Privacy's efficient tree does.
    `full` uses the pseudo-inverse, the best linear decoder of the tree: Denisov et al. (2022), appendix C.
    Each is represented by the lower-triangular C whose noise C⁻¹z has the same joint distribution over all
    rounds. Its noise needs one row of memory per level of the tree.

    The vanilla decoder is such a C without any change: in each round it begins to use one node, the largest that the
    round completes, and row t of C has ones in the rounds of that node. It never uses right children, so that C is
    less sensitive than all nodes together, by which Kairouz et al. account.

    If `rounds` is not a power of two, only nodes that are complete within `rounds` are used.

    A tree has no parameters to cast, so `cast_to_float32` returns the tree itself; its noise computes weights in
    float64.

    Attributes:
        rounds: Number of rounds n, the leaves of the tree.
        variant: "full", "online" or "vanilla".

    Example:
        >>> Tree(2, variant="full").encoder(2).round(4)
        array([[1.2247, 0.    ],
               [0.7071, 1.4142]])

    Raises:
        InputTypeError: If a field is of the wrong type.
        InputValueError: If a field is out of range.
    """

    kind: ClassVar[str] = "tree"
    rounds: int
    variant: str = "full"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", validation.whole("rounds", self.rounds))
        if self.rounds > _MOST_ROUNDS:
            raise InputValueError(f"rounds={self.rounds} exceeds the maximum of {_MOST_ROUNDS} rounds of a tree.")
        validation.one_of("variant", self.variant, ("full", "online", "vanilla"))
        super().__post_init__()

    @property
    def max_rounds(self) -> int:
        """Number of rounds that C is defined for: `rounds`."""
        return self.rounds

    def encoder(self, rounds: int) -> np.ndarray:
        rounds = validation.dense(self.check(rounds))
        if self.variant == "full":
            return self._over_forest(tree_factors.full_encoder)[:rounds, :rounds]
        if self.variant == "vanilla":
            return tree_factors.vanilla_encoder(rounds)
        # Imported here: it takes a good part of the import time of the package.
        from scipy.linalg import solve_triangular

        return solve_triangular(tree_factors.online_decoder(rounds), np.tri(rounds), lower=True)

    def inverse(self, rounds: int) -> np.ndarray:
        rounds = validation.dense(self.check(rounds))
        if self.variant == "full":
            return self._over_forest(tree_factors.full_inverse)[:rounds, :rounds]
        vanilla = self.variant == "vanilla"
        decoder = tree_factors.vanilla_decoder(rounds) if vanilla else tree_factors.online_decoder(rounds)
        return np.diff(decoder, axis=0, prepend=0.0)

    def _over_forest(self, factor: Callable[[int], np.ndarray]) -> np.ndarray:
        matrix = np.zeros((self.rounds, self.rounds))
        begin = 0
        for height in tree_factors.forest(self.rounds):
            end = begin + 2**height
            matrix[begin:end, begin:end] = factor(height)
            begin = end
        return matrix

    def cast_to_float32(self) -> Self:
        return self
