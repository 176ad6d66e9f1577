"""Other machines, as environments of a child process: other BLAS kernels, SIMD loops, threads, locales and umasks.

Floats that are recomputed differ between them in last bits. A test runs a function of a file in each:

    environments.call("skylakex", "tests/tff_mf/streamed.py", "integers", "blt")

Arguments and results are pickled. A child is a new process: libraries read these variables when they are loaded.
"""

import functools
import importlib.util
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
_AVX512 = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL"
# What this process was started with would make two environments the same.
_CLEARED = (
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "NPY_DISABLE_CPU_FEATURES",
    "TF_ENABLE_ONEDNN_OPTS",
)
# Kernels with instructions that not every CPU has, by a feature of NumPy that comes with them.
_NEEDED = {"SkylakeX": "AVX512_SKX", "Haswell": "AVX2", "Zen": "AVX2"}
# Processes may be many at once, and the matrices of tests are small.
_ALWAYS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


# What differs from this process, as environment variables.
ENVIRONMENTS: Mapping[str, Mapping[str, str]] = {
    # With the kernels that libraries choose on this machine.
    "machine": {},
    "haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "skylakex": {"OPENBLAS_CORETYPE": "SkylakeX"},
    "zen": {"OPENBLAS_CORETYPE": "Zen"},
    "no-avx512": {"NPY_DISABLE_CPU_FEATURES": _AVX512},
    "two-threads": {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"},
    "locale": {"LANG": "C", "LC_ALL": "C", "TZ": "Pacific/Chatham"},
    "oldest": {
        "OPENBLAS_CORETYPE": "Prescott",
        "NPY_DISABLE_CPU_FEATURES": f"{_AVX512} AVX2 FMA3",
        "TF_ENABLE_ONEDNN_OPTS": "0",
    },
}


def cases(*in_ci: str) -> list[Any]:
    """Returns all environments as parameters of a test; those that are not named are long.

    "oldest" is furthest from the machines that run CI: other kernels, other loops, and no oneDNN.
    """
    import pytest

    return [pytest.param(name, marks=[] if name in in_ci else pytest.mark.long) for name in ENVIRONMENTS]


@functools.cache
def variables(name: str) -> Mapping[str, str]:
    """Returns all environment variables of a process in an environment.

    Features that this CPU lacks are not named: NumPy refuses to disable them. Nor are kernels that need such features,
    with which a process would be killed: it then has those of this machine.
    """
    found = {key: value for key, value in os.environ.items() if key not in _CLEARED}
    found |= {**_ALWAYS, **ENVIRONMENTS[name]}
    if _NEEDED.get(found.get("OPENBLAS_CORETYPE", ""), "") not in {"", *_features()}:
        del found["OPENBLAS_CORETYPE"]
    disabled = found.get("NPY_DISABLE_CPU_FEATURES")
    if disabled is not None:
        found["NPY_DISABLE_CPU_FEATURES"] = " ".join(each for each in disabled.split() if each in _features())
    return found


def start(name: str, command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Runs a command in an environment; its output goes to files, as workers of TFF keep pipes open (fact 2)."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        done = subprocess.run(
            command, env=dict(variables(name)), stdout=out, stderr=error, stdin=subprocess.DEVNULL, **options
        )
        out.seek(0)
        error.seek(0)
        done.stdout, done.stderr = out.read(), error.read()
    return done


def call(name: str, path: str | pathlib.Path, function: str, *arguments: Any) -> Any:
    """Returns the result of a function of a Python file, called in a new process in an environment.

    Args:
        name: The environment.
        path: The file, relative to the checkout or absolute.
        function: The function's name.
        arguments: Its arguments.

    Raises:
        RuntimeError: If the process fails, with what it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = pathlib.Path(folder) / "asked", pathlib.Path(folder) / "answered"
        asked.write_bytes(pickle.dumps((str(ROOT / path), function, arguments)))
        done = start(name, [sys.executable, "-P", __file__, str(asked), str(answered)])
        if done.returncode or not answered.exists():
            raise RuntimeError(f"in {name!r}: {done.stderr.decode(errors='replace')[-4000:]}")
        return pickle.loads(answered.read_bytes())


@functools.cache
def _features() -> frozenset[str]:
    """Returns the SIMD features that NumPy dispatches on, and that this CPU has, though it may not use them here."""
    try:
        from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
    except ImportError:
        from numpy.core._multiarray_umath import __cpu_dispatch__, __cpu_features__
    disabled = os.environ.get("NPY_DISABLE_CPU_FEATURES", "").split()
    return frozenset(each for each in __cpu_dispatch__ if __cpu_features__.get(each) or each in disabled)


def _answer(asked: pathlib.Path, answered: pathlib.Path) -> None:
    path, function, arguments = pickle.loads(asked.read_bytes())
    # Modules beside it can be imported, as they can from a test. In place of this folder, whose tff_mf holds tests.
    sys.path[0] = str(pathlib.Path(path).parent)
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    answered.write_bytes(pickle.dumps(getattr(module, function)(*arguments)))


if __name__ == "__main__":
    _answer(*map(pathlib.Path, sys.argv[1:]))
