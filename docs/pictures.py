"""Draws the pictures of docs/explanation, of docs/experiments.md and of README as SVG, into docs/pictures.

Run `python docs/pictures.py` in the root of a checkout. A test draws them again and compares. Every curve, cell and
screen is computed by `tff_mf`; accuracies are those of docs/results. In dark mode the pictures are dark.
"""

import contextlib
import html
import json
import os
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from unittest import mock

import numpy as np
from click.testing import CliRunner

import tff_mf

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "pictures"
# Okabe and Ito's colours, which are told apart with every kind of colour vision.
BLUE, ORANGE, GREEN, PINK = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
# The setting of the pictures of matrices: small enough to see each entry.
ROUNDS = 16
PARTICIPATION = tff_mf.MinSep(min_sep=4, max_participations=4)
_STYLE = """<style>
svg{--paper:#fff;--ink:#222;--faint:#ddd;--dots:#888}
@media(prefers-color-scheme:dark){svg{--paper:#1e2129;--ink:#e6e6e6;--faint:#3c404b;--dots:#999}}
text{font:17px system-ui,"DejaVu Sans",sans-serif;fill:var(--ink)}
.screen{font:14px ui-monospace,"DejaVu Sans Mono",monospace;white-space:pre}
.small{font-size:16px}.tiny{font-size:13px}.bold{font-weight:600}.mid{text-anchor:middle}.end{text-anchor:end}
.faint{stroke:var(--faint);fill:none}.line{fill:none;stroke-width:2.5;stroke-linejoin:round}
</style>"""


class Picture:
    """An SVG that grows from left to right and from top to bottom."""

    def __init__(self, width: int, height: int, title: str):
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{title}</title>",
            _STYLE,
            f'<rect width="{width}" height="{height}" rx="8" fill="var(--paper)"/>',
        ]

    def text(self, x: float, y: float, text: str, kind: str = "", color: str = "") -> None:
        style = f' style="fill:{color}"' if color else ""
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}"{style}>{text}</text>')

    def line(self, points: Sequence[tuple[float, float]], color: str = "", kind: str = "line", more: str = "") -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        stroke = f' stroke="{color}"' if color else ""
        self._parts.append(f'<polyline points="{path}" class="{kind}"{stroke}{more}/>')

    def rectangle(self, x: float, y: float, width: float, height: float, fill: str, more: str = "") -> None:
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"{more}/>'
        )

    def circle(self, x: float, y: float, radius: float, fill: str) -> None:
        self._parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{fill}"/>')

    def matrix(self, x: float, y: float, size: float, matrix: np.ndarray, title: str) -> None:
        """Cells from orange, below 0, over none to blue, above 0; the darkest is the largest absolute value."""
        self.text(x + size / 2, y - 12, title, "mid bold")
        self.rectangle(x, y, size, size, "none", ' class="faint"')
        cell, largest = size / len(matrix), np.abs(matrix).max()
        for (row, column), value in np.ndenumerate(matrix):
            strength = abs(value) / largest
            if strength >= 0.005:
                more = f' fill-opacity="{0.08 + 0.92 * strength:.2f}"'
                fill = BLUE if value > 0 else ORANGE
                self.rectangle(x + column * cell, y + row * cell, cell - 0.6, cell - 0.6, fill, more)

    def svg(self) -> str:
        return "\n".join([*self._parts, "</svg>\n"])


def mechanisms() -> dict[str, tff_mf.Mechanism]:
    """Returns each kind of mechanism for the setting of the pictures."""
    setting = {"rounds": ROUNDS, "participation": PARTICIPATION}
    dense = tff_mf.optimize_dense(**setting)
    return {
        "identity": tff_mf.Identity(),
        "tree": tff_mf.Tree(ROUNDS, variant="full"),
        "banded": tff_mf.optimize_banded(bands=4, **setting),
        "banded-toeplitz": tff_mf.optimize_banded_toeplitz(bands=4, **setting),
        "blt": tff_mf.optimize_blt(buffers=2, **setting),
        "dense": dense,
        "banded-plus-low-rank": tff_mf.optimize_banded_plus_low_rank(mechanism=dense, diagonals=2, rank=2),
    }


