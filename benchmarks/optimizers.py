"""Losses of optimized mechanisms and time of the optimizers, optionally compared with jax_privacy 2.0.0.

    python benchmarks/optimizers.py
    python benchmarks/optimizers.py --only banded --jax-privacy /path/to/other/venv/bin/python

The second form is available for some groups. It runs every case that jax_privacy supports in the given Python, twice
and taking turns with ours, and prints the ratio of the times. Imports are not timed; compilation by jax is, since each
case is compiled separately. Our time is the median of five runs, or that of one run if it takes seconds. Losses of both
are computed here from the returned parameters.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import scipy.optimize  # noqa: F401  The optimizers import it when they are first called.

import tff_mf
from tff_mf.mechanisms import Mechanism

PEER = pathlib.Path(__file__).with_name("jax_privacy_peer.py")
REPEATS = 5
STACK_OVERFLOW = tff_mf.OptimizedFor(rounds=2052, participation=tff_mf.MinSep(min_sep=342, max_participations=6))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the table.

    Attributes:
        name: Name of the row.
        setting: The setting optimized for.
        run: Runs the optimizer.
        target: Loss to reach, or `None`.
        peer: The case for `jax_privacy_peer.py`, or `None` if jax_privacy does not support it.
        from_peer: Creates the mechanism from the peer's answer.
        repeats: Number of our runs, of which the median time is taken.
    """

    name: str
    setting: tff_mf.OptimizedFor
    run: Callable[[], Mechanism]
    target: float | None = None
    peer: dict | None = None
    from_peer: Callable[[dict], Mechanism] | None = None
    repeats: int = REPEATS


def blt_case(setting: tff_mf.OptimizedFor, buffers: int, objective: str, target: float | None, *, beside: bool) -> Case:
    schema = setting.participation
    arguments = {"buffers": buffers, "objective": objective}
    return Case(
        name=f"blt {buffers} {objective}, n = {setting.rounds}",
        setting=setting,
        run=lambda: tff_mf.optimize_blt(rounds=setting.rounds, participation=schema, **arguments),
        target=target,
        peer={
            "kind": "blt",
            "rounds": setting.rounds,
            "min_sep": schema.min_sep,
            "limit": schema.max_participations,
            **arguments,
        }
        if beside
        else None,
        from_peer=lambda answer: tff_mf.BLT(theta=answer["theta"], omega=answer["omega"]),
    )


