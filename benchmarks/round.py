"""Time of a whole training round with each mechanism, relative to the same TFF process without privacy.

python benchmarks/round.py [--clients N] [--rounds N] [--only NAME]

The LSTM of the papers, clients of `pydoc`, in a resident context. All processes are built first and then take turns
round by round, so that the load of the machine affects all of them. Clients are the same in every round. The baseline
without privacy is TFF's plain mean; TFF's default, which clips and zeroes at estimated quantiles, has a row of its own.
"""

import argparse
import os
import statistics
from collections.abc import Callable, Mapping

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow_federated as tff
from _common import header, row, seconds_of
from _lstm import CLIENTS, Lstm
from _server_rounds import stepping

import tff_mf
from tff_mf import aggregators

ROUNDS, BANDS = 2052, 342
PAPERS = tff_mf.MinSep(min_sep=342, max_participations=6)
WITHOUT = "no privacy: plain mean"
DEFAULT = "no privacy: TFF's default"
GOALS = {"blt, 2 buffers": "≤ 1.10", "blt, 4 buffers": "≤ 1.10"}
MECHANISMS: Mapping[str, Callable[[], tff_mf.Mechanism]] = {
    "identity": tff_mf.Identity,
    "blt, 2 buffers": lambda: tff_mf.optimize_blt(rounds=ROUNDS, participation=PAPERS, buffers=2),
    "blt, 4 buffers": lambda: tff_mf.optimize_blt(rounds=ROUNDS, participation=PAPERS, buffers=4),
    "tree online": lambda: tff_mf.Tree(ROUNDS, variant="online"),
    "tree full": lambda: tff_mf.Tree(ROUNDS, variant="full"),
    # The values do not affect the time; those of square roots need no optimization.
    "banded, 32 bands": lambda: tff_mf.BandedToeplitz.square_root(32),
    "banded, 342 bands": lambda: tff_mf.BandedToeplitz.square_root(BANDS),
    "dense": lambda: tff_mf.Dense(matrix=tff_mf.BandedToeplitz.square_root(64).encoder(64)),
}
NOTES = {
    "banded, 32 bands": "a block is 3 rounds",
    "banded, 342 bands": "a block is 31 rounds, of which these are a part: benchmarks/noise.py measures the mean",
    "dense": "round t draws t times",
}


def aggregator(name: str, clients: int) -> tff.aggregators.UnweightedAggregationFactory | None:
    if name in (WITHOUT, DEFAULT):
        return tff.aggregators.UnweightedMeanFactory() if name == WITHOUT else None
    return aggregators.build_mf_aggregator(
        MECHANISMS[name](), clip_norm=1.0, noise_multiplier=0.1, clients_per_round=clients
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", choices=MECHANISMS, action="append", help="instead of all; may be repeated")
    arguments = parser.parse_args()
    lstm = Lstm(arguments.clients)
    names = [WITHOUT, DEFAULT, *(arguments.only or MECHANISMS)]
    with aggregators.resident_context(max_concurrent_computation_calls=os.cpu_count() or 1):
        steps = {name: stepping(lstm.process(aggregator(name, arguments.clients)), lstm.cohort) for name in names}
        seconds = seconds_of(steps, arguments.rounds, warmup=2)
    header(f"round of {arguments.clients} clients, {lstm.task.parameters:,} parameters", "over plain mean")
    for name in names:
        # Ratios within one turn, in which the load of the machine affects both.
        ratios = [one / base for one, base in zip(seconds[name], seconds[WITHOUT], strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}, {statistics.median(seconds[name]):.2f} s"
        note = f"; {NOTES[name]}" if name in NOTES else ""
        row(name + note, f"{statistics.median(ratios):.3f} ({spread})", GOALS.get(name, ""))


if __name__ == "__main__":
    main()
