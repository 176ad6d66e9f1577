"""RmsLoss of the FFT mechanism beside banded Toeplitz matrices, for one participation and for six.

    python benchmarks/fft_mechanism.py

The prefix sums of n numbers are the first n rows of a circulant matrix of 2n rows, with the first column (1, …, 1,
0, …, 0), times the numbers followed by n zeros. A circulant matrix is F*ΛF with the Fourier transform F and the
transform Λ of its first column. The FFT mechanism takes the square root of Λ: with the real circulant matrix R =
F*√ΛF, C is the first n columns of R, float64 `[2n, n]`, and B its first n rows, so that BC = A. (The mechanism of
Choquette-Choo et al. (2022), Multi-epoch matrix factorization mechanisms; derived here from the factorization alone.)

Both (CᵀC)_st and (BBᵀ)_st are g(s − t), with g the inverse transform of |Λ|: G. Each decoder is a lower-triangular C:

* Its own decoder B: with G = MMᵀ for a lower-triangular M, C' = M⁻¹A has the noise A·C'⁻¹z = Mz, of covariance BBᵀ.
  C' = (M⁻¹B)·C, where the rows of M⁻¹B are orthonormal, so that C' is not more sensitive than C; it may be less.
* The optimal decoder A·C⁺: L with LᵀL = G. It is as sensitive as C (Denisov et al. (2022), theorem 2.1).

Sensitivities are those of `tff_mf.sensitivity` for these two matrices: proven upper bounds, for C has entries of both
signs in six participations. The second column has the largest sensitivity that a client attains who comes every
b rounds with the same update, up to its sign. Takes half a minute on one core.
"""

import itertools

import numpy as np
import scipy.linalg

import tff_mf

PARTICIPATIONS = 6


def eigenvalues(rounds):
    """Λ: the transform of n ones followed by n zeros."""
    return np.fft.fft(np.repeat([1.0, 0.0], rounds))


def factors(rounds):
    """B and C, float64 `[n, 2n]` and `[2n, n]`."""
    root = scipy.linalg.circulant(np.fft.ifft(np.sqrt(eigenvalues(rounds))).real)
    return root[:rounds], root[:, :rounds]


def gram(rounds):
    """G = CᵀC = BBᵀ, float64 `[n, n]`."""
    return scipy.linalg.toeplitz(np.fft.ifft(np.abs(eigenvalues(rounds))).real[:rounds])


def mechanisms(rounds):
    """The mechanism with its own and with the optimal decoder, as lower-triangular matrices."""
    lower = np.linalg.cholesky(gram(rounds))
    # G is symmetric about both diagonals: with G = MMᵀ also G = LᵀL, for M turned around.
    turned = lower[::-1, ::-1].T
    own = scipy.linalg.solve_triangular(lower, np.tri(rounds), lower=True)
    return tff_mf.Dense(matrix=np.tril(own)), tff_mf.Dense(matrix=np.tril(turned))


def attained_sensitivity(encoder, schema):
    """The largest ‖Cu‖ of clients who come every b rounds with the same update, up to its sign."""
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=schema.max_participations)))
    columns = (encoder[:, first :: schema.min_sep] for first in range(schema.min_sep))
    return max(np.linalg.norm(each @ signs[:, : each.shape[1]].T, axis=0).max() for each in columns)


def losses(rounds, max_participations):
    """RmsLoss of each mechanism for b = n / k, and RmsError times the sensitivity that some client attains."""
    min_sep = rounds // max_participations
    schema = tff_mf.MinSep(min_sep=min_sep, max_participations=max_participations)
    own, optimal = mechanisms(rounds)
    toeplitz = tff_mf.optimize_banded_toeplitz(rounds=rounds, participation=schema, bands=min_sep)
    # The error is that of the first mechanism, the sensitivity that of the second one.
    compared = {
        "FFT, sensitivity of C": (own, optimal),
        "FFT": (own, own),
        "FFT, optimal decoder": (optimal, optimal),
        "banded Toeplitz, b bands": (toeplitz, toeplitz),
        "square root, n bands": (tff_mf.BandedToeplitz.square_root(rounds),) * 2,
        "tree, full": (tff_mf.Tree(rounds),) * 2,
    }
    found = {}
    for name, (decoder, encoder) in compared.items():
        error = tff_mf.rms_error(decoder, rounds)
        reached = attained_sensitivity(encoder.encoder(rounds), schema)
        found[name] = (error * tff_mf.sensitivity(encoder, rounds, schema), error * reached)
    return found


def main(sizes=(128, 512, 2052)):
    for max_participations in (1, PARTICIPATIONS):
        for rounds in sizes:
            print(f"n = {rounds}, k = {max_participations}, b = {rounds // max_participations}", flush=True)
            for name, (loss, attained) in losses(rounds, max_participations).items():
                print(f"  {name:30} {loss:8.3f}  attained {attained:8.3f}", flush=True)


if __name__ == "__main__":
    main()
