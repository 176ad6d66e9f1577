"""Mechanisms from outside: the matrices that papers published, and a plugin, from the page to a trained model."""

import json
import os
import pathlib
import re
import subprocess
import sys

import forking
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.base.errors import InputError, InputValueError
from tff_mf.experiments.output import protobufs
from tff_mf.experiments.planning import published_matrices
from tff_mf.experiments.planning.published_matrices import import_matrix

from .shared import invoke, result_of

SCHEMA = tff_mf.MinSep(min_sep=3, max_participations=4)

# What tf.io.serialize_tensor of TensorFlow 2.14.1 gives.
MATRIX = (
    b'\x08\x02\x12\x08\x12\x02\x08\x02\x12\x02\x08\x02" '
    b"\x00\x00\x00\x00\x00\x00\xf0?\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xe0?\x00\x00\x00\x00\x00\x00\x00@"
)
VECTOR = b'\x08\x02\x12\x04\x12\x02\x08\x02"\x10\x00\x00\x00\x00\x00\x00\xf0?\x00\x00\x00\x00\x00\x00\xd0?'
SCALAR = b'\x08\x02\x12\x00"\x08\x00\x00\x00\x00\x00\x00\xf8?'
EMPTY = b"\x08\x02\x12\x06\x12\x00\x12\x02\x08\x02"
FLOAT32 = b'\x08\x01\x12\x04\x12\x02\x08\x01"\x04\x00\x00\x80?'


def serialized(tensor):
    message = protobufs.new("Tensor")
    message.dtype, message.content = 2, tensor.astype("<f8").tobytes()
    for size in tensor.shape:
        message.shape.dimension.add(size=size)
    return message.SerializeToString()


def factors(rounds, bands=None, seed=0):
    generator = np.random.default_rng(seed)
    encoder = np.tril(generator.uniform(0.1, 0.2, (rounds, rounds))) + np.eye(rounds)
    if bands is not None:
        encoder -= np.tril(encoder, -bands)
    return encoder, np.tri(rounds) @ np.linalg.inv(encoder)


def write(folder, encoder, decoder, names=("c", "b"), rates=None):
    for name, matrix in zip(names, (encoder, decoder), strict=True):
        (folder / f"{name}_matrix_tensor_pb").write_bytes(serialized(matrix))
    if rates is not None:
        (folder / "lr_vector_tensor_pb").write_bytes(serialized(np.asarray(rates)))


def test_it_reads_what_tensorflow_writes():
    assert np.array_equal(published_matrices.parsed_tensor(MATRIX), [[1.0, 0.0], [0.5, 2.0]])
    assert np.array_equal(published_matrices.parsed_tensor(VECTOR), [1.0, 0.25])
    assert np.array_equal(published_matrices.parsed_tensor(SCALAR), 1.5)
    assert published_matrices.parsed_tensor(EMPTY).shape == (0, 2)
    assert serialized(np.array([[1.0, 0.0], [0.5, 2.0]])) == MATRIX


@given(st.lists(st.integers(1, 5), max_size=3), st.integers(0, 2**32 - 1))
def test_any_shape_comes_back(shape, seed):
    tensor = np.random.default_rng(seed).standard_normal(shape)
    assert np.array_equal(published_matrices.parsed_tensor(serialized(tensor)), tensor)


def test_other_types_are_refused():
    with pytest.raises(InputValueError, match="dtype is 1, and must be 2, float64"):
        published_matrices.parsed_tensor(FLOAT32)


@pytest.mark.parametrize("names", [("c", "b"), ("h", "w")])
def test_a_dense_factorization_is_imported(names, tmp_path):
    encoder, decoder = factors(12)
    write(tmp_path, encoder, decoder, names)
    imported = import_matrix(tmp_path, participation=SCHEMA)
    assert imported.mechanism == tff_mf.Dense(
        matrix=encoder, optimized_for=tff_mf.OptimizedFor(rounds=12, participation=SCHEMA)
    )
    assert imported.bands == 12
    assert imported.mismatch < 1e-14


def test_a_rounded_banded_matrix_is_recognized(tmp_path):
    encoder, decoder = factors(12, bands=3)
    rounded = encoder + 1e-15 * np.ones((12, 12))
    write(tmp_path, rounded, decoder)
    imported = import_matrix(tmp_path, participation=SCHEMA)
    assert isinstance(imported.mechanism, tff_mf.Banded)
    assert imported.bands == imported.mechanism.bands == 3
    np.testing.assert_allclose(imported.mechanism.encoder(12), encoder, atol=1e-14)
    assert 0 < imported.dropped < 1e-14
    assert tff_mf.explain_sensitivity(imported.mechanism, 12, SCHEMA).exact


