"""`tff-mf plan`: the table, what it recommends, and the estimate of what noise leaves of a run."""

import dataclasses
import json
import math

import numpy as np
import pytest
import tensorflow as tf

import tff_mf
from tff_mf import queries
from tff_mf.experiments.runs import signal_to_noise
from tff_mf.planning import MechanismSetting, by_name, compare

from .shared import invoke, small_settings

SCHEMA_OF_30 = tff_mf.MinSep(min_sep=30, max_participations=4)
# What --dimension 1000 makes of the default grid, and what is assumed without it.
SMALL = {"grid": tff_mf.Grid.with_room(dimension=1000, cohort=100), "dimension": 1000}
PAPERS = {"grid": tff_mf.Grid.with_room(dimension=4_050_748, cohort=100), "dimension": 4_050_748}
ARGUMENTS = ["plan", "--population", "3000", "--clients-per-round", "100", "--rounds", "96", "--delta", "1e-6"]


def run(*arguments):
    return invoke(*ARGUMENTS, *arguments, standalone_mode=False)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    picture = tmp_path_factory.mktemp("plan") / "x.png"
    answer = json.loads(run("--epsilon", "4", "--json", "--dimension", "1000", "--plot", str(picture)).stdout)
    assert picture.read_bytes().startswith(b"\x89PNG")
    return answer


def test_every_mechanism_is_there_and_keeps_epsilon(found):
    assert (found["min_sep"], found["max_participations"]) == (30, 4)
    assert {row["name"] for row in found["mechanisms"]} == set(by_name.names())
    for row in found["mechanisms"]:
        assert 4 - 1e-6 < row["epsilon"] <= 4
        assert row["memory_bytes"] == 4000 * row["memory_rows"]
        assert row["rms_loss"] <= row["max_loss"]
    losses = [row["rms_loss"] for row in found["mechanisms"]]
    assert losses == sorted(losses)
    assert 0 < found["least_loss"] <= losses[0]


@pytest.mark.parametrize(
    ("level", "more", "on_grid"),
    [
        (("--epsilon", "4"), (), PAPERS),
        (("--noise-multiplier", "2"), ("--dimension", "1000"), SMALL),
        (("--epsilon", "4"), ("--grid", "none"), {}),
    ],
    ids=["auto", "dimension", "floats"],
)
def test_the_first_line_has_the_epsilon_of_the_run_on_its_grid(level, more, on_grid):
    found = json.loads(run(*level, *more, "--json").stdout)
    chosen = next(row for row in found["mechanisms"] if row["name"] == found["recommended"])
    assert found["recommended"] == "blt"
    mechanism = tff_mf.optimize_blt(rounds=96, participation=SCHEMA_OF_30, buffers=4, objective="rms")
    noise = {"noise_multiplier": chosen["noise_multiplier"], "delta": 1e-6}
    expected = tff_mf.epsilon(mechanism, 96, SCHEMA_OF_30, **noise, **on_grid)
    assert (found["claim"]["clients_per_round"], found["claim"]["cohort"]) == (100, 100)
    assert found["claim"]["epsilon"] == chosen["epsilon"] == pytest.approx(expected, rel=1e-9)
    if level[0] == "--epsilon":
        assert 4 * (1 - 1e-6) < expected <= 4
    if on_grid:
        assert expected > tff_mf.epsilon(mechanism, 96, SCHEMA_OF_30, **noise) * (1 + 1e-8)


def test_fitted_columns_are_not_recommended(found):
    rows = {row["name"]: row for row in found["mechanisms"]}
    scaled = rows.pop("scaled-blt")
    assert scaled["rms_loss"] < rows["blt"]["rms_loss"]
    assert "never recommends" in scaled["note"]
    assert {row["note"] for row in rows.values()} == {""}
    assert found["recommended"] in rows


def option(name, loss, rows, mechanism=None):
    figures = {"rms_loss": loss, "memory_rows": rows}
    return compare.Option(name=name, mechanism=mechanism or tff_mf.Identity(), figures=figures)


