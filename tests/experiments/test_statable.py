"""What forbids stating an ε and is known before training is refused before training."""

import dataclasses

import pytest

import tff_mf
from tff_mf.experiments.runs import statable, statements
from tff_mf.experiments.runs.settings import RunSettings
from tff_mf.experiments.training import program
from tff_mf.experiments.training.datasets import named_data

from . import shared

RUN = [
    *("--rounds", "4", "--clients-per-round", "2", "--min-sep", "2", "--max-participations", "2", "--delta", "1e-6"),
    *("--mechanism", "identity", "--model", "conv", "--vocab-size", "60", "--embedding-size", "4", "--units", "4"),
]
# What is wrong, and how the error begins.
REFUSED = {
    "no noise": (["--noise-multiplier", "0"], "noise_multiplier=0.0: "),
    "a seed": (["--noise-multiplier", "3", "--insecure-seed", "5"], "insecure_seed=5: "),
    "the tail of a grid": (["--noise-multiplier", "0.01"], "noise_multiplier=0.01: "),
    "a large δ": (["--noise-multiplier", "3", "--delta", "0.02"], "delta=0.02: "),
}


class Trained(Exception):
    """Training would have begun."""


@pytest.fixture
def invoke(small_data, tmp_path, monkeypatch):
    """A function that calls `train`, up to the point at which training begins."""

    def run(*given, without_epsilon, **more):
        raise Trained(without_epsilon)

    monkeypatch.setattr(program, "run", run)
    command = ["train", "--force", "--dataset", small_data, "--out", tmp_path / "run", *RUN]

    def invoke(*flags):
        return shared.invoke(*command, *flags, catch_exceptions=True).exception

    return invoke


@pytest.mark.parametrize("name", REFUSED)
def test_train_refuses_before_it_trains_unless_it_is_told_to_train_without(invoke, tmp_path, name):
    flags, named = REFUSED[name]
    refused = invoke(*flags)
    assert isinstance(refused, tff_mf.InputError)
    assert str(refused).startswith(named)
    assert "without_epsilon" in str(refused)
    assert "\n" not in str(refused)
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").iterdir())
    trained = invoke(*flags, "--without-epsilon")
    assert isinstance(trained, Trained)
    assert trained.args == (True,)


def test_a_run_that_can_state_an_epsilon_is_not_refused(invoke):
    trained = invoke("--epsilon", "2")
    assert isinstance(trained, Trained)
    assert trained.args == (False,)


@pytest.mark.parametrize(
    "flags", [["--dataset", "stackoverfow"], ["--noise-multiplier", "0"], ["--insecure-seed", "5"]]
)
def test_what_is_wrong_is_found_before_a_mechanism_is_optimized(invoke, monkeypatch, flags):
    monkeypatch.setattr(RunSettings, "build_mechanism", lambda self: pytest.fail("optimized"))
    level = [] if "--noise-multiplier" in flags else ["--epsilon", "2"]
    assert isinstance(invoke("--mechanism", "dense", *level, *flags), tff_mf.InputError)


def test_a_folder_in_use_is_found_before_a_mechanism_is_optimized(invoke, tmp_path, monkeypatch):
    monkeypatch.setattr(RunSettings, "build_mechanism", lambda self: pytest.fail("optimized"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.safetensors").write_text("of another run")
    assert "is not empty" in str(invoke("--epsilon", "2"))


PLAN = {
    "mechanism": tff_mf.Identity(),
    "rounds": 4,
    "sampling": tff_mf.MinSep(min_sep=2, max_participations=2),
    "clients_per_round": 2,
    "cohort": 4,
}


@pytest.mark.sampled(together=2)
@pytest.mark.parametrize("noise_multiplier", [0.0, 1e-160, 0.01, 3.0])
@pytest.mark.parametrize("insecure_seed", [None, 1])
@pytest.mark.parametrize("delta", [1e-6, 0.01, 0.1])
@pytest.mark.parametrize("population", [None, 10, 99, 100, 10**9])
@pytest.mark.parametrize("grid", [None, tff_mf.Grid(bits=16, max_clients=8)])
def test_a_plan_is_refused_exactly_if_no_epsilon_can_be_stated(
    noise_multiplier, insecure_seed, delta, population, grid
):
    given = {"noise_multiplier": noise_multiplier, "insecure_seed": insecure_seed, "delta": delta, "grid": grid}
    try:
        plan = tff_mf.plan(**PLAN, **given, dimension=None if grid is None else 1000)
    except tff_mf.InputError:
        # Noise that a grid cannot hold.
        return
    why = statements.refusal(statements.of_plan(plan, population=population))
    if why:
        with pytest.raises(tff_mf.InputError, match="without_epsilon"):
            statable.check_statable(plan, population=population)
    else:
        statable.check_statable(plan, population=population)


def test_clients_of_the_log_count_where_they_stand_for_more(small_data):
    """A report takes who is in the log for the population, which may then be larger than with all clients."""
    from tff_mf.experiments.training import preparation

    clients = len(named_data.load(small_data).train.client_ids)
    plan = tff_mf.plan(**{**PLAN, "cohort": clients // 2}, noise_multiplier=3.0, delta=1e-6)
    settings = shared.small_settings(plan)
    prepared = preparation.prepare(settings, plan, small_data)
    logged = len({client for t in range(4) for client in prepared.cohorts.cohort(t)})
    population = preparation.reported_population(plan, prepared.cohorts, logged=True)
    assert population == logged * (clients // 2) // 2 > prepared.population
    at_most = dataclasses.replace(plan, delta=1 / population)
    with pytest.raises(tff_mf.InputError, match="delta"):
        statable.check_statable(at_most, population=population)
