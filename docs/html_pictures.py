"""Takes the pictures of web pages in docs/command-line.md, on a telephone and on a screen, into docs/pictures.

Run `python docs/html_pictures.py` in the root of a checkout. It needs Chromium: `chromium` on the PATH, or another
name or path in the environment variable CHROMIUM.
"""

import functools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
NEEDED = "Chromium is needed: `chromium` on the PATH, or its name or path in the environment variable CHROMIUM."
# Columns of a picture and their height by the width of the window: a page on a telephone is long.
_SHOWN = {380: (4, 1200), 1400: (1, 2900)}
_TALLEST, _GAP, _COLORS = 9000, 20, 20


def browser() -> str | None:
    """Returns the path of Chromium, if there is one."""
    return shutil.which(os.environ.get("CHROMIUM", "chromium"))


def run(page: pathlib.Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Opens a page in a Chromium of its own, without a window; what its scripts complain of is on stderr."""
    found = browser()
    if found is None:
        raise FileNotFoundError(NEEDED)
    with tempfile.TemporaryDirectory() as profile:
        # Where root runs it, in a container, its own sandbox does not start.
        words = [found, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        words += ["--enable-logging=stderr", f"--user-data-dir={profile}", *options, page.as_uri()]
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=120)


def pages(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Writes a page of each command that writes one, and yields its path."""
    from click.testing import CliRunner

    from tff_mf.experiments import cli, comparison
    from tff_mf.experiments.comparison.charts import charts
    from tff_mf.experiments.output import typed
    from tff_mf.experiments.output.present import html

    sys.path.append(str(ROOT / "tests" / "fuzz"))
    import run_folders

    invoke = functools.partial(CliRunner().invoke, cli.cli, catch_exceptions=False)
    deployment = "--population 3000 --clients-per-round 100 --rounds 96 --delta 1e-6 --epsilon 4"
    invoke(["plan", *deployment.split(), "--html", str(folder / "plan.html")])
    yield folder / "plan.html"
    run_folders.whole(folder / "run")
    invoke(["report", str(folder / "run"), "--html", str(folder / "report.html")])
    yield folder / "report.html"
    stored = ROOT / "docs" / "results" / "table-4-small.json"
    found = typed.read(stored, comparison.ComparisonResult, "comparison")
    page = comparison.document(found, name="table-4-small", charts=charts(found))
    html.write_page(folder / "compare.html", page)
    yield folder / "compare.html"


def take(page: pathlib.Path, width: int, path: pathlib.Path) -> None:
    """Writes a picture of a page in a window of some pixels: from its top, in columns from left to right."""
    from PIL import Image, ImageChops

    with tempfile.TemporaryDirectory() as folder:
        shot = pathlib.Path(folder, "shot.png")
        run(page, f"--window-size={width},{_TALLEST}", f"--screenshot={shot}")
        whole = Image.open(shot).convert("RGB")
    paper = whole.getpixel((width - 1, _TALLEST - 1))
    end = ImageChops.difference(whole, Image.new("RGB", whole.size, paper)).getbbox()[3] + _GAP
    columns, most = _SHOWN[width]
    height = min(most, -(-end // columns))
    made = Image.new("RGB", (columns * (width + _GAP) - _GAP, height), "#888888")
    for place in range(columns):
        made.paste(whole.crop((0, place * height, width, (place + 1) * height)), (place * (width + _GAP), 0))
    # The colors that differ most: few pixels have any.
    made.quantize(_COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    if browser() is None:
        sys.exit(NEEDED)
    with tempfile.TemporaryDirectory() as folder:
        for page in pages(pathlib.Path(folder)):
            for width in _SHOWN:
                take(page, width, ROOT / "docs" / "pictures" / f"page-{page.stem}-{width}.png")
