"""Tampers with a bundle in more than 200 ways: `python tests/fuzz bundles`. Needs TensorFlow.

Each is a bundle that was changed and whose manifest was written anew to fit, and its report where that helps. `verify`
has to refuse every one of them, without the digest, but for those that say of themselves that they are another
deployment; and with the digest, all. No graph that differs from the one that is built anew may ever be loaded.
"""

import contextlib
import dataclasses
import hashlib
import pathlib
import shutil
from collections.abc import Callable, Iterator
from unittest import mock

from outcomes import ACCEPTED, Outcome
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
    return " ".join((*hashes, bundles.task_name_of(bundle)))


@contextlib.contextmanager
def _watched() -> Iterator[list[pathlib.Path]]:
    """Yields the bundles whose graphs are loaded in the block."""
    from tff_mf.experiments.bundles import _rounds

    ran: list[pathlib.Path] = []
    run = _rounds.run
    with mock.patch.object(_rounds, "run", lambda folder, rounds: (ran.append(folder), run(folder, rounds))[1]):
        yield ran


def _tampered(way: Way, material: Material, digest: str, work: pathlib.Path) -> Outcome:
    """Tampers with a copy of a bundle, and returns what `verify` says of it, alone and with the digest."""
    folder = work / "tampered"
    shutil.copytree(material.base, folder)
    way.apply(folder, material)
    with _watched() as ran:
        reason = refused(folder, _verified())
    with_digest = refused(folder, _verified(digest))
    for path in (folder, *work.glob("outside*"), *work.glob("wrapped*")):
        removed(path)
    # Graphs are run only if nothing is wrong.
    right = with_digest and bool(reason) == (not way.digest_only) and bool(ran) == (not reason)
    result = ACCEPTED if not right else "refused" if reason else "refused by the digest alone"
    group = next(name for name, ways in GROUPS.items() if way in ways)
    return Outcome(target=group, fault=way.name, result=result, about=reason or way.digest_only)


def _verified(digest: str | None = None) -> Callable[[pathlib.Path], list[bundles.Refusal]]:
    return lambda folder: verification.verify(folder, rounds=1, digest=digest).refused


def removed(path: pathlib.Path) -> None:
    """Removes a file, a link, or a folder: one deeper than Python removes, and than paths can name, too."""
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


def outcomes(folder: pathlib.Path, *, inputs: int, seed: int, only: str) -> Iterator[Outcome]:
    """Yields what came of the ways whose names have a text, the first `inputs` of them."""
    del seed
    material, digest = made(folder)
    again, work = folder / "again", folder / "work"
    again.mkdir()
    work.mkdir()
    verification.rebuild(material.base, again)
    with built_once(material, again, folder):
        control = [refused(material.base, look) for look in (_verified(), _verified(digest))]
        assert control == ["", ""], f"the bundle itself is refused: {control}"
        for way in [way for way in WAYS if only in way.name][:inputs]:
            if all(getattr(material, name) is not None for name in way.needs):
                yield _tampered(way, material, digest, work)