def test_a_little_loss_is_worth_much_memory():
    found = [option("large", 8.0, 4999), option("small", 8.3, 4), option("poor", 9.5, 0)]
    chosen, why = compare.recommend(found)
    assert chosen.name == "small"
    assert "large 4999" in why


def test_what_cannot_go_on_is_not_recommended_unless_nothing_can():
    stuck, free = option("stuck", 8.0, 0, tff_mf.Tree(8)), option("free", 8.5, 9)
    chosen, why = compare.recommend([stuck, free])
    assert chosen.name == "free"
    assert "unlike stuck" in why
    assert compare.recommend([stuck])[0].name == "stuck"


@pytest.mark.parametrize("grid", [None, tff_mf.Grid.with_room(dimension=20_000, cohort=100)], ids=["floats", "grid"])
def test_memory_is_that_of_the_state_that_a_query_keeps(grid):
    schema = tff_mf.MinSep(min_sep=4, max_participations=2)
    dimension = None if grid is None else 20_000
    setting = MechanismSetting(rounds=16, participation=schema, grid=grid, dimension=dimension)
    compared = compare.options(setting, delta=1e-6, epsilon=4.0)
    assert {each.name for each in compared if each.mechanism} > {"identity", "blt", "banded", "dense", "tree-full"}
    for each in compared:
        if each.mechanism is not None:
            sigma, specs = each.figures["noise_multiplier"], tf.TensorSpec([20_000])
            query = queries.build_query(
                each.mechanism, record_specs=specs, clip_norm=1.0, noise_multiplier=sigma, grid=grid
            )
            size = sum(leaf.numpy().nbytes for leaf in tf.nest.flatten(query.initial_global_state()))
            # Beside rows, a state has keys and tables.
            held = 4 * 20_000 * each.figures["memory_rows"]
            assert held <= size <= held + 20_000, each.name


def test_a_delta_that_no_report_would_take_is_refused_as_by_the_library():
    for refusing in (
        lambda: run("--delta", "0.01", "--epsilon", "4"),
        lambda: tff_mf.plan(population=3000, clients_per_round=100, rounds=96, delta=0.01, epsilon=4.0),
    ):
        with pytest.raises(tff_mf.InputError, match=r"delta=0\.01 must be below 1/population, with 3000 clients"):
            refusing()


def test_long_searches_wait_until_asked_for():
    setting = MechanismSetting(rounds=2052, participation=tff_mf.MinSep(min_sep=342, max_participations=6))
    found = {option.name: option for option in compare.options(setting, delta=1e-6, epsilon=8.0)}
    assert "--thorough" in found["banded"].note
    assert "--thorough" in found["dense"].note
    assert found["tree-full"].figures["rms_loss"] == pytest.approx(12.4715, rel=1e-4)


def test_a_saved_plan_is_the_recommended_one_with_what_its_grid_costs(tmp_path):
    for number, (more, grid) in enumerate(((["--dimension", "1000"], True), (["--grid", "none"], False))):
        folder = tmp_path / str(number)
        found = json.loads(run("--epsilon", "4", *more, "--out", str(folder), "--json").stdout)
        plan = tff_mf.Plan.load(folder)
        chosen = next(each for each in found["mechanisms"] if each["name"] == found["recommended"])
        assert plan.epsilon <= 4
        assert (plan.grid is not None) == grid
        assert plan.noise_multiplier == chosen["noise_multiplier"]
        assert (plan.rounds, plan.clients_per_round, plan.delta) == (96, 100, 1e-6)
        assert plan.participation == SCHEMA_OF_30


SCHEMA = tff_mf.MinSep(min_sep=100, max_participations=3)


def plan(mechanism, *, cohort=20, rounds=300, **noise):
    return tff_mf.plan(
        mechanism=mechanism, rounds=rounds, sampling=SCHEMA, delta=1e-6, clients_per_round=cohort, **noise
    )


