"""Mean time of a round of integer noise, in float32 draws of as many normals, in turns with the float stream.

python benchmarks/grid_noise.py [--dimension D] [--only NAME] [--threads N]
python benchmarks/grid_noise.py --charges

All three take turns, so that the load of the machine affects them alike. Seconds are those of the processor time of
this process where the column says cpu. `--charges` prints what a grid adds to μ and ε instead, without TensorFlow.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

STACKOVERFLOW_LSTM = 4_050_748

# With the number of timed rounds, and the share of the dimension: many rows take a smaller model. The first rounds
# of a process take up to three times as long as later ones.
ROWS = {
    "identity": (48, 1.0),
    "blt, 2 buffers": (48, 1.0),
    "blt, 4 buffers": (48, 1.0),
    "tree online, 2048 rounds": (48, 1.0),
    "tree full, 2048 rounds": (48, 1.0),
    "banded toeplitz, 8 bands": (48, 1.0),
    "banded toeplitz, 342 bands": (64, 0.1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimension", type=int, default=STACKOVERFLOW_LSTM)
    parser.add_argument("--only", choices=ROWS)
    parser.add_argument("--threads", type=int, default=0, help="of TensorFlow; 0: as it chooses")
    parser.add_argument("--charges", action="store_true", help="only what a grid adds to the guarantee")
    arguments = parser.parse_args()
    if arguments.charges:
        _charges(arguments.dimension)
        return
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    print(f"dimension {arguments.dimension:,}; threads {arguments.threads or 'as TensorFlow chooses'}")
    print(f"{'':28} {'grid':>6} {'float':>6} {'grid cpu':>9} {'float cpu':>9}   draw")
    for name in [arguments.only] if arguments.only else ROWS:
        rounds, share = ROWS[name]
        _measure(tf, name, rounds, int(share * arguments.dimension))


def _charges(dimension: int) -> None:
    """Prints the setting of the BLT paper: 2,052 rounds, min-sep 342, six rounds a client, σ = 7.379."""
    import tff_mf
    from tff_mf.accounting import grid_charge

    schema = tff_mf.MinSep(min_sep=342, max_participations=6)
    mechanisms = {
        "Identity": tff_mf.Identity(),
        "BLT b400": tff_mf.BLT.production("b400"),
        "BandedToeplitz, 342 bands": tff_mf.BandedToeplitz.square_root(342),
        "Banded, 16 bands": tff_mf.optimize_banded(rounds=2052, bands=16),
        **{f"Tree, {variant}": tff_mf.Tree(2052, variant=variant) for variant in ("full", "online", "vanilla")},
    }
    print("| mechanism | bits | e | η | μ without | added to μ | ε(1e-10) without | added to ε |")
    for name, mechanism in mechanisms.items():
        plain = tff_mf.guarantee(mechanism, 2052, schema, noise_multiplier=7.379)
        for bits in (16, 17, 20):
            grid = tff_mf.Grid(bits=bits, max_clients=6500)
            arguments = {"noise_multiplier": 7.379, "grid": grid, "dimension": dimension}
            charge = grid_charge.charge(mechanism, 2052, 6, **arguments)
            found = tff_mf.guarantee(mechanism, 2052, schema, **arguments)
            epsilon = plain.epsilon(1e-10)
            print(
                f"| {name} | {bits} | {charge.error:.1e} | {charge.log_ratio:.1e} | {plain.mu:.4f} | "
                f"{found.mu - plain.mu:.4f} | {epsilon:.4f} | {found.epsilon(1e-10) - epsilon:.4f} |",
                flush=True,
            )


def _measure(tf: object, name: str, rounds: int, dimension: int) -> None:
    import tff_mf
    from tff_mf.noise.tensorflow import build_stream

    mechanism = _mechanism(tff_mf, name)
    grid = tff_mf.Grid(bits=16, max_clients=6500)
    draw = tf.function(lambda seed: tf.random.stateless_normal([dimension], seed, alg="philox"))
    seeds = iter(range(10**9))
    works = {
        "draw": lambda: draw(tf.constant([next(seeds), 7], tf.int64))[0].numpy(),
        "grid": _step(tf, build_stream(mechanism, dimension=dimension, stddev=7.379, grid=grid)),
        "float": _step(tf, build_stream(mechanism, dimension=dimension, stddev=7.379)),
    }
    wall: dict[str, list[float]] = {each: [] for each in works}
    processor: dict[str, list[float]] = {each: [] for each in works}
    for index in range(rounds + 3):
        for each, work in works.items():
            before, used = time.perf_counter(), time.process_time()
            work()
            if index >= 3:
                wall[each].append(time.perf_counter() - before)
                processor[each].append(time.process_time() - used)
    unit, cpu = statistics.fmean(wall["draw"]), statistics.fmean(processor["draw"])
    ratios = [statistics.fmean(wall[each]) / unit for each in ("grid", "float")]
    ratios += [statistics.fmean(processor[each]) / cpu for each in ("grid", "float")]
    print(
        f"{name:28} {ratios[0]:6.2f} {ratios[1]:6.2f} {ratios[2]:9.2f} {ratios[3]:9.2f}   {1000 * unit:.0f} ms",
        flush=True,
    )


def _step(tf: object, stream: object) -> Callable[[], object]:
    advance, state = tf.function(stream.next, reduce_retracing=True), stream.init()

    def step() -> None:
        nonlocal state
        row, state = advance(state)
        # Waits for the row, without a copy of it.
        row[0].numpy()

    return step


def _mechanism(tff_mf: object, name: str) -> object:
    words = name.replace(",", "").split()
    match words[0], words[1] if len(words) > 1 else "":
        case "identity", _:
            return tff_mf.Identity()
        case "blt", "2":
            return tff_mf.BLT(theta=[0.99, 0.8], omega=[0.1, 0.2])
        case "blt", _:
            return tff_mf.BLT.production("b400")
        case "tree", variant:
            return tff_mf.Tree(2048, variant=variant)
        case _:
            return tff_mf.BandedToeplitz.square_root(int(words[2]))


if __name__ == "__main__":
    main()
