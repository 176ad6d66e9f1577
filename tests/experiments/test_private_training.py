"""One way in: what a plan trains is private, and each mistake is impossible, refused with a remedy, or warned about."""

import contextlib
import functools
import itertools
import json
import os
import pathlib
import signal
import warnings

import numpy as np
import private_run
import psutil
import pytest
import safetensors.numpy
import tensorflow as tf
import tensorflow_federated as tff
import tree

import tff_mf
from tff_mf import aggregators
from tff_mf.aggregators.resident import forms
from tff_mf.base import checkpoint_files
from tff_mf.experiments.guard import inputs
from tff_mf.experiments.guard.run_guard import RefusedCohortError
from tff_mf.experiments.runs import ledger, names

from .shared import critical

ROUNDS, EACH, IDS = private_run.ROUNDS, private_run.EACH, private_run.CLIENTS
SGD = tff.learning.optimizers.build_sgdm(1.0)
# The squares of past updates are in the state.
OPTIMIZERS = {
    "client_optimizer_fn": tff.learning.optimizers.build_sgdm(0.1),
    "server_optimizer_fn": tff.learning.optimizers.build_adam(0.1),
}
HELD_OUT = {"other 1": 1.0, "other 2": 2.0}
SECRET = {"sampling": tff_mf.BallsInBins(groups=4, clients_per_round=2), "secret_cohorts": True}


def dataset(value=1.0, width=2):
    x = np.full([4, width], value, np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(2)


def generated():
    def examples():
        yield np.ones([2, 2], np.float32), np.ones([2, 1], np.float32)

    return tf.data.Dataset.from_generator(examples, output_signature=dataset().element_spec)


def keras_model(*more):
    layers = [tf.keras.layers.InputLayer(input_shape=(2,)), tf.keras.layers.Dense(1, kernel_initializer="ones")]
    return tf.keras.Sequential([*layers, *more])


def model_fn(*more):
    return tff.learning.models.from_keras_model(
        keras_model(*more),
        tf.keras.losses.MeanSquaredError(),
        dataset().element_spec,
        metrics=[tf.keras.metrics.MeanAbsoluteError()],
    )


def two_layer_model_fn():
    """A second layer whose weights do not train."""
    return model_fn(tf.keras.layers.Dense(1, name="frozen", kernel_initializer="ones", trainable=False))


def planned(**changes):
    return tff_mf.plan(**{**private_run.SETTING, **changes})


def opened(folder, plan=None, **more):
    arguments = {"model_fn": model_fn, **OPTIMIZERS, **more}
    return aggregators.private_fed_avg(plan or planned(), **arguments, folder=folder)


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
    """Equal processes, and what draws their noise again, are built and taken apart once: that takes seconds."""
    of_tff, factory, made = tff.learning.algorithms, aggregators.MFAggregationFactory, {}
    build, replay = of_tff.build_unweighted_fed_avg, factory.replay_computation

    def once(key, make):
        if key not in made:
            made[key] = make()
        return made[key]

    def built(model_fn, *, model_aggregator, **more):
        key = (model_fn, model_aggregator.fingerprint, model_aggregator.rounds, more["server_optimizer_fn"])
        return once(key, lambda: build(model_fn, model_aggregator=model_aggregator, **more))

    def replayed(self, *, dimension):
        return once((self.fingerprint, dimension), lambda: replay(self, dimension=dimension))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_tff, "build_unweighted_fed_avg", built)
        patch.setattr(of_tff, "build_fed_eval", functools.cache(of_tff.build_fed_eval))
        patch.setattr(factory, "replay_computation", replayed)
        patch.setattr(forms, "take_apart", functools.cache(forms.take_apart))
        yield


@pytest.fixture
def training(tmp_path):
    with opened(tmp_path / "run") as made:
        yield made