def test_sensitivity_is_recomputed(tmp_path):
    # Twice the matrix, half the decoder: the same factorization at twice the sensitivity.
    encoder, decoder = factors(12)
    write(tmp_path, 2 * encoder, decoder / 2)
    doubled = import_matrix(tmp_path, participation=SCHEMA).mechanism
    plain = tff_mf.Dense(matrix=encoder)
    assert tff_mf.sensitivity(doubled, 12, SCHEMA) == 2 * tff_mf.sensitivity(plain, 12, SCHEMA)


@pytest.mark.parametrize(
    ("momentum", "rates"), [(0.9, None), (0.0, np.linspace(1, 0.1, 12)), (0.9, np.linspace(1, 0.1, 12))]
)
def test_other_workloads(momentum, rates, tmp_path):
    encoder, _ = factors(12)
    workload = np.tri(12)
    for row in range(12):
        for column in range(row + 1):
            at = range(column, row + 1)
            workload[row, column] = sum(momentum ** (t - column) * (1 if rates is None else rates[t]) for t in at)
    write(tmp_path, encoder, workload @ np.linalg.inv(encoder), rates=rates)
    imported = import_matrix(tmp_path, participation=SCHEMA, momentum=momentum)
    assert imported.mismatch < 1e-14
    np.testing.assert_allclose(imported.mechanism.optimized_for.workload.matrix(12), workload, rtol=1e-13)
    with pytest.raises(InputValueError, match="is not the workload"):
        import_matrix(tmp_path, participation=SCHEMA, momentum=0.5)


ENCODER, DECODER = factors(12)
# What is written of a factorization, and what is said of it.
INCONSISTENT = {
    "an upper entry": ((ENCODER + 1e-6 * np.eye(12, k=1), DECODER), "not lower-triangular"),
    "another product": ((ENCODER, 1.001 * DECODER), "is not the workload"),
    "fewer rounds": ((ENCODER, DECODER[:11, :11]), "do not factorize a workload"),
    "not square": ((ENCODER[:, :5], DECODER), "must be square"),
    "not a number": ((ENCODER * np.nan, DECODER), "NaN"),
    "rates of a matrix": ((ENCODER, DECODER, ("c", "b"), ENCODER), "one rate per round"),
}


@pytest.mark.parametrize("case", INCONSISTENT)
def test_inconsistent_files_are_refused(tmp_path, case):
    written, reason = INCONSISTENT[case]
    write(tmp_path, *written)
    with pytest.raises(InputValueError, match=reason):
        import_matrix(tmp_path, participation=SCHEMA)


def test_missing_and_cut_files_are_refused(tmp_path):
    with pytest.raises(InputValueError, match="has neither c_matrix_tensor_pb and b_matrix_tensor_pb nor"):
        import_matrix(tmp_path, participation=SCHEMA)
    write(tmp_path, ENCODER, DECODER)
    (tmp_path / "c_matrix_tensor_pb").write_bytes(serialized(ENCODER)[:-1])
    with pytest.raises(InputValueError, match=r"c_matrix_tensor_pb.*cut off"):
        import_matrix(tmp_path, participation=SCHEMA)


def test_the_command(tmp_path):
    write(tmp_path, *factors(12, bands=3))
    out = tmp_path / "artifact"
    result = result_of("import-matrix", tmp_path, "--min-sep", 3, "--max-participations", 4, "--out", out)
    assert (result["mechanism"], result["bands"], result["sensitivity_exact"]) == ("banded", 3, True)
    assert tff_mf.load(out).optimized_for == tff_mf.OptimizedFor(rounds=12, participation=SCHEMA)


