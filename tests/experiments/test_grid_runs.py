"""Runs on a grid, which is the default: their ε and their files."""

import math
import pathlib
import shutil

import numpy as np
import pytest
import run_folders
import safetensors.numpy

import tff_mf
from tff_mf.accounting import grid_charge
from tff_mf.experiments import reports
from tff_mf.experiments.runs import names, statements
from tff_mf.experiments.runs.settings import RunSettings, grid_of
from tff_mf.experiments.sampling import SamplingSettings
from tff_mf.mechanisms import on_grid
from tff_mf.mechanisms.grid import check_rows
from tff_mf.planning import by_name

from .shared import checked, critical

SCHEMA = tff_mf.MinSep(min_sep=2, max_participations=4)
GRID = tff_mf.Grid(bits=20, max_clients=1000)
MECHANISM = tff_mf.Tree(9, variant="online")
SETTING = {"rounds": 9, "sampling": SCHEMA, "delta": 1e-6, "clients_per_round": 3, "cohort": 30}


def plan(**changes):
    given = {"mechanism": MECHANISM, "grid": GRID, "dimension": 10**6}
    return tff_mf.plan(**{**SETTING, **given, **changes})


def test_noise_that_does_not_fit_the_grid_is_refused_before_a_run():
    for sigma in (1e-9, 1e9):
        with pytest.raises(tff_mf.InputError, match="does not fit"):
            plan(noise_multiplier=sigma)
    assert plan(noise_multiplier=1e-3, clients_per_round=1, cohort=10**7).epsilon_as_run == math.inf


def test_the_grid_of_a_setting():
    assert grid_of("none", dimension=100, cohort=10) is None
    assert grid_of("auto", dimension=4_050_748, cohort=6500) == tff_mf.Grid(bits=16, max_clients=13_000)
    assert grid_of(20, dimension=1, cohort=3) == GRID
    for wrong in ("fine", True, 7, 2.0):
        with pytest.raises(tff_mf.InputError, match=r"grid|bits"):
            grid_of(wrong, dimension=100, cohort=10)
    for grid in ("auto", 16):
        with pytest.raises(tff_mf.InputError, match="clients_per_round, or cohort=9223372036854775807"):
            grid_of(grid, dimension=100, cohort=2**63 - 1)
    for grid, dimension in ((GRID, None), (None, 5)):
        with pytest.raises(tff_mf.InputError, match="together"):
            plan(noise_multiplier=1.0, grid=grid, dimension=dimension)


def test_what_is_amplified_on_a_grid_includes_its_charge():
    more = {"mechanism": tff_mf.Identity(), "sampling": tff_mf.MinSep(min_sep=1, max_participations=9), "cohort": None}
    kind = SamplingSettings(sampling="poisson")
    floats = statements.amplified_level(plan(noise_multiplier=1.0, grid=None, dimension=None, **more), kind, 300)
    found = statements.amplified_level(plan(noise_multiplier=1.0, **more), kind, 300)
    assert floats.epsilon < found.epsilon < 1.05 * floats.epsilon


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run on a grid, with all of its files."""
    folder = tmp_path_factory.mktemp("grid") / "run"
    privacy = run_folders.plan(mechanism=MECHANISM, grid=GRID, dimension=1000)
    run_folders.start(folder, privacy=privacy)
    reports.write(folder, realised=False)
    run_folders.run(folder)
    run_folders.summarise(folder)
    return folder, privacy, reports.write(folder, realised=True)


@pytest.fixture
def copy(whole, tmp_path):
    return pathlib.Path(shutil.copytree(whole[0], tmp_path / "copy"))


def test_a_report_states_the_grid_and_what_it_costs(whole):
    folder, privacy, report = whole
    assert reports.read_record(folder).plan == privacy
    # The charge is in every figure.
    charge = grid_charge.charge(privacy.mechanism, 9, 3, noise_multiplier=5.0, grid=GRID, dimension=1000)
    assert report.claim.tail == charge.tail > 0
    assert report.planned.mu == privacy.guarantee.mu > run_folders.plan(mechanism=MECHANISM).guarantee.mu
    assert "finite precision" in checked(report)
    assert critical(folder) == []


@pytest.mark.parametrize("change", [{"grid": {"bits": 10, "max_clients": 6}}, {"dimension": 10**9}])
def test_a_grid_that_was_changed_is_found_out(copy, change):
    run_folders.change_json(copy / names.PLAN, lambda found: found.update(change))
    assert {each.split(":")[0] for each in critical(copy)} >= {"plan", "report"}


def test_a_model_with_more_parameters_than_were_accounted_for_has_no_epsilon(copy):
    model = safetensors.numpy.save({"0": np.zeros(900), "1": np.zeros([2, 51])})
    (copy / names.MODEL).write_bytes(model)
    run_folders.summarise(copy)
    (copy / names.MODEL).write_bytes(model)
    assert any(each.startswith("finite precision: ") for each in critical(copy))


def test_parameters_that_nobody_can_count_are_assumed(copy):
    """Of a pipeline with a guard, which may leave no model: what the grid costs is by the pipeline's own number."""
    (copy / names.MODEL).unlink()
    report = reports.build(copy, realised=True)
    assert "finite precision" not in checked(report)
    assert any("at most 1000 parameters" in text for text in report.warnings)


GIVEN = {"rounds": 8, "clients_per_round": 2, "delta": 1e-6, "min_sep": 4, "max_participations": 2}


@pytest.mark.parametrize("name", [*by_name.names(), "production:b100"])
def test_every_mechanism_of_train_has_a_guarantee_and_noise_on_a_grid(name):
    asked = RunSettings(**GIVEN, epsilon=8.0, mechanism=name, grid="auto", vocab_size=50, embedding_size=2, units=2)
    found = asked.privacy_plan(asked.build_mechanism())
    # An LSTM of 2 units for 50 words and four special ones, of width 2.
    assert found.dimension == 54 * 2 + 4 * (2 + 2 + 1) * 2 + (2 + 1) * 2 + (2 + 1) * 54
    assert found.epsilon <= 8.0
    on_grid(found.mechanism, deviation=found.noise_multiplier * 2.0**found.grid.bits)


def test_a_dense_matrix_of_too_many_rows_is_refused_before_its_search():
    asked = {**GIVEN, "rounds": 2052, "mechanism": "dense", "noise_multiplier": 1.0}
    with pytest.raises(tff_mf.InputError, match="settings 'none'"):
        RunSettings(**asked).check()
    RunSettings(**asked, grid="none").check()
    check_rows("dense", bands=8, dimension=4_050_748)
