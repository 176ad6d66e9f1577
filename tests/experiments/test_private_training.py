"""One way in: what a plan trains is private, and each mistake is impossible, refused with a remedy, or warned about."""

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import shutil
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

import tff_mf
from tff_mf import aggregators
from tff_mf.aggregators.resident import forms
from tff_mf.experiments import reports
from tff_mf.experiments.guard import private_training
from tff_mf.experiments.guard.run_guard import RefusedCohortError
from tff_mf.experiments.runs import ledger, names
from tff_mf.experiments.sampling import data_source
from tff_mf.noise.tensorflow import NoiseState

from .shared import critical

ROUNDS, EACH = 4, 2
OPTIMIZERS = {
    "client_optimizer_fn": tff.learning.optimizers.build_sgdm(0.1),
    "server_optimizer_fn": tff.learning.optimizers.build_sgdm(1.0),
}
IDS = [f"client {index}" for index in range(EACH * ROUNDS)]
HELD_OUT = {"other 1": 1.0, "other 2": 2.0}
SETTING = {"mechanism": "tree-full", "rounds": ROUNDS, "clients_per_round": EACH, "delta": 1e-3, "epsilon": 8.0}


def dataset(value=1.0, width=2):
    x = np.full([4, width], value, np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(2)


def keras_model(*, normalized=False):
    layers = [tf.keras.layers.InputLayer(input_shape=(2,)), tf.keras.layers.Dense(1, kernel_initializer="ones")]
    return tf.keras.Sequential([*layers, *([tf.keras.layers.BatchNormalization()] if normalized else [])])


def model_fn():
    return tff.learning.models.from_keras_model(
        keras_model(),
        tf.keras.losses.MeanSquaredError(),
        dataset().element_spec,
        metrics=[tf.keras.metrics.MeanAbsoluteError()],
    )


def normalized_model_fn():
    return tff.learning.models.from_keras_model(
        keras_model(normalized=True), tf.keras.losses.MeanSquaredError(), dataset().element_spec
    )


def planned(**changes):
    return tff_mf.plan(**{**SETTING, "population": len(IDS), **changes})


def opened(folder, plan=None, **more):
    arguments = {"plan": plan or planned(), "model_fn": model_fn, **OPTIMIZERS, **more}
    return aggregators.private_fed_avg(**arguments, folder=folder)


def of(clients, **more):
    return {client: dataset(**more) for client in clients}


def client_data(clients, **more):
    """TFF's data set of clients; the elements of each are two batches."""
    return tff.simulation.datasets.TestClientData(
        {
            client: tuple(map(np.concatenate, zip(*dataset(**more).as_numpy_iterator(), strict=True)))
            for client in clients
        }
    ).preprocess(lambda examples: examples.batch(2))


def trained(training, rounds=ROUNDS, clients=IDS):
    """Trains up to a round, and returns the cohorts."""
    found = []
    for cohort in training.cohorts(clients):
        training.next(of(cohort))
        found.append(cohort)
        if training.rounds_done == rounds:
            break
    return found


@pytest.fixture(scope="module", autouse=True)
def _built_once():
    """Equal processes are built, and taken apart, once: that takes seconds."""
    build, processes = tff.learning.algorithms.build_unweighted_fed_avg, {}

    def built(model_fn, *, model_aggregator, **more):
        key = (model_fn, model_aggregator.fingerprint, model_aggregator.rounds, more["server_optimizer_fn"])
        if key not in processes:
            processes[key] = build(model_fn, model_aggregator=model_aggregator, **more)
        return processes[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tff.learning.algorithms, "build_unweighted_fed_avg", built)
        patch.setattr(forms, "take_apart", functools.cache(forms.take_apart))
        yield


@pytest.fixture
def training(tmp_path):
    with opened(tmp_path / "run") as made:
        yield made


def workers():
    return [child for child in psutil.Process().children() if child.name().startswith("worker_binary")]


def keys(state):
    found = []
    tree.traverse(lambda part: found.append(part) if isinstance(part, NoiseState) else None, state)
    return np.asarray(found[0].keys)


def test_a_run_of_a_plan_has_a_report_that_passes(tmp_path):
    before, default = len(workers()), tff.framework.get_context_stack().current
    with opened(tmp_path / "run") as training:
        assert len(workers()) == before + 1
        assert tff.framework.get_context_stack().current is default
        start = training.model()
        cohorts = trained(training)
        assert not np.array_equal(start.trainable[0], training.model().trainable[0])
        measured = training.evaluate({name: dataset(value) for name, value in HELD_OUT.items()})
        assert measured["num_examples"] == 8
        assert measured.keys() >= {"loss", "mean_absolute_error"}
        report = training.report()
        assert training.report() is report
        weights = training.model()
    assert len(workers()) == before
    assert sorted(itertools.chain(*cohorts)) == IDS
    assert critical(tmp_path / "run", held=report["digest"]) == []
    assert report["participation"]["sampler"] == "tff_mf.SingleParticipation"
    assert report["claim"]["epsilon"] <= 8.0
    assert str(report) == reports.headline(report)
    assert list((tmp_path / "run" / names.CHECKPOINTS).iterdir()) == []
    model = keras_model()
    weights.assign_weights_to(model)
    assert np.array_equal(model.get_weights()[0], weights.trainable[0])


def test_fed_sgd_takes_the_same_plan(tmp_path):
    with aggregators.private_fed_sgd(planned(), model_fn, folder=tmp_path / "run") as training:
        trained(training)
        assert training.report()["rounds"]["ended"]
    assert critical(tmp_path / "run") == []


def test_training_starts_from_given_weights(tmp_path):
    given = tff.learning.models.ModelWeights([np.full([2, 1], 3.0, np.float32), np.zeros([1], np.float32)], [])
    with opened(tmp_path / "run", initial_weights=given) as training:
        assert np.array_equal(training.model().trainable[0], given.trainable[0])
    with opened(tmp_path / "run") as training:
        assert np.array_equal(training.model().trainable[0], given.trainable[0])


def functional_model():
    return tff.learning.models.functional_model_from_keras(
        keras_model(), tf.keras.losses.MeanSquaredError(), dataset().element_spec
    )


def test_a_functional_model_has_its_grid(tmp_path):
    with opened(tmp_path / "run", model_fn=functional_model()) as training:
        assert training.plan.dimension == 3
        trained(training, 1)


def test_a_run_that_was_left_goes_on_with_its_cohorts(tmp_path):
    """Left after a release, in a cohort that waits for its data, and without an end."""
    first = opened(tmp_path / "run")
    done = trained(first, 1)
    waiting = next(first.cohorts(IDS))
    first.close()
    second = opened(tmp_path / "run")
    assert second.rounds_done == 1
    rest = second.cohorts(list(reversed(IDS)))
    assert next(rest) == waiting
    second.next(of(waiting))
    done.append(waiting)
    # A cell of a notebook that is run again.
    third = opened(tmp_path / "run")
    with pytest.raises(tff_mf.InputError, match="closed"):
        second.next({})
    done += trained(third)
    assert sorted(itertools.chain(*done)) == IDS
    third.report()
    third.close()
    assert critical(tmp_path / "run") == []
    assert ledger.read_ledger(tmp_path / "run" / names.LEDGER).attempts == {1: 1, 2: 2, 3: 1, 4: 1}


def test_an_adaptive_server_goes_on_to_the_same_model(tmp_path):
    """The squares of its past updates are in the checkpoint; all clients have the same data."""
    adam = {"server_optimizer_fn": tff.learning.optimizers.build_adam(0.1), "plan": planned(insecure_seed=3)}
    models = []
    for folder, stops in (("whole", [ROUNDS]), ("stopped", [2, ROUNDS])):
        for stop in stops:
            with opened(tmp_path / folder, **adam) as training:
                trained(training, stop)
                model = training.model().trainable
        models.append(model)
    for one, other in zip(*models, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_data_set_is_read_by_cohorts(tmp_path, monkeypatch):
    """The next cohort is read ahead; a failure of reading is one of its own round, which is begun again."""
    broken = []

    def read(datasets, clients, read=data_source.ClientDatasets.read):
        seen.append(list(clients))
        if len(seen) == 3:
            broken.append(True)
            raise OSError("no such disk")
        return read(datasets, clients)

    seen, cohorts = [], []
    monkeypatch.setattr(data_source.ClientDatasets, "read", read)
    data = client_data(IDS)
    with opened(tmp_path / "run") as training:
        for cohort in training.cohorts(IDS):
            cohorts.append(cohort)
            try:
                training.next(data)
            except OSError:
                training.next(data)
        assert broken
        assert seen == [*cohorts[:3], *cohorts[2:]]
        found = training.evaluate(client_data(HELD_OUT, value=2.0))
        assert found == training.evaluate({client: dataset(2.0) for client in HELD_OUT})
        training.report()
    assert critical(tmp_path / "run") == []
    assert ledger.read_ledger(tmp_path / "run" / names.LEDGER).attempts == {1: 1, 2: 1, 3: 1, 4: 1}


def test_a_run_of_secret_cohorts_states_the_amplified_epsilon_and_shows_nobody(tmp_path, recwarn):
    """Left after two rounds, and gone on with the same groups."""
    plan = tff_mf.plan(**{**SETTING, **SECRET, "delta": 1e-2}, population=len(IDS))
    with opened(tmp_path / "run", plan) as first:
        cohorts = trained(first, 2)
        assert (tmp_path / "run" / names.CHECKPOINTS / names.COHORTS).stat().st_mode & 0o777 == 0o600
    with opened(tmp_path / "run", plan) as second:
        for cohort in second.cohorts(IDS[::-1]):
            # Whoever has no data is left out, and no warning shows it.
            second.next(of(cohort[1:]))
            cohorts.append(cohort)
        assert sorted(itertools.chain(*cohorts)) == IDS
        with pytest.raises(tff_mf.InputError, match="train or may train"):
            second.evaluate({IDS[0]: dataset()})
        report = second.report()
        stated = second.plan.epsilon
    assert not [each for each in recwarn if issubclass(each.category, private_training.CohortSizeWarning)]
    written = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any(client.encode() in content for client in IDS for content in written)
    assert not (tmp_path / "run" / names.CHECKPOINTS / names.COHORTS).exists()
    assert stated <= report["claim"]["epsilon"] <= 1.03 * stated
    assert critical(tmp_path / "run", held=report["digest"]) == []
    assert "that nobody knows" in str(report)
    assert set(ledger.read_ledger(tmp_path / "run" / names.LEDGER).sizes.values()) == {0}


def test_a_checkpoint_of_a_copied_folder_that_went_on_is_refused(tmp_path):
    """Its round would be released a second time, and with it the noise of the copy."""
    one, copy = tmp_path / "one", tmp_path / "copy"
    with opened(one) as training:
        trained(training, 1)
    shutil.copytree(one, copy)
    for folder in (one, copy):
        with opened(folder) as training:
            trained(training, 2)
    shutil.rmtree(one / names.CHECKPOINTS)
    shutil.copytree(copy / names.CHECKPOINTS, one / names.CHECKPOINTS)
    with pytest.raises(tff_mf.InputError, match="of a copy of the folder"):
        opened(one)


def test_a_worker_ends_with_the_last_reference(tmp_path):
    before = len(workers())
    training = opened(tmp_path / "run")
    assert len(workers()) == before + 1
    del training
    assert len(workers()) == before


def test_two_trainings_end_in_any_order(tmp_path):
    first, second = opened(tmp_path / "first"), opened(tmp_path / "second")
    first.close()
    trained(second, 1)
    second.close()


def broken(training, monkeypatch, *, after):
    """Makes the next save fail, before or after it is on disk; returns the states that were offered."""
    save, offered = training._checkpoints.save, []

    async def fails(state, version):
        offered.append(keys(state["state"]))
        if len(offered) == 1:
            if after:
                await save(state, version)
            raise OSError("no space left")
        await save(state, version)

    monkeypatch.setattr(training._checkpoints, "save", fails)
    return offered


@pytest.mark.parametrize("way", ["same loop", "new loop", "next again"])
def test_a_round_that_was_not_saved_is_begun_again_with_new_noise(training, monkeypatch, way):
    offered = broken(training, monkeypatch, after=False)
    cohorts = training.cohorts(IDS)
    cohort = next(cohorts)
    with pytest.raises(OSError, match="no space"):
        training.next(of(cohort))
    assert training.rounds_done == 0
    if way != "next again":
        assert next(training.cohorts(IDS) if way == "new loop" else cohorts) == cohort
    training.next(of(cohort))
    assert training.rounds_done == 1
    lost, kept = offered
    assert not np.array_equal(lost[0], kept[0])
    book = ledger.read_ledger(training.guard.folder / names.LEDGER)
    assert (book.attempts, book.released) == ({1: 2}, {1: 1})


def test_a_round_that_was_saved_is_not_computed_again(training, monkeypatch):
    broken(training, monkeypatch, after=True)
    cohorts = training.cohorts(IDS)
    cohort = next(cohorts)
    with pytest.raises(OSError, match="no space"):
        training.next(of(cohort))
    following = next(cohorts)
    assert training.rounds_done == 1
    assert not set(following) & set(cohort)
    with pytest.raises(tff_mf.InputError, match="data of 2 clients"):
        training.next(of([*following, *cohort]))
    training.next(of(following))
    assert ledger.read_ledger(training.guard.folder / names.LEDGER).attempts == {1: 1, 2: 1}
    assert set(aggregators.rounds_drawn(training._state).values()) == {2}


def test_a_worker_that_died_is_replaced_and_the_round_begun_again(training):
    mine = workers()[-1]
    cohorts = training.cohorts(IDS)
    cohort = next(cohorts)
    mine.kill()
    mine.wait()
    with pytest.raises(aggregators.WorkerLostError):
        training.next(of(cohort))
    assert next(cohorts) == cohort
    training.next(of(cohort))
    assert training.rounds_done == 1
    trained_model = training.model().trainable[0]
    workers()[-1].kill()
    with pytest.raises(aggregators.WorkerLostError):
        training.model()
    assert np.array_equal(training.model().trainable[0], trained_model)


def test_a_notebook_has_a_loop_of_its_own(training):
    async def cell():
        return trained(training, 2)

    assert len(asyncio.run(cell())) == 2


class World:
    """Trainings and folders that mistakes are made with; those that a mistake does not change are shared."""

    def __init__(self, folder):
        self._folder, self._count = folder, itertools.count()

    @property
    def new(self):
        """A folder that does not exist."""
        return self._folder / str(next(self._count))

    @functools.cached_property
    def waiting(self):
        """A training whose first cohort waits for its data."""
        training = opened(self.new)
        next(training.cohorts(IDS))
        return training

    @property
    def cohort(self):
        """The cohort that `waiting` waits with."""
        return self.waiting._begun.clients

    @functools.cached_property
    def left(self):
        """A folder with a run of one round."""
        with opened(self.new) as training:
            trained(training, 1)
            return training.guard.folder

    @functools.cached_property
    def done(self):
        """A training without rounds that are left."""
        training = opened(self.new)
        trained(training)
        return training

    def moved(self, *data, **more):
        """The model before and after a round with hardly any noise."""
        plan = planned(epsilon=None, noise_multiplier=1e-3)
        with opened(self.new, plan, **more) as training, warnings.catch_warnings():
            warnings.simplefilter("ignore", private_training.CohortSizeWarning)
            cohort = next(training.cohorts(IDS))
            before = training.model()
            training.next(dict(zip(cohort, data, strict=False)))
            return before, training.model()

    def close(self):
        for each in vars(self).values():
            if isinstance(each, aggregators.PrivateTraining):
                each.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with contextlib.closing(World(tmp_path_factory.mktemp("mistakes"))) as made:
        yield made


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A mistake, and what comes of it: an error that names it, a warning, or nothing at all.

    Attributes:
        do: Makes it.
        error: The error's type; None if there is none.
        words: What the message has; of a warning, if there is no error.
        then: What must hold instead of an error.
    """

    do: Callable[[World], Any]
    error: type[Exception] | None = tff_mf.InputError
    words: str = ""
    then: Callable[[Any], bool] = bool


def refused(words, do, error=tff_mf.InputError):
    return Mistake(do, error, words)


def warned(words, do):
    return Mistake(do, None, words)


def harmless(then, do):
    return Mistake(do, None, "", then)


def distance(models):
    before, now = (model.trainable for model in models)
    return np.sqrt(sum(np.sum(np.square(b - a)) for a, b in zip(before, now, strict=True)))


def by(sampler, rounds=1):
    """Trains some rounds with cohorts of a sampler."""

    def do(world):
        with opened(world.new, sampler=sampler) as training:
            trained(training, rounds)

    return do


def trained_after_evaluation(world):
    folder = world.new
    with opened(folder) as training:
        training.evaluate({"client 0": dataset()})
    with opened(folder) as training:
        training.cohorts(IDS)


def one_more_of_the_process(world):
    with world.done._context.installed():
        world.done.process.next(world.done._state, [dataset()])


def ended(world):
    folder = world.new
    with opened(folder) as training:
        training.report(end=True)
    opened(folder)


def other_clients(world):
    with opened(world.left) as training:
        training.cohorts([*IDS[1:], "new"])


def skipped(world):
    with opened(world.new) as training:
        list(training.cohorts(IDS))


def repeatable(world):
    with opened(world.new, planned(insecure_seed=1)) as training:
        return str(training.report(end=True))


def closed(world):
    training = opened(world.new)
    training.close()
    training.model()


def with_metrics(world):
    with opened(world.new) as training:
        return training.next(of(next(training.cohorts(IDS))))["client_work"]["train"]


def without_data(world):
    with opened(world.new) as training:
        training.next(of(next(training.cohorts(IDS))[:1]))


SECRET = {
    "sampling": tff_mf.BallsInBins(groups=4, clients_per_round=2),
    "secret_cohorts": True,
    "epsilon": None,
    "noise_multiplier": 1.0,
}


def secret_and_left(world):
    """The folder and the plan of a run with secret cohorts that was left after a round."""
    folder, plan = world.new, planned(**SECRET)
    with opened(folder, plan) as training:
        trained(training, 1)
    return folder, plan


def evaluated_in_secret(world):
    with opened(*secret_and_left(world)) as training:
        training.evaluate({IDS[0]: dataset()})


ADAPTIVE = {"mechanism": "identity", "restart_every": 2, "adaptive_count_stddev": 50.0}
TWO_NUMBERS = {"grid": tff_mf.Grid(bits=14, max_clients=99), "dimension": 2}
NAN, HUGE = float("nan"), 1e6
MISTAKES = {
    # Of the plan; others are in tests/tff_mf/test_planning.py.
    "larger cohorts than clients": refused("population=1", lambda _: planned(population=1)),
    "clients that come too often": refused(
        "needs 40 clients", lambda _: planned(rounds=20, sampling=tff_mf.MinSep(min_sep=20, max_participations=1))
    ),
    "a δ that means nothing": refused("delta=", lambda _: planned(delta=0.2)),
    # Of the pipeline.
    "TFF's own metrics": refused("metrics_aggregator", lambda w: opened(w.new, metrics_aggregator=None)),
    "another aggregator": refused(
        "model_aggregator", lambda w: opened(w.new, model_aggregator=tff.learning.robust_aggregator())
    ),
    "debug measurements": refused(
        "model_aggregator",
        lambda w: opened(w.new, model_aggregator=tff.learning.add_debug_measurements(w.waiting.aggregator)),
    ),
    "weights of clients": refused("client_weighting", lambda w: opened(w.new, client_weighting="num_examples")),
    "an argument that does not exist": refused("rounds=", lambda w: opened(w.new, rounds=3), TypeError),
    "no plan": refused("plan=", lambda w: opened(w.new, "8.0"), TypeError),
    "a Keras model": refused("model_fn=Sequential", lambda w: opened(w.new, model_fn=keras_model()), TypeError),
    "a Keras optimizer": refused(
        "client_optimizer_fn=.*build_sgdm",
        lambda w: opened(w.new, client_optimizer_fn=tf.keras.optimizers.SGD),
        TypeError,
    ),
    "no folder": refused("folder=None", lambda _: opened(None), TypeError),
    "a file as folder": refused("folder=.*cannot be made", lambda _: opened(__file__)),
    "secret cohorts by a sampler": refused(
        "sampler=.*secret_cohorts", lambda w: opened(w.new, planned(**SECRET), sampler=lambda allowed: allowed[:2])
    ),
    "secret cohorts of an unknown population": refused(
        "population=len", lambda w: opened(w.new, planned(**SECRET, population=None))
    ),
    "evaluation beside secret cohorts, of which nobody is known": refused("training.cohorts", evaluated_in_secret),
    "adaptive clipping": refused("adaptive_count_stddev", lambda w: opened(w.new, planned(**ADAPTIVE))),
    "a plan for a smaller model": refused("dimension=2", lambda w: opened(w.new, planned(**TWO_NUMBERS))),
    "a forgotten grid": harmless(
        lambda plan: plan.grid == tff_mf.Grid.with_room(dimension=3, cohort=EACH) and plan.dimension == 3,
        lambda w: w.waiting.plan,
    ),
    "forgotten metrics, and metrics of one's own": harmless(lambda found: not found, with_metrics),
    "BatchNormalization": harmless(
        lambda models: all(map(np.array_equal, *(model.non_trainable for model in models))),
        lambda w: w.moved(dataset(100.0), model_fn=normalized_model_fn),
    ),
    "repeatable noise": harmless(lambda text: "TEST ONLY" in text and "ε≤" not in text, repeatable),
    # Of the folder; other settings are in test_guard.py and test_reports.py.
    "another σ in the folder": refused("noise_multiplier", lambda w: opened(w.left, planned(epsilon=9.0))),
    "a run that has ended": refused("has ended", ended),
    # Of cohorts.
    "other clients than planned": refused("population=8", lambda w: w.waiting.cohorts(IDS[1:])),
    "one text in place of ids": refused("clients=", lambda w: w.waiting.cohorts("abcdefgh"), TypeError),
    "ids that are numbers": refused("every id", lambda w: w.waiting.cohorts(range(8)), TypeError),
    "a client twice": refused("different", lambda w: w.waiting.cohorts([*IDS[1:], IDS[1]])),
    "other clients after a restart": refused("those that the run began with", other_clients),
    "a sampler that keeps no schema": refused("may not take part", by(lambda allowed: IDS[:2], 2), RefusedCohortError),
    "a sampler of strangers": refused("none of the clients", by(lambda allowed: ["mallory", allowed[0]])),
    "a cohort that is too large": refused("are more than 2", by(lambda allowed: allowed[:3])),
    "a cohort that is too small": warned("1 clients in round 1", by(lambda allowed: allowed[:1])),
    "a cohort that is not trained": refused("next was not called", skipped),
    # Of data.
    "no cohort, or a cohort twice": refused("no cohort waits", lambda w: w.done.next(of(IDS[:1]))),
    "data of others": refused(
        f"data of {len(IDS) - 2} clients", lambda w: w.waiting.next(of([each for each in IDS if each not in w.cohort]))
    ),
    "data of nobody in particular": refused("client: dataset", lambda w: w.waiting.next([dataset()] * 2), TypeError),
    "clients without data": warned("1 clients in round 1", without_data),
    "one dataset in place of a dict": refused(
        "must be .client: dataset", lambda w: w.waiting.next(dataset()), TypeError
    ),
    "arrays in place of datasets": refused(
        "cohort_data=", lambda w: w.waiting.next({w.cohort[0]: np.ones(2)}), TypeError
    ),
    "data of another shape": refused(
        "cohort_data has a dataset of .*3", lambda w: w.waiting.next(of(w.cohort, width=3)), TypeError
    ),
    "a data set without the cohort": refused("lacks 2 clients", lambda w: w.waiting.next(client_data(HELD_OUT))),
    "a data set of another shape": refused(
        "cohort_data has a dataset of .*3", lambda w: w.waiting.next(client_data(IDS, width=3)), TypeError
    ),
    "evaluation on the data set that trains": refused(
        "train or may train", lambda w: w.waiting.evaluate(client_data(IDS))
    ),
    "evaluation on data of another shape": refused(
        "data has a dataset of .*3", lambda w: w.waiting.evaluate({"client 8": dataset(width=3)}), TypeError
    ),
    "NaN": harmless(lambda found: np.isfinite(distance(found)), lambda w: w.moved(dataset(NAN), dataset())),
    "huge examples": harmless(lambda found: distance(found) < 1.1, lambda w: w.moved(dataset(HUGE), dataset(HUGE))),
    "several epochs": harmless(lambda found: distance(found) < 1.1, lambda w: w.moved(dataset().repeat(50))),
    "a round more of the process": Mistake(one_more_of_the_process, aggregators.NoRoundsLeftError, "rounds"),
    # Of what is released.
    "evaluation on clients that train": refused(
        "train or may train", lambda w: w.waiting.evaluate({"client 0": dataset()})
    ),
    "evaluation without ids": refused("pass {id: dataset}", lambda w: w.waiting.evaluate([dataset()]), TypeError),
    "training on clients that evaluated": refused("training.evaluate used", trained_after_evaluation),
    "an end before its time": refused("was begun and not computed", lambda w: w.waiting.report(end=True)),
    "a training that was closed": refused("was closed", closed),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_impossible_refused_or_warned_about(name, world):
    mistake = MISTAKES[name]
    if mistake.error is not None:
        with pytest.raises(mistake.error, match=mistake.words):
            mistake.do(world)
    elif mistake.words:
        with pytest.warns(private_training.CohortSizeWarning, match=mistake.words):
            mistake.do(world)
    else:
        assert mistake.then(mistake.do(world))
