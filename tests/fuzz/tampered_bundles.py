"""Tampers with a bundle in more than 200 ways: `python tests/fuzz/tampered_bundles.py`. Needs TensorFlow.

Each is a bundle that was changed and whose manifest was written anew to fit, and its report where that helps. `verify`
has to refuse every one of them, without the digest, but for those that say of themselves that they are another
deployment; and with the digest, all. No graph that differs from the one that is built anew may ever be loaded.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from unittest import mock

from tampering import Material, Way, refused
from tampering_ways import GROUPS, WAYS

from tff_mf.experiments import bundles
from tff_mf.experiments.bundles import verification

_SETTINGS = """[run]
dataset = "sqlite:{data}"
mechanism = "tree-full"
rounds = 200
clients_per_round = 2
cohort = {cohort}
delta = 1e-6
min_sep = 10
max_participations = 12
noise_multiplier = {noise_multiplier}
clip_norm = {clip_norm}
grid = "none"
model = "conv"
vocab_size = {words}
embedding_size = 4
units = 4
batch_size = 2
max_examples = 4
seed = {seed}
"""
_MADE_OF = ("run.json", "mechanism.safetensors", "vocabulary.json", "participation.json")
_BASE = {"cohort": 4, "noise_multiplier": 8.0, "clip_norm": 1.0, "words": 60, "seed": 0}
_OTHER = {"cohort": 2, "noise_multiplier": 2.0, "clip_norm": 3.0, "words": 60, "seed": 1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one way.

    Attributes:
        way: The way.
        reason: Why `verify` refuses it without the digest; empty if it does not.
        with_digest: The same with the digest.
        seconds: How long both took.
        executed: Whether a graph was loaded.
    """

    way: Way
    reason: str
    with_digest: str
    seconds: float
    executed: bool

    @property
    def as_expected(self) -> bool:
        """Whether it was detected, if possible without the digest, and by the digest in any case."""
        found = (bool(self.reason), bool(self.with_digest))
        return found == (not self.way.digest_only, True) and self.ran_if_equal

    @property
    def ran_if_equal(self) -> bool:
        """Whether graphs were run only if nothing was wrong."""
        return self.executed == (not self.reason)


@contextlib.contextmanager
def built_once(material: Material, again: pathlib.Path, work: pathlib.Path) -> Iterator[list[str]]:
    """Exports again once for all bundles made from the same files; yields what else was built.

    Args:
        material: The bundles.
        again: The base as it was exported for a second time.
        work: A folder for what else is built.
    """
    known, built = {_made_of(material.base): again}, []
    rebuild = verification.rebuild

    def once(bundle: pathlib.Path, to: pathlib.Path) -> None:
        made_of = _made_of(bundle)
        if made_of not in known:
            built.append(made_of)
            kept = work / f"built {len(built)}"
            kept.mkdir()
            rebuild(bundle, kept)
            known[made_of] = kept
        shutil.copytree(known[made_of], to, dirs_exist_ok=True)

    with mock.patch.object(verification, "rebuild", once):
        yield built


def _made_of(bundle: pathlib.Path) -> str:
    hashes = (hashlib.sha256((bundle / name).read_bytes()).hexdigest() for name in _MADE_OF)
    return " ".join((*hashes, bundles.read_device_policy(bundle).task_name))


@contextlib.contextmanager
def _watched() -> Iterator[list[pathlib.Path]]:
    """Yields the bundles whose graphs are loaded in the block."""
    from tff_mf.experiments.bundles import _rounds

    ran: list[pathlib.Path] = []
    run = _rounds.run
    with mock.patch.object(_rounds, "run", lambda folder, rounds: (ran.append(folder), run(folder, rounds))[1]):
        yield ran


def outcomes(material: Material, digest: str, ways: Iterable[Way], work: pathlib.Path) -> Iterator[Outcome]:
    """Tampers with copies of a bundle, and yields the answers of `verify`, alone and with the digest.

    Args:
        material: The bundles.
        digest: Of the base.
        ways: What to do.
        work: A folder for copies.
    """
    for way in ways:
        if any(getattr(material, name) is None for name in way.needs):
            continue
        folder = work / "tampered"
        shutil.copytree(material.base, folder)
        way.apply(folder, material)
        start = time.perf_counter()
        with _watched() as ran:
            reason = refused(folder, _verified())
        yield Outcome(
            way=way,
            reason=reason,
            with_digest=refused(folder, _verified(digest)),
            seconds=time.perf_counter() - start,
            executed=bool(ran),
        )
        for path in (folder, *work.glob("outside*"), *work.glob("wrapped*")):
            # Folders can be deeper than Python removes, and than paths can name.
            removed(path)


