"""Settings and mechanisms of all tests. Imports no TensorFlow, so that floor 1 is tested without it."""

import os
import pathlib
import signal

import hypothesis
import numpy as np
import pytest

import tff_mf

# A background job of a script ignores interrupts, and so does TFF's worker then, which TFF interrupts and waits for.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests write into the checkout, never into the cache of whoever runs them.
os.environ["TFF_MF_CACHE"] = str(pathlib.Path(__file__).parents[1] / ".cache" / "tff-mf")

hypothesis.settings.register_profile("tff-mf", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.load_profile("tff-mf")


def _banded(rounds, bands):
    bands = min(bands, rounds)
    values = np.random.default_rng(rounds).normal(scale=0.4 / bands, size=(bands, rounds))
    values[0] += 1.3
    return tff_mf.Banded(values=values)


def _dense(rounds):
    generator = np.random.default_rng(rounds)
    return tff_mf.Dense(matrix=np.tril(generator.normal(size=(rounds, rounds)) / rounds, -1) + 1.2 * np.eye(rounds))


def _structured(rounds, diagonals, rank):
    generator = np.random.default_rng(rounds)
    return tff_mf.Structured(
        diagonals=generator.uniform(0.5, 1.5, size=(min(diagonals, rounds), rounds)),
        left=generator.normal(size=(rounds, rank)) / rounds,
        right=generator.normal(size=(rounds, rank)),
    )


STREAMED = {
    "identity": lambda rounds: tff_mf.Identity(),
    "blt of 1 buffer": lambda rounds: tff_mf.BLT(theta=[1.0], omega=[0.5]),
    "blt of 4 buffers": lambda rounds: tff_mf.BLT.production("b400"),
    "banded by 1": lambda rounds: _banded(rounds, 1),
    "banded by 2": lambda rounds: _banded(rounds, 2),
    "banded by 29": lambda rounds: _banded(rounds, 29),
    "banded toeplitz by 1": lambda rounds: tff_mf.BandedToeplitz(column=[1.5]),
    "banded toeplitz by 48": lambda rounds: tff_mf.BandedToeplitz.square_root(48),
    "banded inverse": lambda rounds: tff_mf.BandedInverse.square_root(6),
    "dense": _dense,
    "structured, 1 and 2": lambda rounds: _structured(rounds, 1, 2),
    "structured, 4 and 1": lambda rounds: _structured(rounds, 4, 1),
    "tree, full": lambda rounds: tff_mf.Tree(rounds, variant="full"),
    "tree, online": lambda rounds: tff_mf.Tree(rounds, variant="online"),
}


@pytest.fixture(params=STREAMED.values(), ids=STREAMED, scope="module")
def make_mechanism(request):
    """A function from a number of rounds to a mechanism that can run them: one of each stream's kinds."""
    return request.param
