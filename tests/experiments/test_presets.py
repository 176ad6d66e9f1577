"""Presets are whole, sourced and buildable; what is laid over them wins; what is unknown is named."""

import dataclasses
import math

import msgspec
import numpy as np
import pytest

import tff_mf
from tff_mf.experiments import compare
from tff_mf.experiments.central_training import training as central
from tff_mf.experiments.output import typed
from tff_mf.experiments.runs import layers, names
from tff_mf.experiments.runs.amplification import own
from tff_mf.experiments.runs.layers import Layer
from tff_mf.experiments.runs.settings import RunSettings
from tff_mf.experiments.sampling.settings import SAMPLINGS
from tff_mf.experiments.training.datasets import sqlite
from tff_mf.planning import by_name

from . import test_command_line
from .shared import drawn, result_of


def resolved(preset=None, config=None, **flags):
    return layers.resolve(preset, config, flags)[1]


# Presets of each command, and how their values become settings.
PRESETS = {
    "train": (layers.PRESETS, layers.settings),
    "train-central": (central.PRESETS, lambda layer: typed.convert(layer.values, central.CentralSettings)),
}


def presets():
    for command, (folder, settings) in PRESETS.items():
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
    for row in preset.rows:
        # The row of digits for any ε comes after those for the ε of the study.
        flags = {"epsilon": 3.0} | dict(row.when) if preset.name == "digits" else row.when
        reached = preset.over(Layer.of(flags, "flag"))
        assert preset.row(reached.values) is row
        assert {**reached.values, **row.run} == reached.values
        settings(reached).check()


@pytest.mark.parametrize("name", layers.PRESETS.names())
def test_the_schema_of_every_preset_fits_its_rounds(name):
    found = layers.settings(layers.PRESETS.load(name).layer)
    assert found.participation().check(found.rounds) == found.rounds


def test_presets_have_what_their_papers_say():
    banded = layers.settings(resolved("choquette2023-banded"))
    assert (banded.rounds, banded.cohort, banded.clients_per_round) == (2052, 1000, 100)
    assert (banded.min_sep, banded.bands, banded.max_participations) == (342, 342, 6)
    assert round(banded.server_warmup * banded.rounds) in (308, 309)
    assert round(banded.server_cooldown * banded.rounds) == 513
    blt = layers.settings(resolved("mcmahan2024-blt"))
    assert (blt.mechanism, blt.bands, blt.rounds, blt.server_momentum) == ("blt", None, 2052, 0.95)
    kairouz = layers.settings(resolved("kairouz2021-dp-ftrlm"))
    assert (kairouz.rounds, kairouz.clients_per_round, kairouz.sampling) == (1600, 100, "single")
    denisov = layers.settings(resolved("denisov2022-momentum-rates"))
    assert (denisov.rounds, denisov.workload) == (2048, "momentum-with-rates")
    for each in (banded, blt, kairouz, denisov):
        measured = (each.validation_split, each.evaluation_examples, each.test_examples)
        assert measured == ("test", 10_000, "all")


@pytest.mark.parametrize("name", ["choquette2023-tree-full", "choquette2023-dense-fixed-epochs"])
def test_the_published_noise_is_what_the_presets_calibrate_at_sensitivity_1(name):
    """Any mechanism has it, since ε depends on the effective noise multiplier alone."""
    preset = layers.PRESETS.load(name)
    fixed = tff_mf.FixedEpoch(min_sep=342, max_participations=6)
    for row in preset.rows:
        in_floats, on_grid = (
            layers.settings(preset.over(Layer.of({**row.when, "grid": grid}, "flag"))) for grid in ("none", "auto")
        )
        assert (in_floats.participation() == fixed) == name.endswith("fixed-epochs")
        noise = in_floats.privacy_plan(tff_mf.Identity()).noise_multiplier
        published = row.published["noise_multiplier_at_sensitivity_1"]
        assert noise / math.sqrt(6) == pytest.approx(published, rel=1e-4)
        # What the integers cost.
        assert 1 < on_grid.privacy_plan(tff_mf.Identity()).noise_multiplier / noise < 1.01


def test_the_tree_of_kairouz_is_within_the_published_epsilon():
    for row in layers.PRESETS.load("kairouz2021-dp-ftrlm").rows:
        found = tff_mf.epsilon(
            tff_mf.Tree(1600, variant="online"),
            1600,
            tff_mf.SingleParticipation(),
            noise_multiplier=row.when["noise_multiplier"],
            delta=1e-6,
        )
        assert 0.8 * row.published["epsilon"] < found < row.published["epsilon"]