def workers():
    return [child for child in psutil.Process().children() if child.name().startswith("worker_binary")]


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
        before_others = training.report()
        assert training.report() is before_others
        training.evaluate({"somebody else": dataset()})
        report = training.report()
        assert list(training.cohorts(IDS)) == []
        assert report.files[names.EVALUATED] != before_others.files[names.EVALUATED]
        weights = training.model()
    assert len(workers()) == before
    assert sorted(itertools.chain(*cohorts)) == IDS
    assert critical(tmp_path / "run") == []
    assert report.run["sampler"] == "tff_mf.SingleParticipation"
    assert report.claim.epsilon == pytest.approx(training.plan.epsilon, rel=1e-9)
    assert str(report) == report.headline
    assert list((tmp_path / "run" / names.CHECKPOINTS).iterdir()) == []
    model = keras_model()
    weights.assign_weights_to(model)
    assert np.array_equal(model.get_weights()[0], weights.trainable[0])
    path = tmp_path / "run" / names.EVALUATED
    assert json.loads(path.read_text()) == sorted([*HELD_OUT, "somebody else"])
    path.unlink()
    assert critical(tmp_path / "run") != []


def test_fed_sgd_takes_the_same_plan_and_a_functional_model_which_has_its_grid(tmp_path):
    model = tff.learning.models.functional_model_from_keras(
        keras_model(), tf.keras.losses.MeanSquaredError(), dataset().element_spec
    )
    with aggregators.private_fed_sgd(planned(), model, folder=tmp_path / "run") as training:
        assert training.plan.dimension == 3
        trained(training)
        assert training.report().log.has_ended
    assert critical(tmp_path / "run") == []


def test_training_starts_from_given_weights(tmp_path):
    given = tff.learning.models.ModelWeights([np.full([2, 1], 3.0, np.float32), np.zeros([1], np.float32)], [])
    with opened(tmp_path / "run", initial_weights=given) as training:
        assert np.array_equal(training.model().trainable[0], given.trainable[0])
    with opened(tmp_path / "run") as training:
        assert np.array_equal(training.model().trainable[0], given.trainable[0])


def values(training):
    """All numbers of the state: of the model, the server's optimizer and the noise."""
    with training._installed():
        return [np.asarray(each) for each in tree.flatten(training._state)]


def test_a_run_that_was_left_goes_on_with_its_cohorts(tmp_path):
    """Left after a release, in a cohort that waits for its data, and without an end."""
    first = opened(tmp_path / "run")
    done = trained(first, 1)
    waiting, left = next(first.cohorts(IDS)), values(first)
    first.close()
    second = opened(tmp_path / "run")
    assert second.rounds_done == 1
    for one, other in zip(values(second), left, strict=True):
        np.testing.assert_array_equal(one, other)
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


def test_a_run_of_secret_cohorts_states_the_amplified_epsilon_and_shows_nobody(tmp_path, recwarn):
    """Left after two rounds, and gone on with the same groups."""
    plan = planned(**SECRET, delta=1e-2)
    with opened(tmp_path / "run", plan) as first:
        cohorts = trained(first, 2)
        assert (tmp_path / "run" / names.CHECKPOINTS / names.COHORTS).stat().st_mode & 0o777 == 0o600
    with opened(tmp_path / "run", plan) as second:
        # No log has the clients.
        with pytest.raises(tff_mf.InputError, match=r"training\.cohorts"):
            second.evaluate({IDS[0]: dataset()})
        for cohort in second.cohorts(IDS[::-1]):
            # Whoever has no data is left out, and no warning shows it.
            second.next(of(cohort[1:]))
            cohorts.append(cohort)
        assert sorted(itertools.chain(*cohorts)) == IDS
        with pytest.raises(tff_mf.InputError, match="train or may train"):
            second.evaluate({IDS[0]: dataset()})
        report = second.report()
        stated = second.plan.epsilon
    assert not [each for each in recwarn if issubclass(each.category, inputs.CohortSizeWarning)]
    written = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any(client.encode() in content for client in IDS for content in written)
    assert not (tmp_path / "run" / names.CHECKPOINTS / names.COHORTS).exists()
    assert stated <= report.claim.epsilon <= 1.03 * stated
    assert critical(tmp_path / "run") == []
    assert "that nobody knows" in str(report)
    assert set(ledger.read_ledger(tmp_path / "run" / names.LEDGER).sizes.values()) == {0}


