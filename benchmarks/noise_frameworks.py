"""Time of a round of noise in PyTorch and in compiled JAX, in draws of as many normals by the framework itself.

python benchmarks/noise_frameworks.py [--turns N] [--cores N] [--python PYTHON | --ready PYTHON]
python benchmarks/noise_frameworks.py --rows jax --dimension D

Ours, opake 0.16.1 and jax_privacy 2.0.0 are in one environment, build/peers/noise, which is made with `--python`
when it is first needed; `--ready` is a Python that has all of them. opake cannot be imported with Python 3.11.7 and
3.12.1. In each turn, all rows follow each other, and rounds of a row and draws take turns, so that the load of the
machine affects all alike. A ratio is of mean times; printed are medians over the turns. In JAX, a state
is donated to the next one. opake adds its noise to gradients, too. The second form prints the ratios of one process, in
a Python that has what it needs.
"""

import argparse
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

STACKOVERFLOW_LSTM = 4_050_748
ROUNDS = 2048
REQUIREMENTS = (
    *("jax==0.10.2", "jax-privacy==2.0.0", "opake==0.16.1", "opake-dpftrl==0.16.1", "torch==2.13.0"),
    *("cryptography>=42", "click", "dp-accounting", "msgspec", "rich-click", "safetensors", "scipy"),
)
# Rounds before the first one, so that a tree has its rows; those that are not timed, of which the first one compiles;
# and those that are.
BEGIN, UNTIMED, TIMED = 1000, 2, 5