@pytest.mark.parametrize(("restart_every", "squared"), [(342, 44), (None, 63)], ids=["TR", "NTR"])
def test_tree_restarts_of_kairouz(restart_every, squared):
    """Figure 13 with restarts, and without: the command lines of docs/experiments.md."""
    given = {"clients_per_round": 1000, "sampling": "fixed-epochs", "min_sep": 342, "max_participations": 5}
    given |= {"noise_multiplier": 1.49, "server_optimizer": "dp-ftrl", "grid": "none"}
    given |= {"restart_every": restart_every} if restart_every else {}
    settings = layers.settings(layers.PRESETS.load("kairouz2021-dp-ftrlm").over(Layer.of(given, "flag")))
    assert settings.server_momentum == 0.9
    plan = settings.privacy_plan(tff_mf.Tree(restart_every or 1600, variant="online"))
    assert (1.49 * plan.guarantee.mu) ** 2 == pytest.approx(squared, rel=1e-9)


def test_the_amplified_presets_have_the_epsilon_of_table_5_in_a_deployment_that_samples_in_secret():
    """342,477 clients with cohorts of 1,000, which the run simulates; a row of bands stands for C = I."""
    for name in ("choquette2023-amplified-dp-sgd", "choquette2023-amplified-banded"):
        preset = layers.PRESETS.load(name)
        for row in preset.rows:
            settings = layers.settings(preset.over(Layer.of({**row.when, "grid": "none"}, "flag")))
            groups = settings.groups or 1
            # All that counts of C is how many bands it has, and that its columns have norm 1.
            column = np.full(groups, groups**-0.5)
            plan = settings.privacy_plan(tff_mf.BandedToeplitz(column=column))
            deployed = dataclasses.replace(plan, clients_per_round=plan.cohort)
            found = own(deployed, settings.sampling_settings(), 342_477)
            assert found.epsilon == pytest.approx(row.published["epsilon"], rel=0.01)
            assert plan.epsilon > 2 * found.epsilon


def test_no_epsilon_is_amplified_that_no_theorem_covers():
    settings = layers.settings(layers.PRESETS.load("choquette2023-amplified-banded").layer)
    schema = settings.participation()
    other = settings.privacy_plan(tff_mf.Tree(2052))
    fitting = settings.privacy_plan(tff_mf.BandedToeplitz(column=np.full(64, 0.125)))
    insecure = dataclasses.replace(fitting, insecure_seed=1)
    cyclic = drawn("cyclic-poisson", groups=64)
    assert schema.min_sep == 64
    deployed = dataclasses.replace(fitting, clients_per_round=fitting.cohort)
    assert own(deployed, cyclic, 342_477).epsilon < fitting.epsilon
    others = (drawn("min-sep"), drawn("cyclic-poisson", groups=32))
    for plan, sampling in ((other, cyclic), (insecure, cyclic), *((fitting, each) for each in others)):
        with pytest.raises(tff_mf.InputError):
            own(dataclasses.replace(plan, clients_per_round=plan.cohort), sampling, 342_477)


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


def test_a_run_is_repeated_by_the_file_written_beside_it(tmp_path, monkeypatch):
    """From any folder, and by a release with other defaults: it has every setting."""
    layer = layers.placed(resolved("pydoc-light", None, dataset='sqlite:a "file"\\', mechanism="a.safetensors"))
    layers.write(layers.settings(layer), tmp_path)
    monkeypatch.chdir(tmp_path)
    again = resolved(None, tmp_path / names.SETTINGS_TOML)
    assert layers.settings(again) == layers.settings(layer)
    given = {name for name, entry in layers.shown(again).items() if entry["value"] is not None}
    assert given == again.values.keys() == set(again.sources)
    assert layers.placed(again).values == again.values


@pytest.mark.parametrize("given", [{"mechanism": "blt"}, {"dataset": "pydoc"}, {"mechanism": "production:b100"}])
def test_names_are_no_files(given):
    assert layers.placed(Layer.of(given, "")).values == given


def test_a_run_is_resumed_with_what_it_began_with(tmp_path):
    layer = resolved("pydoc-light", None, epsilon=8.0)
    assert layers.begun(layer, tmp_path) == layer
    layers.write(layers.settings(layer), tmp_path)
    for given in ({}, {"epsilon": 8.0}, dict(layer.values)):
        found = layers.begun(Layer.of(given, ""), tmp_path)
        assert layers.settings(found) == layers.settings(layer)
    for given in ({"epsilon": 8.000000000000002}, {"noise_multiplier": 1.0}, {"bands": 3}):
        with pytest.raises(tff_mf.InputError, match=f"{next(iter(given))}=.* is not the setting"):
            layers.begun(Layer.of(given, ""), tmp_path)
    (tmp_path / names.SETTINGS_TOML).unlink()
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(tff_mf.InputError, match="lacks configuration"):
        layers.begun(layer, tmp_path)


