"""Published implementations, judged by the conformance check, each in an environment of its own packages.

    python benchmarks/conformance.py [ENVIRONMENT[:PLACE] ...] [--effort E]

Every implementation is configured as its documentation says, and judged by what that claims of a clip norm of 0.7 and
a noise multiplier of 0.5. A law that nothing promises is judged too, and counts as "not promised". Clip norms that
adapt are held, since a claim has one. If hostile updates break the law of the bound, it is judged again by those whose
norm is finite.

Rows go to docs/results/conformance.csv. A failure is written only if the line in its column `see`, which was written by
hand and needs nothing of ours, prints True in the same environment. Environments are installed into build/peers when
they are first needed; `.venv` and `.venv-frameworks` are those of the Makefile.
"""

import argparse
import contextlib
import copy
import csv
import dataclasses
import functools
import importlib.metadata
import itertools
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from _common import environment

import tff_mf
from tff_mf import conformance
from tff_mf.conformance import adapters
from tff_mf.conformance.adapters import Made
from tff_mf.conformance.trial import leaves

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results" / "conformance.csv"
COLUMNS = ("implementation", "version", "law", "verdict", "evidence", "see")
# The packages that environments need besides ours.
ENVIRONMENTS: Mapping[str, tuple[str, ...]] = {
    "tensorflow": (),
    "flower": (),
    "jax": ("jax==0.10.2", "jax-privacy==2.0.0", "optax==0.2.8"),
    "opacus": ("opacus==1.6.0",),
    "opake": ("opake[dpftrl]==0.16.1",),
    "pfl": ("pfl==0.6.0", "torch==2.13.0"),
    "nvflare": ("nvflare==2.9.0",),
}
OURS = ("cryptography", "dp-accounting", "hypothesis", "msgspec", "mpmath", "pytest", "safetensors", "scipy")
CLIP, SIGMA, CLIENTS, ROUNDS = 0.7, 0.5, 8, 16
LIKE = [np.zeros((20, 10), np.float32), np.zeros(10, np.float32)]
SIZE = 210
TREE = tff_mf.Tree(ROUNDS, variant="online")
BLT = tff_mf.BLT(theta=[0.9, 0.4], omega=[0.2, 0.5])
# The caller passes the key, and a step from one state repeats.
KEYED = ("fresh", "processes")
# Flower warns of another number of clients than it was told, unless it has an accountant.
WARNED = ("divisor",)


@dataclasses.dataclass(frozen=True)
class Case:
    """An implementation as its documentation configures it.

    Attributes:
        name: Its distribution, and its name.
        subject: The implementation.
        claim: What differs from a mean of `CLIENTS`, of independent noise.
        not_promised: Laws that it does not claim to keep, besides those that need a last round or a grid.
        like: What a client's update looks like.
        clients: Clients of a round.
        odd: What else a client may send among others.
        idle: Clip norms of an idle client's update.
    """

    name: str
    subject: Any
    claim: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    not_promised: tuple[str, ...] = ()
    _: dataclasses.KW_ONLY
    like: Any = dataclasses.field(default_factory=lambda: LIKE)
    clients: int = CLIENTS
    odd: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    idle: float = 0.0

    @property
    def claimed(self) -> conformance.Claim:
        """Its whole claim."""
        usual = {"clip_norm": CLIP, "noise_multiplier": SIGMA, "divisor": CLIENTS}
        needed = {"last_round": "rounds", "low_bits": "grid"}
        lacking = [law for law, name in needed.items() if name not in self.claim]
        return conformance.Claim(**{**usual, **self.claim}, not_promised=(*self.not_promised, *lacking))


