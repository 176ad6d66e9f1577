"""Tree aggregation: each prefix sum is a sum of few nodes of a binary tree, which have independent noise.

Square lower-triangular factors of tree aggregation, in closed form.

A binary tree has up to 2n − 1 nodes for n rounds, so its strategy matrix is not square. By Denisov et al. (2022),
proposition 2.2, some lower-triangular square factor has noise of the same distribution. C and C⁻¹ of all variants
have closed forms, built from the root of the tree to its leaves.

If n is not a power of two, the nodes are those that are complete within n rounds: one tree for each 1 in the binary
expansion of n, the largest first.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self

import numpy as np

from tff_mf.base import in_order, validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms._mechanism import Mechanism, OptimizedFor, check_names, whole_number
from tff_mf.mechanisms.grid import MOST_WHOLE_ROUNDS, ROUNDING, SLACK, GridBounds, GridRecursion, allowed, unit
from tff_mf.mechanisms.recursion import NEW, Case, Entry, Operations, Recursion, Terms

# Checking the sensitivity of a file must not take more memory than a computer has.
_MOST_ROUNDS = 2**20
# Exceeds the relative error of a computed 1 / C_tt.
ROUND_UP = 1 + 2.0**-44
# In the order in which files count them.
VARIANTS = ("full", "online", "vanilla")


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
    """

    kind: ClassVar[str] = "tree"
    rounds: int
    variant: str = "full"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", validation.whole("rounds", self.rounds))
        if self.rounds > _MOST_ROUNDS:
            raise InputValueError(f"rounds={self.rounds} exceeds the maximum of {_MOST_ROUNDS} rounds of a tree.")
        validation.one_of("variant", self.variant, VARIANTS)
        super().__post_init__()

    @property
    def max_rounds(self) -> int:
        return self.rounds

    def tensors(self) -> dict[str, np.ndarray]:
        return {"rounds": np.array([float(self.rounds)]), "variant": np.array([float(VARIANTS.index(self.variant))])}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, np.ndarray], optimized_for: OptimizedFor | None = None) -> Self:
        check_names(tensors, ("rounds", "variant"))
        index = whole_number("variant", tensors["variant"])
        if not 0 <= index < len(VARIANTS):
            raise InputValueError(f"its tensor 'variant' is {index}, which stands for no variant of the tree")
        return cls(whole_number("rounds", tensors["rounds"]), VARIANTS[index], optimized_for=optimized_for)

    def encoder(self, rounds: int) -> np.ndarray:
        rounds = validation.dense(self.check(rounds))
        if self.variant == "full":
            return self._over_forest(full_encoder)[:rounds, :rounds]
        if self.variant == "vanilla":
            return vanilla_encoder(rounds)
        # Imported here: it takes a good part of the import time of the package.
        from scipy.linalg import solve_triangular

        return solve_triangular(online_decoder(rounds), np.tri(rounds), lower=True)

    def inverse(self, rounds: int) -> np.ndarray:
        rounds = validation.dense(self.check(rounds))
        if self.variant == "full":
            return self._over_forest(full_inverse)[:rounds, :rounds]
        vanilla = self.variant == "vanilla"
        decoder = vanilla_decoder(rounds) if vanilla else online_decoder(rounds)
        return np.diff(decoder, axis=0, prepend=0.0)

    def _over_forest(self, factor: Callable[[int], np.ndarray]) -> np.ndarray:
        from scipy.linalg import block_diag

        return block_diag(*map(factor, forest(self.rounds)))

    def cast_to_float32(self) -> Self:
        return self

    def recursion(self) -> Recursion:
        """L_t = Σ_h w_h(t)·I_h for the sums I_h of n over the last complete block of 2^h rounds.

        An estimate of a node by the vanilla and the online decoder is the difference of two prefix sums of noise, and
        so the sum of n over the rounds of the node: in a round that completes nodes up to height H, L_t is
        Σ_{h<H} w_h·I_h. Row h is in use while bit h of the number of rounds is set; no later round needs the sum over
        a whole tree.
        """
        levels, full = self.rounds.bit_length() - 1, self.variant == "full"

        def case(height: int) -> Case:
            after: list[int | Terms] = list(range(levels))
            if height < levels:
                after[height] = ((NEW, 1.0), *((row, 1.0) for row in range(height)))
            if full:
                return Case(
                    scale=Entry(0), past=tuple((row, Entry(1 + row)) for row in range(levels)), after=tuple(after)
                )
            vanilla = self.variant == "vanilla"
            scale, weights = (1.0, [1.0] * height) if vanilla else online_step(height)
            return Case(scale=scale, past=tuple(enumerate(weights)), after=tuple(after))

        return Recursion(
            rows=levels,
            cases=tuple(map(case, range(levels + 1))),
            case=lambda done, tables, operations: operations.minimum(operations.carry(done), levels),
            line=(lambda done, tables, operations: _full_line(self.rounds, done, operations)) if full else None,
            in_use=lambda done, tables, operations: sum(done // 2**height % 2 for height in range(levels)),
            rounds=self.rounds,
        )

    def grid_bounds(self) -> GridBounds:
        return _Bounds(self)


def _full_line(rounds: int, done: Any, operations: Any) -> list[Any]:
    """Returns 1 / C_tt of the full tree, rounded up, then the weight w_h ≥ 0 of each height.

    From the root to the leaf of the round: in the right half of a block, L ← L + coupling·(I + m·L). I is the sum of n
    over the m rounds of the left half, and I + m·L the sum without the terms of larger blocks, which enter each of
    these rounds in the same way: see `full_split`.
    """
    alpha, weights = 0.0, []
    split: Any = full_split
    for height in range(rounds.bit_length() - 1, 0, -1):
        left, right, coupling = split(height, alpha)
        in_right = done // 2 ** (height - 1) % 2 > 0
        # The height of the round's tree is the highest bit in which `rounds` and the round differ.
        in_tree = done // 2**height < rounds // 2**height
        coupling = operations.where(in_tree & in_right, coupling, 0.0)
        growth = 1 + coupling * 2.0 ** (height - 1)
        weights = [*(growth * weight for weight in weights), coupling]
        alpha = operations.where(in_tree, operations.where(in_right, right, left), alpha)
    return [ROUND_UP / operations.sqrt(1 + alpha), *reversed(weights)]


class _Bounds(GridBounds):
    """L_t = Σ_h w_h(t)·I_h for the integer sums I_h of n over the last complete block of 2^h rounds.

    Up to 4,096 rounds, the bounds on n and I_h are sums of absolute values of C⁻¹; for more, they are coarse: of the
    full tree, |n_t| ≤ (levels + 1)·u, of the others, (levels + 1)²·u, for u = T·s + max C_tt. Sums of a block are at
    most a sum of one estimate per level, of norm 1 in the vanilla tree and of more in the online one.
    """

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree)
        # Number of heights of nodes.
        self.tree, self.levels = tree, tree.rounds.bit_length()

    def at(self, deviation: float) -> GridRecursion:
        tree = self.tree
        # 1/√(1 + α) with α below the number of levels, and online_scale, which is at least ½.
        diagonal = {"full": math.sqrt(1 + self.levels), "online": 2.0, "vanilla": 1.0}[tree.variant]
        largest, *blocks = (norm * unit(deviation, diagonal) for norm in self.norms)
        error = self.error(blocks)
        allowed("tree", np.array([max(largest, *blocks)]), np.array([error]))
        return GridRecursion(
            mechanism=tree,
            deviation=deviation,
            rounds=tree.rounds,
            made=lambda in_place: tree.recursion(),
            largest_within=lambda rounds: largest,
            error=lambda rounds: error,
            largest_diagonal=diagonal,
        )

    @functools.cached_property
    def norms(self) -> list[float]:
        """Bounds on n and on I_h for each height, for u = 1."""
        tree, levels = self.tree, self.levels
        if tree.rounds <= MOST_WHOLE_ROUNDS:
            return _norms(tree)
        if tree.variant == "full":
            return [levels + 1.0, *(2.0**height * (levels + 1) for height in range(levels))]
        # The sum of n in a block is a difference of two prefix sums: of at most one estimate of a node per level.
        block = math.fsum(_estimate_norms(levels)) if tree.variant == "online" else levels + 1.0
        return [(levels + 1.0) ** 2, *[block] * levels]

    @functools.cached_property
    def full_weights(self) -> np.ndarray:
        """w_h(t) of the full tree by round and height, all at least 0."""
        rounds = self.tree.rounds
        _, *weights = _full_line(rounds, np.arange(rounds), Operations)
        return np.array([np.broadcast_to(weight, rounds) for weight in weights]).reshape(len(weights), rounds).T

    def error(self, blocks: list[float]) -> float:
        """Returns a bound on the error of L_t − ½ from bounds on the sums of blocks."""
        levels, variant = self.levels, self.tree.variant
        if variant == "vanilla":
            return 0.0
        if variant == "online":
            # Weights below 1, products of up to as many factors as there are levels.
            return (3 * levels + 8) * ROUNDING * (math.fsum(blocks) + 1) * SLACK
        weights = self.full_weights
        # At each level, a weight is multiplied by a factor that takes at most 16 operations.
        total = float(in_order.product(weights, np.array(blocks[: weights.shape[1]])[:, np.newaxis]).max(initial=0.0))
        return (16 * levels + 20) * ROUNDING * (total + 1) * SLACK


