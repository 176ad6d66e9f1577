"""The frontier of error over memory: losses of our mechanisms and of the literature's, by our functions.

    python benchmarks/frontier.py [--csv docs/results/frontier.csv] [--peers]

Mechanisms that others have and we leave out, because one of ours has less error at equal memory, are coefficients here:
BSR (Kalinin and Lampert, 2024), BISR (Kalinin, McKenna, Upadhyay and Lampert, 2025), λ-CGD (Kalinin et al., 2026) with
columns of equal norms, and the inverse (1 − x)^γ, banded, with the best γ and columns of equal norms. With `--peers`,
jax_privacy, opake and correlated-noise-mechanism search in environments of their own, which are made in build/peers.
"""

import argparse
import collections
import csv
import dataclasses
import functools
import itertools
import json
import pathlib
import subprocess
import time
from collections.abc import Callable, Iterator

import numpy as np
import scipy.optimize

import tff_mf
from tff_mf.mechanisms import series
from tff_mf.optimize.least_loss import least_loss
from tff_mf.sensitivities import general
from tff_mf.sensitivities.losses import Errors, errors

SETTINGS = [(1024, 1024, 1), (512, 64, 8), (1000, 100, 10), (2000, 400, 5), (2052, 342, 6)]
# The packages in the environment of each.
PEERS = {
    "jax_privacy": ("jax-privacy==2.0.0",),
    "opake": ("opake[dpftrl]==0.16.1", "scipy"),
    "correlated_noise": ("correlated-noise-mechanism==0.4.0",),
}
LITERATURE = "literature"
MEMORIES = (1, 2, 3, 4, 8, 16, 64, None)
OBJECTIVES = ("rms", "max")


@dataclasses.dataclass(frozen=True)
class Setting:
    """Rounds, and how far apart and how often a client takes part."""

    rounds: int
    min_sep: int
    most: int

    @property
    def participation(self) -> tff_mf.Participation:
        if self.most == 1:
            return tff_mf.SingleParticipation()
        return tff_mf.MinSep(min_sep=self.min_sep, max_participations=self.most)

    def __str__(self) -> str:
        return f"n = {self.rounds:,}" + (f", b = {self.min_sep}, k = {self.most}" if self.most > 1 else " once")


@dataclasses.dataclass(frozen=True)
class Point:
    """A mechanism's losses, its rows of memory, and the seconds that it took to find; `source` is "ours" or whose."""

    source: str
    name: str
    rows: int
    losses: Errors
    seconds: float = 0.0


def losses(mechanism: tff_mf.Mechanism, setting: Setting) -> Errors:
    """Returns RmsLoss and MaxLoss."""
    sensitivity = tff_mf.sensitivity(mechanism, setting.rounds, setting.participation)
    return Errors(*(sensitivity * each for each in errors(mechanism, setting.rounds)))


def ours(setting: Setting, objective: str) -> Iterator[Point]:
    """Yields what our optimizers find."""

    def found(name: str, rows: int, search: Callable[..., tff_mf.Mechanism], **options: object) -> Point:
        began = time.process_time()
        mechanism = search(rounds=setting.rounds, participation=setting.participation, objective=objective, **options)
        seconds = time.process_time() - began
        return Point("ours", name, rows, losses(mechanism, setting), seconds)

    for buffers in (1, 2, 3, 4):
        yield found("BLT", buffers, tff_mf.optimize_blt, buffers=buffers)
        yield found("scaled BLT", buffers, tff_mf.optimize_scaled_blt, buffers=buffers)
    for rows in (8, 16, 64, setting.min_sep - 1):
        yield found("banded Toeplitz", rows, tff_mf.optimize_banded_toeplitz, bands=rows + 1)
    for rows in (16, setting.min_sep - 1) if setting.most > 1 else ():
        yield found("banded, fitted", rows, tff_mf.optimize_banded, bands=rows + 1, unit_norms=False)


