"""The files of a plan: its fields, and the artifact of its mechanism."""

import dataclasses
import inspect
import json
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from tff_mf import accounting, artifacts
from tff_mf.base import files, strict_json
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.planning._words import Alternative
from tff_mf.problem import participation
from tff_mf.problem.grids import Grid

if TYPE_CHECKING:
    from tff_mf.planning._plan import Plan

PLAN, MECHANISM = "plan.json", "mechanism.safetensors"
_VERSION = 1
_KINDS = {
    each.__name__: each
    for each in (
        participation.MinSep,
        participation.FixedEpoch,
        participation.SingleParticipation,
        participation.SpacedEpochs,
        participation.Timer,
        accounting.Poisson,
        accounting.CyclicPoisson,
        accounting.BallsInBins,
        accounting.BMinSep,
    )
}
# Fields that have a form of their own in the file.
_OWN = ("mechanism", "sampling", "grid", "alternatives")


def save(plan: "Plan", folder: pathlib.Path) -> None:
    """Writes a plan and its mechanism."""
    sampling = plan.sampling
    if _KINDS.get(type(sampling).__name__) is not type(sampling):
        raise InputTypeError(f"sampling={sampling!r} is of a kind that no file can hold: {', '.join(_KINDS)}.")
    own = {name: getattr(sampling, name) for name in inspect.signature(type(sampling)).parameters}
    fields = {
        "version": _VERSION,
        **{field.name: getattr(plan, field.name) for field in dataclasses.fields(plan) if field.name not in _OWN},
        "sampling": {"kind": type(sampling).__name__, **own},
        "grid": None if plan.grid is None else dataclasses.asdict(plan.grid),
        "alternatives": [dataclasses.asdict(each) for each in plan.alternatives],
    }
    folder.mkdir(parents=True, exist_ok=True)
    artifacts.save(plan.mechanism, folder / MECHANISM)
    files.write_atomically(folder / PLAN, json.dumps(fields, indent=1, ensure_ascii=False) + "\n")


def read(folder: pathlib.Path, make: Callable[..., "Plan"]) -> "Plan":
    """Returns a plan that was saved, made of its fields."""
    path = folder / PLAN
    given = strict_json.read(path, "plan")
    try:
        if given.pop("version") != _VERSION:
            raise InputValueError(f"plan={str(path)!r} was written by another version: make the plan again.")
        kind = _KINDS[given["sampling"].pop("kind")]
        own = {
            "mechanism": artifacts.load(folder / MECHANISM),
            "sampling": kind(**given["sampling"]),
            "grid": None if given["grid"] is None else Grid(**given["grid"]),
            "alternatives": tuple(Alternative(**each) for each in given["alternatives"]),
        }
        return make(**{**given, **own})
    except (KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InputTypeError):
            raise
        raise InputValueError(f"plan={str(path)!r} is damaged: {error!r}. Make the plan again.") from error
