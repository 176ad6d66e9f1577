"""A bundle on a grid: its statement, its graphs at the limits, and devices that send other integers."""

import json
import types

import numpy as np
import pytest
import safetensors.numpy

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.runs.settings import dimension_of
from tff_mf.experiments.training import deployment

GRID = tff_mf.Grid(bits=14, max_clients=1000)
ROUNDS = 4


@pytest.fixture(scope="module")
def on_grid(bundle, tmp_path_factory):
    """A deployment of a few rounds with a BLT, exported with `grid="auto"`, and what the export returned."""
    root = tmp_path_factory.mktemp("grid")
    changes = {"rounds": ROUNDS, "min_sep": 2, "max_participations": 2, "mechanism": '"blt"'}
    lines = bundle.config.read_text().splitlines()
    lines = [line for line in lines if line.split(" ")[0] not in changes]
    config = root / "settings.toml"
    config.write_text("\n".join([*lines, *(f"{name} = {value}" for name, value in changes.items())]) + "\n")
    source = deployment.read_source(config, grid="auto")
    made = deployment.write(source, root / "bundle", round_minutes=15.0, population=80)
    return types.SimpleNamespace(folder=root / "bundle", config=config, made=made)


def test_the_report_states_the_grid_and_its_charge(on_grid):
    made = on_grid.made
    assert reports.read_record(on_grid.folder).grid == GRID
    assert {spec["dtype"] for spec in made.graphs["stages"]["work"]["outputs"].values()} == {"int32"}
    assert made.graphs["lite"]["path"] == "device/work.tflite"
    planned = json.loads((on_grid.folder / "planned.json").read_text())
    dimension = dimension_of("conv", vocab_size=60, embedding_size=4, units=4)
    charged, plain = (
        tff_mf.guarantee(
            tff_mf.load(on_grid.folder / "mechanism.safetensors"),
            ROUNDS,
            tff_mf.MinSep(min_sep=2, max_participations=2),
            noise_multiplier=8.0,
            **more,
        ).epsilon(1e-6)
        for more in ({"grid": GRID, "dimension": dimension}, {})
    )
    assert planned["claim"]["epsilon_as_run"] == pytest.approx(charged, rel=1e-12)
    assert charged > plain * (1 + 1e-9)
    policy = json.loads((on_grid.folder / "device-policy.json").read_text())
    assert policy["guarantee"]["by_devices_alone"]["epsilon"] == pytest.approx(charged, rel=1e-12)


def test_the_option_wins_over_the_source_s_own_grid(on_grid, tmp_path):
    config = tmp_path / "settings.toml"
    config.write_text(on_grid.config.read_text().replace('grid = "none"', "grid = 16"))
    assert deployment.read_source(config).plan.grid == tff_mf.Grid(bits=16, max_clients=1000)
    assert deployment.read_source(config, grid="none").plan.grid is None


@pytest.fixture(scope="module")
def stages(on_grid):
    """The stages of the bundle, as functions from tensors to tensors by name."""
    import tensorflow as tf

    described = on_grid.made.graphs["stages"]
    loaded = {name: tf.saved_model.load(str(on_grid.folder / stage["path"])) for name, stage in described.items()}

    def run(name, *given):
        tensors = {key: value for each in given for key, value in each.items()}
        inputs = {key: tf.convert_to_tensor(tensors[key]) for key in described[name]["inputs"]}
        found = loaded[name].signatures["serving_default"](**inputs)
        return {key: np.asarray(found[key]) for key in described[name]["outputs"]}

    return run


@pytest.fixture(scope="module")
def begun(on_grid, stages):
    """The state before the first round, and the update of an honest device."""
    state = stages("initialize", safetensors.numpy.load_file(on_grid.folder / "server" / "initial.safetensors"))
    words = np.ones((2, 20), np.int64)
    return state, stages("work", {"examples__0": words, "examples__1": words}, stages("prepare", state))


def _square(values):
    """Exact, of integers."""
    return sum(int(value) ** 2 for each in values for value in np.ravel(each))


def test_a_device_sends_integers_within_the_bound_and_counts_as_one(begun):
    *records, clients = begun[1].values()
    assert 0 < _square(records) <= 4**14
    assert clients == 1


def test_no_hostile_device_exceeds_the_bound_or_counts_as_many(stages, begun):
    honest = begun[1]
    *records, count = honest
    largest = np.iinfo(np.int32).max
    for update in (
        {name: np.full_like(value, largest) for name, value in honest.items()},
        {name: np.full_like(value, -largest) for name, value in honest.items()},
        {**honest, count: np.array(10**6, np.int32)},
        {**honest, count: np.array(-1, np.int32)},
    ):
        total = stages("accumulate", stages("zero"), update)
        *added, clients = (value for name, value in total.items() if "__total__" in name)
        assert _square(added) <= 4**14
        assert clients == 1
    scaled = stages("accumulate", stages("zero"), {name: np.full_like(honest[name], largest) for name in honest})
    assert _square(value for name, value in scaled.items() if "__total__0__" in name) > 0.99 * 4**14
    assert len(records) == len(added)


@pytest.mark.parametrize(("more", "released"), [(0, True), (1, False)])
def test_a_sum_of_more_clients_than_there_is_room_for_is_not_released(stages, begun, more, released):
    import tensorflow as tf

    report = stages("report", stages("zero"))
    *_, count = report
    report[count] = np.array(GRID.max_clients + more, report[count].dtype)
    if released:
        assert stages("update", begun[0], report)
    else:
        with pytest.raises(tf.errors.InvalidArgumentError):
            stages("update", begun[0], report)
