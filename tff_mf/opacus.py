"""Central training with Opacus: its gradients of single examples, and the batches, noise and guarantee of a plan.

Every example of one data set is protected. Neither the noise of Opacus nor its accountant runs.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tff_mf.base import required_packages, validation
from tff_mf.base.errors import InputTypeError, InputValueError

required_packages.packages("tff_mf.opacus", "torch", "opacus")

import torch  # noqa: E402
from opacus import GradSampleModule  # noqa: E402
from opacus.grad_sample import AbstractGradSampleModule  # noqa: E402
from opacus.layers.dp_rnn import RNNLinear  # noqa: E402
from opacus.optimizers import DPOptimizer  # noqa: E402
from opacus.validators import ModuleValidator  # noqa: E402
from torch.nn.modules import batchnorm, instancenorm  # noqa: E402

from tff_mf.planning import Plan  # noqa: E402
from tff_mf.planning.order import Order  # noqa: E402
from tff_mf.problem.cohort_secret import CohortSecret  # noqa: E402
from tff_mf.torch import CorrelatedNoise, clipped_sum  # noqa: E402

_OVER_AN_AXIS = (torch.nn.Softmax, torch.nn.Softmin, torch.nn.LogSoftmax)
# By name, with a count of changes.
_Stored = Mapping[str, tuple[torch.Tensor, int | None]]
_RUN, _KEY, _ORDER = "secret_run", "secret_key", "order"


class PrivacyEngine:
    """Makes a model, its optimizer and its data private by a plan, in the place of the engine of Opacus.

    Formal guarantee: as for `tff_mf.torch.CorrelatedNoise`. Before each step of the optimizer, the gradients of its
    parameters become the noised mean of the `clipped_sum` over the examples of a batch, each once. Batches come from
    `Order.of(plan)`: the loader refuses to go on after a batch without a step, and a second step on one does not run.
    For random batches it seeds PyTorch's generators anew: with known numbers, an example that joins would change the
    masks of dropout of all that follow it in the batch. No step runs on other gradients: a closure, other parameters,
    and an optimizer of Opacus are refused, and gradients without noise are dropped before anything can take them. Nor
    does a step follow a batch of which the model has stored anything. A gradient of Opacus depends on one example, if
    the model and the loss treat the examples of a batch one by one. PyTorch's normalizations and softmax that do not
    are refused, and so are layers that are called on a part of the examples. Not found are such layers of your own,
    inputs whose first axis is not the examples, and losses that are divided by what depends on the whole batch: means
    with class weights, or over all tokens but padding. Divide these by a constant.

    Args:
        plan: The plan, whose `clients_per_round` is the size of a batch, on average if it samples at random.
        seed: Seed of the order of the examples, where it may be known.
        settings: `device`, `generator` and `one_process` of `tff_mf.noise.torch.build_stream`.

    Example:
        >>> import tff_mf
        >>> plan = tff_mf.plan(mechanism=tff_mf.BLT.production("b100"), rounds=4, epsilon=8.0, delta=1e-5,
        ...                    sampling=tff_mf.FixedEpoch(min_sep=2, max_participations=2), clients_per_round=3)
        >>> examples = torch.utils.data.TensorDataset(torch.ones(6, 2), torch.ones(6, 1))
        >>> model, engine = torch.nn.Linear(2, 1), PrivacyEngine(plan)
        >>> model, optimizer, loader = engine.make_private(
        ...     module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        ...     data_loader=torch.utils.data.DataLoader(examples, batch_size=3))
        >>> for x, y in loader:
        ...     optimizer.zero_grad()
        ...     torch.nn.functional.mse_loss(model(x), y).backward()
        ...     _ = optimizer.step()
        >>> engine.rounds, engine.get_epsilon(1e-5) <= 8.0
        (2, True)
    """

    def __init__(self, plan: Plan, *, seed: int = 0, **settings: Any) -> None:
        validation.instance("plan", plan, Plan, "make one with tff_mf.plan")
        self._plan, self._seed, self._settings = plan, seed, settings
        self._secret = CohortSecret.drawn()
        self._noise: CorrelatedNoise | None = None
        self._order: Order | None = None
        self._module: torch.nn.Module | None = None
        # The round of the batch that the loader gave last, its number of examples, and what the model was before it.
        self._batch: tuple[int, int, _Stored] | None = None
        self._calls = _Calls()

    def make_private(
        self,
        *,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: torch.utils.data.DataLoader,
        loss_reduction: str = "mean",
    ) -> tuple[GradSampleModule, torch.optim.Optimizer, "Loader"]:
        """Returns what to train with: the model of Opacus, the same optimizer, and a loader of the plan's batches.

        Args:
            module: The model. All of its parameters that train must be the optimizer's.
            optimizer: An optimizer of PyTorch. Its `step` adds the noise.
            data_loader: A loader, whose data set, `collate_fn`, `num_workers` and `pin_memory` are used.
            loss_reduction: Whether the loss is the "mean" or the "sum" over the examples of a batch.

        Raises:
            InputTypeError: If the optimizer, or the model, is one of Opacus' own engine.
            InputValueError: If it has other parameters, the loader has batches of another size, the plan is not one of
                central training with so many examples, or an engine is used twice.
        """
        if self._noise is not None:
            raise InputValueError("engine has made a model private: make another one, whose ε adds up with this one's.")
        if isinstance(optimizer, DPOptimizer) or isinstance(module, AbstractGradSampleModule):
            raise InputTypeError(
                f"optimizer={type(optimizer).__name__} and module={type(module).__name__} must be PyTorch's, and not "
                "what Opacus' own engine returns: its accountant knows nothing of this noise."
            )
        validation.one_of("loss_reduction", loss_reduction, ("mean", "sum"))
        if data_loader.batch_size not in (None, self._plan.clients_per_round):
            raise InputValueError(
                f"data_loader.batch_size={data_loader.batch_size} must be the clients_per_round="
                f"{self._plan.clients_per_round} of the plan."
            )
        order = Order.of(self._plan, examples=len(data_loader.dataset), seed=self._seed)
        trained = [each for each in module.parameters() if each.requires_grad]
        _check_same(optimizer, trained)
        ModuleValidator.validate(module, strict=True)
        _check_apart(module)
        self._calls.watch(module)
        wrapped = GradSampleModule(module, loss_reduction=loss_reduction)
        self._noise = noise = CorrelatedNoise(self._plan, trained, **self._settings)
        self._order, self._module = order, module
        for each in trained:
            # Another optimizer, or a copy of this one, would release them.
            each.register_post_accumulate_grad_hook(_drop)

        def before_step(optimizer: torch.optim.Optimizer, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
            _check_step(optimizer, trained, given, named)
            _check_apart(module)
            self._apply(noise, trained)

        optimizer.register_step_pre_hook(before_step)
        # A GradScaler then leaves its scale to the step, which refuses it, and looks for no gradients before.
        optimizer._step_supports_amp_scaling = True
        return wrapped, optimizer, Loader(data_loader, order, self)

    def _apply(self, noise: CorrelatedNoise, trained: list[torch.nn.Parameter]) -> None:
        """Replaces the gradients of the batch that the loader gave last by their noised mean."""
        gradients = [_of_examples(each) for each in trained]
        begun, examples, before = self._batch or (None, 0, {})
        if begun != noise.rounds:
            raise InputValueError(
                f"optimizer takes the step of round {noise.rounds}, and the last batch of the loader is of round "
                f"{begun}: take a batch from it for each step."
            )
        found = {len(each) for each in gradients}
        # Twice backward on a batch is twice the sensitivity.
        if found != {examples}:
            raise InputValueError(
                f"gradients are of {max(found)} examples, and the batch has {examples}: the backward passes "
                "before a step must have each example of the loader's batch once."
            )
        _check_unchanged(before, _stored(self._module))
        self._calls.check()
        noise.apply(clipped_sum(gradients, self._plan.clip_norm, grid=self._plan.grid))
        for each in trained:
            each.grad_sample = None

    @property
    def rounds(self) -> int:
        """Number of rounds whose noise has been drawn."""
        return 0 if self._noise is None else self._noise.rounds

    def get_epsilon(self, delta: float) -> float:
        """Returns ε of the whole plan, for zero-out of one example, which covers a training that ends sooner."""
        return self._plan.guarantee.epsilon(delta)

    def begins(self, begun: int, examples: int) -> None:
        """Takes note of the round of the batch that is next, and of its number of examples."""
        self._batch = begun, examples, _stored(self._module)
        self._calls.begin()

    def batches(self, order: Order, begin: int, count: int) -> np.ndarray:
        """Returns the batches of rounds, by the secret of this training if they must be secret."""
        return order.batches(begin, count, secret=self._secret)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Returns the state of noise and batches, for `torch.save`. Secret: with it, the noise can be subtracted.

        Save it with the parameters before anything of the round is released, and keep the newest one alone.
        """
        noise, order = self._made()
        words = {_RUN: bytes.fromhex(self._secret.run), _KEY: self._secret.key, _ORDER: order.fingerprint}
        found = {name: torch.tensor(list(value), dtype=torch.uint8) for name, value in words.items()}
        return found | noise.state_dict()

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Continues from a state, after `make_private`.

        Raises:
            InputError: If it is damaged, or of other noise, or of another order of examples.
        """
        given, (noise, order) = dict(state), self._made()
        try:
            run, key, begun_in = (bytes(given.pop(name).tolist()) for name in (_RUN, _KEY, _ORDER))
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            raise InputValueError(
                f"state has no {_RUN}, {_KEY} and {_ORDER}: pass what state_dict returned."
            ) from error
        if begun_in != order.fingerprint:
            raise InputValueError(
                f"seed={order.seed} with {order.examples} examples gives other batches than the state was begun with, "
                "and examples would come too often: take the seed and the data set of its engine."
            )
        secret = CohortSecret(run=run.hex(), key=key)
        noise.load_state_dict(given)
        self._secret, self._batch = secret, None

    def _made(self) -> tuple[CorrelatedNoise, Order]:
        if self._noise is None or self._order is None:
            raise InputValueError("engine has no noise yet: call make_private first.")
        return self._noise, self._order


class Loader:
    """The batches of a plan, an epoch in each pass, from the round that is next: made by `make_private`."""

    def __init__(self, given: torch.utils.data.DataLoader, order: Order, engine: PrivacyEngine) -> None:
        self.dataset = given.dataset
        self._order, self._engine, self._collate = order, engine, given.collate_fn
        self._settings = {name: getattr(given, name) for name in ("num_workers", "pin_memory")}

    @property
    def batch_sampler(self) -> Any:
        """There is none: Opacus' BatchMemoryManager asks for it, and would skip steps."""
        raise InputTypeError(
            "data_loader of a BatchMemoryManager must be Opacus' own: several backward passes before a step are one "
            "batch, and must have each example of it once."
        )

    def __len__(self) -> int:
        """Returns the number of batches of the next pass."""
        return min(self._order.epoch_rounds, self._order.rounds - self._engine.rounds)

    def __iter__(self) -> Iterator[Any]:
        """Yields batches.

        Raises:
            InputValueError: If a batch was not followed by exactly one step of the optimizer.
        """
        begin, count = self._engine.rounds, len(self)
        rows = self._engine.batches(self._order, begin, count)
        indices = [row[row >= 0].tolist() for row in rows]
        self._forget_seed()
        loader = torch.utils.data.DataLoader(
            self.dataset, batch_sampler=indices, collate_fn=self._collated, **self._settings
        )
        for done, batch in enumerate(loader):
            self._engine.begins(begin + done, len(indices[done]))
            self._forget_seed()
            yield batch
            if self._engine.rounds != begin + done + 1:
                raise InputValueError(
                    f"engine has drawn the noise of {self._engine.rounds} rounds after {begin + done + 1} batches: "
                    "step the optimizer once for each batch. The guarantee of this training is void if it goes on."
                )

    def _forget_seed(self) -> None:
        """Makes random numbers of layers, and of a data set, unknown where the place of an example is a secret."""
        if self._order.is_sampled:
            torch.seed()

    def _collated(self, examples: list[Any]) -> Any:
        """Returns a batch; of no examples, one of the same structure, whose round is noise alone."""
        if examples:
            return self._collate(examples)
        return torch.utils._pytree.tree_map(lambda each: each[:0], self._collate([self.dataset[0]]))


