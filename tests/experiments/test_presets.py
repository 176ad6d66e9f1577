"""Presets are whole, sourced and buildable; what is laid over them wins; what is unknown is named."""

import dataclasses

import numpy as np
import pytest

import tff_mf
from tff_mf.experiments import central
from tff_mf.experiments.output import typed
from tff_mf.experiments.runs import names
from tff_mf.experiments.runs.settings import PRESETS, Layer, RunSettings, laid, resolve
from tff_mf.experiments.runs.statements import amplified_level


def resolved(preset=None, config=None, **flags):
    return resolve(preset, config, flags)[1]


# Presets of each command, and how their values become settings.
OF_COMMANDS = {
    "train": (PRESETS, Layer.settings),
    "train-central": (central.PRESETS, lambda layer: typed.convert(layer.values, central.CentralSettings)),
}


def presets():
    for command, (folder, settings) in OF_COMMANDS.items():
        for name in folder.names():
            yield pytest.param(folder.load(name), settings, id=f"{command} {name}")


@pytest.mark.parametrize(("preset", "settings"), presets())
def test_every_preset_is_whole_and_every_value_has_a_source(preset, settings):
    assert preset.title
    assert preset.paper
    assert preset.layer.values.keys() == preset.layer.sources.keys()
    assert all(preset.layer.sources.values())
    found = settings(preset.over(Layer.of({}, "")))
    found.check()
    assert (found.epsilon is None) != (found.noise_multiplier is None)


@pytest.mark.parametrize(("preset", "settings"), presets())
def test_every_row_of_a_table_can_be_reached(preset, settings):
    for row in preset.row:
        # The row of digits for any ε comes after those for the ε of the study.
        flags = {"epsilon": 3.0} | dict(row.when) if preset.name == "digits" else row.when
        reached = preset.over(Layer.of(flags, "flag"))
        assert preset.row_of(reached.values) is row
        assert {**reached.values, **row.run} == reached.values
        settings(reached).check()


@pytest.mark.parametrize("name", PRESETS.names())
def test_the_schema_of_every_preset_fits_its_rounds(name):
    found = PRESETS.load(name).layer.settings()
    assert found.participation().check(found.rounds) == found.rounds


def test_the_amplified_presets_have_the_epsilon_of_table_5_in_a_deployment_that_samples_in_secret():
    """342,477 clients with cohorts of 1,000, which the run simulates; a row of bands stands for C = I."""
    for name in ("choquette2023-amplified-dp-sgd", "choquette2023-amplified-banded"):
        preset = PRESETS.load(name)
        for row in preset.row:
            settings = preset.over(Layer.of({**row.when, "grid": "none"}, "flag")).settings()
            groups = settings.groups or 1
            # All that counts of C is how many bands it has, and that its columns have norm 1.
            column = np.full(groups, groups**-0.5)
            plan = settings.privacy_plan(tff_mf.BandedToeplitz(column=column))
            deployed = dataclasses.replace(plan, clients_per_round=plan.cohort)
            found = amplified_level(deployed, settings.sampling_settings(), 342_477)
            assert found.epsilon == pytest.approx(row.published["epsilon"], rel=0.01)
            assert plan.epsilon > 2 * found.epsilon


def test_flags_lie_over_the_file_and_the_file_over_the_preset(tmp_path):
    config = tmp_path / "run.toml"
    config.write_text('preset = "choquette2023-banded"\n[run]\nepsilon = 2.0\nclip_norm = 0.5\n')
    layer = resolved(None, config, clip_norm=0.25, seed=None)
    assert layer.values["clip_norm"] == 0.25
    assert layer.sources["clip_norm"] == "flag"
    assert layer.sources["epsilon"] == str(config)
    # The row of the paper's table for the file's ε.
    assert layer.values["server_learning_rate"] == 0.5882
    assert layer.values["rounds"] == 2052
    assert resolved("mcmahan2024-blt", config).values["mechanism"] == "blt"


def test_another_mechanism_or_noise_takes_the_options_of_the_first_away():
    values = resolved("choquette2023-banded", mechanism="blt", noise_multiplier=3.0).values
    assert "bands" not in values
    assert "epsilon" not in values
    assert "server_learning_rate" in values


def test_a_run_is_resumed_with_what_it_began_with(tmp_path):
    """From any folder, and by a release with other defaults: the file beside it has every setting."""
    layer = resolved("pydoc-light", None, epsilon=8.0, dataset='sqlite:a "file"\\', mechanism="a.safetensors").placed()
    assert layer.resumed(tmp_path, RunSettings) == layer
    layer.settings().write(tmp_path)
    for given in ({}, {"epsilon": 8.0}, dict(layer.values)):
        found = Layer.of(given, "").resumed(tmp_path, RunSettings)
        assert found.settings() == layer.settings()
    for given in ({"epsilon": 8.000000000000002}, {"noise_multiplier": 1.0}, {"bands": 3}):
        with pytest.raises(tff_mf.InputError, match=f"{next(iter(given))}=.* is not the setting"):
            Layer.of(given, "").resumed(tmp_path, RunSettings)
    with pytest.raises(tff_mf.InputError, match=r"holds no run of this command: .*'rounds' is not a known key"):
        Layer.of({}, "").resumed(tmp_path, central.CentralSettings)
    (tmp_path / names.SETTINGS_TOML).unlink()
    # Of a run, and of a plan that was saved, with which none began.
    for name in (names.RUN_JSON, names.PLAN):
        (tmp_path / name).write_text("{}")
        with pytest.raises(tff_mf.InputError, match="lacks configuration"):
            layer.resumed(tmp_path, RunSettings)
        (tmp_path / name).unlink()


def test_another_sampling_takes_the_parameters_of_the_first_away():
    first = Layer.of({"sampling": "fixed-epochs", "min_sep": 4, "max_participations": 3, "epochs": 2}, "")
    for more, left in (
        ({"sampling": "min-sep"}, {"min_sep": 4, "max_participations": 3, "epochs": 2}),
        ({"sampling": "b-min-sep"}, {"min_sep": 4, "epochs": 2}),
        ({"sampling": "balls-in-bins", "groups": 3}, {"groups": 3, "epochs": 2}),
        ({"sampling": "chance"}, {"min_sep": 4, "max_participations": 3, "epochs": 2}),
    ):
        assert dict(laid([first, Layer.of(more, "")]).values) == {**left, **more}