def broken(monkeypatch, *, after):
    """Makes the disk fail when the first state gets its name, before or after that; returns the states' keys."""
    link, offered = os.link, []

    def fails(file, path):
        if not pathlib.Path(path).name.startswith("checkpoint_"):
            return link(file, path)
        # The keys of the noise are the only whole numbers in rows.
        tensors, _ = checkpoint_files.read(pathlib.Path(file))
        offered.extend(value for value in tensors.values() if value.dtype == np.int64 and value.ndim == 2)
        if len(offered) > 1:
            return link(file, path)
        if after:
            link(file, path)
        raise OSError("no space left")

    monkeypatch.setattr(os, "link", fails)
    return offered


@pytest.mark.parametrize("way", ["same loop", "new loop", "next again"])
def test_a_round_that_was_not_saved_is_begun_again_with_new_noise(training, monkeypatch, way):
    offered = broken(monkeypatch, after=False)
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
    assert not np.array_equal(lost, kept)
    book = ledger.read_ledger(training.guard.folder / names.LEDGER)
    assert (book.attempts, book.released) == ({1: 2}, {1: 1})


@pytest.mark.parametrize("looks", [False, True])
def test_a_round_that_was_saved_is_not_computed_again(training, monkeypatch, looks):
    broken(monkeypatch, after=True)
    cohorts = training.cohorts(IDS)
    cohort = next(cohorts)
    with pytest.raises(OSError, match="no space"):
        training.next(of(cohort))
    if looks:
        # It goes on from the newest state on disk.
        training.model()
    following = next(cohorts)
    assert training.rounds_done == 1
    assert not set(following) & set(cohort)
    with pytest.raises(tff_mf.InputError, match="data of 2 clients"):
        training.next(of([*following, *cohort]))
    training.next(of(following))
    assert ledger.read_ledger(training.guard.folder / names.LEDGER).attempts == {1: 1, 2: 1}
    assert set(aggregators.rounds_drawn(training._state).values()) == {2}


def test_a_worker_that_died_is_replaced_and_the_round_begun_again(training):
    mine = max(workers(), key=psutil.Process.create_time)
    cohorts = training.cohorts(IDS)
    cohort = next(cohorts)
    mine.kill()
    mine.wait()
    with pytest.raises(aggregators.WorkerLostError):
        training.next(of(cohort))
    assert next(cohorts) == cohort
    training.next(of(cohort))
    assert training.rounds_done == 1


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


KILLED = """
import pathlib, sys
sys.path.append({faults!r})
import private_run
folder, *strike = sys.argv[1:]
private_run.kill_once_ended(pathlib.Path(folder), *strike)
private_run.main()
"""


@pytest.mark.parametrize(
    "strike",
    [("os.remove", "checkpoint_"), ("os.rename", names.REPORT)],
    ids=["before the checkpoints are deleted", "before the report is there"],
)
def test_the_keys_of_a_run_that_was_killed_at_its_end_are_deleted_when_it_is_opened_again(tmp_path, forks, strike):
    folder = tmp_path / "run"
    with (tmp_path / "log").open("w") as log:
        process = forks.start(
            KILLED.format(faults=str(pathlib.Path(private_run.__file__).parent)),
            [str(folder), *strike],
            stdout=log.fileno(),
            stderr=log.fileno(),
        )
        assert process.wait(timeout=300) == -signal.SIGKILL, (tmp_path / "log").read_text()
    assert list((folder / names.CHECKPOINTS).glob(f"{strike[1]}*")) != [] or not (folder / names.REPORT).exists()
    with private_run.opened(folder) as training:
        assert list((folder / names.CHECKPOINTS).iterdir()) == []
        report = training.report()
        assert report.log.has_ended
        assert training.evaluate(dataset())["num_examples"] == 4
    assert critical(folder) == []