def noise_that_cancels() -> str:
    """The noise in a sum over rounds, independent and correlated, at equal ε; and what was trained with both."""
    rounds, participation = 160, tff_mf.MinSep(min_sep=80, max_participations=2)
    blt = tff_mf.optimize_blt(rounds=rounds, participation=participation, buffers=2)
    picture = Picture(
        720, 410, "The noise in the sum of all rounds so far, and the accuracy after training, at equal ε"
    )
    picture.text(20, 32, "Noise in the sum of all rounds", "bold")
    picture.text(20, 54, "in clip norms; ε = 2, δ = 10⁻⁶", "small")
    normals = np.random.default_rng(1).normal(size=rounds)
    left, middle, scale, width = 58.0, 230.0, 1.7, 360.0
    for level in (-80, -40, 0, 40, 80):
        picture.line([(left, middle - scale * level), (left + width, middle - scale * level)], kind="faint")
        picture.text(left - 8, middle - scale * level + 5, f"{level}".replace("-", "−"), "small end")
    curves = {"independent noise": (tff_mf.Identity(), ORANGE), "correlated noise (BLT)": (blt, BLUE)}
    for mechanism, color in curves.values():
        sigma = tff_mf.calibrate_noise_multiplier(mechanism, rounds, participation, epsilon=2.0, delta=1e-6)
        sums = np.tri(rounds) @ mechanism.inverse(rounds) * sigma
        spread, drawn = np.linalg.norm(sums, axis=1), sums @ normals
        x = left + width * np.arange(1, rounds + 1) / rounds
        band = [
            *zip(x, middle - scale * spread, strict=True),
            *zip(x[::-1], middle + scale * spread[::-1], strict=True),
        ]
        picture.line(band, kind="", more=f' fill="{color}" fill-opacity="0.15"')
        picture.line(list(zip(x, middle - scale * drawn, strict=True)), color)
    picture.text(left + width / 2, 394, "rounds, 1 to 160; shaded: standard deviation", "small mid")
    picture.text(left + 4, 84, "independent", "bold", ORANGE)
    picture.text(left + 150, 84, "correlated (BLT)", "bold", BLUE)
    _accuracies(picture, 450, {"identity": ORANGE, "blt": BLUE})
    return picture.svg()


def _accuracies(picture: Picture, left: float, colors: dict[str, str]) -> None:
    levels = json.loads((ROOT / "docs" / "results" / "pydoc.json").read_text())["levels"]
    picture.text(left, 32, "Accuracy at equal ε", "bold")
    picture.text(left, 52, "next word, %; 95 % intervals", "small")
    bottom, scale = 366.0, 14.1
    for percent in (0, 5, 10, 15, 20):
        picture.line([(left + 30, bottom - scale * percent), (704, bottom - scale * percent)], kind="faint")
        picture.text(left + 22, bottom - scale * percent + 5, f"{percent}", "small end")
    for place, level in enumerate(sorted(levels, key=lambda level: level["accuracy"])):
        x = left + 34 + 37 * place
        top, half = bottom - scale * 100 * level["accuracy"], scale * 100 * level["half_width_95"]
        picture.rectangle(x, top, 33, bottom - top, colors.get(level["mechanism"], "#777777"))
        picture.line([(x + 16, top - half), (x + 16, top + half)], "var(--ink)", more=' stroke-width="2"')
        picture.text(x + 16, bottom - 10, f"{100 * level['accuracy']:.1f}", "tiny mid", "#fff")
    picture.text(left + 140, bottom + 24, "grey: trees, dense, banded", "small mid")


def one_draw() -> str:
    """What becomes of the noise that one round draws: column 0 of C⁻¹, and of B."""
    mechanism = mechanisms()["blt"]
    inverse = mechanism.inverse(ROUNDS)
    picture = Picture(720, 360, "One draw of noise: what each round adds of it, and what of it is in the sum")
    panels = {
        "What each round adds of it": (inverse[:, 0], "independent noise: 1, 0, 0, …"),
        "What of it is left in the sum": (inverse[:, 0].cumsum(), "independent noise: 1, 1, 1, …"),
    }
    for number, (title, (values, note)) in enumerate(panels.items()):
        left, bottom, scale = 40 + 350.0 * number, 230.0, 150
        picture.text(left, 32, title, "bold")
        picture.text(left, 54, note, "small")
        picture.line([(left, bottom), (left + 310, bottom)], kind="faint")
        for place, value in enumerate(values):
            top = bottom - scale * max(value, 0)
            fill = BLUE if value > 0 else ORANGE
            picture.rectangle(left + 19.4 * place, top, 15, max(scale * abs(value), 1), fill)
        picture.text(left, bottom + 112, "round 1", "small")
        picture.text(left + 310, bottom + 112, "round 16", "small end")
    return picture.svg()


def factorization() -> str:
    """A = B·C, each as a picture."""
    mechanism = mechanisms()["banded-toeplitz"]
    prefix = np.tri(ROUNDS)
    picture = Picture(720, 270, "The prefix sums A as a product of B and C")
    parts = {
        "A: prefix sums": prefix,
        "B: decoder": prefix @ mechanism.inverse(ROUNDS),
        "C: encoder": mechanism.encoder(ROUNDS),
    }
    for number, (title, matrix) in enumerate(parts.items()):
        picture.matrix(20 + 240 * number, 44, 200, matrix, title)
    for number, sign in enumerate("=·"):
        picture.text(230 + 240 * number, 150, sign, "mid bold")
    return picture.svg()


