"""Forged folders of runs: finished runs that were edited to state a smaller ε, with dependent hashes rewritten or not.

None may pass with the original digest. Of many, `python tests/fuzz runs` says which are found by the digest alone.
"""

import contextlib
import dataclasses
import functools
import json
import math
import pathlib
import random
import re
import shutil
from collections.abc import Iterator
from unittest import mock

import edits
import faulty_runs
import run_folders
from outcomes import ACCEPTED, Outcome

import tff_mf
from tff_mf.base.errors import InputError
from tff_mf.experiments import reports
from tff_mf.experiments.output import files

# How much a forger rewrites after an edit.
LEVELS = ("nothing", "the ledger", "all that follows", "all that follows, and no cohorts planned")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Base:
    """An unedited run.

    Attributes:
        name: In words.
        folder: Its folder.
        digest: Of its report.
        stated: Every ε that its files state.
    """

    name: str
    folder: pathlib.Path
    digest: str
    stated: dict[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forgery:
    """One forgery, and what the checks say of it.

    Attributes:
        base: The run that was forged.
        kind: The edit.
        level: What was written anew.
        lowered: Whether some ε is smaller than it was.
        found: Whether the check finds it, with no digest.
        found_by_digest: Whether it finds it with the digest that was held.
        refused: Whether it is not read at all.
    """

    base: str
    kind: str
    level: str
    lowered: bool
    found: bool
    found_by_digest: bool
    refused: bool

    @property
    def result(self) -> str:
        if not self.lowered:
            return "lowers no ε"
        return "found" if self.found else "found by the digest alone" if self.found_by_digest else ACCEPTED


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """Computes each ε once: the same ones are needed many times."""
    with contextlib.ExitStack() as patches:
        for name in ("epsilon", "epsilon_by_pld"):
            cached = functools.lru_cache(maxsize=100_000)(getattr(tff_mf.Guarantee, name))
            patches.enter_context(mock.patch.object(tff_mf.Guarantee, name, cached))
        yield


def bases(folder: pathlib.Path) -> tuple[list[Base], pathlib.Path]:
    """Makes the runs that are forged, and another with more noise.

    The first kept its schema, the second did not, and every other has a fault that some kind of edit strikes out.
    """
    right, broken, other = (folder / name for name in ("right", "broken", "other"))
    run_folders.whole(right)
    _with_several_clients_of_a_person(right)
    shutil.copytree(right, broken)
    lines = run_folders.read_log(broken)
    soon = next(client for number, _, client in lines if number == 1)
    lines = [(n, a, soon if (n, a) == (2, 1) and i % 2 else client) for i, (n, a, client) in enumerate(lines)]
    run_folders.write_log(broken, lines)
    run_folders.consistent(broken)
    run_folders.summarise(broken)
    run_folders.consistent(broken)
    run_folders.start(other, privacy=run_folders.plan(noise_multiplier=40.0))
    run_folders.run(other, killed=(5, 8))
    run_folders.summarise(other)
    run_folders.consistent(other, planned=True)
    faulty = {each.name: folder / each.name for each in faulty_runs.FAULTS}
    for each in faulty_runs.FAULTS:
        each.write(faulty[each.name])
    every = (right, broken, *faulty.values())
    made = [Base(name=each.name, folder=each, digest=_digest(each), stated=stated(each)) for each in every]
    assert [each.severity for each in reports.check(right, held=made[0].digest) if each.severity == "critical"] == []
    assert math.isinf(made[1].stated["report.json"])
    return made, other


def _with_several_clients_of_a_person(folder: pathlib.Path) -> None:
    run_folders.change_json(folder / "answers.json", lambda found: {**found, "clients_of_one_person": 3})
    run_folders.consistent(folder, planned=True)


def _digest(folder: pathlib.Path) -> str:
    return json.loads((folder / "report.json").read_text())["digest"]


def stated(folder: pathlib.Path) -> dict[str, float]:
    """Returns every ε that a folder states, by place; infinity where it states none."""
    found: dict[str, float] = {}
    for name in edits.REPORTS:
        path = folder / name
        text = path.read_text(errors="replace") if path.exists() else ""
        seen = re.findall(r"ε≤(\d+\.\d+)", text)
        found[name] = min(map(float, seen), default=math.inf)
        if name.endswith("json"):
            report = _json(path)
            for field in ("epsilon", "epsilon_of_a_person", "epsilon_as_run"):
                found[f"{name} {field}"] = _number(report.get("claim", {}), field)
            for kind in ("planned", "realised"):
                found[f"{name} {kind}"] = _number((report.get("accountant") or {}).get(kind) or {}, "epsilon")
    summary, audit = _json(folder / "summary.json"), _json(folder / "audit.json")
    found["summary.json"], found["audit.json"] = _number(summary, "epsilon"), _number(audit, "claimed_epsilon")
    return found


def _json(path: pathlib.Path) -> dict:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _number(found: object, name: str) -> float:
    value = found.get(name) if isinstance(found, dict) else None
    return float(value) if isinstance(value, int | float) else math.inf


def forge(
    base: Base, ways: list[edits.Kind], level: int, folder: pathlib.Path, generator: random.Random
) -> Forgery | None:
    """Makes one forgery by one or several edits, and checks it; `None` if there was nothing to edit."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base.folder, folder)
    try:
        for kind in ways:
            if not kind.edit(folder, generator):
                return None
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        # The first of several edits left nothing for the second.
        if len(ways) == 1:
            raise
        return None
    refused = False
    try:
        _write_anew(folder, level)
    except (InputError, OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        # What the forger's own tools cannot read stays as it is.
        refused = True
    try:
        critical = [each.field for each in reports.check(folder, held=base.digest) if each.severity == "critical"]
        refused = False
    except InputError:
        critical, refused = ["digest", "input"], True
    now = stated(folder)
    lowered = any(now[name] < value for name, value in base.stated.items())
    return Forgery(
        base=base.name,
        kind=" + ".join(sorted(kind.name for kind in ways)),
        level=LEVELS[level],
        lowered=lowered,
        found=any(field != "digest" for field in critical),
        found_by_digest=bool(critical),
        refused=refused,
    )


def _write_anew(folder: pathlib.Path, level: int) -> None:
    if level == 0:
        return
    if level == 3:
        run_folders.change_json(folder / "run.json", lambda found: {**found, "cohorts": []})
    if level == 1:
        entries = run_folders.read_entries(folder)
        entries[0]["bound_to"] = files.file_hash(folder / "run.json")
        run_folders.write_ledger(folder, entries)
        return
    run_folders.consistent(folder, planned=True)
    if (folder / "summary.json").exists():
        run_folders.summarise(folder)
    if (folder / "audit.json").exists():
        (folder / "audit.json").unlink()
    run_folders.consistent(folder, planned=True)


def forgeries(
    made: list[Base], other: pathlib.Path, work: pathlib.Path, inputs: int, seed: int, only: str = ""
) -> Iterator[Forgery]:
    """Yields a number of forgeries, by the edits whose names have a text."""
    ways, generator = [each for each in edits.kinds(other) if only in each.name], random.Random(f"forged {seed}")
    count = 0
    while count < inputs:
        chosen = generator.sample(ways, min(len(ways), generator.choice((1, 1, 1, 2, 3))))
        own = [each for each in made for kind in chosen if each.name == kind.base]
        base = generator.choice(own or made[:2])
        found = forge(base, chosen, generator.randrange(len(LEVELS)), work, generator)
        if found is not None:
            count += 1
            yield found


def outcomes(folder: pathlib.Path, *, inputs: int, seed: int, only: str) -> Iterator[Outcome]:
    """Yields what came of forgeries by the edits whose names have a text, by what was written anew."""
    with remembered():
        made, other = bases(folder)
        for each in forgeries(made, other, folder / "work", inputs, seed, only):
            kind = "two or three edits" if " + " in each.kind else each.kind
            yield Outcome(target=kind, fault=each.level, result=each.result, about=each.kind)
