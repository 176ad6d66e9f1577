"""Settings of a training run, checked without TensorFlow, so that a wrong one is refused at once."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.grids import FEWEST_BITS, MOST_BITS

from ..output import typed
from ..output.typed import Number, Record, Whole
from ..run_folder.initial_model import InitialModel
from ..sampling.settings import SECRET, SamplingSettings

ALGORITHMS = ("fed_avg", "fed_sgd")
ARCHITECTURES = ("lstm", "conv")
SERVER_OPTIMIZERS = ("sgdm", "dp_ftrl")
VALIDATION_SPLITS = ("heldout", "test")
ALL = "all"
# Fields of `settings` in run.json that describe the run and decide nothing.
_DESCRIPTIVE = ("training_clients",)
# Of float32, in the 2 GB of a message to TFF's worker.
_MOST_VALUES = 2**29
_MOST_AT_ONCE = 1024
# NumPy's and Python's generators, which TFF seeds, take 32 bits.
_LARGEST_SEED = 2**32 - 1
# TensorFlow makes room at once for a whole batch, and for all examples that it shuffles.
_MOST_EXAMPLES = {"batch_size": 2**20, "max_examples": 2**24, "evaluation_examples": 2**31 - 1}
_ADDRESS = re.compile(r"[^\s:/]+:([0-9]{1,5})|unix:/[^\s,]+")


class ModelConfig(Record):
    """Size of a model; the defaults come from the papers' StackOverflow experiments.

    Attributes:
        architecture: `lstm`, the recurrent model of TFF's task, or `conv`, a causal convolution over the
            last three words, which learns faster and costs a fraction.
        vocab_size: Most frequent words to know.
        embedding_size: Width of the word embedding.
        units: LSTM units, or filters of the convolution.
    """

    architecture: str = "lstm"
    vocab_size: Whole = 10_000
    embedding_size: Whole = 96
    units: Whole = 670

    def __post_init__(self) -> None:
        validation.one_of("architecture", self.architecture, ARCHITECTURES)
        for name in ("vocab_size", "embedding_size", "units"):
            validation.whole(name, getattr(self, name))
        largest = self.vocab_size * max(self.embedding_size, self.units if self.architecture == "conv" else 1)
        largest = max(largest, 4 * self.units * (self.embedding_size + self.units))
        if largest > _MOST_VALUES:
            raise InputValueError(
                f"vocab_size={self.vocab_size}, embedding_size={self.embedding_size} and units={self.units} make a "
                f"matrix of {largest:.3g} numbers: no tensor of more than 2 GB reaches TFF's worker; take fewer."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutionSettings:
    """Where a run computes, and how it is saved and resumed. None of these settings changes the model.

    More threads may change the order of sums inside an operation, and so their rounding. For the models of a run, 1, 2
    and 4 threads gave the same numbers, bit for bit.

    Attributes:
        checkpoint_every: Rounds between checkpoints, which are also saved before each evaluation is
            released; 0 for no checkpoints at all.
        resume: Whether to resume the run that is in the folder, from its last checkpoint.
        workers: Addresses (`host:port`, or `unix:/path`) of running workers; one of its own on this machine if empty.
        clients_at_once: Number of clients that each worker runs at the same time; as many as this machine has cores if
            `None`. Their updates are added in the same order.
        threads: Number of threads inside an operation of the run's own worker; 1 if `None`. Workers that run already
            have theirs.
        restarts: How often a run whose worker dies is resumed from its last checkpoint automatically.
    """

    checkpoint_every: int = 25
    resume: bool = False
    workers: tuple[str, ...] = ()
    clients_at_once: int | None = None
    threads: int | None = None
    restarts: int = 0

    def __post_init__(self) -> None:
        for name in ("checkpoint_every", "restarts"):
            validation.whole(name, getattr(self, name), at_least=0)
        for name in ("clients_at_once", "threads"):
            given = getattr(self, name)
            if given is not None and validation.whole(name, given, at_least=1) > _MOST_AT_ONCE:
                raise InputValueError(f"{name}={given} must be at most {_MOST_AT_ONCE:,}.")
        if self.workers and self.threads is not None:
            raise InputValueError(
                f"threads={self.threads} is for a worker that the run starts: give it to `tff-mf worker --threads`."
            )
        for address in self.workers:
            found = _ADDRESS.fullmatch(address)
            if found is None or not 0 < int(found[1] or 1) < 2**16:
                raise InputValueError(
                    f"workers={address!r} is not an address: write host:port, as localhost:7000, or unix:/path."
                )
        if not self.checkpoint_every and (self.resume or self.restarts):
            raise InputValueError(
                f"checkpoint_every={self.checkpoint_every} saves no checkpoints, and resume and restarts need them: "
                "give at least 1, or neither of the two."
            )


class TrainingSettings(Record):
    """Everything of a run but its privacy.

    Attributes:
        algorithm: `fed_avg`: clients train, and send what changed; or `fed_sgd`: they send the mean gradient over
            their examples, in a single pass.
        model: Size of the model.
        clip_norm: Bound ζ on the L2 norm of a client's update; the first one, if it adapts.
        client_learning_rate: Rate of the clients' SGD; `fed_sgd` has none.
        server_optimizer: `sgdm`: SGD with momentum; or `dp_ftrl`: steps from the model of the last restart along the
            sum of all updates since, so that the momentum restarts with the noise. Without restarts they are the same.
        server_learning_rate: Rate of the server's optimizer.
        server_momentum: Its momentum, in [0, 1).
        server_warmup: Part of the rounds over which its rate rises from a twentieth, at the start.
        server_cooldown: Part of the rounds over which its rate falls to a twentieth, at the end.
        batch_size: Sentences a batch of a client.
        max_examples: Sentences a client uses at most in one round.
        client_epochs: Passes over its sentences that a client makes in one round.
        evaluate_every: Rounds between two evaluations; the last round is always evaluated.
        evaluation_examples: Validation sentences, on which the model is evaluated.
        validation_split: Where they are from: `heldout`, clients for validation only, or `test`: the first sentences
            of the test clients, which are then left out of the test, as in the papers.
        test_examples: Test sentences that the final model is measured on, once: a number, or `all`.
        seed: Seed of cohorts and initial model, never of noise.
        sampling: How the cohorts are drawn; `None` draws them by the schema of the privacy plan.
        secret_cohorts: Whether cohorts are drawn from the system's randomness, and neither logged nor released, so that
            ε is amplified by the sampling; otherwise they follow from `seed`, and are logged.
        dropout: Probability that a client of a cohort does not report, in [0, 1).
        zeroing: Updates with an entry of larger magnitude are set to zero; None zeroes none. The bound is fixed: each
            client's update is judged by itself, so that the sensitivity stays the same.
        adaptive_clipping: Part of the updates, in (0, 1), that shall be below the clip norm, which follows them at each
            restart of the noise; None keeps the clip norm. The noise of the counts that this releases is the privacy
            plan's.
        adaptive_learning_rate: With `adaptive_clipping`: η; at a restart the clip norm is multiplied by
            exp(η·(adaptive_clipping − part seen below it)).
        initial_model: The model that training starts from; `None` is one that is drawn with `seed`.
        reference_model: Whether clients compute with TFF's own Keras model: the same model up to the order of float32
            sums, in more than twice the time. Its fields in files are the same.
        tensorboard: Whether to write metrics for TensorBoard too.
    """

    algorithm: str = "fed_avg"
    model: ModelConfig = ModelConfig()
    clip_norm: Number = 1.0
    client_learning_rate: Number = 1.0
    server_optimizer: str = "sgdm"
    server_learning_rate: Number = 1.0
    server_momentum: Number = 0.95
    server_warmup: Number = 0.15
    server_cooldown: Number = 0.25
    batch_size: Whole = 16
    max_examples: Whole = 256
    client_epochs: Whole = 1
    evaluate_every: Whole = 25
    evaluation_examples: Whole = 2000
    validation_split: str = "heldout"
    test_examples: Whole | str = 20_000
    seed: Whole = 0
    sampling: SamplingSettings | None = None
    secret_cohorts: bool = False
    dropout: Number = 0.0
    zeroing: Number | None = None
    adaptive_clipping: Number | None = None
    adaptive_learning_rate: Number = 1.0
    initial_model: InitialModel | None = None
    reference_model: bool = False
    tensorboard: bool = False

    def __post_init__(self) -> None:
        validation.one_of("algorithm", self.algorithm, ALGORITHMS)
        validation.one_of("server_optimizer", self.server_optimizer, SERVER_OPTIMIZERS)
        validation.one_of("validation_split", self.validation_split, VALIDATION_SPLITS)
        validation.clip_norm(self.clip_norm)
        for name in ("client_learning_rate", "server_learning_rate"):
            validation.positive(name, getattr(self, name))
        if isinstance(self.test_examples, str) and self.test_examples != ALL:
            raise InputValueError(f"test_examples={self.test_examples!r} must be a whole number or {ALL!r}.")
        counts = ("batch_size", "max_examples", "client_epochs", "evaluate_every", "evaluation_examples")
        for name in (*counts, *(() if self.test_examples == ALL else ("test_examples",))):
            most = _MOST_EXAMPLES.get(name, validation.MAX_WHOLE)
            if validation.whole(name, getattr(self, name)) > most:
                raise InputValueError(f"{name}={getattr(self, name)} must be at most {most}.")
        if validation.whole("seed", self.seed, at_least=0) > _LARGEST_SEED:
            raise InputValueError(f"seed={self.seed} must be at most {_LARGEST_SEED}.")
        if self.zeroing is not None:
            validation.positive("zeroing", self.zeroing)
        for name in ("server_momentum", "server_warmup", "server_cooldown", "dropout"):
            if not 0 <= validation.real(name, getattr(self, name)) < 1:
                raise InputValueError(f"{name}={getattr(self, name)!r} must lie in [0, 1).")
        if self.algorithm == "fed_sgd":
            self._check_a_single_gradient()
        if self.server_optimizer == "dp_ftrl":
            self._check_a_constant_rate()
        self._check_adaptive_clipping()
        self._check_secrecy()

    def _check_secrecy(self) -> None:
        if self.sampling is not None:
            validation.instance("sampling", self.sampling, SamplingSettings, "name one of its words")
        if not self.secret_cohorts:
            return
        if self.sampling is None or not self.sampling.is_secret:
            word = None if self.sampling is None else self.sampling.sampling
            raise InputValueError(
                f"secret_cohorts does not go with sampling={word!r}, which secrecy does not amplify: take "
                f"{', '.join(SECRET)}, or leave it out."
            )
        # Each would show sizes of cohorts, or depends on them, and no theorem here covers it.
        for name, unset in (("dropout", 0), ("adaptive_clipping", None), ("tensorboard", False)):
            if getattr(self, name) != unset:
                raise InputValueError(
                    f"{name}={getattr(self, name)!r} does not go with secret_cohorts, with which nothing may depend on "
                    "who was drawn but the noised sums: leave one of the two out."
                )

    def _check_adaptive_clipping(self) -> None:
        validation.nonnegative("adaptive_learning_rate", self.adaptive_learning_rate)
        if self.adaptive_clipping is not None:
            validation.open_unit("adaptive_clipping", self.adaptive_clipping)
        elif self.adaptive_learning_rate != 1.0:
            raise InputValueError(
                f"adaptive_learning_rate={self.adaptive_learning_rate!r} needs adaptive_clipping, the part of the "
                "updates that shall be below the clip norm."
            )

    def _check_a_constant_rate(self) -> None:
        # DP-FTRL weights all updates since the restart by the present rate: a cooldown would take the model back.
        for name in ("server_warmup", "server_cooldown"):
            if getattr(self, name):
                raise InputValueError(
                    f"{name}={getattr(self, name)!r} goes with server_optimizer='sgdm': 'dp_ftrl' weights all updates "
                    "since the last restart by the present rate, and needs a constant one; set it to 0."
                )

    def _check_a_single_gradient(self) -> None:
        # What would silently have no effect is refused: a client sends one gradient, at the model that it was sent.
        for name, only in (("client_epochs", 1), ("client_learning_rate", 1.0)):
            if getattr(self, name) != only:
                raise InputValueError(
                    f"{name}={getattr(self, name)!r} goes with algorithm='fed_avg': with 'fed_sgd' a client sends one "
                    f"gradient and takes no steps of its own; leave it at {only}."
                )


def of_run(settings: Mapping[str, Any]) -> TrainingSettings:
    """Returns the settings of training in the `settings` of a `run.json`.

    Raises:
        InputValueError: If they are not settings of `tff-mf train`.
    """
    deciding = {name: value for name, value in settings.items() if name not in _DESCRIPTIVE}
    return typed.convert(deciding, TrainingSettings, "settings in run.json")


AUTO, NONE = "auto", "none"
WORDS = (AUTO, NONE)

# As many as TFF's task adds to the words: padding, unknown, beginning and end of a sentence.
_SPECIAL_WORDS = 4
_KERNEL_WORDS = 3


def grid_of(grid: int | str, *, dimension: int, cohort: int) -> tff_mf.Grid | None:
    """Returns the grid that a setting stands for; `None` for "none", floating point.

    It has the room of `tff_mf.Grid.with_room`.

    Args:
        grid: The number of bits, "auto" or "none".
        dimension: Number of the model's parameters.
        cohort: Clients that a round stands for.

    Example:
        >>> grid_of("auto", dimension=4_050_748, cohort=6500)
        Grid(bits=16, max_clients=13000)

    Raises:
        InputTypeError: If `grid` is neither a number nor a word.
        InputValueError: If it is another word or out of range, or sums of so many clients could be inexact.
    """
    if grid == NONE:
        return None
    try:
        clients = tff_mf.Grid.with_room(dimension=1, cohort=cohort).max_clients
    except InputValueError as error:
        raise InputValueError(
            f"clients_per_round, or cohort={cohort}, is too large for exact sums on a grid: take fewer clients, or "
            f"grid={NONE!r}."
        ) from error
    if grid == AUTO:
        return tff_mf.Grid.with_room(dimension=dimension, cohort=cohort)
    if isinstance(grid, str):
        raise InputValueError(f"grid={grid!r} must be a number of bits, {AUTO!r} or {NONE!r}.")
    if isinstance(grid, bool) or not isinstance(grid, int):
        raise InputTypeError(f"grid={grid!r} must be a whole number of bits, {AUTO!r} or {NONE!r}.")
    if not FEWEST_BITS <= grid <= MOST_BITS:
        raise InputValueError(f"grid={grid} must be at least {FEWEST_BITS} and at most {MOST_BITS} bits, or a word.")
    return tff_mf.Grid(bits=grid, max_clients=clients)


def dimension_of(model: ModelConfig) -> int:
    """Returns the number of parameters of a model with its whole vocabulary, without TensorFlow.

    Example:
        >>> dimension_of(ModelConfig())
        4050748
    """
    words, width, units = model.vocab_size + _SPECIAL_WORDS, model.embedding_size, model.units
    if model.architecture == "conv":
        return words * width + (_KERNEL_WORDS * width + 1) * units + (units + 1) * words
    return words * width + 4 * (width + units + 1) * units + (units + 1) * width + (width + 1) * words