def one_mechanism(name: str) -> Callable[[], str]:
    """C, C⁻¹ and B of a mechanism."""

    def draw() -> str:
        mechanism = mechanisms()[name]
        inverse = mechanism.inverse(ROUNDS)
        picture = Picture(720, 270, f"C, its inverse and B of {name}")
        picture.matrix(20, 44, 200, mechanism.encoder(ROUNDS), "C")
        picture.matrix(260, 44, 200, inverse, "C⁻¹: the noise")
        picture.matrix(500, 44, 200, np.tri(ROUNDS) @ inverse, "B: left in the sums")
        return picture.svg()

    return draw


def participation() -> str:
    """The patterns of a client in four rounds that are at least two apart, and the norm of each."""
    encoder = tff_mf.BandedToeplitz(column=(1.0, 0.5)).encoder(4)
    patterns = [(), (0,), (1,), (2,), (3,), (0, 2), (0, 3), (1, 3)]
    picture = Picture(720, 400, "Patterns of participation in four rounds, at most two rounds, at least two apart")
    for column, (x, title) in enumerate([(60, "round"), (330, "pattern x"), (480, "C x"), (640, "‖C x‖²")]):
        picture.text(x, 34, title, "bold" if column == 0 else "bold mid")
    for number in range(4):
        picture.text(130 + 40 * number, 34, f"{number + 1}", "small mid")
    for place, pattern in enumerate(patterns):
        y, taken = 72 + 42 * place, np.isin(np.arange(4), pattern).astype(float)
        picture.line([(120, y), (260, y)], kind="faint")
        for number in range(4):
            picture.circle(130 + 40 * number, y, 9 if taken[number] else 4, BLUE if taken[number] else "var(--dots)")
        moved = encoder @ taken
        worst = " bold" if pattern == (0, 2) else ""
        picture.text(330, y + 5, " ".join(f"{value:.0f}" for value in taken), "mid")
        picture.text(480, y + 5, "  ".join(f"{value:g}" for value in moved), "mid")
        picture.text(640, y + 5, f"{moved @ moved:g}" + (" (largest)" if worst else ""), "mid" + worst)
    return picture.svg()


def error_over_rounds() -> str:
    """The standard deviation of the noise in each prefix sum, times the sensitivity: at equal privacy."""
    rounds, schema = 256, tff_mf.MinSep(min_sep=64, max_participations=4)
    shown = {
        "independent": (tff_mf.Identity(), ORANGE, ""),
        "tree, full": (tff_mf.Tree(rounds, variant="full"), PINK, ' stroke-dasharray="2 3"'),
        "BLT": (tff_mf.optimize_blt(rounds=rounds, participation=schema, buffers=2), BLUE, ""),
        "banded": (tff_mf.optimize_banded(rounds=rounds, bands=64), GREEN, ' stroke-dasharray="8 4"'),
    }
    picture = Picture(720, 400, "Standard deviation of the noise in the sum of each round, at equal privacy")
    picture.text(24, 32, "Noise in the sum of the rounds so far, at equal privacy", "bold")
    picture.text(24, 52, "standard deviation for σ = sensitivity; 256 rounds, b = 64, k = 4", "small")
    left, bottom, scale, width = 60.0, 350.0, 8.8, 480
    for level in (0, 10, 20, 30):
        picture.line([(left, bottom - scale * level), (left + width, bottom - scale * level)], kind="faint")
        picture.text(left - 8, bottom - scale * level + 5, f"{level}", "small end")
    for name, (mechanism, color, dashes) in shown.items():
        errors = np.linalg.norm(np.tri(rounds) @ mechanism.inverse(rounds), axis=1)
        errors *= tff_mf.sensitivity(mechanism, rounds, schema)
        x = left + width * np.arange(1, rounds + 1) / rounds
        picture.line(list(zip(x, bottom - scale * errors, strict=True)), color, more=dashes)
        loss = tff_mf.rms_loss(mechanism, rounds, schema)
        y = {"tree, full": 12.0, "BLT": 8.4, "banded": 4.8}.get(name, errors[-1])
        picture.text(left + width + 8, bottom - scale * y + 5, f"{name}: {loss:.1f}", "small bold", color)
    picture.text(left + width + 8, bottom + 32, "RmsLoss", "small bold")
    picture.text(left + width / 2, bottom + 32, "rounds, 1 to 256", "small mid")
    return picture.svg()


