"""The frontier of error over memory: losses of our mechanisms and of the literature's, by our functions.

    python benchmarks/frontier.py [--page docs/results/frontier.md] [--jax-privacy PYTHON]

Mechanisms that others have and we leave out, because one of ours has less error at equal memory, are coefficients here:
BSR (Kalinin and Lampert, 2024), BISR (Kalinin, McKenna, Upadhyay and Lampert, 2025), λ-CGD (Kalinin et al., 2026) with
columns of equal norms, and the inverse (1 − x)^γ, banded, with the best γ and columns of equal norms. With the Python
of an environment that has jax_privacy 2.0.0, its own BLTs of 3 buffers and its banded Toeplitz matrices of b bands are
searched there.
"""

import argparse
import collections
import dataclasses
import json
import pathlib
import subprocess
import time
from collections.abc import Callable, Iterator

import numpy as np
import scipy.optimize

import tff_mf
from tff_mf.mechanisms import series
from tff_mf.sensitivities import general
from tff_mf.sensitivities.losses import Errors, errors, least_loss

SETTINGS = [(1024, 1024, 1), (512, 64, 8), (1000, 100, 10), (2000, 400, 5), (2052, 342, 6)]
PEER = pathlib.Path(__file__).with_name("jax_privacy_peer.py")
MEMORIES = (0, 1, 2, 3, 4, 8, 16, 64, None)
OBJECTIVES = ("rms", "max")
# Bands of inverses that are drawn again, for mechanisms without memory.
_DRAWN_AGAIN = 8


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
    """A mechanism's losses, its rows of memory, and the seconds that it took to find."""

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
        return Point(name, rows, losses(mechanism, setting), seconds)

    yield found("banded inverse, drawn again", 0, tff_mf.optimize_banded_inverse, bands=_DRAWN_AGAIN)
    for buffers in (1, 2, 3, 4):
        yield found("BLT", buffers, tff_mf.optimize_blt, buffers=buffers)
        yield found("scaled BLT", buffers, tff_mf.optimize_scaled_blt, buffers=buffers)
    for buffers in (6, 8) if setting.most > 1 else ():
        yield found("scaled BLT", buffers, tff_mf.optimize_scaled_blt, buffers=buffers)
    for rows in (4, 8, 16, 64):
        yield found("banded inverse", rows, tff_mf.optimize_banded_inverse, bands=rows + 1)
    for rows in (8, 16, 64, setting.min_sep - 1):
        yield found("banded Toeplitz", rows, tff_mf.optimize_banded_toeplitz, bands=rows + 1)
    # It has no search for MaxLoss.
    for rows in (16, setting.min_sep - 1) if objective == "rms" and setting.most > 1 else ():
        began = time.process_time()
        mechanism = tff_mf.optimize_banded(
            rounds=setting.rounds, bands=rows + 1, participation=setting.participation, unit_norms=False
        )
        yield Point("banded, fitted", rows, losses(mechanism, setting), time.process_time() - began)


def theirs(setting: Setting, objective: str) -> Iterator[Point]:
    """Yields mechanisms of the literature, with the best value of their parameter."""
    place = OBJECTIVES.index(objective)
    for rows in (1, 2, 3, 4, 8, 16, 64):
        yield Point("BSR", rows, losses(tff_mf.BandedToeplitz.square_root(rows + 1), setting))
        yield Point("BISR", rows, losses(tff_mf.BandedInverse.square_root(rows + 1), setting))

        def power(gamma: float, rows: int = rows) -> np.ndarray:
            steps = np.arange(1, rows + 1)
            return np.concatenate([[1.0], np.cumprod((steps - 1 - gamma) / steps)])

        def loss(gamma: float) -> float:
            return normalized(power(gamma), setting)[place]

        best = scipy.optimize.minimize_scalar(loss, bounds=(0.05, 0.99), method="bounded", options={"xatol": 1e-3})
        yield Point("γ-BIFR, equal norms", rows, normalized(power(best.x), setting))
    best = scipy.optimize.minimize_scalar(
        lambda decay: normalized(np.array([1.0, -decay]), setting)[place], bounds=(0, 0.9999), method="bounded"
    )
    point = normalized(np.array([1.0, -best.x]), setting)
    yield Point("λ-CGD, equal norms", 0, point)