def blt_cases() -> list[Case]:
    cases = [
        blt_case(STACK_OVERFLOW, buffers, objective, target, beside=True)
        for buffers, objective, target in [
            (2, "max", 10.8063),
            (3, "max", 10.7514),
            (4, "max", 10.735),
            (3, "rms", 9.172),
        ]
    ]
    for rounds in (10**6, 10**9):
        schema = tff_mf.MinSep(min_sep=rounds // 6, max_participations=6)
        setting = tff_mf.OptimizedFor(rounds=rounds, participation=schema)
        cases += [blt_case(setting, buffers, "max", None, beside=False) for buffers in (2, 3, 4, 5)]
        cases += [blt_case(setting, 3, "rms", None, beside=False)]
    return cases


def banded_case(setting: tff_mf.OptimizedFor, bands: int, target: float | None, *, unit: bool, beside: bool) -> Case:
    rounds, schema = setting.rounds, setting.participation
    norms = "unit" if unit else "epoch" if isinstance(schema, tff_mf.FixedEpoch) else "free"
    return Case(
        name=f"banded {bands} {norms}, n = {rounds}",
        setting=setting,
        run=lambda: tff_mf.optimize_banded(rounds=rounds, bands=bands, participation=schema, unit_norms=unit),
        target=target,
        peer={"kind": "banded", "rounds": rounds, "bands": bands, "limit": schema.max_participations, "target": target}
        if beside
        else None,
        from_peer=lambda answer: tff_mf.Banded(values=answer["values"]),
        repeats=1,
    )


def toeplitz_cases(bands: int) -> list[Case]:
    rounds, schema = STACK_OVERFLOW.rounds, STACK_OVERFLOW.participation
    arguments = {"rounds": rounds, "bands": bands, "participation": schema}
    return [
        Case(
            name=f"banded toeplitz {bands}",
            setting=STACK_OVERFLOW,
            run=lambda: tff_mf.optimize_banded_toeplitz(**arguments),
            peer={"kind": "banded_toeplitz", "rounds": rounds, "bands": bands},
            from_peer=lambda answer: tff_mf.BandedToeplitz(column=answer["column"]),
        ),
    ]


def banded_cases() -> list[Case]:
    fixed = tff_mf.FixedEpoch(min_sep=342, max_participations=6)
    small = tff_mf.OptimizedFor(rounds=512, participation=tff_mf.MinSep(min_sep=128, max_participations=4))
    return [
        *(case for bands in (8, 32, 342) for case in toeplitz_cases(bands)),
        banded_case(small, 128, None, unit=True, beside=True),
        banded_case(STACK_OVERFLOW, 128, None, unit=True, beside=False),
        banded_case(STACK_OVERFLOW, 342, 8.60, unit=True, beside=True),
        banded_case(STACK_OVERFLOW, 342, None, unit=False, beside=False),
        banded_case(tff_mf.OptimizedFor(rounds=2052, participation=fixed), 342, None, unit=False, beside=False),
    ]


def dense_case(setting: tff_mf.OptimizedFor, target: float | None = None, *, epochs: int | None = None) -> Case:
    """Returns a case; with `epochs`, also for jax_privacy."""
    rounds, schema = setting.rounds, setting.participation
    return Case(
        name=f"dense {type(schema).__name__} {rounds}",
        setting=setting,
        run=lambda: tff_mf.optimize_dense(rounds=rounds, participation=schema),
        target=target,
        peer=None if epochs is None else {"kind": "dense", "rounds": rounds, "epochs": epochs},
        from_peer=lambda answer: tff_mf.Dense(matrix=answer["matrix"]),
        repeats=1,
    )


def dense_cases() -> list[Case]:
    """Targets are sqrt(total error) of Denisov et al. (2022), table 2, plus its rounding."""
    once = tff_mf.SingleParticipation()
    totals = {256: 40.4, 512: 62.0, 1024: 94.6, 2048: 143.6, 4096: 217.3}
    six, four = (tff_mf.FixedEpoch(min_sep=b, max_participations=k) for b, k in ((342, 6), (128, 4)))
    return [
        *(
            dense_case(tff_mf.OptimizedFor(rounds=rounds, participation=once), (total + 0.05) / rounds**0.5)
            for rounds, total in totals.items()
        ),
        dense_case(tff_mf.OptimizedFor(rounds=512, participation=four), epochs=4),
        dense_case(tff_mf.OptimizedFor(rounds=2052, participation=six)),
        dense_case(STACK_OVERFLOW),
    ]


def structured_case(rounds: int, diagonals: int, rank: int, total: float) -> Case:
    """The target is the column Efficient of the same table."""
    once = tff_mf.SingleParticipation()
    return Case(
        name=f"structured {diagonals} + {rank}, n = {rounds}",
        setting=tff_mf.OptimizedFor(rounds=rounds, participation=once),
        run=lambda: tff_mf.optimize_banded_plus_low_rank(
            mechanism=tff_mf.optimize_dense(rounds=rounds, participation=once), diagonals=diagonals, rank=rank
        ),
        target=(total + 0.05) / rounds**0.5,
        repeats=1,
    )


def structured_cases() -> list[Case]:
    return [structured_case(256, 4, 4, 40.4), structured_case(512, 5, 4, 62.2), structured_case(1024, 5, 5, 95.5)]


def tree_case(setting: tff_mf.OptimizedFor, variant: str, target: float) -> Case:
    """Nothing is optimized: the time is that of the sensitivity."""

    def run() -> Mechanism:
        tree = tff_mf.Tree(setting.rounds, variant, optimized_for=setting)
        began = time.perf_counter()
        tff_mf.sensitivity(tree, setting.rounds, setting.participation)
        search = tff_mf.SearchStatus(
            objective="rms",
            loss=loss_of(tree, setting, "rms"),
            message="in closed form",
            iterations=0,
            seconds=time.perf_counter() - began,
            gradient_norm=0.0,
            history=(),
        )
        return dataclasses.replace(tree, optimized_for=dataclasses.replace(setting, converged=True, search=search))

    return Case(name=f"tree {variant}, n = {setting.rounds}", setting=setting, run=run, target=target, repeats=1)


def tree_cases() -> list[Case]:
    """Targets are those of McMahan et al. (2024), table 1, with more digits, and of Denisov et al. (2022), table 2."""
    once = tff_mf.SingleParticipation()
    totals = {256: 74.4, 512: 116.5, 1024: 180.8, 2048: 278.3, 4096: 425.6}
    shorter = dataclasses.replace(STACK_OVERFLOW, rounds=2048)
    return [
        tree_case(STACK_OVERFLOW, "full", 12.47151),
        tree_case(shorter, "full", 12.47312),
        *(
            tree_case(tff_mf.OptimizedFor(rounds=rounds, participation=once), "online", (total + 0.05) / rounds**0.5)
            for rounds, total in totals.items()
        ),
    ]


GROUPS = {
    "blt": blt_cases,
    "banded": banded_cases,
    "dense": dense_cases,
    "structured": structured_cases,
    "tree": tree_cases,
}


def loss_of(mechanism: Mechanism, setting: tff_mf.OptimizedFor, objective: str) -> float:
    loss = tff_mf.max_loss if objective == "max" else tff_mf.rms_loss
    return loss(mechanism, setting.rounds, setting.participation)


def status(mechanism: Mechanism) -> tff_mf.SearchStatus:
    assert mechanism.optimized_for is not None
    assert mechanism.optimized_for.search is not None
    return mechanism.optimized_for.search


def ours(case: Case) -> tuple[Mechanism, float]:
    mechanisms = [case.run() for _ in range(case.repeats)]
    return mechanisms[0], statistics.median(status(mechanism).seconds for mechanism in mechanisms)


def report_alone(cases: list[Case]) -> None:
    print(f"{'case':<28}{'loss':>11}{'target':>10}{'':>5}{'direct':>11}{'seconds':>9}  status")
    for case in cases:
        mechanism, seconds = ours(case)
        result, setting = status(mechanism), mechanism.optimized_for
        assert setting is not None
        target = "" if case.target is None else f"{case.target:.4f}"
        verdict = "" if case.target is None else "ok" if result.loss <= case.target else "MISS"
        direct = f"{loss_of(mechanism, case.setting, result.objective):.4f}" if case.setting.rounds < 1e7 else ""
        ending = "converged" if setting.converged else result.message
        if setting.duality_gap is not None:
            ending += f", duality gap {setting.duality_gap:.1e}"
        print(
            f"{case.name:<28}{result.loss:>11.4f}{target:>10}{verdict:>5}{direct:>11}{seconds:>9.3f}  {ending}",
            flush=True,
        )


def report_beside(cases: list[Case], python: str) -> None:
    print(f"\n{'case':<28}{'turn':>5}{'loss':>11}{'seconds':>9}{'jax loss':>11}{'seconds':>9}{'ratio':>8}")
    for case in cases:
        if case.peer is None or case.from_peer is None:
            continue
        for turn in (1, 2):
            mechanism, seconds = ours(case)
            result = status(mechanism)
            command = [python, str(PEER), json.dumps(case.peer)]
            answer = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
            theirs = loss_of(case.from_peer(answer), case.setting, result.objective)
            ratio = answer["seconds"] / seconds
            print(
                f"{case.name:<28}{turn:>5}{result.loss:>11.4f}{seconds:>9.3f}{theirs:>11.4f}{answer['seconds']:>9.2f}"
                f"{ratio:>8.0f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", metavar="GROUP", default=list(GROUPS), choices=list(GROUPS), help=f"of {', '.join(GROUPS)}"
    )
    parser.add_argument("--jax-privacy", metavar="PYTHON", help="python of a venv with jax_privacy 2.0.0")
    arguments = parser.parse_args()
    cases = [case for group in arguments.only for case in GROUPS[group]()]
    report_alone(cases)
    if arguments.jax_privacy:
        report_beside(cases, arguments.jax_privacy)


if __name__ == "__main__":
    sys.exit(main())
