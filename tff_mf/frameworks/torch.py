"""Central training in PyTorch: clipped sums of gradients, and the noise of a plan in the gradients of parameters.

Every example of one data set is protected. `tff_mf.Order` says which of them are in the batch of each round.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from tff_mf.base import required_packages, validation
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.problem import grids

required_packages.packages("tff_mf.frameworks.torch", "torch")

import torch  # noqa: E402

from tff_mf.frameworks import _central  # noqa: E402
from tff_mf.noise.torch import build_stream  # noqa: E402
from tff_mf.planning import Plan  # noqa: E402

_SMALLEST_NORM, _LARGEST_NORM = 1e-6, 1e6
# Smaller numbers have fewer digits in float32.
_SMALLEST_FACTOR = 2.0**-126
# More than norms in float64 and two roundings to float32 can be off.
_MARGIN = 2.0**-20


def clipped_sum(
    gradients: Sequence[torch.Tensor],
    clip_norm: float,
    *,
    present: torch.Tensor | None = None,
    grid: grids.Grid | None = None,
) -> list[torch.Tensor]:
    """Returns the sum over a batch of the gradients of single examples, each clipped to the norm ζ = `clip_norm`.

    Formal guarantee: the result is a sum of one term for each example, a function of that example's gradients alone.
    The L2 norm of a term, over all tensors together, is at most ζ in exact arithmetic, whatever the gradients are, for
    up to 2³² values. A term is zero if it is not finite, or, without a grid, if it would have to be scaled by less than
    2⁻¹²⁶. The rounding of the sum over the batch is not covered; with a grid there is none: terms are whole numbers q
    with Σq² ≤ 4^bits, and sums are exact in every order.

    A gradient must depend on its example alone. Where cohorts are secret, known random numbers of layers that depend
    on the place in a batch break this: with one more example, those after it get other masks of dropout. Seed them
    from the system's randomness.

    Args:
        gradients: Gradients of single examples, `[batch, ...]` each, as `torch.func.vmap(torch.func.grad(...))` gives.
        clip_norm: ζ, from 1e-6 to 1e6.
        present: Which places of the batch hold an example, bool `[batch]`; all if `None`. Others contribute zero.
        grid: The grid of the plan, if it has one.

    Returns:
        Sums, float32; with a grid, float64 that hold integers, in units of the grid.

    Source: Abadi et al. (2016), algorithm 1.

    Example:
        >>> round(float(torch.linalg.norm(clipped_sum([torch.tensor([[30.0, 40.0]])], 1.0)[0])), 3)
        1.0

    Raises:
        InputError: If `clip_norm` is out of range, there are no gradients of one batch, or its places exceed the
            `max_clients` of the grid.
    """
    if not _SMALLEST_NORM <= validation.positive("clip_norm", clip_norm) <= _LARGEST_NORM:
        raise InputValueError(f"clip_norm={clip_norm!r} must be at least {_SMALLEST_NORM} and at most {_LARGEST_NORM}.")
    if len({tuple(leaf.shape[:1]) for leaf in gradients}) != 1 or gradients[0].dim() == 0:
        shapes = [tuple(leaf.shape) for leaf in gradients]
        raise InputValueError(f"gradients of the shapes {shapes} must have one entry for each example of a batch.")
    wide = [
        leaf.to(torch.float32).flatten(1) if leaf.dim() > 1 else leaf.to(torch.float32)[:, None] for leaf in gradients
    ]
    norms = torch.sqrt(_squares(wide))
    taken = torch.isfinite(norms) if present is None else torch.isfinite(norms) & present
    if grid is None:
        factors = torch.clamp(clip_norm * (1 - _MARGIN) / norms, max=1.0)
        factors = torch.where(taken & (factors >= _SMALLEST_FACTOR), factors, 0.0).to(torch.float32)
        terms = [torch.where((factors > 0)[:, None], leaf * factors[:, None], 0.0) for leaf in wide]
    else:
        _central.check_places(len(norms), grid)
        scale, aim = _central.scales(clip_norm, grid, sum(leaf.shape[1] for leaf in wide))
        factors = torch.clamp(aim / norms, max=scale)
        terms = [torch.round(leaf.to(torch.float64) * factors[:, None]) for leaf in wide]
        # What rounding has made too long is made shorter, and rounded towards zero.
        squares = _squares(terms)
        shorter = torch.where(squares > grid.largest_norm**2, (grid.largest_norm - 2) / torch.sqrt(squares), 1.0)
        terms = [torch.trunc(leaf * shorter[:, None]) for leaf in terms]
        taken = taken & (_squares(terms) <= grid.largest_norm**2)
        terms = [torch.where(taken[:, None], leaf, 0.0) for leaf in terms]
    return [term.sum(dim=0).reshape(leaf.shape[1:]) for term, leaf in zip(terms, gradients, strict=True)]


def _squares(wide: Iterable[torch.Tensor]) -> torch.Tensor:
    return sum((leaf.to(torch.float64).square().sum(dim=1) for leaf in wide), start=torch.zeros([]))


def _fit(total: torch.Tensor, grid: grids.Grid) -> torch.Tensor:
    """Returns whether all numbers of a sum are integers of the grid; NaN are not."""
    return torch.all((total == torch.trunc(total)) & (torch.abs(total) <= grid.largest_sum))


class CorrelatedNoise:
    """Turns the sums of clipped gradients of parameters into noised means, round by round.

    Formal guarantee: over the rounds of one object, all gradients that it leaves are a function of one Gaussian
    release, whose guarantee is the plan's, if the gradients that it finds in round t are the `clipped_sum` over the
    examples of `Order.of(plan)` in it, with the plan's clip norm and grid. Noise is added for all parameters together,
    in float32, or exactly, in integers of the grid; a division and a cast to the types of the parameters follow. Each
    round draws a key of 128 bits from the operating system; a round after the plan's last one is refused.

    Args:
        plan: The plan, whose `clients_per_round` is the size of a batch, on average if it samples at random.
        parameters: The parameters that train, all on one device.
        settings: `device`, `generator` and `one_process` of `tff_mf.noise.torch.build_stream`.

    Example:
        >>> import tff_mf
        >>> plan = tff_mf.plan(mechanism=tff_mf.BLT.production("b100"), rounds=20, epsilon=8.0, delta=1e-5, grid=None,
        ...                    sampling=tff_mf.FixedEpoch(min_sep=10, max_participations=2), clients_per_round=4)
        >>> model = torch.nn.Linear(3, 1)
        >>> noise = CorrelatedNoise(plan, model.parameters())
        >>> noise.apply([torch.ones(1, 3), torch.ones(1)])
        >>> model.weight.grad.shape, noise.rounds
        (torch.Size([1, 3]), 1)

    Raises:
        InputTypeError: If there are no parameters.
        InputValueError: If the plan has restarts, adaptive clipping, fewer parameters, or simulates a larger cohort; or
            if the parameters are on several devices.
    """

    def __init__(self, plan: Plan, parameters: Iterable[torch.nn.Parameter], **settings: Any) -> None:
        _central.check_central(plan)
        self._plan = plan
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        if not self._parameters:
            raise InputTypeError("parameters has none that trains: pass model.parameters().")
        devices = {parameter.device for parameter in self._parameters}
        if len(devices) > 1:
            raise InputValueError(f"parameters are on the devices {sorted(map(str, devices))}: keep them on one.")
        dimension = sum(parameter.numel() for parameter in self._parameters)
        self._stream = build_stream(
            plan.mechanism,
            dimension=dimension,
            **_central.noise_of(plan, dimension),
            **{"device": devices.pop(), **settings},
        ).limited_to(plan.rounds)
        self._state = self._stream.init()
        # Two threads that ran a round of one state would release two results whose difference has little noise in it.
        self._lock = threading.Lock()

    @property
    def rounds(self) -> int:
        """Number of rounds whose noise has been drawn."""
        return int(self._state["round"])

    @torch.compiler.disable
    def apply(self, sums: Sequence[torch.Tensor]) -> None:
        """Sets the gradients of the parameters to the noised means of a round, for any optimizer to take.

        Args:
            sums: The clipped sums, one for each parameter, of its shape.

        Raises:
            InputValueError: If a sum has another shape, is in other units, or has fractions on a grid; after the plan's
                last round.
        """
        expected, shapes = ([tuple(tensor.shape) for tensor in tensors] for tensors in (self._parameters, sums))
        if shapes != expected:
            raise InputValueError(f"sums of the shapes {shapes} must be shaped like the parameters, {expected}.")
        _central.check_units({str(tensor.dtype).removeprefix("torch.") for tensor in sums}, self._plan)
        grid = self._plan.grid
        if grid is not None:
            _central.check_integers(all(bool(_fit(tensor, grid)) for tensor in sums), self._plan)
        with self._lock:
            row, self._state = self._stream.next(self._state)
        parts = row.split([tensor.numel() for tensor in self._parameters])
        means = [
            (total.to(row.dtype) + noise.reshape(total.shape))
            * _central.unit_of(self._plan)
            / self._plan.clients_per_round
            for total, noise in zip(sums, parts, strict=True)
        ]
        for parameter, mean in zip(self._parameters, means, strict=True):
            parameter.grad = mean.to(parameter.dtype)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Returns the state of the noise, for `torch.save`. Secret: with it, the noise can be subtracted.

        Save it with the parameters before anything of the round is released, and keep the newest one alone.
        """
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Continues from a state.

        Raises:
            InputError: If it is damaged, or of other noise.
        """
        self._stream.check(state)
        with self._lock:
            self._state = dict(state)

    def __reduce__(self) -> NoReturn:
        raise InputTypeError(
            "a CorrelatedNoise cannot be copied or pickled: two that go on from one state share noise, which no "
            "guarantee covers. Save state_dict(), and load the newest into a new one."
        )