class Sent(conformance.Updates):
    """Updates of a case, all of the model's shapes; or those whose norm is finite in float32."""

    def __init__(self, case: Case, *, finite: bool = False) -> None:
        super().__init__(case.like, CLIP, case.clients)
        self.zeros, self._finite = self.tree(self.direction * case.idle), finite
        self.odd |= case.odd
        if finite:
            self.huge = 1e15
            del self.odd["NaN"]

    def hostile(self) -> Iterator[tuple[str, Any]]:
        for name, update in super().hostile():
            parts = leaves(update).values()
            with np.errstate(all="ignore"):
                is_finite = all(np.isfinite(np.sum(np.square(np.float32(part)))) for part in parts)
            if [np.shape(part) for part in parts] == self.shapes and (is_finite or not self._finite):
                yield name, update


def tensorflow() -> Iterator[Case]:
    """TensorFlow Federated and TensorFlow Privacy, and our aggregator."""
    import tensorflow as tf
    import tensorflow_federated as tff
    import tensorflow_privacy as tfp

    from tff_mf import aggregators

    specs = [tf.TensorSpec(part.shape) for part in LIKE]
    made = tff.aggregators.DifferentiallyPrivateFactory

    def process(factory: Any) -> Any:
        return adapters.of_process(factory.create(tff.types.to_type([(np.float32, part.shape) for part in LIKE])))

    yield Case("tensorflow-federated gaussian_fixed", process(made.gaussian_fixed(SIGMA, CLIENTS, CLIP)))
    # The sum has the more noise, for that of the count that is noised beside it.
    claim = {"noise_multiplier": (SIGMA**-2 - (2 * 0.05 * CLIENTS) ** -2) ** -0.5, "numbers_covered": True}
    adaptive = made.gaussian_adaptive(SIGMA, CLIENTS, CLIP, learning_rate=0.0)
    yield Case("tensorflow-federated gaussian_adaptive", process(adaptive), claim)
    # Keys are in the state, from which a step repeats.
    tree = made.tree_aggregation(SIGMA, CLIENTS, CLIP, specs)
    yield Case("tensorflow-federated tree_aggregation", process(tree), {"mechanism": TREE}, ("fresh",))
    claim = {"mechanism": BLT, "grid": tff_mf.Grid(bits=12, max_clients=40), "rounds": ROUNDS}
    keywords = {"clip_norm": CLIP, "noise_multiplier": SIGMA, "clients_per_round": CLIENTS, "rounds": ROUNDS}
    ours = aggregators.build_mf_aggregator(BLT, **keywords, grid=claim["grid"])
    yield Case("tff-mf build_mf_aggregator", process(ours), claim)

    one = {"divisor": 1.0}
    query = tfp.GaussianSumQuery(CLIP, CLIP * SIGMA)
    yield Case("tensorflow-privacy GaussianSumQuery", adapters.of_query(query, LIKE), one)
    query = tfp.TreeResidualSumQuery.build_l2_gaussian_query(CLIP, SIGMA, specs)
    claim = one | {"mechanism": TREE}
    yield Case("tensorflow-privacy TreeResidualSumQuery", adapters.of_query(query, LIKE), claim, ("fresh",))
    query = tfp.RestartQuery(query, tfp.restart_query.PeriodicRoundRestartIndicator(4))
    blocks = np.kron(np.eye(ROUNDS // 4), tff_mf.Tree(4, variant="online").encoder(4))
    claim = one | {"mechanism": tff_mf.Dense(matrix=blocks)}
    yield Case("tensorflow-privacy RestartQuery of a tree", adapters.of_query(query, LIKE), claim, ("fresh",))
    for name in ("DPKerasSGDOptimizer", "VectorizedDPKerasSGDOptimizer"):
        build = functools.partial(getattr(tfp, name), CLIP, SIGMA, learning_rate=1.0)
        keras = adapters.of_keras(lambda _, build=build: build(), LIKE)
        yield Case(f"tensorflow-privacy {name}", keras, {}, ("divisor",))

    model = tfp.DPSequential(CLIP, SIGMA, use_xla=False, layers=[tf.keras.layers.Dense(SIZE, use_bias=False)])
    # The gradient of a client is its labels.
    model.compile(tf.keras.optimizers.SGD(1.0), lambda labels, made: tf.reduce_sum(labels * made, axis=1))
    model.build((None, 1))

    def step(state: None, updates: Any) -> tuple[None, Any]:
        model.set_weights([np.zeros((1, SIZE))])
        loss = model.train_on_batch(np.ones((len(updates), 1)), np.concatenate(updates))
        return state, conformance.Released(estimate=-model.get_weights()[0], beside=loss)

    yield Case("tensorflow-privacy DPSequential", Made(step), {}, ("divisor", "beside"), like=np.zeros((1, SIZE)))


def keyed(made: Callable[[Any], Any]) -> Any:
    """Returns a transformation of optax whose key, the caller's, is another in each start; it is compiled once."""
    import jax
    import optax

    update = jax.jit(lambda key, stacked, state: made(key).update(stacked, state))

    def make() -> Any:
        key = int(np.random.default_rng().integers(2**31))
        return optax.GradientTransformation(made(key).init, functools.partial(update, key))

    return adapters.of_stacked(make, LIKE)


def jax() -> Iterator[Case]:
    """Cases of optax and jax_privacy, and our noise in optax."""
    import jax.numpy as jnp
    import jax.random as random
    import optax
    from jax_privacy import clipping, noise_addition
    from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz

    from tests.tff_mf.test_conformance_of_optimizers import PLAN, plan
    from tff_mf.frameworks.optax import clipped_sum, correlated_noise

    contrib = optax.contrib
    aggregate = keyed(lambda key: contrib.differentially_private_aggregate(CLIP, SIGMA, key))
    yield Case("optax contrib.differentially_private_aggregate", aggregate, {}, ("divisor", *KEYED))
    sgd = keyed(lambda key: optax.chain(contrib.dpsgd(1.0, CLIP, SIGMA, key), optax.scale(-1.0)))
    yield Case("optax contrib.dpsgd", sgd, {}, ("divisor", *KEYED))

    def inner(parameters: Any, update: Any) -> Any:
        return sum(jnp.sum(one * other) for one, other in zip(parameters, update, strict=True))

    gradients = clipping.clipped_grad(inner, l2_clip_norm=CLIP, keep_batch_dim=False)
    clip = optax.stateless(lambda stacked, _: gradients([jnp.zeros(part.shape) for part in LIKE], stacked))
    coefficients = toeplitz.optimize_banded_toeplitz(n=ROUNDS, bands=4)
    banded = tff_mf.BandedToeplitz(column=np.asarray(coefficients, np.float64))
    blt = buffered_toeplitz.BufferedToeplitz.build(BLT.theta, BLT.omega, dtype=jnp.float32)
    privatizer = noise_addition.matrix_factorization_privatizer
    for name, noise, mechanism in (
        ("gaussian_privatizer", noise_addition.gaussian_privatizer, tff_mf.Identity()),
        ("BLT", functools.partial(privatizer, blt.inverse_as_streaming_matrix()), BLT),
        ("banded Toeplitz", functools.partial(privatizer, toeplitz.inverse_as_streaming_matrix(coefficients)), banded),
        ("dense matrix", functools.partial(privatizer, jnp.asarray(banded.inverse(ROUNDS))), banded),
    ):
        made = keyed(lambda key, noise=noise: optax.chain(clip, noise(stddev=CLIP * SIGMA, prng_key=random.key(key))))
        rounds = {"rounds": ROUNDS} if name == "dense matrix" else {}
        yield Case(
            f"jax-privacy {name}", made, {"divisor": 1.0, "mechanism": mechanism, **rounds}, (*KEYED, "last_round")
        )

    private = plan(**PLAN)
    ours = optax.stateless(lambda stacked, _: clipped_sum(stacked, private.clip_norm))
    claim = {"mechanism": private.mechanism, "rounds": 6, "divisor": 4.0}
    stacked = adapters.of_stacked(lambda: optax.chain(ours, correlated_noise(private)), LIKE)
    yield Case("tff-mf frameworks.optax", stacked, claim)


def opacus() -> Iterator[Case]:
    """Opacus, and our noise in PyTorch."""
    import torch
    from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer, DPPerLayerOptimizer

    from tests.tff_mf.test_conformance_of_optimizers import PLAN, OfTorch, plan

    def of_opacus(kind: type, **keywords: Any) -> Any:
        def step(state: None, updates: Any) -> tuple[None, Any]:
            parameters = [torch.nn.Parameter(torch.zeros(part.shape)) for part in LIKE]
            plain = torch.optim.SGD(parameters, lr=1.0)
            optimizer = kind(plain, noise_multiplier=SIGMA, expected_batch_size=CLIENTS, **keywords)
            for index, parameter in enumerate(parameters):
                parts = [torch.as_tensor(update[index]) for update in updates]
                parameter.grad_sample = torch.stack(parts) if parts else torch.zeros(0, *parameter.shape)
            optimizer.step()
            return state, [-parameter.detach().numpy() for parameter in parameters]

        return Made(step)

    yield Case("opacus DPOptimizer", of_opacus(DPOptimizer, max_grad_norm=CLIP))
    yield Case("opacus DPOptimizer, secure_mode", of_opacus(DPOptimizer, max_grad_norm=CLIP, secure_mode=True))
    yield Case("opacus DPPerLayerOptimizer", of_opacus(DPPerLayerOptimizer, max_grad_norm=[CLIP / 2**0.5] * 2))
    held = {"target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.0, "unclipped_num_std": 1.0}
    held |= {"max_clipbound": 2 * CLIP, "min_clipbound": CLIP / 2, "max_grad_norm": CLIP}
    claim = {"noise_multiplier": (SIGMA**-2 - 2.0**-2) ** -0.5}
    yield Case("opacus AdaClipDPOptimizer", of_opacus(AdaClipDPOptimizer, **held), claim)
    private = plan(**PLAN)
    claim = {"mechanism": private.mechanism, "rounds": 6, "divisor": 4.0}
    yield Case("tff-mf frameworks.torch", OfTorch(private), claim)


def opake() -> Iterator[Case]:
    """opake: DP-SGD, and matrix factorization."""
    import torch
    from opake import random
    from opake.dpftrl.noise import band_mf_strategy, blt_strategy, mf_gaussian_noise
    from opake.dpsgd.clipping import clipped_grad
    from opake.dpsgd.noise import gaussian_noise

    zeros, schema = [torch.zeros(part.shape) for part in LIKE], {"n_steps": ROUNDS, "min_sep": 4}

    def inner(parameters: Any, *update: Any) -> Any:
        return sum((one * other).sum() for one, other in zip(parameters, update, strict=True))

    def step(state: Any, updates: Any) -> tuple[Any, Any]:
        noise, noise_state = state
        gradients, clip_state = clipped_grad(inner, clipping_norm=CLIP, batch_argnums=(1, 2), normalize_by=CLIENTS)
        parts = [torch.as_tensor(np.stack(column)) for column in zip(*updates, strict=True)]
        clipped, _ = gradients(zeros, *(parts or [part[None][:0] for part in zeros]), state=clip_state)
        noised, noise_state = noise(clipped, noise_state)
        return (noise, noise_state), [part.numpy() for part in noised.pytree]

    def of_opake(made: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        def start() -> Any:
            key = random.key(int(np.random.default_rng().integers(2**62)))
            return made(*arguments, noise_multiplier=SIGMA, key=key, **keywords)

        return Made(step, start)

    yield Case("opake gaussian_noise", of_opake(gaussian_noise), {}, KEYED)
    for strategy, given in ((band_mf_strategy(bands=4), {"n_steps": ROUNDS}), (blt_strategy(max_buffers=2), schema)):
        coefficients = strategy.coefficients(**given).double().numpy()
        claim = {"mechanism": tff_mf.BandedToeplitz(column=coefficients), "rounds": ROUNDS}
        noise = of_opake(mf_gaussian_noise, zeros, strategy, **schema)
        yield Case(f"opake {type(strategy).__name__}", noise, claim, KEYED)


def pfl() -> Iterator[Case]:
    """Central mechanisms of pfl, which release sums; its algorithm divides them."""
    from pfl.context import CentralContext, UserContext
    from pfl.internal.ops import pytorch_ops, selector
    from pfl.metrics import Metrics
    from pfl.privacy.adaptive_clipping import AdaptiveClippingGaussianMechanism
    from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
    from pfl.stats import MappedVectorStatistics

    selector.set_framework_module(pytorch_ops)

    def step(state: Any, updates: Any) -> tuple[Any, Any]:
        mechanism, totals = copy.deepcopy(state), []
        for update in updates:
            stats = MappedVectorStatistics(
                {str(place): pytorch_ops.to_tensor(part) for place, part in enumerate(update)}
            )
            stats, _ = mechanism.postprocess_one_user(stats=stats, user_context=UserContext(1, None))
            totals = [totals[0] + stats] if totals else [stats]
        # As `FederatedNNAlgorithm` draws it.
        context = CentralContext(0, False, CLIENTS, None, None, None, seed=np.random.default_rng().integers(2**32))
        keywords = {"central_context": context, "aggregate_metrics": Metrics()}
        total, metrics = mechanism.postprocess_server(stats=totals[0], **keywords)
        released = [pytorch_ops.to_numpy(total[str(place)]) for place in range(len(LIKE))]
        return mechanism, conformance.Released(estimate=released, beside=metrics.to_simple_dict())

    accountant = types.SimpleNamespace(cohort_noise_parameter=SIGMA)
    banded = BandedMatrixFactorizationMechanism(CLIP, ROUNDS, 5, lambda participations: accountant)
    adaptive = AdaptiveClippingGaussianMechanism(lambda bound: GaussianMechanism(bound, SIGMA), CLIP, 1.0, 0.5, 0.0)
    gaussian, correlated = map(CentrallyAppliedPrivacyMechanism, (GaussianMechanism(CLIP, SIGMA), banded))
    for mechanism, claim in (
        (gaussian, {}),
        (adaptive, {"noise_multiplier": SIGMA / math.sqrt(1 - SIGMA**2)}),
        (correlated, {"mechanism": tff_mf.Dense(matrix=banded.query_matrix), "rounds": ROUNDS}),
    ):
        name = type(mechanism._underlying_mechanism if mechanism is not adaptive else adaptive).__name__
        # A simulator's metrics are for whoever runs it.
        state = Made(step, lambda mechanism=mechanism: mechanism)
        yield Case(f"pfl {name}", state, {"divisor": 1.0, **claim}, ("beside",))


def nvflare() -> Iterator[Case]:
    """The filter of NVFlare that says differential privacy."""
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.app_common.filters.svt_privacy import SVTPrivacy

    # A number is clipped to gamma, and Laplace's noise of each has the standard deviation of the claim.
    gamma = CLIP / SIZE**0.5
    svt = SVTPrivacy(
        1.0, 1e9, gamma=gamma, tau=0.0, replace=False, epsilon_release=8**0.5 * SIZE * gamma / (0.1 * CLIP)
    )

    def filtered(updates: Any) -> Any:
        # Of integers it makes integers, whose noise is rounded: nothing that a claim of a standard deviation is about.
        if not np.all(np.isfinite(updates)) or np.shape(updates)[1:] != (SIZE,) or updates[0].dtype.kind != "f":
            raise ValueError("It looks for accepted numbers forever, or rounds.")
        sent = [DXO(DataKind.WEIGHT_DIFF, {"w": np.array(update)}) for update in updates]
        return np.sum([svt.process_dxo(one, Shareable(), FLContext()).data["w"] for one in sent], axis=0)

    laplace = ("scale", "correlation", "divisor")
    claim, like = {"divisor": 1.0, "noise_multiplier": 0.1}, np.zeros(SIZE, np.float32)
    yield Case("nvflare SVTPrivacy", adapters.of_function(filtered), claim, laplace, like=like, clients=1)


def flower() -> Iterator[Case]:
    """Flower's wrappers and mods around FedAvg, without servers and nodes."""
    from flwr.app import MetricRecord
    from flwr.clientapp import mod
    from flwr.serverapp import NeighboringRelation, PrivacyConfig, RdpAccountant, SamplingMethod, strategy

    from tests.flower import test_conformance as ours

    model = {str(place): part for place, part in enumerate(LIKE)}

    class OfFlower(ours.OfStrategy):
        """A strategy of Flower, and what a mod makes of replies. An update may say of how many examples it is."""

        mod = None

        def step(self, state: Any, updates: Any) -> tuple[Any, Any]:
            if not updates:
                raise ValueError("Flower waits until a client is there.")
            return super().step(state, updates)

        def _replied(self, message: Any, update: Any) -> Any:
            arrays = dict(update)
            metrics = MetricRecord({"num-examples": arrays.pop("examples", 1)})
            reply = super()._replied(message, arrays)
            reply.content["metrics"] = metrics
            return self.mod(message, None, lambda *_: reply) if self.mod else reply

    class Accountant(RdpAccountant):
        def __deepcopy__(self, _: Any) -> Any:
            return self

    long = {**conformance.Updates(model, CLIP, CLIENTS).long, "examples": 1000}
    odd = {"a long update of 1,000 examples": long}
    usual = {"noise_multiplier": SIGMA, "num_sampled_clients": CLIENTS}
    adaptive = {"noise_multiplier": (SIGMA**-2 - (CLIENTS / 10) ** -2) ** -0.5}
    config = PrivacyConfig(1e-5, 1000, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)

    def of_flower(name: str, made: Any, replied: Any = None, claim: Any = None, **more: Any) -> Case:
        averaged = strategy.FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
        judged = OfFlower(made(averaged), model)
        judged.mod = replied
        return Case(f"flwr {name}", judged, claim or {}, like=model, idle=1e-6, **{"odd": odd, **more})

    for side, mods in (("ServerSide", {}), ("ClientSide", vars(mod))):
        kind, replied = f"DifferentialPrivacy{side}FixedClipping", mods.get("fixedclipping_mod")
        made = functools.partial(getattr(strategy, kind), **usual, clipping_norm=CLIP)
        yield of_flower(kind, made, replied, not_promised=WARNED)
        yield of_flower(f"{kind}, accountant", functools.partial(made, accountant=Accountant(config)), replied)
        kind, replied = f"DifferentialPrivacy{side}AdaptiveClipping", mods.get("adaptiveclipping_mod")
        made = functools.partial(getattr(strategy, kind), **usual, initial_clipping_norm=CLIP, clip_norm_lr=1e-12)
        yield of_flower(kind, made, replied, adaptive, not_promised=WARNED)
    with tempfile.TemporaryDirectory() as folder:
        judged, claim = ours.our_strategy(folder, "update", floating_point=False)
        yield Case("tff-mf flower", judged, claim, like=ours.LIKE, clients=ours.CLIENTS // 2)
    local = mod.LocalDpMod(CLIP, CLIP, math.sqrt(2 * math.log(1.25 / 1e-5)) / 0.1, 1e-5)
    claim = {"divisor": 1.0, "noise_multiplier": 0.1}
    yield of_flower("LocalDpMod", lambda it: it, local, claim, not_promised=WARNED, clients=1, odd={})


def elsewhere() -> tuple[Any, conformance.Claim, Any]:
    """Returns the case that the environment variable names, whose rounds are quiet, for the law of two processes."""
    name, index = os.environ["CASE"].split(":")
    cases = globals()[name]()
    case = next(itertools.islice(cases, int(index), None))
    quiet = [Sent(case).zeros] * case.clients

    def step(state: Any, _: Any) -> tuple[Any, Any]:
        return case.subject.step(state, quiet)

    # What the generator has opened stays open as long as the subject lives.
    step.cases = cases
    return Made(step, case.subject.start), case.claimed, case.like


def judge(name: str, place: str, effort: float) -> Iterator[list[str]]:
    """Yields a row for each law of each implementation of an environment, or of the one in this place."""
    for index, case in enumerate(globals()[name]()):
        if place and index != int(place):
            continue
        os.environ["CASE"] = f"{name}:{index}"
        other = None if "processes" in case.not_promised else "conformance:elsewhere"
        check = functools.partial(conformance.check, case.subject, case.claimed, clients=case.clients, effort=effort)
        outcomes = {outcome.law: outcome for outcome in check(like=Sent(case), elsewhere=other).outcomes}
        if outcomes["bound"].status == "failed":
            outcomes["bound, if norms are finite"] = check(like=Sent(case, finite=True), laws=["bound"])["bound"]
        package = case.name.split()[0]
        version = "this one" if package == "tff-mf" else importlib.metadata.version(package)
        for law, outcome in outcomes.items():
            print(f"{case.name}: {law} {outcome.status}. {outcome.text}", file=sys.stderr, flush=True)
            text = "The caller passes the key." if law == "processes" and other is None else outcome.text
            yield [case.name, version, law, outcome.status, text]


def python_of(name: str) -> pathlib.Path:
    """Returns the Python of an environment."""
    if name == "tensorflow":
        return pathlib.Path(sys.executable)
    if name == "flower":
        return ROOT / ".venv-frameworks" / "bin" / "python"
    return environment(name, (*ENVIRONMENTS[name], *OURS), with_checkout=True)


def run(command: Sequence[Any], **options: Any) -> None:
    """Runs a command, and ends the workers that TFF leaves behind."""
    started = subprocess.Popen(command, start_new_session=True, **options)
    try:
        started.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)


def confirmed(row: dict[str, str], python: pathlib.Path) -> dict[str, str]:
    """Returns a row, whose failure is not confirmed unless its own line shows it."""
    if row["verdict"] != "failed":
        return row
    # TFF's worker keeps a pipe open.
    with tempfile.TemporaryFile("w+") as shown:
        run([python, "-W", "ignore", "-c", row["see"]], stdout=shown, stderr=shown)
        shown.seek(0)
        if "True" in (said := shown.read()).splitlines():
            return row
    print(f"Not confirmed by a line in the column see: {row}\n{said}", file=sys.stderr, flush=True)
    return row | {"verdict": "not confirmed"}


def main() -> None:
    """Writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environments", nargs="*", default=ENVIRONMENTS, help=", ".join(ENVIRONMENTS))
    parser.add_argument("--effort", type=float, default=0.05)
    parser.add_argument("--here", metavar="FILE", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        name, _, place = given.environments[0].partition(":")
        with open(given.here, "w") as file:
            for row in judge(name, place, given.effort):
                print(json.dumps(row), file=file, flush=True)
        return
    for name in given.environments:
        python = python_of(name.partition(":")[0])
        with tempfile.TemporaryDirectory() as folder:
            command = [python, __file__, name, "--effort", str(given.effort), "--here", "rows.json"]
            run(command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)})
            # What was judged before an environment failed is kept.
            save(map(json.loads, (pathlib.Path(folder) / "rows.json").read_text().splitlines()), python)


def save(judged: Iterable[Sequence[str]], python: pathlib.Path) -> None:
    """Replaces the rows of implementations that were judged again."""
    with RESULTS.open() as file:
        rows = {(row["implementation"], row["law"]): row for row in csv.DictReader(file)}
    judged = list(judged)
    old = {key: row for key, row in rows.items() if key[0] not in {row[0] for row in judged}}
    shown = {key: row["see"] for key, row in rows.items()}
    new = [dict(zip(COLUMNS, (*row, shown.get((row[0], row[2]), "")), strict=True)) for row in judged]
    rows = old | {(row["implementation"], row["law"]): confirmed(row, python) for row in new}
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())


if __name__ == "__main__":
    main()
