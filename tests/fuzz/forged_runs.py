"""Ten thousand forged folders of runs: `python tests/fuzz/forged_runs.py`. None may pass with the original digest.

Each is a finished run whose files were edited to state a smaller ε, with dependent hashes rewritten or not. It
prints, by kind of edit, the forgeries that passed without the digest: only the digest detects them.
"""

import argparse
import collections
import contextlib
import dataclasses
import functools
import json
import math
import pathlib
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from unittest import mock

import edits
import faulty_runs
import run_folders

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
class Outcome:
    """The outcome of one forgery.

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
) -> Outcome | None:
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
    return Outcome(
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
        entries[0]["configuration"] = files.file_hash(folder / "run.json")
        run_folders.write_ledger(folder, entries)
        return
    run_folders.consistent(folder, planned=True)
    if (folder / "summary.json").exists():
        run_folders.summarise(folder)
    if (folder / "audit.json").exists():
        (folder / "audit.json").unlink()
    run_folders.consistent(folder, planned=True)


def forgeries(made: list[Base], other: pathlib.Path, work: pathlib.Path, inputs: int, seed: int) -> Iterator[Outcome]:
    """Yields the outcomes of a number of forgeries."""
    ways, generator = edits.kinds(other), random.Random(f"forged {seed}")
    count = 0
    while count < inputs:
        chosen = generator.sample(ways, generator.choice((1, 1, 1, 2, 3)))
        own = [each for each in made for kind in chosen if each.name == kind.base]
        base = generator.choice(own or made[:2])
        outcome = forge(base, chosen, generator.randrange(len(LEVELS)), work, generator)
        if outcome is not None:
            count += 1
            yield outcome


def table(outcomes: list[Outcome]) -> str:
    """Returns a line for each kind of edit: how many lowered an ε, and how many of those passed."""
    lines = ["| edit | forgeries | lower an ε | pass without the digest | with it |", "|---|--:|--:|--:|--:|"]
    by_kind: dict[str, list[Outcome]] = collections.defaultdict(list)
    for each in outcomes:
        by_kind["two or three of these" if " + " in each.kind else each.kind].append(each)
    for name, found in [*sorted(by_kind.items()), ("**all**", outcomes)]:
        lower = [each for each in found if each.lowered]
        cells = [name, len(found), len(lower), sum(not each.found for each in lower)]
        lines.append("| " + " | ".join(map(str, [*cells, sum(not each.found_by_digest for each in lower)])) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    start, outcomes = time.perf_counter(), []
    memory = "/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None
    with remembered(), tempfile.TemporaryDirectory(dir=memory) as folder:
        made, other = bases(pathlib.Path(folder))
        for outcome in forgeries(made, other, pathlib.Path(folder) / "work", given.inputs, given.seed):
            outcomes.append(outcome)
            if len(outcomes) % 500 == 0:
                print(f"{len(outcomes)} after {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    print(table(outcomes))
    passed = [each for each in outcomes if each.lowered and not each.found]
    for (kind, level), times in sorted(collections.Counter((each.kind, each.level) for each in passed).items()):
        print(f"passes without the digest: {kind}, with {level} written anew: {times}")
    lied = sum(each.lowered and not each.found_by_digest for each in outcomes)
    print(f"{len(outcomes)} forgeries in {time.perf_counter() - start:.0f} s, {lied} pass with the digest")
    sys.exit(lied > 0)


if __name__ == "__main__":
    main()
