"""Random edits of the folder of a finished run that try to make its stated ε smaller."""

import dataclasses
import json
import pathlib
import random
import re
from collections.abc import Callable
from typing import Any

import faulty_runs
import run_folders

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.output import files

Edit = Callable[[pathlib.Path, random.Random], bool]

REPORTS = ("report.json", "report.md", "planned.json", "planned.md")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """One way to forge.

    Attributes:
        name: In words.
        edit: Makes the edit; whether there was anything to edit.
        base: The run that it is made to; `None` for any without a fault of its own.
    """

    name: str
    edit: Edit
    base: str | None = None


def _scaled(text: str, generator: random.Random) -> str:
    """Returns a text with every ε made smaller."""
    factor = generator.uniform(0.01, 0.9)
    return re.sub(r"ε≤(\d+\.\d+)", lambda found: f"ε≤{float(found[1]) * factor:.3f}", text)


def _in_run(**changes: Callable[[Any, random.Random], Any]) -> Edit:
    def edit(folder: pathlib.Path, generator: random.Random) -> bool:
        def change(found: dict[str, Any]) -> None:
            found.update({name: how(found[name], generator) for name, how in changes.items()})

        run_folders.change_json(folder / "run.json", change)
        return True

    return edit


def _text(folder: pathlib.Path, generator: random.Random) -> bool:
    path = folder / generator.choice(REPORTS)
    before = path.read_text()
    path.write_text(_scaled(before, generator))
    return path.read_text() != before


def _page(folder: pathlib.Path, generator: random.Random) -> bool:
    """Makes every ε of a page smaller, with the hash of the page and the digest."""
    stem = generator.choice(("report", "planned"))
    page = folder / f"{stem}.md"
    before = page.read_text()
    page.write_text(_scaled(before, generator))
    report = json.loads((folder / f"{stem}.json").read_text())
    report["page"] = reports.page_hash(page.read_text())
    report["digest"] = reports.digest(report)
    (folder / f"{stem}.json").write_text(reports.as_text(report))
    return page.read_text() != before


