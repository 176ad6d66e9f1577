"""Settings, mechanisms and the sample of all tests. Imports no TensorFlow: the tff_mf layer is tested without it."""

import collections
import contextlib
import functools
import gc
import importlib.util
import inspect
import itertools
import os
import pathlib
import random
import signal
import sys
import tempfile
import typing
import uuid

import hypothesis
import numpy as np
import pytest

import tff_mf

# A background job of a script ignores interrupts, and so does TFF's worker then, which TFF interrupts and waits for.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests write into the checkout, never into a user's cache.
os.environ["TFF_MF_CACHE"] = str(pathlib.Path(__file__).parents[1] / ".cache" / "tff-mf")

# Tests kill processes, never the machine: what one has written, all read, whether it is on the disk or not. That files
# are synchronized is tested by the calls, and commands that tests run as a shell does wait for the disk.
os.fsync = lambda descriptor: None

# Among all objects of TensorFlow, looking for garbage as often as Python does by default takes a twentieth of the time.
gc.set_threshold(20_000, 20, 20)

# TensorFlow asks of most objects whether they are of a protocol, whose attributes Python 3.11 finds anew each time.
if sys.version_info < (3, 12):
    typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)
    typing._is_callable_members_only = functools.cache(typing._is_callable_members_only)

hypothesis.settings.register_profile("tff-mf", derandomize=True, deadline=None, max_examples=25, print_blob=True)
hypothesis.settings.register_profile("tff-mf-long", derandomize=True, deadline=None, max_examples=100, print_blob=True)

# Refusals by what they name: the settings that make other noise, and the rounds of a run that has ended.
OTHER_NOISE = r"\bstddev\b.*\bgrid\b"
ENDED = r"\b{} rounds\b".format

# Of the tests that run whole without TensorFlow, one in this many runs with it too, and with the pinned NumPy.
EVERY = 12
# Where tests marked `once` do not run in CI: in environments that have one of these.
FRAMEWORKS = ("tensorflow", "torch")


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="run all that `make check-long` runs, not the sample of CI")


# One seed for all tests that are not derandomized, before Hypothesis reads the option, which workers inherit.
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))
    hypothesis.settings.load_profile("tff-mf-long" if config.getoption("--long") else "tff-mf")


def pytest_report_header(config):
    return f"Hypothesis: --hypothesis-seed={config.option.hypothesis_seed}"


def pytest_terminal_summary(terminalreporter, config):
    """Also with -q, which prints no header."""
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(
            f"Hypothesis tries the same again with --hypothesis-seed={config.option.hypothesis_seed}"
        )


def pytest_collection_modifyitems(config, items):
    if config.getoption("--long"):
        return
    left = {item for item in items if item.get_closest_marker("long")}
    if any(map(importlib.util.find_spec, FRAMEWORKS)):
        left |= {item for item in items if item.get_closest_marker("once")}
    # Who names a file asks what a change breaks in it.
    named = any(".py" in argument for argument in config.args)
    if importlib.util.find_spec("tensorflow") is not None and not named:
        elsewhere = [item for item in items if item not in left and _is_whole_without_tensorflow(item)]
        left |= set(elsewhere) - set(elsewhere[::EVERY])
    matrices = collections.defaultdict(list)
    for item in items:
        if item not in left and item.get_closest_marker("sampled"):
            matrices[item.parent, item.originalname].append(item)
    for cases in matrices.values():
        left |= set(cases) - set(sample(cases, **cases[0].get_closest_marker("sampled").kwargs))
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = [item for item in items if item not in left]


def _is_whole_without_tensorflow(item):
    """Whether a test of tff_mf runs in the environment without TensorFlow, which runs all that can."""
    if not item.path.is_relative_to(pathlib.Path(__file__).parent / "tff_mf"):
        return False
    text = (item.name + inspect.getsource(item.function)).lower()
    if any(word in text for word in ("tensorflow", "cryptography", "[aes]")):
        return False
    return not hasattr(item.module, "tf") or "numpy" in item.name


def pytest_collection_finish(session):
    # What is imported by now stays, and no collection looks at it again.
    gc.collect()
    gc.freeze()