def _verified(digest: str | None = None) -> Callable[[pathlib.Path], list[bundles.Refusal]]:
    return lambda folder: verification.verify(folder, rounds=1, digest=digest).refused


def removed(path: pathlib.Path) -> None:
    """Removes a file, a link, or a folder, however deep it is."""
    while (path / "d" / "d").is_dir():
        (path / "d" / "d").rename(path / "below")
        (path / "d").rmdir()
        (path / "below").rename(path / "d")
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def made(root: pathlib.Path) -> tuple[Material, str]:
    """Exports the bundles, and returns them with the digest of the first."""
    from tff_mf.experiments.bundles import building
    from tff_mf.experiments.training.datasets.pydoc import write_pydoc

    write_pydoc(root / "data.sqlite", ["scipy"], progress=False)
    digests = {}
    for name, values, seed in (("base", _BASE, None), ("other", _OTHER, None), ("insecure", _BASE, 5)):
        config = root / f"{name}.toml"
        config.write_text(_SETTINGS.format(data=root / "data.sqlite", **values))
        source = bundles.read_source(config, insecure_seed=seed)
        if name == "other":
            source = dataclasses.replace(source, vocabulary=list(reversed(source.vocabulary)))
        digests[name] = building.export(source, root / name, round_minutes=15.0, population=80)
    return Material(base=root / "base", other=root / "other", insecure=root / "insecure"), digests["base"]


def table(found: list[Outcome]) -> str:
    """Returns a line for each way."""
    lines = ["| tampered with | with nothing | with the digest | s |", "|---|---|---|--:|"]
    for each in found:
        reason = each.reason or f"**passes**: {each.way.digest_only or 'and must not'}"
        with_it = "refused" if each.with_digest else "**passes**"
        lines.append("| " + " | ".join((each.way.name, reason[:120], with_it, f"{each.seconds:.1f}")) + " |")
    return "\n".join(lines)


def totals(found: list[Outcome]) -> str:
    """Returns a line for each group of ways: how many, and how many pass with nothing, and with the digest."""
    lines = []
    for name, ways in GROUPS.items():
        of_group = [each for each in found if each.way in ways]
        kinds = ("reason", "with_digest")
        passed = [sum(not getattr(each, kind) for each in of_group) for kind in kinds]
        lines.append("| " + " | ".join([name, *map(str, (len(of_group), *passed))]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[""], help="ways whose names have one of these texts")
    parser.add_argument("--half", type=int, choices=(1, 2), help="every second of them, from the first or second on")
    given = parser.parse_args()
    start, found = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        material, digest = made(root)
        again = root / "again"
        again.mkdir()
        verification.rebuild(material.base, again)
        ways = [way for way in WAYS if any(text in way.name for text in given.only)]
        ways = ways if given.half is None else ways[given.half - 1 :: 2]
        (root / "work").mkdir()
        with built_once(material, again, root) as built:
            control = [refused(material.base, look) for look in (_verified(), _verified(digest))]
            for outcome in outcomes(material, digest, ways, root / "work"):
                found.append(outcome)
                mark = "" if outcome.as_expected else "NOT AS EXPECTED: "
                print(f"{mark}{outcome.way.name}: {outcome.reason}", file=sys.stderr, flush=True)
    print(table(found), totals(found), sep="\n\n")
    wrong = [f"the bundle itself: {each}" for each in control if each]
    wrong += [each.way.name for each in found if not each.as_expected]
    print(
        f"{len(found)} ways in {time.perf_counter() - start:.0f} s, {len(built)} exported anew: "
        f"{sum(not each.reason for each in found)} pass with nothing, "
        f"{sum(not each.with_digest for each in found)} with the digest; not as expected: {wrong or 'none'}"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