def _figures(folder: pathlib.Path, generator: random.Random) -> bool:
    """Makes every privacy figure in a report smaller, with matching digest and Markdown."""
    stem = generator.choice(("report", "planned"))
    factor = generator.uniform(0.01, 0.9)
    names = {"mu", "zcdp_rho", "epsilon", "epsilon_by_pld", "epsilon_from_zcdp", "epsilon_as_run", "sensitivity"}

    def smaller(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: smaller(each, key) for key, each in value.items()}
        if isinstance(value, list):
            return [smaller(each) for each in value]
        return value * factor if name in names and isinstance(value, float) else value

    report = smaller(json.loads((folder / f"{stem}.json").read_text()))
    report = reports.sealed(report)
    (folder / f"{stem}.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    (folder / f"{stem}.md").write_text(reports.markdown(report))
    return True


def _summary(folder: pathlib.Path, generator: random.Random) -> bool:
    """Adds an ε to a summary, which states none."""
    name = generator.choice(("epsilon", "epsilon_as_run", "zcdp_rho", "claim", "statement"))
    run_folders.change_json(folder / "summary.json", lambda found: {**found, name: generator.uniform(0.01, 0.9)})
    return True


def _audit(folder: pathlib.Path, generator: random.Random) -> bool:
    factor = generator.uniform(0.01, 0.9)

    def change(found: dict[str, Any]) -> Any:
        kind = generator.randrange(4)
        if kind == 0:
            return {"passed": True, "claimed_epsilon": found["claimed_epsilon"] * factor}
        if kind == 1:
            found["claimed_epsilon"] *= factor
        elif kind == 2:
            for each in ("canaries", "control"):
                found[each]["epsilon_gaussian"] *= factor
        else:
            found["noise_multiplier"] /= factor
            found["claimed_epsilon"] *= factor
        return None

    run_folders.change_json(folder / "audit.json", change)
    return True


def _lines(change: Callable[[list[Any], random.Random], list[Any]]) -> Edit:
    def edit(folder: pathlib.Path, generator: random.Random) -> bool:
        before = run_folders.read_log(folder)
        after = change(list(before), generator)
        run_folders.write_log(folder, after)
        return after != before

    return edit


def _renamed(lines: list[Any], generator: random.Random) -> list[Any]:
    """Gives clients a name of their own in some of their rounds."""
    share = generator.uniform(0.2, 1)
    chosen = {(n, client) for n, _, client in lines if generator.random() < share}
    return [(n, a, f"x{n}{client}" if (n, client) in chosen else client) for n, a, client in lines]


def _dropped(lines: list[Any], generator: random.Random) -> list[Any]:
    share = generator.uniform(0.1, 0.7)
    return [line for line in lines if generator.random() > share]


def _one_attempt(lines: list[Any], generator: random.Random) -> list[Any]:
    number, attempt = generator.choice([(5, 1), (8, 1), (5, 2)])
    return [line for line in lines if line[:2] != (number, attempt)]


def _moved(lines: list[Any], generator: random.Random) -> list[Any]:
    """Exchanges clients of rounds, so that some return later than they did."""
    for _ in range(generator.randint(1, 5)):
        one, other = generator.sample(range(len(lines)), 2)
        (a, b, first), (c, d, second) = lines[one], lines[other]
        lines[one], lines[other] = (a, b, second), (c, d, first)
    return lines


def _entries(folder: pathlib.Path, generator: random.Random) -> bool:
    """Leaves out, doubles, exchanges or changes lines of the ledger, and computes the chain again."""
    entries = run_folders.read_entries(folder)
    before = json.dumps(entries)
    for _ in range(generator.randint(1, 3)):
        place, kind = generator.randrange(1, len(entries)), generator.randrange(4)
        if kind == 0:
            del entries[place]
        elif kind == 1:
            entries.insert(place, dict(entries[place]))
        elif kind == 2:
            other = generator.randrange(1, len(entries))
            entries[place], entries[other] = entries[other], entries[place]
        else:
            name = generator.choice(list(entries[place]))
            if isinstance(entries[place][name], int | float):
                entries[place][name] = max(1, entries[place][name] + generator.choice((-1, 1)))
    run_folders.write_ledger(folder, entries)
    return json.dumps(entries) != before


def _shorter(folder: pathlib.Path, generator: random.Random) -> bool:
    """Makes the run end earlier, in its settings and all of its logs."""
    last = generator.randint(7, 8)
    entries = [each for each in run_folders.read_entries(folder) if each.get("round", 0) <= last]
    entries = [{**each, "rounds": last} if each["kind"] == "ended" else each for each in entries]
    run_folders.write_ledger(folder, entries)
    run_folders.write_log(folder, [line for line in run_folders.read_log(folder) if line[0] <= last])
    run_folders.metrics(folder, last)

    def change(found: dict[str, Any]) -> None:
        found["rounds"], found["cohorts"] = last, found["cohorts"][:last]

    run_folders.change_json(folder / "run.json", change)
    return True


def _mechanism(folder: pathlib.Path, generator: random.Random) -> bool:
    (folder / "mechanism.safetensors").unlink()
    other = generator.choice(
        [tff_mf.Identity(), tff_mf.BandedToeplitz(column=[1.0, 0.2]), tff_mf.BLT.production("b1000")]
    )
    tff_mf.save(other, folder / "mechanism.safetensors")
    about = files.file_hash(folder / "mechanism.safetensors")
    run_folders.change_json(folder / "run.json", lambda found: {**found, "mechanism_sha256": about})
    return True


def _answers(folder: pathlib.Path, generator: random.Random) -> bool:
    """The true answers say that a person can be three clients."""
    run_folders.change_json(folder / "answers.json", lambda found: {**found, "clients_of_one_person": 1})
    return True


def _from_another(folder: pathlib.Path, generator: random.Random, other: pathlib.Path) -> bool:
    """Takes files of another run, with more noise."""
    names = [path.name for path in sorted(other.iterdir()) if path.is_file() and path.name != "answers.json"]
    for name in generator.sample(names, generator.randint(1, len(names) - 1)):
        (folder / name).write_bytes((other / name).read_bytes())
    return True


def _bytes(folder: pathlib.Path, generator: random.Random) -> bool:
    """Changes a digit somewhere."""
    path = folder / generator.choice(sorted(each.name for each in folder.iterdir() if each.is_file()))
    content = bytearray(path.read_bytes())
    places = [place for place, each in enumerate(content) if chr(each) in "123456789"]
    if not places:
        return False
    content[generator.choice(places)] = ord(generator.choice("0123456789"))
    path.write_bytes(bytes(content))
    return True


def _gone(folder: pathlib.Path, generator: random.Random) -> bool:
    names = sorted(each.name for each in folder.iterdir() if each.is_file() and each.name not in ("run.json",))
    for name in generator.sample(names, generator.randint(1, len(names))):
        (folder / name).unlink()
    return True


def kinds(other: pathlib.Path) -> list[Kind]:
    """Returns all ways to forge; `other` is the folder of another run, with more noise."""

    def larger(value: float, generator: random.Random) -> float:
        return value * generator.uniform(1.05, 100)

    def with_population(value: object, generator: random.Random) -> float:
        del value
        return generator.choice((1e-5, 4e-5))

    def many(value: int, generator: random.Random) -> int:
        return value * generator.randint(2, 50)

    return [
        Kind(name="noise multiplier, larger", edit=_in_run(noise_multiplier=larger)),
        Kind(name="δ, larger", edit=_in_run(delta=with_population)),
        Kind(name="cohort, larger than what trains", edit=_in_run(cohort=many)),
        Kind(name="mechanism, another", edit=_mechanism),
        Kind(name="clip norm in run.json", edit=_in_run(clip_norm=larger)),
        Kind(name="restarts in run.json", edit=_in_run(restart_every=lambda _, g: g.randint(1, 3))),
        Kind(name="participation, claimed", edit=_in_run(min_sep=many, max_participations=lambda *_: 1)),
        Kind(name="run and logs, shorter", edit=_shorter),
        Kind(name="clients renamed", edit=_lines(_renamed)),
        Kind(name="clients left out", edit=_lines(_dropped)),
        Kind(name="clients of an attempt left out", edit=_lines(_one_attempt)),
        Kind(name="clients exchanged", edit=_lines(_moved)),
        Kind(name="ledger, entries", edit=_entries),
        Kind(name="report, ε in the text", edit=_text),
        Kind(name="report, all figures and digest", edit=_figures),
        Kind(name="report, ε in the page, its hash and digest", edit=_page),
        Kind(name="summary", edit=_summary),
        Kind(name="audit", edit=_audit),
        Kind(name="answers", edit=_answers),
        Kind(name="files of another run", edit=lambda folder, g: _from_another(folder, g, other)),
        Kind(name="a digit anywhere", edit=_bytes),
        Kind(name="files removed", edit=_gone),
        *(Kind(name=each.name, edit=each.edit, base=each.name) for each in faulty_runs.FAULTS),
    ]
