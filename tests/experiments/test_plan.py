"""`tff-mf plan`: the table, and what it recommends."""

import json
import math

import pytest

import tff_mf
from tff_mf.experiments.planning.deployment import Deployment
from tff_mf.experiments.planning.deployment import options as compared
from tff_mf.planning import options

from .shared import invoke

ARGUMENTS = ["plan", "--population", "3000", "--clients-per-round", "100", "--rounds", "96", "--delta", "1e-6"]


def run(*arguments):
    return invoke(*ARGUMENTS, *arguments, standalone_mode=False)


@pytest.fixture(scope="module")
def found():
    return json.loads(run("--epsilon", "4", "--json", "--dimension", "1000").stdout)


def test_participation_is_what_the_population_allows(found):
    assert (found["min_sep"], found["max_participations"]) == (30, 4)
    stack_overflow = Deployment.of(population=342_477, clients_per_round=1000, rounds=2052, delta=1e-6)
    assert stack_overflow.setting.participation == tff_mf.MinSep(min_sep=342, max_participations=6)
    once = Deployment.of(population=10_000, clients_per_round=100, rounds=100, delta=1e-6)
    assert once.setting.participation == tff_mf.SingleParticipation()


def test_every_mechanism_is_there_and_keeps_epsilon(found):
    names = [row["name"] for row in found["mechanisms"]]
    assert sorted(names) == sorted(
        [
            "identity",
            "blt",
            "banded",
            "banded, fitted",
            "banded-toeplitz",
            "banded-inverse",
            "dense",
            "scaled-blt",
            "scaled-inverse",
            "tree-full",
            "tree-online",
            "tree-vanilla",
        ]
    )
    for row in found["mechanisms"]:
        assert 4 - 1e-6 < row["epsilon"] <= 4
        assert row["memory_bytes"] == 4000 * row["memory_rows"]
        assert row["rms_loss"] <= row["max_loss"]
    losses = [row["rms_loss"] for row in found["mechanisms"]]
    assert losses == sorted(losses)


def test_the_frontier_has_what_no_smaller_memory_reaches(found):
    rows = {row["name"]: row for row in found["mechanisms"] if "rms_loss" in row}
    for point in found["frontier"]:
        own = rows[point["name"]]
        assert point.items() <= own.items()
        smaller = [row for row in rows.values() if row["memory_rows"] <= own["memory_rows"] and row["name"] != "dense"]
        assert own["rms_loss"] == min(row["rms_loss"] for row in smaller)
    assert 0 < found["least_loss"] <= min(row["rms_loss"] for row in rows.values())


def test_figures_are_those_of_the_package(found):
    schema = tff_mf.MinSep(min_sep=30, max_participations=4)
    row = next(row for row in found["mechanisms"] if row["name"] == "tree-full")
    tree = tff_mf.Tree(96)
    sigma = tff_mf.calibrate_noise_multiplier(tree, 96, schema, epsilon=4, delta=1e-6)
    assert row["noise_multiplier"] == sigma
    assert row["rms_loss"] == pytest.approx(tff_mf.rms_loss(tree, 96, schema))
    assert row["zcdp_rho"] == tff_mf.zcdp_rho(tree, 96, schema, noise_multiplier=sigma)


def test_wrong_estimates_cost_what_they_cost(found):
    rows = {row["name"]: row for row in found["mechanisms"]}
    identity = rows["identity"]
    half = tff_mf.MinSep(min_sep=15, max_participations=7)
    exact = tff_mf.epsilon(tff_mf.Identity(), 96, half, noise_multiplier=identity["noise_multiplier"], delta=1e-6)
    assert identity["epsilon_if_wrong"]["half_min_sep"] == exact > 4
    assert identity["epsilon_if_wrong"]["twice_min_sep"] < 4
    for name in ("tree-full", "banded", "dense"):
        assert rows[name]["epsilon_if_wrong"]["half_as_many_rounds_again"] is None
    assert rows["blt"]["epsilon_if_wrong"]["half_as_many_rounds_again"] > 4


def test_fitted_norms_are_a_row_of_their_own_and_not_recommended(found):
    rows = {row["name"]: row for row in found["mechanisms"]}
    fitted, unit, scaled = rows.pop("banded, fitted"), rows["banded"], rows.pop("scaled-blt")
    without_memory = rows.pop("scaled-inverse")
    assert fitted["rms_loss"] < min(row["rms_loss"] for row in rows.values())
    assert scaled["rms_loss"] < rows["blt"]["rms_loss"]
    assert without_memory["rms_loss"] < rows["banded-inverse"]["rms_loss"]
    assert without_memory["memory_rows"] == 0
    assert "never recommends" in scaled["note"]
    assert "never recommends" in without_memory["note"]
    assert fitted["max_loss"] > unit["max_loss"]
    assert "--set", "unit_norms=false" in fitted["note"]
    assert {row["note"] for row in rows.values()} == {""}
    assert found["recommended"] in rows
    once = Deployment.of(population=3000, clients_per_round=10, rounds=96, delta=1e-6)
    assert "banded, fitted" not in {option.name for option in compared(once, epsilon=4.0)}


