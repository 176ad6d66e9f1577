import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.base.errors import InputValueError
from tff_mf.experiments.output import protobufs
from tff_mf.experiments.planning import published_matrices
from tff_mf.experiments.planning.published_matrices import import_matrix

from .shared import result_of

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