def _arrow(picture: Picture, points: Sequence[tuple[float, float]], color: str) -> None:
    """A line that ends in a head, along one of the axes."""
    (x, y), (from_x, from_y) = points[-1], points[-2]
    back, aside = (np.sign(x - from_x), np.sign(y - from_y)), (np.sign(y - from_y), np.sign(x - from_x))
    picture.line(points, color)
    sides = [(x - 9 * back[0] + 6 * side * aside[0], y - 9 * back[1] + 6 * side * aside[1]) for side in (1, -1)]
    picture.line([sides[0], (x, y), sides[1]], color)


def deployment_round() -> str:
    """What server and devices compute in one round of a bundle, and what is between them."""
    picture = Picture(740, 330, "One round: prepare, work on devices, accumulate, update")
    picture.text(24, 36, "server", "bold", BLUE)
    picture.text(24, 206, "devices", "bold", ORANGE)
    steps = {"prepare": (40, "who takes part is on disk"), "accumulate": (280, "checks, clips, adds")}
    steps["update"] = (520, "adds noise, moves the model")
    for name, (x, does) in steps.items():
        picture.rectangle(x, 56, 160, 50, BLUE, ' rx="8"')
        picture.text(x + 80, 87, name, "mid bold", "#fff")
        picture.text(x + 80, 128, does, "mid small")
    _arrow(picture, [(440, 81), (520, 81)], BLUE)
    picture.text(480, 70, "sum", "mid small")
    _arrow(picture, [(600, 140), (600, 180)], BLUE)
    picture.text(600, 206, "state on disk, then the model", "mid small")
    for place in range(3):
        x, y = 150 + 12 * place, 226 + 12 * place
        picture.rectangle(x, y, 170, 50, ORANGE, ' rx="8" stroke="var(--paper)" stroke-width="2"')
    picture.text(259, 281, "work: train, clip", "mid bold", "#fff")
    _arrow(picture, [(120, 140), (120, 245), (146, 245)], ORANGE)
    picture.text(112, 180, "model", "end small")
    _arrow(picture, [(348, 262), (360, 262), (360, 140)], ORANGE)
    picture.text(370, 180, "clipped updates", "small")
    return picture.svg()


_SETTING = ("--rounds", "2052", "--min-sep", "342", "--max-participations", "6")
_DEPLOYMENT = ("--population", "3000", "--clients-per-round", "100", "--rounds", "96", "--delta", "1e-6")
SCREENS = {
    "plan": ("plan", *_DEPLOYMENT, "--epsilon", "4"),
    "account": ("account", "tree-full", *_SETTING, "--delta", "1e-6", "--noise-multiplier", "7"),
}
COLUMNS = 80
_MEASURED = re.compile(r"\b\d+\.\d(?= s\b)")
_ENDED = re.compile(r"(?<=^seconds)( +)\S+|\b\d\.\de-\d\d\b", re.M)


def screen(name: str) -> Callable[[], str]:
    """Returns the function that draws what a command prints on a terminal."""

    def draw() -> str:
        # Seconds, and the end of a search, differ from machine to machine.
        text = _MEASURED.sub(
            lambda found: f"{'…':>{len(found[0])}}",
            _ENDED.sub(lambda found: f"{found[1] or ''}…", _printed(SCREENS[name])),
        )
        lines = [line.rstrip() for line in text.rstrip().splitlines()]
        picture = Picture(round(8.45 * COLUMNS) + 24, 19 * len(lines) + 24, f"tff-mf {' '.join(SCREENS[name])}")
        for number, line in enumerate(lines):
            picture.text(12, 26 + 19 * number, html.escape(line), "screen")
        return picture.svg()

    return draw


def _printed(words: Sequence[str]) -> str:
    # The other pictures need the lowest layer alone.
    from tff_mf.experiments import cli

    with _wide(), _elsewhere():
        return CliRunner().invoke(cli.cli, words, prog_name="tff-mf", catch_exceptions=False).stdout


def _wide() -> contextlib.AbstractContextManager[object]:
    return mock.patch.dict(os.environ, {"COLUMNS": str(COLUMNS), "TERMINAL_WIDTH": str(COLUMNS)})


@contextlib.contextmanager
def _elsewhere() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield


PICTURES: dict[str, Callable[[], str]] = {
    "noise-that-cancels": noise_that_cancels,
    "one-draw": one_draw,
    "factorization": factorization,
    "participation": participation,
    "error-over-rounds": error_over_rounds,
    "deployment-round": deployment_round,
    **{
        f"mechanism-{name}": one_mechanism(name)
        for name in (
            *("identity", "tree", "banded", "banded-toeplitz"),
            *("blt", "dense", "banded-plus-low-rank"),
        )
    },
    **{f"screen-{name}": screen(name) for name in SCREENS},
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