def test_the_recommendation_is_good_and_can_go_on(found):
    rows = {row["name"]: row for row in found["mechanisms"]}
    chosen = rows[found["recommended"]]
    assert chosen["rms_loss"] <= 1.1 * min(row["rms_loss"] for row in rows.values() if not row["note"])
    assert None not in chosen["rms_loss_if_wrong"].values()


def option(name, loss, worst, rows):
    figures = {"rms_loss": loss, "memory_rows": rows}
    return options.Option(
        name=name, mechanism=tff_mf.Identity(), figures=figures, loss_if_wrong={"a": loss, "b": worst}
    )


def test_a_little_loss_is_worth_much_memory():
    found = [option("large", 8.0, 12.0, 4999), option("small", 8.3, 12.5, 4), option("poor", 9.5, 12.0, 0)]
    chosen, why = options.recommend(found)
    assert chosen.name == "small"
    assert "large 4999" in why


def test_what_cannot_go_on_is_not_recommended_unless_nothing_can():
    stuck, free = option("stuck", 8.0, math.inf, 0), option("free", 8.5, 14.0, 9)
    chosen, why = options.recommend([stuck, free])
    assert chosen.name == "free"
    assert "which stuck cannot" in why
    assert options.recommend([stuck])[0].name == "stuck"


def test_a_dense_matrix_is_not_recommended_for_the_rows_that_it_draws_again():
    dense, rows = option("dense", 8.0, 12.0, 0), option("tree-full", 8.1, 12.0, 11)
    assert options.recommend([dense, rows])[0].name == "tree-full"
    assert options.recommend([dense])[0].name == "dense"


def test_copies_are_the_rows_of_the_streams(found):
    rows = {row["name"]: row["memory_rows"] for row in found["mechanisms"] if not row["note"]}
    # 64 rounds of 96 are the largest block of a tree; the rows of a dense matrix are drawn again.
    expected = {"tree-full": 6, "tree-online": 6, "tree-vanilla": 6, "dense": 0, "blt": 4, "identity": 0}
    assert {name: rows[name] for name in expected} == expected


def test_a_limit_of_one_mechanism_is_noted_in_its_row(monkeypatch):
    searches, names = options._searches, ("tree-full", "identity")
    monkeypatch.setattr(options, "_searches", lambda *given: [each for each in searches(*given) if each[0] in names])
    deployment = Deployment.of(population=10**8, clients_per_round=1000, rounds=17_000, delta=1e-7)
    found = {each.name: each for each in compared(deployment, noise_multiplier=5.0)}
    assert "16,384" in found["tree-full"].note
    assert found["identity"].mechanism is not None


def test_the_recommendation_does_not_depend_on_the_scale_of_c():
    deployment = Deployment.of(population=3000, clients_per_round=100, rounds=64, delta=1e-6)
    by_epsilon = options.recommend(compared(deployment, epsilon=3.0))[0].name
    assert options.recommend(compared(deployment, noise_multiplier=2.0))[0].name == by_epsilon


def test_a_table_for_people_rounds_epsilon_up():
    shown = run("--noise-multiplier", "3")
    row = next(line for line in shown.stdout.splitlines() if line.startswith("identity"))
    schema = tff_mf.MinSep(min_sep=30, max_participations=4)
    exact = tff_mf.epsilon(tff_mf.Identity(), 96, schema, noise_multiplier=3.0, delta=1e-6)
    assert 0 <= float(row.split()[3]) - exact <= 1e-3
    assert "∞" in shown.stdout
    assert "= N^-1.1" not in shown.stdout
    assert ": ε ≤ " in shown.stdout
    shown = run("--epsilon", "4").stdout.splitlines()
    sigma = float(next(line for line in shown if line.startswith("identity")).split()[3])
    assert tff_mf.epsilon(tff_mf.Identity(), 96, schema, noise_multiplier=sigma, delta=1e-6) <= 4


def test_long_searches_wait_until_asked_for():
    deployment = Deployment.of(population=342_477, clients_per_round=1000, rounds=2052, delta=1e-6)
    found = {option.name: option for option in compared(deployment, epsilon=8.0)}
    assert "--thorough" in found["banded"].note
    assert "--thorough" in found["dense"].note
    assert found["tree-full"].figures["rms_loss"] == pytest.approx(12.4715, rel=1e-4)
    assert math.isinf(found["tree-full"].if_wrong["half_as_many_rounds_again"])


def test_a_saved_plan_is_the_recommended_one_with_what_its_grid_costs(tmp_path):
    for number, (more, grid) in enumerate(((["--dimension", "1000"], True), (["--grid", "none"], False))):
        folder = tmp_path / str(number)
        found = json.loads(run("--epsilon", "4", *more, "--out", str(folder), "--json").stdout)
        plan = tff_mf.Plan.load(folder)
        chosen = next(each for each in found["mechanisms"] if each["name"] == found["recommended"])
        assert plan.epsilon <= 4
        assert (plan.grid is not None) == grid
        assert plan.noise_multiplier >= chosen["noise_multiplier"]
        assert (plan.rounds, plan.clients_per_round, plan.delta) == (96, 100, 1e-6)
        assert plan.participation == tff_mf.MinSep(min_sep=30, max_participations=4)