def theirs(setting: Setting, objective: str) -> Iterator[Point]:
    """Yields mechanisms of the literature, with the best value of their parameter."""
    place = OBJECTIVES.index(objective)
    for rows in (1, 2, 3, 4, 8, 16, 64):
        yield Point(LITERATURE, "BSR", rows, losses(tff_mf.BandedToeplitz.square_root(rows + 1), setting))

        def power(gamma: float, rows: int = rows) -> np.ndarray:
            steps = np.arange(1, rows + 1)
            return np.concatenate([[1.0], np.cumprod((steps - 1 - gamma) / steps)])

        def loss(gamma: float) -> float:
            return normalized(power(gamma), setting)[place]

        column = series.quotient(np.eye(1, setting.rounds)[0], power(0.5))
        yield Point(LITERATURE, "BISR", rows, losses(tff_mf.BandedToeplitz(column=column.tolist()), setting))

        best = scipy.optimize.minimize_scalar(loss, bounds=(0.05, 0.99), method="bounded", options={"xatol": 1e-3})
        yield Point(LITERATURE, "γ-BIFR, equal norms", rows, normalized(power(best.x), setting))
    best = scipy.optimize.minimize_scalar(
        lambda decay: normalized(np.array([1.0, -decay]), setting)[place], bounds=(0, 0.9999), method="bounded"
    )
    point = normalized(np.array([1.0, -best.x]), setting)
    yield Point(LITERATURE, "λ-CGD, equal norms", 0, point)


def of_peers(setting: Setting, objective: str) -> Iterator[Point]:
    """Yields what the searches of other packages find, with the seconds of the processor, compilation included."""
    case = {"rounds": setting.rounds, "min_sep": setting.min_sep, "limit": setting.most}

    def toeplitz(answer: dict) -> Errors:
        return losses(tff_mf.BandedToeplitz(column=answer["column"]), setting)

    found = asked("jax_privacy", kind="jax_privacy_blt", buffers=3, objective=objective, **case)
    blt = tff_mf.BLT(theta=found["theta"], omega=found["omega"])
    yield Point("jax_privacy", "jax_privacy's BLT", 3, losses(blt, setting), found["seconds"])
    if objective == "rms":
        found = asked("jax_privacy", kind="jax_privacy_banded", bands=setting.min_sep, rounds=setting.rounds)
        yield Point(
            "jax_privacy", "jax_privacy's banded Toeplitz", setting.min_sep - 1, toeplitz(found), found["seconds"]
        )
    # opake's BLTs are searched for MaxLoss, and its banded matrices for the mean error.
    for buffers in (1, 2, 3, 4, 8):
        found = asked("opake", kind="opake_blt", buffers=buffers, **case)
        yield Point("opake", "opake's BLT", buffers, toeplitz(found), found["seconds"])
    for rows in (8, 16, 64, setting.min_sep - 1):
        if rows < setting.min_sep:
            found = asked("opake", kind="opake_banded", bands=rows + 1, rounds=setting.rounds)
            yield Point("opake", "opake's banded Toeplitz", rows, toeplitz(found), found["seconds"])
    for buffers in (2, 4):
        kind = "correlated_noise_blt"
        found = asked("correlated_noise", kind=kind, buffers=buffers, objective=objective, **case)
        yield Point("correlated_noise", "correlated-noise-mechanism's BLT", buffers, toeplitz(found), found["seconds"])


def asked(peer: str, **case: object) -> dict:
    """Returns what a peer finds in its own environment; the same search is not done twice."""
    return json.loads(_answer(peer, json.dumps(case)))