def sample(cases, together=1, most=None):
    """The cases of a matrix that CI runs: every value of every parameter, each as often as any other, nearly.

    The next one is the first of those whose values were taken least often, among those that have what no one had.

    Args:
        cases: All cases of one test.
        together: 2 for every pair of values of two parameters.
        most: How many cases CI runs, the first of them and others at equal distances, whatever their values.
    """
    if most is not None:
        count = min(most, len(cases))
        return [cases[place * len(cases) // count] for place in range(count)]
    # Cases of a matrix share the objects themselves, also those that cannot be compared.
    values = {case: [(name, id(value)) for name, value in case.callspec.params.items()] for case in cases}
    groups = {case: list(itertools.combinations(values[case], together)) for case in cases}
    taken, chosen = collections.Counter(), []
    while fresh := [case for case in cases if not all(taken[group] for group in groups[case])]:
        chosen.append(min(fresh, key=lambda case: sum(taken[each] for each in (*groups[case], *values[case]))))
        taken.update((*groups[chosen[-1]], *values[chosen[-1]]))
    return chosen


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory):
    """Lets files that killed processes leave, such as code that TensorFlow generated, lie where pytest deletes them."""
    os.environ["TMPDIR"] = str(tmp_path_factory.mktemp("temporary"))
    tempfile.tempdir = None


@pytest.fixture(scope="session")
def forks():
    """A process that has TFF imported, and forks programs."""
    sys.path.insert(0, str(pathlib.Path(__file__).parent / "forks"))
    import forking

    server = forking.Server()
    yield server
    server.close()


@pytest.fixture
def processes_left(monkeypatch):
    """A function that returns what still runs of what this test started, also with another parent by then."""
    mark = f"TFF_MF_TEST={uuid.uuid4()}"
    monkeypatch.setenv(*mark.split("="))

    def found():
        left = set()
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            # Others' processes are not ours to read, and a process that has ended has none.
            with contextlib.suppress(OSError):
                if mark in path.read_text(errors="replace").split("\0"):
                    left.add(int(path.parent.name))
        return left

    return found


def _banded(rounds, bands):
    bands = min(bands, rounds)
    values = np.random.default_rng(rounds).normal(scale=0.4 / bands, size=(bands, rounds))
    values[0] += 1.3
    return tff_mf.Banded(values=values)


def _scaled_blt(rounds):
    scales = np.random.default_rng(rounds).uniform(0.5, 2, size=rounds)
    return tff_mf.ScaledBLT(theta=[0.9, 0.5], omega=[0.25, 0.25], scales=scales)


def _dense(rounds):
    generator = np.random.default_rng(rounds)
    return tff_mf.Dense(matrix=np.tril(generator.normal(size=(rounds, rounds)) / rounds, -1) + 1.2 * np.eye(rounds))


def _structured(rounds, diagonals, rank):
    generator = np.random.default_rng(rounds)
    return tff_mf.BandedPlusLowRank(
        diagonals=generator.uniform(0.5, 1.5, size=(min(diagonals, rounds), rounds)),
        left=generator.normal(size=(rounds, rank)) / rounds,
        right=generator.normal(size=(rounds, rank)),
    )


STREAMED = {
    "identity": lambda rounds: tff_mf.Identity(),
    "blt of 1 buffer": lambda rounds: tff_mf.BLT(theta=[1.0], omega=[0.5]),
    "blt of 4 buffers": lambda rounds: tff_mf.BLT.production("b400"),
    "scaled blt": _scaled_blt,
    "banded by 1": lambda rounds: _banded(rounds, 1),
    "banded by 2": lambda rounds: _banded(rounds, 2),
    "banded by 29": lambda rounds: _banded(rounds, 29),
    "banded toeplitz by 1": lambda rounds: tff_mf.BandedToeplitz(column=[1.5]),
    "banded toeplitz by 48": lambda rounds: tff_mf.BandedToeplitz.square_root(48),
    "dense": _dense,
    "structured, 1 and 2": lambda rounds: _structured(rounds, 1, 2),
    "structured, 4 and 1": lambda rounds: _structured(rounds, 4, 1),
    "tree, full": lambda rounds: tff_mf.Tree(rounds, variant="full"),
    "tree, online": lambda rounds: tff_mf.Tree(rounds, variant="online"),
    "tree, vanilla": lambda rounds: tff_mf.Tree(rounds, variant="vanilla"),
}


# Smaller ones of kinds that are there anyway. In TensorFlow, test_noise_laws.py draws shapes of every size.
SMALLER = ("blt of 1 buffer", "banded by 1", "banded by 2", "banded toeplitz by 1", "structured, 1 and 2")
_EACH = [
    pytest.param(make, id=name, marks=[pytest.mark.once] if name in SMALLER else []) for name, make in STREAMED.items()
]


@pytest.fixture(params=_EACH, scope="module")
def make_mechanism(request):
    """A function from a number of rounds to a mechanism that can run them: one of each stream's kinds."""
    return request.param
