"""Federated averaging and federated SGD as a plan has them: the process, and its training in a folder.

`tff_mf.aggregators` has `private_fed_avg` and `private_fed_sgd` under its own name, where a user looks for them.
"""

import contextlib
import functools
import os
import pathlib
import weakref
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError

from ... import aggregators
from ...aggregators.resident.worker import end_with_program
from ..output.typed import check_same
from ..runs.folders import begun_record
from ..runs.results import NOT_TRAINING
from . import inputs
from .inputs import checked_weights
from .private_training import Model, PrivateTraining, Sampler
from .run_guard import begun_plan, open_guard

# Arguments of TFF's builders that would void the guarantee, each with the remedy.
_REFUSED = {
    "metrics_aggregator": "metrics of the clients that train are a release without noise; use training.evaluate(...) "
    "with clients that do not train",
    "model_aggregator": "it follows from the plan, as training.aggregator; put what else you need into the plan",
    "client_weighting": "weights are exact numbers about clients, and every client counts the same",
    "model_distributor": "what clients are sent follows from released models alone",
}
# The training that is open in each folder: a notebook's cell that is run again closes the one before.
_OPEN: weakref.WeakValueDictionary[pathlib.Path, PrivateTraining] = weakref.WeakValueDictionary()


def private_fed_avg(
    plan: tff_mf.Plan,
    model_fn: Model,
    *,
    client_optimizer_fn: Any,
    server_optimizer_fn: Any = None,
    folder: str | os.PathLike[str],
    sampler: Sampler | None = None,
    initial_weights: tff.learning.models.ModelWeights | None = None,
    **refused: Any,
) -> PrivateTraining:
    """Returns federated averaging as a plan has it: private as long as its two methods are used in turn.

    The process has the plan's aggregator and withholds the clients' metrics; the grid fits the model; a round beyond
    the plan's is refused; the guard writes who takes part before their data train. Called again with the same plan and
    folder, it continues after the newest checkpoint; of a run that has ended, it has the model and the report.

    Formal guarantee: all models that `folder`'s rounds release have the plan's `epsilon`, as for `RunGuard` and
    `aggregators.MFAggregationFactory`, if each dataset that `next` is given is of the client whose id it has,
    and nothing else that depends on these data is released.

    Args:
        plan: `tff_mf.plan(...)`.
        model_fn: TFF's model: a function that returns a `tff.learning.models.VariableModel`, or a `FunctionalModel`. A
            model whose training assigns to variables, as `BatchNormalization` does, is refused.
        client_optimizer_fn: As for `tff.learning.algorithms.build_unweighted_fed_avg`.
        server_optimizer_fn: Likewise, with momentum or adaptive: post-processing of the noised means, for whose prefix
            sums the plan's mechanism is optimized. `None` for SGD with learning rate 1.
        folder: The run's folder, which is made if it does not exist: log, ledger, checkpoints and report.
        sampler: From the clients that may come to a cohort, if cohorts are not drawn by `plan.sampling`. The guard
            checks each.
        initial_weights: What training starts from, if not from the model's own initial weights; they must not depend on
            the clients' data, unless what they cost is accounted for elsewhere.
        refused: Other arguments of TFF's builder, which are refused with the reason.

    Example:
        training = aggregators.private_fed_avg(plan, model_fn, client_optimizer_fn=sgd, folder="runs/mine")
        for cohort in training.cohorts(clients):
            training.next({client: dataset(client) for client in cohort})
        print(training.report())

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument would void the guarantee, or the folder holds another run.
    """
    server = tff.learning.optimizers.build_sgdm(1.0) if server_optimizer_fn is None else server_optimizer_fn
    optimizers = {"client_optimizer_fn": client_optimizer_fn, "server_optimizer_fn": server}
    more = {"sampler": sampler, "initial_weights": initial_weights, **refused}
    return _opened("private_fed_avg", plan, model_fn, optimizers, folder, **more)


def private_fed_sgd(
    plan: tff_mf.Plan,
    model_fn: Model,
    *,
    server_optimizer_fn: Any = None,
    folder: str | os.PathLike[str],
    **more: Any,
) -> PrivateTraining:
    """Returns federated SGD as a plan has it: a client's update is its mean gradient, and every client counts the same.

    Formal guarantee, arguments and errors: as for `private_fed_avg`, without the clients' optimizer; the server's is
    SGD with learning rate 0.1 if `server_optimizer_fn` is `None`.
    """
    server = tff.learning.optimizers.build_sgdm(0.1) if server_optimizer_fn is None else server_optimizer_fn
    optimizers = {"server_optimizer_fn": server}
    return _opened("private_fed_sgd", plan, model_fn, optimizers, folder, **more)


