"""The grid is the default."""

import json

import pytest
from click.testing import CliRunner

import tff_mf
from tff_mf import grids
from tff_mf.experiments import cli
from tff_mf.experiments.comparison.demo import DemoSettings
from tff_mf.experiments.configuration import presets
from tff_mf.experiments.configuration.run import RunConfiguration

GIVEN = {"rounds": 8, "clients_per_round": 2, "delta": 1e-6, "min_sep": 4, "max_participations": 2}
SPEC = """
[run]
rounds = 4
clients_per_round = 2
min_sep = 2
max_participations = 2
delta = 1e-6
noise_multiplier = 1.0

[[grid]]
mechanism = ["identity", "tree-online"]
"""


def call(*arguments):
    done = CliRunner().invoke(cli.cli, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_auto_is_the_default():
    assert RunConfiguration(**GIVEN).grid == DemoSettings().grid == "auto"
    small = RunConfiguration(**GIVEN, noise_multiplier=1.0, mechanism="identity").privacy_plan(tff_mf.Identity())
    assert small.grid == tff_mf.Grid(bits=16, max_clients=1000)


def test_a_dense_matrix_of_too_many_rows_is_refused_before_its_search():
    asked = {**GIVEN, "rounds": 2052, "mechanism": "dense", "noise_multiplier": 1.0}
    with pytest.raises(tff_mf.InputError, match="--grid none"):
        RunConfiguration(**asked).check()
    RunConfiguration(**asked, grid="none").check()
    grids.check_rows("dense", bands=8, dimension=4_050_748)


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_is_on_a_grid_unless_its_matrix_is_dense(name):
    values = presets.load(name).layer.values
    assert values.get("grid", "auto") == ("none" if values["mechanism"] == "dense" else "auto")


def test_account_and_calibrate_include_what_a_grid_costs():
    setting = ("--rounds", "16", "--min-sep", "4", "--max-participations", "4", "--delta", "1e-6")
    plain, charged = (
        call("account", "identity", "--noise-multiplier", "2", *setting, *more)
        for more in ((), ("--dimension", "4050748"))
    )
    assert charged["mu"] == pytest.approx(plain["mu"] + 2 * charged["grid_mu"], rel=1e-9)
    assert charged["grid_bits"] == 16
    assert "grid_mu" not in plain
    found = call("calibrate", "identity", "--epsilon", "2", *setting, "--grid", "20", "--dimension", "4050748")
    assert found["grid_bits"] == 20
    assert 1.99 < found["epsilon"] <= 2
    refused = CliRunner().invoke(cli.cli, ["account", "identity", "--noise-multiplier", "2", *setting, "--grid", "16"])
    assert "--dimension is missing" in refused.output


def test_plan_states_the_grid_and_its_charge():
    given = ("plan", "--population", "600", "--clients-per-round", "100", "--rounds", "8", "--delta", "1e-6")
    found = call(*given, "--epsilon", "2", "--dimension", "1000")["numbers"]
    assert found["grid"] == {"bits": 14, "max_clients": 1000}
    assert 2 < found["epsilon"] < 2.01
    assert call(*given, "--epsilon", "2", "--grid", "none")["numbers"]["grid"] is None


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ([], "all other figures leave it out"),
        (["--sampling", "poisson"], "all other figures without amplification leave it out"),
        (["--sampling", "poisson"], "In the table below, what integers of 14 bits cost is included"),
        (["--sampling", "poisson", "--grid", "none"], "what the integers of a grid cost is left out"),
    ],
)
def test_plan_says_which_figures_leave_the_grid_out(sampling, said):
    given = ["plan", "--population", "600", "--clients-per-round", "100", "--rounds", "8", "--delta", "1e-6"]
    done = CliRunner().invoke(cli.cli, [*given, "--noise-multiplier", "2", "--dimension", "1000", *sampling])
    assert done.exit_code == 0, done.output
    assert said in " ".join(done.output.split())