Step = Callable[[], object]
# A draw, and by name what makes the rounds of a row, whose memory is free again after them.
Rows = tuple[Step, dict[str, Callable[[], Step]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimension", type=int, default=STACKOVERFLOW_LSTM)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--ready", metavar="PYTHON")
    parser.add_argument("--rows", choices=ROWS, help="only the rows of one process, in this one")
    given = parser.parse_args()
    if given.rows:
        print(json.dumps(_ratios(ROWS[given.rows](given.dimension))))
        return
    from _common import environment

    python = given.ready or environment("noise", REQUIREMENTS, given.python, with_checkout=True)
    found: dict[str, list[float]] = {}
    for _ in range(given.turns):
        for rows in ROWS:
            for name, ratio in _in_a_process(python, rows, given.dimension, given.cores).items():
                found.setdefault(name, []).append(ratio)
                print(f"{name}: {ratio:.2f}", file=sys.stderr, flush=True)
    print(f"| d = {given.dimension:,}, {given.cores} cores, {given.turns} turns | draws | least | most |")
    print("|---|--:|--:|--:|")
    for name, ratios in found.items():
        print(f"| {name} | {statistics.median(ratios):.2f} | {min(ratios):.2f} | {max(ratios):.2f} |")


def _in_a_process(python: str | pathlib.Path, rows: str, dimension: int, cores: int) -> dict[str, float]:
    command = ["taskset", "--cpu-list", ",".join(map(str, sorted(os.sched_getaffinity(0))[:cores]))]
    command += [str(python), __file__, "--rows", rows, "--dimension", str(dimension)]
    free = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    checkout = str(pathlib.Path(__file__).parents[1])
    environment = free | {"PYTHONPATH": checkout, "OMP_NUM_THREADS": str(cores)}
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(finished.stdout.splitlines()[-1])


def _ratios(given: Rows) -> dict[str, float]:
    draw, rows = given
    return {name: _ratio(draw, make()) for name, make in rows.items()}


def _ratio(draw: Step, step: Step) -> float:
    seconds = [0.0, 0.0]
    for turn in range(UNTIMED + TIMED):
        for place, call in enumerate((draw, step)):
            start = time.perf_counter()
            call()
            seconds[place] += (time.perf_counter() - start) * (turn >= UNTIMED)
    return seconds[1] / seconds[0]


def _mechanisms(on_grid: bool) -> dict[str, Any]:
    import tff_mf

    found = {"BLT, 4 buffers": tff_mf.BLT.production("b400"), "tree, full": tff_mf.Tree(ROUNDS)}
    return found if on_grid else {**found, "tree, online": tff_mf.Tree(ROUNDS, variant="online")}


def _stepping(next_state: Callable[[Any], tuple[Any, Any]], state: Any) -> Step:
    def step() -> object:
        nonlocal state
        row, state = next_state(state)
        return row

    return step


def _in_torch(dimension: int) -> Rows:
    import torch

    import tff_mf
    from tff_mf.noise.torch import build_stream

    def make(mechanism: Any, settings: dict[str, Any]) -> Step:
        stream = build_stream(mechanism, dimension=dimension, stddev=1.0, **settings)
        keys = torch.zeros([BEGIN, 2], dtype=torch.int64)
        return _stepping(stream.next, stream.init() | {"round": torch.tensor(BEGIN), "keys": keys})

    grid = tff_mf.Grid(bits=16, max_clients=1000)
    rows = {}
    for how, settings in (
        ("floats", {}),
        ("floats, philox", {"generator": "philox"}),
        ("grid", {"grid": grid}),
        ("grid, aes", {"grid": grid, "generator": "aes"}),
    ):
        for name, mechanism in _mechanisms("grid" in settings).items():
            if how in ("floats", "grid") or name.startswith("BLT"):
                rows[f"PyTorch, {how}: {name}"] = functools.partial(make, mechanism, settings)
    return lambda: torch.randn(dimension), rows | _of_opake(dimension)


def _of_opake(dimension: int) -> dict[str, Callable[[], Step]]:
    import torch

    try:
        from opake import random
        from opake.api.dpftrl.noise import _blt_math
        from opake.dpftrl import mf_gaussian_noise
        from opake.types import ClippedPytree
    except (ImportError, TypeError):
        return {}
    blt = _mechanisms(True)["BLT, 4 buffers"]

    class Strategy:
        def streaming_matrix(self, **given: Any) -> Any:
            del given
            numbers = (torch.tensor(each, dtype=torch.float64) for each in (blt.theta, blt.omega))
            return _blt_math.inverse_as_streaming_matrix(_blt_math.BufferedToeplitz(*numbers))

    def make() -> Step:
        gradients = torch.zeros(dimension)
        noise, state = mf_gaussian_noise(gradients, Strategy(), n_steps=ROUNDS, noise_multiplier=1.0, key=random.key(0))
        clipped = ClippedPytree(pytree=gradients, max_norm=1.0)
        return _stepping(lambda state: noise(clipped, state), state)

    return {"PyTorch, floats: BLT, 4 buffers, opake": make}


def _in_jax(dimension: int, on_grid: bool = False) -> Rows:
    import jax
    import jax.numpy as jnp

    import tff_mf
    from tff_mf.noise.jax import build_stream

    jax.config.update("jax_enable_x64", on_grid)
    settings = {"grid": tff_mf.Grid(bits=16, max_clients=1000)} if on_grid else {}
    normal = jax.jit(lambda key: jax.random.normal(key, (dimension,), jnp.float32))
    numbers = iter(range(10**9))

    def state_first(call: Callable[..., Any], **donated: int) -> Callable[..., Any]:
        """Returns the compiled call, whose first result JAX gives the memory of the state before it."""
        return jax.jit(lambda *given: call(*given)[::-1], **donated)

    def make(mechanism: Any) -> Step:
        stream = build_stream(mechanism, dimension=dimension, stddev=1.0, **settings).limited_to(ROUNDS)
        one = state_first(stream.next, donate_argnums=0)
        step = _stepping(lambda state: one(state)[::-1], stream.init()._replace(round=jnp.int32(BEGIN)))
        return lambda: jax.block_until_ready(step())

    def of_jax_privacy() -> Step:
        blt = _mechanisms(True)["BLT, 4 buffers"]
        matrix = buffered_toeplitz.BufferedToeplitz.build(blt.theta, blt.omega, dtype=jnp.float32)
        streaming = matrix.inverse_as_streaming_matrix()
        one = state_first(lambda key, state: streaming.multiply_next(normal(key), state), donate_argnums=1)
        state = streaming.init_multiply(jax.ShapeDtypeStruct((dimension,), jnp.float32))
        step = _stepping(lambda state: one(jax.random.key(next(numbers)), state)[::-1], state)
        return lambda: jax.block_until_ready(step())

    how = "grid" if on_grid else "floats"
    rows = {
        f"JAX, {how}: {name}": functools.partial(make, mechanism) for name, mechanism in _mechanisms(on_grid).items()
    }
    try:
        from jax_privacy.matrix_factorization import buffered_toeplitz
    except ImportError:
        pass
    else:
        rows |= {} if on_grid else {"JAX, floats: BLT, 4 buffers, jax_privacy": of_jax_privacy}
    return lambda: normal(jax.random.key(next(numbers))).block_until_ready(), rows


ROWS: dict[str, Callable[[int], Rows]] = {
    "torch": _in_torch,
    "jax": _in_jax,
    "jax-grid": functools.partial(_in_jax, on_grid=True),
}

if __name__ == "__main__":
    main()