def test_rates_of_one_mechanism_are_not_taken_for_another():
    assert resolved("choquette2023-banded").values["server_learning_rate"] == 1.0
    assert resolved("choquette2023-banded", mechanism="identity").values["server_learning_rate"] == "proposed"
    assert resolved("pydoc-light", mechanism="identity").values["server_learning_rate"] == 0.346


@pytest.mark.parametrize("name", by_name.WORKLOADS)
def test_a_mechanism_is_optimized_for_the_workload_of_the_server(name):
    schema = tff_mf.SingleParticipation()
    workload = by_name.workload(name, rounds=8, momentum=0.9, warmup=0.25, cooldown=0.25)
    best = by_name.build("dense", rounds=8, participation=schema, workload=workload)
    other = by_name.build("dense", rounds=8, participation=schema)
    assert tff_mf.rms_loss(best, 8, schema, workload) <= tff_mf.rms_loss(other, 8, schema, workload) + 1e-9


# What is shown of a preset by a command: settings with the source of each, and what the paper has.
SHOWN = {
    "train --preset choquette2023-banded --epsilon 2": (
        {"server_learning_rate": (0.5882, "table 4, Band MF"), "epsilon": (2.0, "flag")},
        {"test_accuracy": 23.19},
    ),
    "train-central --preset kairouz2021-cifar10 --noise-multiplier 27": (
        {"learning_rate": (0.02, "table 6b, DP-FTRLM, λ = 50"), "noise_multiplier": (27.0, "flag")},
        {"epsilon": 6.91},
    ),
}


@pytest.mark.parametrize("line", SHOWN)
def test_show_names_the_source_of_each_value(line):
    values, published = SHOWN[line]
    shown = result_of(*line.split(), "--show")
    assert {name: (shown["run"][name]["value"], shown["run"][name]["source"]) for name in values} == values
    assert published.items() <= shown["published"].items()


def configured(**changes):
    fields = {
        "rounds": 12,
        "clients_per_round": 2,
        "delta": 1e-6,
        "min_sep": 4,
        "max_participations": 3,
        "epsilon": 2.0,
    }
    return RunSettings(**{**fields, **changes})


@pytest.mark.parametrize("word", SAMPLINGS)
def test_the_schema_is_the_one_that_the_sampling_keeps(word):
    chosen = drawn(word, min_sep=4, max_participations=3, groups=4)
    given = configured(**{"min_sep": None, "max_participations": None, "sampling": word, **chosen.parameters})
    assert given.sampling_settings() == chosen
    schema = chosen.drawn_by(population=100, clients_per_round=2).schema(12)
    if word == "timer":
        # What it leads to is assumed: the log of a run shows whether it was so.
        schema = tff_mf.MinSep(min_sep=4, max_participations=3)
    assert given.participation() == schema


def test_another_sampling_takes_the_parameters_of_the_first_away():
    first = Layer.of({"sampling": "fixed-epochs", "min_sep": 4, "max_participations": 3, "epochs": 2}, "")
    for more, left in (
        ({"sampling": "spaced-epochs"}, {"min_sep": 4, "max_participations": 3, "epochs": 2}),
        ({"sampling": "b-min-sep"}, {"min_sep": 4, "epochs": 2}),
        ({"sampling": "balls-in-bins", "groups": 3}, {"groups": 3, "epochs": 2}),
        ({"sampling": "chance"}, {"min_sep": 4, "max_participations": 3, "epochs": 2}),
    ):
        assert dict(layers.laid([first, Layer.of(more, "")]).values) == {**left, **more}


def test_fixed_epochs_need_the_noise_of_table_5_and_min_sep_more():
    """At sensitivity 1, as the table has it; of the matrix that is made for fixed epochs."""
    fixed = configured(mechanism="dense", sampling="fixed-epochs", epsilon=1.0, grid="none")
    mechanism = fixed.build_mechanism()
    plan = fixed.privacy_plan(mechanism)
    at_one = plan.noise_multiplier / tff_mf.sensitivity(mechanism, 12, plan.participation)
    assert at_one == pytest.approx(4.22468, rel=1e-5)
    apart = msgspec.structs.replace(fixed, sampling="min-sep").privacy_plan(mechanism)
    assert apart.noise_multiplier > 1.05 * plan.noise_multiplier