class _Calls:
    """Calls of the layers that train, each of which must be on all examples of a forward pass.

    Opacus adds the gradients of several calls of a layer row by row. Of a call on some of the examples, or on tokens,
    its rows would be added to other examples' gradients.
    """

    def __init__(self) -> None:
        self._rows: int | None = None
        self._uneven = ""

    def watch(self, module: torch.nn.Module) -> None:
        """Takes note of the calls of a model's layers from now on."""
        module.register_forward_pre_hook(lambda module, given: self._pass())
        for name, each in module.named_modules():
            # Of packed sequences, whose calls are on the first, longest, of the examples: Opacus knows it.
            if any(own.requires_grad for own in each.parameters(recurse=False)) and not isinstance(each, RNNLinear):
                each.register_forward_pre_hook(functools.partial(self._called, name))

    def begin(self) -> None:
        """Forgets all calls."""
        self._rows, self._uneven = None, ""

    def check(self) -> None:
        """Raises if a call was not on all examples."""
        if self._uneven:
            raise InputValueError(
                f"module {self._uneven}: gradients of its rows would be added to other examples'; call each "
                "layer on the whole batch, and select afterwards."
            )

    def _pass(self) -> None:
        self._rows = None

    def _called(self, name: str, module: torch.nn.Module, given: tuple[Any, ...]) -> None:
        if not (module.training and torch.is_grad_enabled() and given and isinstance(given[-1], torch.Tensor)):
            return
        rows = len(given[-1]) if given[-1].dim() else 0
        self._rows = rows if self._rows is None else self._rows
        if rows != self._rows:
            self._uneven = f"{name}={type(module).__name__} was called on {rows} rows, and the batch had {self._rows}"