def _estimate_norms(levels: int) -> list[float]:
    """Returns the sum of the rows T(h) of `online_decoder`, which are positive, for each height h."""
    norms = [1.0]
    for height in range(1, levels):
        child_weight = 1 - online_weight(height)
        halves = child_weight * (2 * norms[-1] - online_scale(height - 1))
        norms.append(halves + online_scale(height))
    return norms


def _norms(tree: Tree) -> list[float]:
    """Returns the largest sum of absolute values of a row of C⁻¹, and of a sum of rows of a block of each height."""
    inverse = tree.inverse(tree.rounds)
    norms = [float(in_order.sums(np.abs(inverse)).max())]
    blocks = inverse
    for _ in range(tree.rounds.bit_length()):
        norms.append(float(in_order.sums(np.abs(blocks)).max(initial=0.0)))
        paired = len(blocks) // 2 * 2
        blocks = blocks[0:paired:2] + blocks[1:paired:2]
    return norms


def forest(rounds: int) -> Iterator[int]:
    """Yields the heights of the trees over `rounds` leaves, the largest first.

    Example:
        >>> list(forest(11))
        [3, 1, 0]
    """
    return (height for height in range(rounds.bit_length() - 1, -1, -1) if rounds >> height & 1)


def full_split(height: int, alpha: float) -> tuple[float, float, float]:
    """Returns the parameters of the blocks of F(height, α): α of the left half, α of the right half, their coupling.

    F(h, α) is the lower-triangular matrix with FᵀF = X(h) + α·11ᵀ, where X(h) counts the nodes below the root,
    the leaves included, that two rounds have in common, and X(0) = 1. With a = 1 + α, m = 2^(h − 1) and
    g = 1 / (2^h − 1 + a·m) its left half is F(h − 1, a − a²mg), its right one F(h − 1, a), and a·g the coupling.
    Taking a − a²mg literally would cancel; it is a·(2^h − 1)·g.
    """
    a = 1 + alpha
    below = math.ldexp(1.0, height) - 1
    g = 1 / (below + a * math.ldexp(1.0, height - 1))
    return a * below * g, a, a * g


