"""Trains tiny runs with every mechanism, and checks each with its digest on machines of other kinds: 0 alarms.

    python tests/honest FOLDER [PYTHON ...]

The checks run with this Python in each environment of `environments`, and with each other PYTHON as it is, such as one
with the newest NumPy. Every check must exit with status 0. Runs that FOLDER has already are kept.
"""

import json
import pathlib
import shlex
import sys

from tff_mf.experiments.training.datasets.pydoc import write_pydoc
from tff_mf.planning import mechanism_names

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "machines"))
import environments

# Answers without which a report states no ε.
ANSWERS = {
    "trusted": "the operator of the server",
    "unit": "one client",
    "clients_of_one_person": 1,
    "population": 157,
    "enforcement": "the sampler of train",
    "participation_depends_on_data": False,
    "tuning_runs": 0,
    "pretraining": "none",
    "other_releases": "none",
    "state_is_secret": True,
}
SETTINGS = shlex.split(
    """--rounds 6 --min-sep 2 --max-participations 3 --clients-per-round 3 --delta 1e-6 --epsilon 8 --model conv
    --vocab-size 100 --embedding-size 4 --units 4 --max-examples 1 --batch-size 1 --evaluate-every 6
    --evaluation-examples 20"""
)
COMMAND = ["-P", "-c", "from tff_mf.experiments.cli import main; main()"]


def trained(folder: pathlib.Path, data: pathlib.Path, mechanism: str, grid: str) -> pathlib.Path:
    """Returns the folder of a run with its report; trains it if it is not there."""
    out = folder / f"{mechanism.replace(':', '-')} {grid}"
    if not (out / "report.json").is_file():
        of_run = ["--mechanism", mechanism, "--grid", grid, "--dataset", f"sqlite:{data}", "--out", str(out)]
        environments.start("machine", [sys.executable, *COMMAND, "train", "--force", *SETTINGS, *of_run], check=True)
        (out / "answers.json").write_text(json.dumps(ANSWERS))
        environments.start("machine", [sys.executable, *COMMAND, "report", str(out)], check=True)
    return out


def alarms(run: pathlib.Path, name: str, python: str) -> int:
    """Returns 1 and prints why if a check of a run is not clean, else 0."""
    digest = json.loads((run / "report.json").read_text())["digest"]
    command = [python, *COMMAND, "report", str(run), "--check", "--digest", digest]
    done = environments.start(name, command)
    said = (done.stdout + done.stderr).decode(errors="replace")
    clean = done.returncode == 0
    print("ok   " if clean else "ALARM", run.name, name, python, "" if clean else said[-2000:], flush=True)
    return int(not clean)


def main(folder: pathlib.Path, others: list[str]) -> int:
    """Trains and checks all runs, and returns the number of alarms."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "small.sqlite"
    if not data.is_file():
        write_pydoc(data, ["scipy"], progress=False)
    names = (*mechanism_names.names(), *mechanism_names.production())
    runs = [trained(folder, data, name, grid) for name in names for grid in ("none", "auto")]
    machines = [(name, sys.executable) for name in environments.ENVIRONMENTS] + [("machine", each) for each in others]
    found = sum(alarms(run, name, python) for run in runs for name, python in machines)
    print(f"{found} alarms in {len(runs) * len(machines)} checks of {len(runs)} runs")
    return found


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2:]) > 0)