def learning_process(
    model: Model,
    aggregator: tff.aggregators.UnweightedAggregationFactory,
    loop: tff.learning.LoopImplementation,
    optimizers: Mapping[str, tff.learning.optimizers.Optimizer],
) -> tff.learning.templates.LearningProcess:
    """Returns federated averaging's learning process, or that of federated SGD, whose clients have no optimizer."""
    shared = {**optimizers, "metrics_aggregator": aggregators.withhold_metrics, "loop_implementation": loop}
    if "client_optimizer_fn" in optimizers:
        return tff.learning.algorithms.build_unweighted_fed_avg(model, model_aggregator=aggregator, **shared)
    # TFF weights gradients by numbers of examples, which are exact: here each client weighs the same.
    weighted = tff.aggregators.as_weighted_aggregator(aggregator)
    return tff.learning.algorithms.build_fed_sgd(model, model_aggregator=weighted, **shared)


def _about(engine: str, optimizers: Mapping[str, tff.learning.optimizers.Optimizer]) -> dict[str, Any]:
    """Returns what `run.json` says of a training that its plan does not: what trains, and how fast.

    A schedule of learning rates is a function, and only its presence is noted.
    """
    about: dict[str, Any] = {"engine": engine}
    for name, optimizer in optimizers.items():
        numbers = optimizer.get_hparams(optimizer.initialize([tf.TensorSpec([1])]))
        numbers = {key: float(value) for key, value in numbers.items()}
        about[name.removesuffix("_fn")] = {"kind": type(optimizer).__name__, **numbers}
    return about


def _opened(
    engine: str,
    plan: tff_mf.Plan,
    model_fn: Model,
    optimizers: Mapping[str, tff.learning.optimizers.Optimizer],
    folder: str | os.PathLike[str],
    *,
    sampler: Sampler | None = None,
    initial_weights: tff.learning.models.ModelWeights | None = None,
    **refused: Any,
) -> PrivateTraining:
    """Returns the training of a folder, a new one or one that is resumed."""
    for name in refused:
        if name in _REFUSED:
            raise InputValueError(f"{name}= cannot be given to {engine}: {_REFUSED[name]}.")
        raise InputTypeError(f"{name}= is no argument of {engine}.")
    for name, optimizer in optimizers.items():
        # With one of Keras, TFF itself fails without a name.
        remedy = "such as tff.learning.optimizers.build_sgdm(0.1); TFF 0.87 takes no Keras optimizers"
        validation.instance(name, optimizer, tff.learning.optimizers.Optimizer, remedy)
    # First: an error below may be the last of the program, and TFF would print one of its own after it.
    end_with_program()
    validation.instance("plan", plan, tff_mf.Plan, "make one with tff_mf.plan(...)")
    if plan.adaptive_count_stddev is not None:
        raise InputValueError(
            f"adaptive_count_stddev={plan.adaptive_count_stddev!r}: adaptive clipping is for pipelines of your own, as "
            "in docs/swap-in-tff.md."
        )
    validation.instance("folder", folder, (str, os.PathLike), "name the folder of the run")
    path, weights = pathlib.Path(folder).resolve(), checked_weights(model_fn)
    before = _OPEN.pop(path, None)
    if before is not None:
        before.close()
    plan = begun_plan(path, plan.for_model(weights.dimension))
    about = _about(engine, optimizers)
    begun = begun_record(path)
    if begun is not None:
        # The noise is the same with another rate, and the model is not.
        check_same(about, {name: begun.about.get(name) for name in about}, run=str(path))
    mean = aggregators.MFAggregationFactory.of_plan(plan)
    process = learning_process(model_fn, mean, inputs.SIMULATION_LOOP, optimizers)
    with contextlib.ExitStack() as ends:
        guard = ends.enter_context(
            open_guard(
                path,
                plan,
                sampler=None if sampler is None else "the caller's own",
                aggregator=mean,
                ended=True,
                about=about,
                population=None if plan.population is None else plan.deployed_population(plan.population),
                released_without_noise=[{"name": "metrics of evaluation", "of": NOT_TRAINING}],
            )
        )
        training = PrivateTraining(
            guard,
            plan,
            process,
            mean,
            weights,
            ends=ends.pop_all(),
            model_fn=model_fn,
            for_devices=functools.partial(learning_process, model_fn, loop=inputs.DEVICE_LOOP, optimizers=optimizers),
            sampler=sampler,
            initial_weights=initial_weights,
        )
    _OPEN[path] = training
    return training