def test_a_run_that_has_ended_is_opened_again_for_its_model_and_its_report(tmp_path):
    """Also with weights that do not train; and not by another plan."""
    folder, many = tmp_path / "run", {"model_fn": two_layer_model_fn}
    with opened(folder, **many) as training:
        trained(training, 2)
        report, model = training.report(end=True), training.model()
        measured = training.evaluate(dataset(2.0))
    kept = safetensors.numpy.load_file(folder / names.MODEL)
    assert kept.keys() == {"dense/kernel", "dense/bias", "frozen/kernel", "frozen/bias"}
    assert np.array_equal(kept["dense/kernel"], model.trainable[0])
    before = files_of(folder)
    with opened(folder, **many) as training:
        assert (training.rounds_done, training.report()) == (2, report)
        assert list(training.cohorts(IDS)) == []
        assert all(map(np.array_equal, tree.flatten(training.model()), tree.flatten(model)))
        assert training.evaluate(dataset(2.0)) == measured
        assert files_of(folder) == before
        # Those that are evaluated from here on are in the report too.
        training.evaluate({"somebody": dataset()})
        with pytest.raises(tff_mf.InputError, match="train or may train"):
            training.evaluate({IDS[0]: dataset()})
    assert critical(folder) == []
    with pytest.raises(tff_mf.InputError, match="insecure_seed=1 is not the"):
        opened(folder, planned(insecure_seed=1), **many)
    with pytest.raises(tff_mf.InputError, match=r"model_fn makes a model of the weights .*frozen/kernel"):
        opened(folder)
    (folder / names.MODEL).unlink()
    with pytest.raises(tff_mf.InputError, match=r"model\.safetensors is missing"):
        opened(folder, **many)


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

    def moved(self, *data):
        """The model before and after a round with hardly any noise."""
        given = {"plan": planned(noise_multiplier=1e-3), "server_optimizer_fn": SGD, "model_fn": two_layer_model_fn}
        with opened(self.new, **given) as training, warnings.catch_warnings():
            warnings.simplefilter("ignore", inputs.CohortSizeWarning)
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
    with world.done._installed():
        world.done.process.next(world.done._state, [dataset()])


def ended(world):
    folder = world.new
    with opened(folder) as training:
        training.report(end=True)
    with opened(folder) as training:
        training.next(of(IDS[:2]))


def other_clients(world):
    with opened(world.left) as training:
        training.cohorts([*IDS[1:], "new"])


def evaluated_before_its_clients_are_named(world):
    with opened(world.left) as training:
        training.evaluate({"client 0": dataset()})


def argument(**given):
    return lambda world: opened(**{"folder": world.new, **given})


def trained_on(data):
    """Data of the cohort that waits, or a function from it to them."""
    return lambda world: world.waiting.next(data(world.waiting._begun.clients) if callable(data) else data)


def evaluated_on(data):
    return lambda world: world.waiting.evaluate(data)


ADAPTIVE = {"mechanism": "identity", "restart_every": 2, "adaptive_count_stddev": 50.0}
TWO_NUMBERS = {"grid": tff_mf.Grid(bits=14, max_clients=99), "dimension": 2}
ENDLESS = client_data(IDS).preprocess(lambda examples: examples.repeat())
# What is done, the words of the refusal, and its type if it is another. Other settings of a run that is resumed are in
# test_guard.py and test_reports.py.
MISTAKES = [
    (argument(metrics_aggregator=None), "metrics_aggregator"),
    (argument(model_aggregator=tff.learning.robust_aggregator()), "model_aggregator"),
    (argument(client_weighting="num_examples"), "client_weighting"),
    (argument(model_fn=keras_model()), "model_fn=Sequential", TypeError),
    (argument(client_optimizer_fn=tf.keras.optimizers.SGD), "client_optimizer_fn=.*build_sgdm", TypeError),
    (argument(plan=planned(**SECRET), sampler=lambda allowed: allowed[:2]), "sampler=.*secret_cohorts"),
    (argument(plan=planned(**SECRET, population=None)), "population=len"),
    (argument(plan=planned(**ADAPTIVE)), "adaptive_count_stddev"),
    (argument(plan=planned(**TWO_NUMBERS)), "dimension=2"),
    (lambda world: world.waiting.cohorts(IDS[1:]), "population=8"),
    (trained_on(lambda cohort: of(set(IDS) - set(cohort))), f"data of {len(IDS) - 2} clients"),
    (trained_on(lambda cohort: of(cohort, width=3)), "cohort_data has a dataset of .*3", TypeError),
    (
        trained_on(lambda cohort: {cohort[0]: dataset(), cohort[1]: dataset().repeat()}),
        r"client 2 of 2 in round 1 has no end.*\.take",
    ),
    (trained_on(ENDLESS), r"client_data: the dataset of a client has no end.*\.take"),
    (trained_on(client_data(HELD_OUT)), "lacks 2 clients"),
    (evaluated_on(client_data(IDS)), "train or may train"),
    (evaluated_on({"client 0": dataset()}), "train or may train"),
    (evaluated_on(dataset().take(0)), "no example"),
    (lambda _: planned(delta=0.2), "delta="),
    (ended, "has ended"),
    (other_clients, "those that the run began with"),
    (by(lambda allowed: IDS[:2], 2), "may not take part", RefusedCohortError),
    (by(lambda allowed: ["mallory", allowed[0]]), "none of the clients"),
    (by(lambda allowed: allowed[:1] * 2), "sampler drew .* each client once"),
    (by(lambda allowed: allowed[:3]), "are more than 2"),
    (lambda world: world.done.next(of(IDS[:1])), "no cohort waits"),
    (one_more_of_the_process, "rounds", aggregators.NoRoundsLeftError),
    (evaluated_before_its_clients_are_named, "call training.cohorts"),
    (trained_after_evaluation, "training.evaluate used.* another folder"),
    (lambda world: world.waiting.report(end=True), "was begun and not computed"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake[1] for mistake in MISTAKES])
