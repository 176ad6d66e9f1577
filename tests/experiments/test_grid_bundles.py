"""A bundle on a grid: its statement, its graphs at the limits, its runner, and devices that send other integers."""

import io
import json
import shutil
import types

import msgspec
import numpy as np
import pytest
from runner_fleet import Fleet, loaded_runner
from tampering import listed

import tff_mf
from tff_mf.experiments import bundles, reports
from tff_mf.experiments.bundles import _device_file
from tff_mf.experiments.runs.derived import dimension_of
from tff_mf.problem import grids

GRID = tff_mf.Grid(bits=14, max_clients=1000)
ROUNDS = 4


@pytest.fixture(scope="module")
def on_grid(bundle, tmp_path_factory):
    """A deployment of a few rounds with a BLT, exported with `grid="auto"`, whose graphs this process builds itself."""
    from tff_mf.experiments.bundles import building

    root = tmp_path_factory.mktemp("grid")
    changes = {"rounds": ROUNDS, "min_sep": 2, "max_participations": 2, "mechanism": '"blt"'}
    lines = bundle.config.read_text().splitlines()
    lines = [line for line in lines if line.split(" ")[0] not in changes]
    config = root / "settings.toml"
    config.write_text("\n".join([*lines, *(f"{name} = {value}" for name, value in changes.items())]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        # A process of its own makes every byte the same wherever it is made, and takes ten seconds to start.
        patch.setattr(building, "graphs", lambda folder: building._built(folder, io.StringIO()))
        source = bundles.read_source(config, grid="auto")
        digest = building.export(source, root / "bundle", round_minutes=15.0, population=80)
    return types.SimpleNamespace(folder=root / "bundle", config=config, digest=digest)


@pytest.fixture
def copy(on_grid, tmp_path):
    shutil.copytree(on_grid.folder, tmp_path / "bundle")
    return tmp_path / "bundle"


def set_in(path, **changes):
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **changes}, indent=1, ensure_ascii=False) + "\n")


def stated(folder, **changes):
    """States another grid in `run.json`, and all that follows from it."""
    set_in(folder / "run.json", **changes)
    reports.write(folder, realised=False)
    _device_file.write_device_policy(folder)


def test_the_manifest_and_the_report_state_the_grid_and_its_charge(on_grid, bundle):
    manifest, _ = bundles.read_manifest(on_grid.folder)
    assert msgspec.to_builtins(manifest.grid) == {
        "bits": 14,
        "max_clients": 1000,
        "integers": "int32",
        "sampler": grids.sampler(),
    }
    assert {spec.dtype for spec in manifest.stages["work"].outputs.values()} == {"int32"}
    assert manifest.lite.path == "device/work.tflite"
    assert bundles.refusals(on_grid.folder) == []
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
    assert planned["grid"]["sampler"] == manifest.grid.sampler
    # Without a grid, the file has no entry.
    assert bundles.read_manifest(bundle.folder)[0].grid is None
    assert '"grid"' not in (bundle.folder / "manifest.json").read_text()


def test_the_option_wins_over_the_source_s_own_grid(on_grid, tmp_path):
    config = tmp_path / "settings.toml"
    config.write_text(on_grid.config.read_text().replace('grid = "none"', "grid = 16"))
    assert bundles.read_source(config).privacy.grid == tff_mf.Grid(bits=16, max_clients=1000)
    assert bundles.read_source(config, grid="none").privacy.grid is None


def _grid(**changes):
    return {**grids.description(GRID), **changes}


def _with_types(folder, dtype):
    """Gives devices' updates, or whatever has the name, another type in the manifest."""
    stages = json.loads((folder / "manifest.json").read_text())["stages"]
    for spec in stages["work"]["outputs"].values():
        spec["dtype"] = dtype
    listed(folder, stages=stages)