def test_167_clients_a_round_are_one_epoch_of_stackoverflow():
    wide, narrow = (layers.settings(resolved(f"denisov2022-prefix-sum{end}")) for end in ("-167", ""))
    assert (wide.cohort, wide.clients_per_round, narrow.clients_per_round) == (167, 100, 100)
    assert 342_477 // wide.rounds == 167
    mechanism = tff_mf.Identity()
    plans = [each.privacy_plan(mechanism) for each in (wide, narrow)]
    assert plans[0].epsilon == plans[1].epsilon
    assert plans[0].noise_multiplier_as_run == pytest.approx(100 / 167 * plans[1].noise_multiplier_as_run)


def test_an_objective_is_that_of_the_search():
    schema = tff_mf.MinSep(min_sep=4, max_participations=3)
    for name in ("blt", "banded-toeplitz"):
        found = {
            objective: configured(mechanism=name, objective=objective).build_mechanism() for objective in ("rms", "max")
        }
        assert found["rms"] != found["max"]
        assert tff_mf.rms_loss(found["rms"], 12, schema) < tff_mf.rms_loss(found["max"], 12, schema)
        assert tff_mf.max_loss(found["max"], 12, schema) < tff_mf.max_loss(found["rms"], 12, schema)
    assert (
        configured(mechanism="blt").build_mechanism() == configured(mechanism="blt", objective="max").build_mechanism()
    )
    configured(mechanism="banded", objective="rms").check()


def test_norms_are_fitted_where_the_mechanism_has_them(tmp_path):
    schema = tff_mf.MinSep(min_sep=4, max_participations=3)
    fitted, unit = (configured(mechanism="banded", unit_norms=each).build_mechanism() for each in (False, None))
    assert configured(mechanism="banded", unit_norms=True).build_mechanism() == unit
    assert tff_mf.rms_loss(fitted, 12, schema) < tff_mf.rms_loss(unit, 12, schema)
    layer = resolved("choquette2023-banded", None, unit_norms=False)
    layers.write(layers.settings(layer), tmp_path)
    again = resolved(None, tmp_path / names.SETTINGS_TOML)
    assert again.values["unit_norms"] is False
    assert "unit_norms" not in layers.laid([layer, Layer.of({"mechanism": "blt"}, "")]).values


def test_a_comparison_keeps_mechanisms_of_other_settings_apart():
    settings = [{}, {"unit_norms": False}, {"sampling": "fixed-epochs"}, {"objective": "rms"}]
    made = {compare.artifact_name(configured(mechanism="banded", **each)) for each in settings}
    assert len(made) == len(settings)


def test_a_preset_on_data_of_ones_own_is_refused_once_for_all_that_is_wrong(small_data, tmp_path):
    """Before a mechanism is optimized, with the numbers that were compared."""
    given = ["--preset", "mcmahan2024-blt", "--delta", "1e-3", "--noise-multiplier", "0", "--bands", "3"]
    files = ["--dataset", f"sqlite:{small_data}", "--out", tmp_path / "run"]
    done = test_command_line.run("train", *given, *files)
    clients = sqlite.number_of_clients(small_data, "train")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    for number, text in enumerate(
        [
            "noise_multiplier=0.0: NO ε CAN BE STATED, there is no noise",
            f"needs 34200 clients, but the population has {clients}",
            f"it must be below 1/{10 * clients} ({clients:,} clients × 1,000/100 = {10 * clients:,})",
            "evaluation_examples=10000 leaves no test sentences",
            "bands=3 does not go with mechanism='blt'",
        ],
        start=1,
    ):
        assert text in done.stderr.split(f"({number}) ")[1], done.stderr
    assert not (tmp_path / "run").exists()


def test_all_settings_that_are_missing_or_go_together_badly_are_named_at_once():
    with pytest.raises(tff_mf.InputError, match="delta=…, rounds=…, clients_per_round=… missing"):
        layers.settings(Layer.of({"epsilon": 1.0}, ""))
    wrong = {"algorithm": "fed-sgd", "client_epochs": 2, "server_optimizer": "adagrad", "units": 10**6}
    with pytest.raises(tff_mf.InputError) as refused:
        layers.settings(resolved("pydoc-light", **wrong))
    for text in ("client_epochs=2", "server_momentum=", "units=1000000", "(3)"):
        assert text in str(refused.value)
