"""Runs that may state no ε, or a large one, each with the edit that removes the reason."""

import dataclasses
import pathlib
import random
from collections.abc import Callable, Mapping
from typing import Any

import run_folders
from run_folders import cohorts, read_entries, read_log, write_ledger, write_log

from tff_mf.experiments import reports

Strike = Callable[[pathlib.Path], object]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of a run, and how a forger removes it.

    Attributes:
        name: The edit, in words.
        strike: Makes it.
        set_to: Further arguments of `run_folders.start`.
        ran: Further arguments of `run_folders.run`.
        then: What else happens to the folder before its reports are written.
    """

    name: str
    strike: Strike
    set_to: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ran: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    then: Strike = lambda folder: None

    def write(self, folder: pathlib.Path) -> None:
        """Writes the run."""
        run_folders.start(folder, **self.set_to)
        reports.write(folder, realised=False)
        run_folders.run(folder, **{"killed": (5, 8), **self.ran})
        self.then(folder)
        run_folders.summarise(folder)
        run_folders.consistent(folder)

    def edit(self, folder: pathlib.Path, generator: random.Random) -> bool:
        """Removes the fault, and returns whether there was anything to remove."""
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.strike(folder)
        return before != {path.name: path.read_bytes() for path in folder.iterdir()}


def _set(name: str = "run.json", **values: Any) -> Strike:
    return lambda folder: run_folders.change_json(folder / name, lambda found: {**found, **values})


def _every_begin(**values: Any) -> Strike:
    def strike(folder: pathlib.Path) -> None:
        entries = read_entries(folder)
        write_ledger(folder, [{**each, **(values if each["kind"] == "begin" else {})} for each in entries])

    return strike


def _columns(*names: str) -> Strike:
    return lambda folder: run_folders.metrics(folder, 9, ["round", "seconds", *names])


def _too_soon_in_an_attempt(folder: pathlib.Path) -> None:
    """Gives the first attempt of round 5 the clients of round 4."""
    lines = [line for line in read_log(folder) if line[:2] != (5, 1)]
    place = next(index for index, line in enumerate(lines) if line[:2] == (5, 2))
    lines[place:place] = [(5, 1, client) for client in cohorts()[3]]
    write_log(folder, lines)


def _strike_attempts(folder: pathlib.Path) -> None:
    """Leaves the last attempt of each round in both logs, as its first and only one."""
    last = {number: attempt for number, attempt, _ in read_log(folder)}
    write_log(folder, [(number, 1, client) for number, attempt, client in read_log(folder) if attempt == last[number]])
    kept = []
    for each in read_entries(folder):
        if each.get("attempt", last.get(each.get("round"))) == last.get(each.get("round")):
            kept.append({**each, "attempt": 1} if "attempt" in each else each)
    write_ledger(folder, kept)


def _strike_restarts(folder: pathlib.Path) -> None:
    write_ledger(folder, [each for each in read_entries(folder) if each["kind"] != "restarted"])


def _strike_logs(folder: pathlib.Path) -> None:
    for path in folder.iterdir():
        if path.name not in ("run.json", "mechanism.safetensors", "answers.json", "planned.json", "planned.md"):
            path.unlink()


def _answered(**values: Any) -> Mapping[str, Any]:
    return {"answers": {**run_folders.ANSWERS, **values}}


_LEAK = [{"name": "loss", "of": "training clients"}]
_VOID = {
    "state_is_secret": (False, True),
    "participation_depends_on_data": (True, False),
    "other_releases": ("training loss", "none"),
    "pretraining": ("private", "public"),
}

FAULTS = (
    Fault(
        name="fixed seed removed",
        set_to={"privacy": run_folders.plan(insecure_seed=3)},
        strike=_set(insecure_seed=None),
    ),
    Fault(name="noised counts removed", set_to={"adaptive_count_stddev": 0.3}, strike=_set(adaptive_count_stddev=None)),
    Fault(
        name="what is released without noise removed",
        set_to={"released_without_noise": _LEAK},
        strike=_set(released_without_noise=[]),
    ),
    Fault(
        name="training metric called evaluation",
        then=_columns("loss", "train_loss"),
        strike=_set(evaluation_columns=["loss", "train_loss"]),
    ),
    Fault(name="column of metrics.csv removed", then=_columns("loss", "train_loss"), strike=_columns("loss")),
    Fault(
        name="simulation claimed",
        set_to={"privacy": run_folders.plan(cohort=1000), **_answered(population=8)},
        strike=_set(simulation=True),
    ),
    Fault(
        name="population, smaller",
        set_to={"privacy": run_folders.plan(delta=1e-3), "population": 20_000, **_answered(population=100)},
        strike=_set(population=None),
    ),
    Fault(name="adjacency, the weaker", set_to={"adjacency": "replace-one"}, strike=_set(adjacency="zero-out")),
    Fault(name="divisors made one", ran={"divisors": [2, 3] * 4 + [2]}, strike=_every_begin(divisor=2)),
    Fault(name="clip norms made one", ran={"clip_norms": [1.0, 2.0] * 4 + [1.0]}, strike=_every_begin(clip_norm=1.0)),
    Fault(name="attempt struck from both logs", then=_too_soon_in_an_attempt, strike=_strike_attempts),
    Fault(name="restarts struck", ran={"restarts": (5,)}, strike=_strike_restarts),
    Fault(name="second release struck", ran={"twice": (4,), "killed": ()}, strike=_strike_attempts),
    Fault(name="all logs removed", ran={"rounds": [cohorts()[0]] * 9}, strike=_strike_logs),
    *(
        Fault(name=f"answers, {name}", set_to=_answered(**{name: wrong}), strike=_set("answers.json", **{name: right}))
        for name, (wrong, right) in _VOID.items()
    ),
)