def full_encoder(height: int, alpha: float = 0.0) -> np.ndarray:
    """Returns F(height, α), float64 `[2^height, 2^height]`; with α = 0 the C of the pseudo-inverse decoder."""
    if height == 0:
        return np.array([[math.sqrt(1 + alpha)]])
    left, right, coupling = full_split(height, alpha)
    after = full_encoder(height - 1, right)
    before = full_encoder(height - 1, left)
    corner = np.broadcast_to(coupling * in_order.sums(after)[:, np.newaxis], after.shape)
    return np.block([[before, np.zeros_like(before)], [corner, after]])


def full_inverse(height: int, alpha: float = 0.0) -> np.ndarray:
    """Returns F(height, α)⁻¹, float64 `[2^height, 2^height]`."""
    if height == 0:
        return np.array([[1 / math.sqrt(1 + alpha)]])
    left, right, coupling = full_split(height, alpha)
    before = full_inverse(height - 1, left)
    corner = np.broadcast_to(-coupling * in_order.sums(before.T), before.shape)
    return np.block([[before, np.zeros_like(before)], [corner, full_inverse(height - 1, right)]])


def online_weight(height: int) -> float:
    """Returns w: the weight of a node's own noise in its estimate from below, and also the variance of that estimate.

    The noise of a node and the sum of its children's estimates are independent, of variance 1 and 2w'.
    """
    return 1 / (2 - math.ldexp(1.0, -height))