def test_a_mistake_is_refused(mistake, world):
    do, words, error = (*mistake, tff_mf.InputError)[:3]
    with pytest.raises(error, match=words):
        do(world)


def test_a_cohort_that_is_too_small_is_warned_about(world):
    with pytest.warns(inputs.CohortSizeWarning, match="1 clients in round 1"):
        by(lambda allowed: allowed[:1])(world)
    # Clients without data, and metrics that are withheld.
    with opened(world.new) as training:
        with pytest.warns(inputs.CohortSizeWarning, match="1 clients in round 1"):
            metrics = training.next(of(next(training.cohorts(IDS))[:1]))
        assert not metrics["client_work"]["train"]


def test_a_cohort_whose_data_are_refused_waits_for_others(training, monkeypatch):
    cohort = next(training.cohorts(IDS))
    with pytest.raises(tff_mf.InputError, match="has no end"):
        training.next(dict.fromkeys(cohort, dataset().repeat()))
    monkeypatch.setattr(inputs, "MOST_BYTES", 30)
    with pytest.raises(tff_mf.InputError, match="client 1 of 2 in round 1 are 48 bytes, and at most 30 "):
        training.next(of(cohort))
    monkeypatch.undo()
    # They are read here, so that Python is there to call.
    training.next({cohort[0]: generated(), cohort[1]: dataset()})
    book = ledger.read_ledger(training.guard.folder / names.LEDGER)
    assert (book.attempts, book.released) == ({1: 1}, {1: 1})


def test_a_client_of_a_secret_cohort_without_a_batch_is_warned_about_without_its_name_or_number(world):
    plan = planned(**SECRET, delta=1e-2)
    data = client_data(IDS).preprocess(lambda examples: examples.take(0))
    with opened(world.new, plan) as training:
        cohort = next(training.cohorts(IDS))
        while not cohort:
            training.next({})
            cohort = next(training.cohorts(IDS))
        with pytest.warns(inputs.CohortSizeWarning) as warned:
            training.next(data)
    (text,) = [str(each.message) for each in warned if issubclass(each.category, inputs.CohortSizeWarning)]
    assert "the dataset of a client has no batch" in text
    assert not any(character.isdigit() for character in text)


def test_a_forgotten_grid_is_the_models(world):
    assert world.waiting.plan.grid == tff_mf.Grid.with_room(dimension=3, cohort=EACH)
    assert world.waiting.plan.dimension == 3


def test_a_report_on_repeatable_noise_states_no_epsilon(tmp_path):
    with opened(tmp_path, planned(insecure_seed=1)) as training:
        text = str(training.report(end=True))
    assert "TEST ONLY" in text
    assert "ε≤" not in text


@pytest.mark.parametrize("data", [[dataset(np.nan), dataset()], [dataset(1e6).repeat(50)]], ids=["NaN", "huge"])
def test_whatever_the_data_of_a_cohort_is_it_moves_the_trainable_weights_by_a_bounded_step(world, data):
    """What is not trainable stays as it is."""
    before, now = world.moved(*data)
    assert distance((before, now)) < 1.1
    assert all(map(np.array_equal, before.non_trainable, now.non_trainable))