def of_jax_privacy(setting: Setting, objective: str, python: str) -> Iterator[Point]:
    """Yields what jax_privacy's own searches find, with the seconds of compilation."""

    def asked(**case: object) -> dict:
        case |= {"rounds": setting.rounds, "objective": objective}
        answer = subprocess.run([python, PEER, json.dumps(case)], check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(answer.stdout)

    found = asked(kind="blt", min_sep=setting.min_sep, limit=setting.most, buffers=3)
    blt = tff_mf.BLT(theta=found["theta"], omega=found["omega"])
    yield Point("jax_privacy's BLT", 3, losses(blt, setting), found["seconds"])
    if objective == "rms":
        found = asked(kind="banded_toeplitz", bands=setting.min_sep)
        banded = tff_mf.BandedToeplitz(column=found["column"])
        yield Point("jax_privacy's banded Toeplitz", setting.min_sep - 1, losses(banded, setting), found["seconds"])


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


_HEAD = """# Error over memory

Which mechanism has the least error at the memory that I have, and how far is it from what is possible?

`python benchmarks/frontier.py` computes all losses by our functions. A row of memory is a copy of the model. *Ours* and
*others* are the least loss with at most so many rows; *bound* is below every mechanism: ‖A‖_* / √(nb), proved at
`tff_mf.sensitivities.losses.least_loss`. Others are BSR, BISR, λ-CGD and γ-BIFR by their coefficients, and with
`--jax-privacy` its own searches.
opake 0.16.1 (BLT, BSR, BISR, λ-CGD, banded Toeplitz) and correlated-noise-mechanism 0.4.0 are not
run: they have the same families of matrices. The sensitivity of those with columns of equal norms is taken for fixed
epochs, which flatters them. Seconds are of the processor; jax_privacy's are in `benchmarks/optimizers.py`."""


def page(points: dict[tuple[Setting, str], list[tuple[bool, Point]]]) -> str:
    """Returns the page with one table for each setting and loss."""
    lines = [_HEAD]
    better = []
    for (setting, objective), known in points.items():
        place, lower = OBJECTIVES.index(objective), least_loss(setting.rounds, setting.participation)
        lines += ["", f"## {'RmsLoss' if objective == 'rms' else 'MaxLoss'}, {setting}", ""]
        lines += [
            "| rows | ours | | seconds | others | | ours over others | ours over bound |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for memory in MEMORIES:
            rows = setting.min_sep if memory is None else memory
            if memory is not None and memory >= setting.min_sep:
                continue
            pair = [
                min(
                    (each for own, each in known if own is wanted and each.rows <= rows),
                    key=lambda each: each.losses[place],
                )
                for wanted in (True, False)
            ]
            mine, other = pair
            ratios = [mine.losses[place] / other.losses[place], mine.losses[place] / lower]
            if ratios[0] > 1.001:
                better.append(f"{other.name}, {setting}, {rows} rows, {objective}: {100 * (ratios[0] - 1):.1f} %")
            name = f"{mine.name} of {mine.rows}", f"{other.name} of {other.rows}"
            lines.append(
                f"| {'b' if memory is None else rows} | {mine.losses[place]:.3f} | {name[0]} | {mine.seconds:.2f} | "
                f"{other.losses[place]:.3f} | {name[1]} | {100 * (ratios[0] - 1):+.1f} % | {ratios[1]:.3f} |"
            )
    lines += ["", "## Where others are ahead", ""]
    lines += [f"- {each}" for each in better] or ["In no cell by more than 0.1 %."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=pathlib.Path, help="Markdown file to write")
    parser.add_argument("--jax-privacy", metavar="PYTHON", help="python of an environment with jax_privacy 2.0.0")
    arguments = parser.parse_args()
    points = collections.defaultdict(list)
    for numbers in SETTINGS:
        setting = Setting(*numbers)
        for objective in OBJECTIVES:
            searches = [(True, ours(setting, objective)), (False, theirs(setting, objective))]
            if arguments.jax_privacy:
                searches.append((False, of_jax_privacy(setting, objective, arguments.jax_privacy)))
            for own, several in searches:
                for point in several:
                    points[setting, objective].append((own, point))
                    print(setting, objective, point, flush=True)
    text = page(points)
    print(text)
    if arguments.page:
        arguments.page.write_text(text)


if __name__ == "__main__":
    main()