PAGE = pathlib.Path(__file__).parents[2] / "docs" / "adding-a-mechanism.md"
SMALL = """
import geometric, tff_mf
schema = tff_mf.MinSep(min_sep=2, max_participations=2)
tff_mf.save(geometric.optimize_geometric(rounds=4, participation=schema), "geometric.safetensors")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "geometric.py").write_text(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)[0])
    subprocess.run([sys.executable, "-c", SMALL], cwd=folder, check=True)
    return folder


def command(folder, *words, status=0, server=None, **environment):
    """Runs the command in a process of its own: a kind is registered once in a process."""
    given = {"folder": folder, "environment": {**os.environ, **environment}}
    arguments = [str(word) for word in words]
    if server is None:
        done = forking.run_command(arguments, **given)
    else:
        done = forking.run_program(forking.COMMAND, arguments, server=server, **given)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


SETTING = ("--rounds", 4, "--min-sep", 2, "--max-participations", 2, "--json")


def test_commands_know_the_kind_if_the_plugin_is_named(folder):
    shown = command(folder, "show", "geometric.safetensors", *SETTING, TFF_MF_PLUGINS="geometric.py")
    assert json.loads(shown)["mechanism"] == "geometric"
    twice = ("--plugin", folder / "geometric.py", "--plugin", "geometric.py")
    privacy = ("--noise-multiplier", 3, "--delta", 1e-6)
    found = command(folder, *twice, "account", "geometric.safetensors", *privacy, *SETTING)
    assert json.loads(found)["epsilon"] > 0


def test_the_optimizer_of_the_page_is_a_command(folder):
    """It does not say how its search ended, which is known only to the optimizers of this package."""
    optimize = ("--plugin", "geometric.py", "optimize", "geometric", "--out", "found.safetensors")
    found = json.loads(command(folder, *optimize, *SETTING))
    assert (found["mechanism"], found["objective"], found["converged"], found["message"]) == (
        "geometric",
        "max",
        True,
        "",
    )
    assert "search              converged\n" in command(folder, *optimize, *SETTING[:-1])
    error = command(folder, *optimize, "--objective", "rms", *SETTING, status=2)
    assert error.endswith("geometric minimizes MaxLoss.\n")


def test_an_optimizer_that_does_not_say_its_setting_is_named(folder):
    given = (folder / "geometric.py").read_text().replace("optimized_for=setting", "optimized_for=None")
    (folder / "silent.py").write_text(given)
    error = command(
        folder, *("--plugin", "silent.py", "optimize", "geometric", "--out", "none.safetensors"), *SETTING, status=2
    )
    assert error.startswith("tff-mf: ")
    assert "must return it with optimized_for" in error
    assert not (folder / "none.safetensors").exists()


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        ((), "kind='geometric' is none of the registered kinds .*--plugin MODULE"),
        (("--plugin", "missing.py"), "plugin='missing.py' is no file"),
    ],
)
def test_commands_refuse_the_kind_by_name_without_its_plugin(folder, plugin, message):
    with pytest.raises(InputError, match=message):
        invoke(*plugin, "show", folder / "geometric.safetensors")


def test_a_model_is_trained_and_its_report_checked(folder, small_data, forks):
    plugin = ("--plugin", "geometric.py")
    command(
        folder,
        *(*plugin, "train", "--force", "--dataset", small_data, "--mechanism", "geometric.safetensors", "--out", "run"),
        *("--rounds", 4, "--clients-per-round", 2, "--min-sep", 2, "--max-participations", 2, "--epsilon", 6),
        *("--delta", 1e-5, "--model", "conv", "--units", 4, "--embedding-size", 4, "--vocab-size", 60),
        *("--max-examples", 2, "--evaluation-examples", 20),
        server=forks,
    )
    checked = command(folder, *plugin, "report", "run", "--check")
    assert checked.startswith("0 critical of ")
    assert "geometric" in (folder / "run" / "report.json").read_text()
    without = forking.run_command(["report", "run", "--check"], folder=folder, environment=dict(os.environ))
    assert without.returncode == 1
    assert "kind='geometric' is none of the registered kinds" in " ".join(without.stdout.split())


@pytest.mark.long
def test_a_deployment_is_exported(folder, small_data):
    """Graphs are built in a process of their own, which imports the plugin too."""
    optimum = SMALL.replace("min_sep=2, max_participations=2", "min_sep=10, max_participations=12")
    optimum = optimum.replace("rounds=4", "rounds=200").replace('"geometric.safetensors"', '"deployed.safetensors"')
    subprocess.run([sys.executable, "-c", optimum], cwd=folder, check=True)
    (folder / "settings.toml").write_text(
        f'[run]\ndataset = "sqlite:{small_data}"\nmechanism = "deployed.safetensors"\nrounds = 200\n'
        "clients_per_round = 2\ncohort = 4\ndelta = 1e-6\nmin_sep = 10\nmax_participations = 12\n"
        'noise_multiplier = 8.0\nmodel = "conv"\nvocab_size = 60\nembedding_size = 4\nunits = 4\nbatch_size = 2\n'
        "max_examples = 4\n"
    )
    bundle = ("--out", "bundle", "--longest-round", 15, "--population", 80, "--json")
    exported = json.loads(command(folder, "--plugin", "geometric.py", "export", "settings.toml", *bundle))
    assert exported["epsilon"] > 0
    assert (folder / "bundle" / "mechanism.safetensors").is_file()