def online_scale(height: int) -> float:
    """Returns s: the standard deviation of a node's estimate, given all rounds before the last one of the node."""
    scale = 1.0
    for level in range(1, height + 1):
        weight = online_weight(level)
        inherited = (1 - weight) * scale
        scale = math.sqrt(weight * weight + inherited * inherited)
    return scale


def online_step(height: int) -> tuple[float, list[float]]:
    """Returns 1 / C_tt, rounded up, for a round that completes nodes up to a height, and its weights w_h below it.

    The noise of the round is the new draw times 1 / C_tt, less Σ_{h < height} w_h·I_h for the sum I_h of the noise of
    the last complete block of 2^h rounds.

    Example:
        >>> online_step(1)[1]
        [0.6666666666666666]
    """
    rests = [1 - online_weight(level) for level in range(1, height + 1)]
    return online_scale(height) * ROUND_UP, [1 - math.prod(rests[level:]) for level in range(height)]


def online_decoder(rounds: int) -> np.ndarray:
    """Returns B of the online estimator, lower-triangular, float64 `[rounds, rounds]`.

    The noise of a prefix sum is the sum of the estimates of the nodes it consists of. In noise that is new in
    each round, the estimate of a node of height h is the row T(h) of 2^h numbers, T(0) = 1 and

        T(h) = (1 − w)·[T(h − 1), T(h − 1) without its last number], s(h):

    in the last round of a node the noise of the node and the part of its right child that is new there are seen
    only as one sum, whose standard deviation is s(h).
    """
    estimates = [np.ones(1)]
    while 2 ** len(estimates) <= rounds:
        height, last = len(estimates), estimates[-1]
        halves = (1 - online_weight(height)) * np.concatenate([last, last[:-1]])
        estimates.append(np.append(halves, online_scale(height)))
    decoder = np.zeros((rounds, rounds))
    for done in range(1, rounds + 1):
        parts = [estimates[height] for height in forest(done)]
        decoder[done - 1, :done] = np.concatenate(parts)
    return decoder


def vanilla_encoder(rounds: int) -> np.ndarray:
    """Returns C of the vanilla decoder, float64 `[rounds, rounds]`: row t has ones in the rounds of one node.

    Prefix sum t consists of one node for each 1 in the binary expansion of t, the largest first. The last of them ends
    with round t and has as many rounds as the lowest 1 is worth; the others belong to an earlier prefix sum. Each
    node that is a left child or a root is the last of one prefix sum, and a right child is in none, so that n rounds
    use n nodes, of which the first t are known after t rounds: C is square and lower-triangular, with a diagonal of 1.

    Source: Kairouz et al. (2021), appendix B.1 (GetSum).
    """
    last = np.arange(1, rounds + 1)[:, np.newaxis]
    columns = np.arange(rounds)
    return ((last - (last & -last) <= columns) & (columns < last)).astype(np.float64)


def vanilla_decoder(rounds: int) -> np.ndarray:
    """Returns B of the vanilla decoder, float64 `[rounds, rounds]`: the nodes of each prefix sum, by their last round.

    With A the prefix sums, B·C = A for C of `vanilla_encoder`, because the nodes of a prefix sum are disjoint.
    """
    decoder = np.zeros((rounds, rounds))
    for done in range(1, rounds + 1):
        ends = np.cumsum([2**height for height in forest(done)])
        decoder[done - 1, ends - 1] = 1
    return decoder