@pytest.mark.parametrize("mechanism", [tff_mf.Identity(), tff_mf.Tree(300), tff_mf.BLT.production("b100")])
def test_the_ratio_is_that_of_noise_that_is_drawn(mechanism):
    """Against the noise itself, added up over the rounds, for 4,000 parameters."""
    z = np.random.default_rng(1).standard_normal((300, 4000))
    summed = np.cumsum(2.0 / 20 * mechanism.inverse(300) @ z, axis=0)
    exact = math.sqrt(np.mean(np.sum(summed**2, axis=1))) / 300
    found = signal_to_noise.of_plan(plan(mechanism, noise_multiplier=2.0), 4000)
    assert found.noise_to_signal == pytest.approx(exact, rel=0.1)


def test_a_simulated_cohort_counts_and_not_the_clients_that_train():
    noise = {"noise_multiplier": 2.0}
    simulated = dataclasses.replace(plan(tff_mf.Identity(), **noise), cohort=200)
    expected = signal_to_noise.of_plan(plan(tff_mf.Identity(), cohort=200, **noise), 1000)
    assert signal_to_noise.of_plan(simulated, 1000) == expected


def test_what_is_advised_brings_the_noise_to_where_every_run_learned():
    mechanism = tff_mf.BLT.production("b100")
    asked = plan(mechanism, cohort=5, epsilon=4.0)
    found = signal_to_noise.of_plan(asked, 10**6)
    assert found.hopeless

    def ratio(dimension=10**6, **changed):
        return signal_to_noise.of_plan(plan(mechanism, **{"cohort": 5, "epsilon": 4.0} | changed), dimension)

    least = pytest.approx(signal_to_noise.LEARNS, rel=0.01)
    assert ratio(cohort=found.cohort_needed).noise_to_signal == least
    assert found.population_needed == 100 * found.cohort_needed


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (0.1, "0.10 with 9 parameters (runs learned up to 0.1, and none from 1 on)"),
        (
            0.4,
            "this run may learn little, and needs a server rate that fits; to be below 0.1, it takes a cohort of 80 ",
        ),
        (1.2, "WARNING: this run will not learn: noise / signal = 1.2 with"),
    ],
)
def test_the_line_on_what_will_be_learned_says_what_helps_unless_runs_learned(ratio, words):
    needed = {"cohort_needed": 80, "population_needed": 800}
    found = signal_to_noise.Signal(dimension=9, noise_to_signal=ratio, hopeless=ratio > 1, **needed)
    assert words in signal_to_noise.warning(found)
    assert ("80 (800 clients)" in signal_to_noise.warning(found)) == (ratio > 0.1)


@pytest.mark.parametrize("noise_multiplier", [0.0, 1e300])
def test_no_noise_and_noise_without_bounds_have_a_line(noise_multiplier):
    found = signal_to_noise.of_plan(plan(tff_mf.Identity(), noise_multiplier=noise_multiplier), 1000)
    assert found.hopeless == (noise_multiplier > 0)
    assert "nan" not in signal_to_noise.warning(found)


@pytest.mark.parametrize("model", ["conv", "lstm"])
def test_the_number_of_parameters_is_the_models(model):
    from tff_mf.experiments import next_word

    words = [f"w{number}" for number in range(50)]
    settings = small_settings(model=model, vocab_size=50, embedding_size=7, units=11)
    built = next_word.build_keras_model(settings, vocabulary=words)
    assert settings.dimension == sum(int(np.size(weight)) for weight in built.trainable_weights)


PLAN = ["plan", "--population", "3000", "--clients-per-round", "3", "--rounds", "96", "--delta", "1e-6"]


def with_three(*words):
    return invoke(*PLAN, *words, standalone_mode=False)


def test_plan_says_that_nothing_can_be_learned_and_json_is_json_alone():
    shown = with_three("--noise-multiplier", "3", "--json")
    assert (json.loads(shown.stdout)["signal"], shown.stderr) == (None, "")
    drowned = with_three("--noise-multiplier", "3", "--dimension", "1000000", "--json")
    assert json.loads(drowned.stdout)["signal"]["hopeless"]
    assert drowned.stderr.startswith("WARNING")