def _drop(parameter: torch.Tensor) -> None:
    parameter.grad = None


def _check_apart(module: torch.nn.Module) -> None:
    """Raises if a layer computes with statistics of a batch, or keeps them: Opacus asks only layers that train.

    An embedding with `max_norm` shortens the vectors of the words of a batch in place: the weights show which they are.
    """
    for name, each in module.named_modules():
        mixes = isinstance(each, batchnorm._BatchNorm) and (each.training or each.running_mean is None)
        keeps = isinstance(each, instancenorm._InstanceNorm) and each.training and each.running_mean is not None
        if isinstance(each, torch.nn.Embedding | torch.nn.EmbeddingBag) and each.max_norm is not None:
            raise InputValueError(
                f"module {name}={type(each).__name__} has max_norm={each.max_norm!r}, which changes the weights of the "
                "words in a batch without noise: leave it out."
            )
        if isinstance(each, _OVER_AN_AXIS) and each.dim in (0, None):
            raise InputValueError(
                f"module {name}={type(each).__name__} has dim={each.dim!r}, which is, or may be, the axis of the "
                "examples of a batch: give another dim."
            )
        if mixes or keeps:
            raise InputValueError(
                f"module {name}={type(each).__name__} takes statistics of the examples of a batch: call its eval() "
                "after each train() of the model, with running statistics from elsewhere, or take GroupNorm."
            )