TAMPERED = {
    "no grid": (lambda f: listed(f, grid=None), "grid=None is not the grid of run.json"),
    "fewer bits": (lambda f: listed(f, grid=_grid(bits=13)), "grid.bits=13 is not the 14"),
    "more room": (lambda f: listed(f, grid=_grid(max_clients=2000)), "grid.max_clients=2000 is not the 1000"),
    "wider integers": (lambda f: listed(f, grid=_grid(integers="int64")), "grid.integers='int64' is not the"),
    "another sampler": (lambda f: listed(f, grid=_grid(sampler="audited")), "grid.sampler='audited' is not the"),
    "bits that are true": (lambda f: listed(f, grid=_grid(bits=True)), "bits=True must be a whole number"),
    "one key more": (lambda f: listed(f, grid=_grid(audited=1)), "'audited' is not a known key"),
    "one key less": (lambda f: listed(f, grid={"bits": 14}), "max_clients=… missing"),
    "wider updates": (lambda f: _with_types(f, "int64"), "update__0__0__0 is int64, unlike the int32"),
    "updates of floats": (lambda f: _with_types(f, "float32"), "update__0__0__0 is float32, unlike the int32"),
    "a smaller model": (
        lambda f: (stated(f, dimension=100), listed(f)),
        "a record has 628 coordinates, more than the dimension=100",
    ),
    "a grid without room": (
        lambda f: (stated(f, grid_max_clients=3), listed(f, grid=_grid(max_clients=3))),
        "grid.max_clients=3 is less than the 4 clients of a round",
    ),
    "floats in run.json": (
        lambda f: (stated(f, grid_bits=None, grid_max_clients=None, dimension=None), listed(f)),
        "is not the floating point of run.json",
    ),
    "floats everywhere": (
        lambda f: (stated(f, grid_bits=None, grid_max_clients=None, dimension=None), listed(f, grid=None)),
        "update__0__0__0 is int32, unlike the float",
    ),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_a_manifest_with_another_grid_is_refused_without_tensorflow(case, copy):
    change, reason = TAMPERED[case]
    change(copy)
    found = bundles.refusals(copy)[0]
    assert (found.file, reason in found.reason) == ("manifest.json", True), found


# Everything in the bundle says the same, and only the graphs have another grid.
OTHER_GRIDS = {
    "of fewer bits": ({"grid_bits": 13}, 13, "sends an update of norm", "above 2^13"),
    "with less room": ({"grid_max_clients": 999}, "auto", "releases a sum of more than max_clients=999", ""),
}


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("case", OTHER_GRIDS)
def test_graphs_of_another_grid_than_run_json_says_are_refused(case, copy):
    from tff_mf.experiments.bundles import _rounds

    changes, asked, *reasons = OTHER_GRIDS[case]
    settings = json.loads((copy / "run.json").read_text())["settings"]
    stated(copy, **changes, settings={**settings, "grid": asked})
    record = reports.read_record(copy)
    listed(copy, grid=grids.description(record.grid))
    found = _rounds.run(copy, rounds=1)
    assert found
    assert all(reason in each.reason for each in found for reason in reasons), found


def test_verification_runs_its_graphs_against_tff(on_grid):
    from tff_mf.experiments.bundles import _rounds

    assert _rounds.run(on_grid.folder, rounds=2) == []


@pytest.fixture(scope="module")
def program(on_grid):
    """The program that the bundle carries, which loads its graphs once."""
    return loaded_runner(on_grid.folder)


def _square(values):
    """Exact, of integers."""
    return sum(int(value) ** 2 for each in values for value in np.ravel(each))


def test_the_runner_adds_integers_within_the_bound_and_counts_devices_itself(program, on_grid, tmp_path, capsys):
    run = tmp_path / "run"

    def call(command, *more, code=0):
        capsys.readouterr()
        assert program.main([command, str(run), *map(str, more)]) == code
        return capsys.readouterr()

    call("start")
    (tmp_path / "many").write_text("\n".join(f"device{index}" for index in range(1001)))
    refused = call("prepare", "--devices", tmp_path / "many", code=2).err
    assert "1001 are more than the 1000 that a sum has room for" in refused
    (tmp_path / "chosen").write_text("honest\nlargest\nmany\nnone\n")
    call("prepare", "--devices", tmp_path / "chosen")
    sent, about = program.decoded((run / "sent.safetensors").read_bytes())
    words = np.ones((2, 20), np.int64)
    work = program.check_files(on_grid.folder).work({"examples__0": words, "examples__1": words}, sent)
    honest = {name: np.asarray(value) for name, value in work.items()}
    *records, count = honest
    assert 0 < _square(honest[name] for name in records) <= 4**14
    assert honest[count] == 1
    for device, update in {
        "honest": honest,
        "largest": {name: np.full_like(value, np.iinfo(np.int32).max) for name, value in honest.items()},
        "many": {**honest, count: np.array(10**6, np.int32)},
        "none": {**honest, count: np.array(-1, np.int32)},
    }.items():
        (run / "updates" / f"{device}.safetensors").write_bytes(program.encoded(update, about))
    counts = json.loads(call("accumulate").out)["counts"]
    assert (counts["counted"], counts["clipped"], counts["zeroed"], counts["refused"]) == (4, 1, 0, {})
    sums, _ = program.decoded((run / "sum.safetensors").read_bytes())
    assert sums["sum__0__total__1"] == 4
    largest = [sums[name.replace("update__0", "sum__0__total")] - 3 * honest[name] for name in records]
    assert 0.99 * 4**14 < _square(largest) <= 4**14
    assert json.loads(call("update").out)["released"] == 1


def test_rows_of_integers_are_drawn_again_from_keys_to_the_bit(program, on_grid):
    stages = program.check_files(on_grid.folder)
    state = stages.initialize()
    for _ in range(ROUNDS):
        state, _ = stages.update(state, stages.report(stages.zero()))
    (keys,) = (np.asarray(value) for name, value in state.items() if name.endswith("__noise__keys"))
    again = stages.replay(keys[:ROUNDS])
    rows = {name: np.asarray(value) for name, value in state.items() if "__noise__rows__" in name}
    assert any(value.any() for value in rows.values())
    assert all(value.tobytes() == np.asarray(again[name]).tobytes() for name, value in rows.items())


# How the runner counts a report of each kind of hostile device: refused for this reason, or scaled to the bound.
KINDS = {
    "scalar": "shape",
    "wrong dtype": "dtype",
    "missing leaf": "missing leaf",
    "nan": "clipped",
    "infinite": "clipped",
    "huge": "clipped",
    "opposite": "counted",
}


def test_no_hostile_device_exceeds_the_bound_or_counts_as_many(program, on_grid, tmp_path):
    run = tmp_path / "run"
    program.start(run, on_grid.folder)
    hostile = {kind.replace(" ", "-"): kind for kind in KINDS}
    words = dict.fromkeys(hostile, np.ones((2, 20), np.int64))
    fleet = Fleet(tmp_path / "devices", program, on_grid.folder, run, words=words, hostile=hostile)
    with program.opened(run, on_grid.folder) as deployment:
        deployment.prepare(list(hostile))
        for device, kind in hostile.items():
            found, change = fleet.received(deployment, device)
            counted = int(KINDS[kind] in ("clipped", "counted"))
            assert found == ({"counted": 1, KINDS[kind]: 1} if counted else {KINDS[kind]: 1}), kind
            assert change["sum__0__total__1"] == counted, kind
            assert _square(each for name, each in change.items() if "__total__0__" in name) <= 4**14, kind