@functools.cache
def _answer(peer: str, case: str) -> str:
    # Here, since tests read this file without what `_common` needs.
    from _common import environment

    command = [environment(peer, PEERS[peer]), pathlib.Path(__file__).with_name("frontier_peer.py"), case]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def normalized(inverse: np.ndarray, setting: Setting) -> Errors:
    """Returns the losses of LtToep(inverse)⁻¹ with columns of norm 1.

    Its sensitivity is taken for fixed epochs, which is no more than for min-sep: it may be too good.
    """
    rounds = setting.rounds
    column = series.quotient(np.eye(1, rounds)[0], inverse)
    norms = np.sqrt(np.cumsum(np.square(column))[::-1])
    grams = []
    for apart in range(0, min(setting.most * setting.min_sep, rounds), setting.min_sep):
        products = np.cumsum(column[: rounds - apart] * column[apart:])[::-1]
        grams.append(products / (norms[: rounds - apart] * norms[apart:]))
    epochs = tff_mf.FixedEpoch(min_sep=setting.min_sep, max_participations=setting.most)
    sensitivity = general.fixed_epoch(grams, epochs, lambda pattern: np.zeros(1)).value
    # Row t of C⁻¹ is multiplied by norm t; its covariance with row s < t is a sum of products of coefficients.
    squares, bands = np.zeros(rounds), len(inverse)
    for apart in range(bands):
        products = np.cumsum(np.pad(inverse[: bands - apart] * inverse[apart:], (0, max(0, rounds - bands + apart))))
        pairs = products[: rounds - apart] * norms[: rounds - apart] * norms[apart:]
        squares[apart:] += (2 if apart else 1) * pairs
    variances = np.cumsum(squares)
    return Errors(sensitivity * float(np.sqrt(variances.mean())), sensitivity * float(np.sqrt(variances.max())))


def rows(points: dict[tuple[Setting, str], list[Point]]) -> Iterator[dict[str, str]]:
    """Yields for each setting, loss and memory the best mechanism of ours, of all others, and of each of them."""
    for (setting, objective), known in points.items():
        place = OBJECTIVES.index(objective)
        lower = least_loss(setting.rounds, setting.participation, objective)

        def loss(point: Point, place: int = place) -> float:
            return point.losses[place]

        for memory in MEMORIES:
            if memory is not None and memory >= setting.min_sep:
                continue
            most = setting.min_sep if memory is None else memory
            best: dict[str, Point] = {}
            for point in sorted((each for each in known if each.rows <= most), key=loss):
                best.setdefault(point.source, point)
            mine = best.pop("ours")
            other = min(best.values(), key=loss)
            yield {
                "loss": objective,
                "rounds": str(setting.rounds),
                "min_sep": str(setting.min_sep),
                "max_participations": str(setting.most),
                "rows": str(most),
                "ours": f"{loss(mine):.3f}",
                "our_mechanism": f"{mine.name} of {mine.rows}",
                "seconds": f"{mine.seconds:.2f}",
                "others": f"{loss(other):.3f}",
                "other_mechanism": f"{other.name} of {other.rows}",
                "over_bound": f"{loss(mine) / lower:.3f}",
                **{name: f"{loss(best[name]):.3f}" if name in best else "" for name in (LITERATURE, *PEERS)},
            }


def table(found: list[dict[str, str]]) -> str:
    """Returns the rows of the papers' setting as a table in Markdown."""
    lines = [
        "| rows | RmsLoss, ours | others | ours over bound | MaxLoss, ours | others | ours over bound |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    rms, worst = (
        [each for each in found if (each["loss"], each["rounds"]) == (objective, "2052")] for objective in OBJECTIVES
    )
    for pair in zip(rms, worst, strict=True):
        cells = [each[name] for each in pair for name in ("ours", "others", "over_bound")]
        lines.append(f"| {' | '.join([pair[0]['rows'], *cells])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=pathlib.Path, help="file to write")
    parser.add_argument("--peers", action="store_true", help="search with jax_privacy, opake and others too")
    arguments = parser.parse_args()
    points = collections.defaultdict(list)
    for numbers in SETTINGS:
        setting = Setting(*numbers)
        for objective in OBJECTIVES:
            searches = [ours(setting, objective), theirs(setting, objective)]
            if arguments.peers:
                searches.append(of_peers(setting, objective))
            for point in itertools.chain(*searches):
                points[setting, objective].append(point)
                print(setting, objective, point, flush=True)
    found = list(rows(points))
    print(table(found))
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, found[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(found)


if __name__ == "__main__":
    main()