def _stored(module: torch.nn.Module | None) -> _Stored:
    """Returns the parameters and buffers of a model, each with how often it was changed in place."""
    if module is None:
        return {}
    found = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: (each, None if each.is_inference() else each._version) for name, each in found.items()}


def _check_unchanged(before: _Stored, after: _Stored) -> None:
    """Raises if a model keeps something of a batch: it would be released with the weights, without noise."""
    for name in {**before, **after}:
        (one, changes), (other, then) = (each.get(name, (None, None)) for each in (before, after))
        if one is not other or changes != then:
            raise InputValueError(
                f"module has changed {name} since the loader gave the batch, and what it keeps of examples has no "
                "noise: take layers that store nothing, such as no observers of quantization and no running averages."
            )


def _check_step(
    optimizer: torch.optim.Optimizer,
    trained: list[torch.nn.Parameter],
    given: tuple[Any, ...],
    named: Mapping[str, Any],
) -> None:
    """Raises if a step would take other gradients than those that are noised, or change them afterwards."""
    _check_same(optimizer, trained)
    # The first argument is the optimizer itself.
    if len(given) > 1 or named.get("closure") is not None:
        raise InputValueError("closure is not supported: it would compute gradients after the noise.")
    if hasattr(optimizer, "found_inf"):
        raise InputValueError(
            "optimizer is stepped by a GradScaler, which would divide noised gradients by its scale: train "
            "without it, in float32 or bfloat16, and call optimizer.step()."
        )
    if any(getattr(each, "summed_grad", None) is not None for each in trained):
        raise InputValueError(
            "optimizer is also in a DPOptimizer of Opacus, whose accountant would state the ε of other noise: "
            "pass it to one engine alone."
        )


def _check_same(optimizer: torch.optim.Optimizer, trained: list[torch.nn.Parameter]) -> None:
    own = [each for group in optimizer.param_groups for each in group["params"]]
    if {id(each) for each in own} != {id(each) for each in trained}:
        raise InputValueError(
            f"optimizer has {len(own)} parameters, which are not the {len(trained)} of the model that train: make it "
            "of all of these, and of no others."
        )


def _of_examples(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Returns the gradients of single examples, of all backward passes of a round."""
    found = getattr(parameter, "grad_sample", None)
    if found is None:
        raise InputValueError("gradients of single examples are missing: call backward() once before each step().")
    return torch.cat(found) if isinstance(found, list) else found
