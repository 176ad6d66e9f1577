"""Opens the guard of a run: checks the folder and the aggregator, and writes or reads the files of the run."""

import contextlib
import dataclasses
import functools
import math
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from .. import reports
from ..output import agreement, files
from ..runs import folders, server_loop
from ..runs.names import LEDGER, RUN_JSON
from . import _checks, drawing
from .run_guard import RunGuard

if TYPE_CHECKING:
    from ...aggregators import MFAggregationFactory


def begun_plan(folder: pathlib.Path | str, plan: tff_mf.Plan) -> tff_mf.Plan:
    """Returns the plan of a run that is resumed, with the σ that it began with; call it before building the aggregator.

    A σ that is calibrated again, on another machine, can differ in last bits, and its noise would continue no run. A
    plan whose σ differs by more is returned as it is, and refused by `open_guard`.

    Args:
        folder: The run's folder, which may not exist.
        plan: The plan as it is computed here.

    Raises:
        InputValueError: If `run.json` is damaged.
    """
    folder = pathlib.Path(folder)
    if not (folder / RUN_JSON).is_file():
        return plan
    begun = reports.read_configuration(folder).noise_multiplier
    same = math.isclose(plan.noise_multiplier, begun, rel_tol=agreement.TOO_SMALL)
    return dataclasses.replace(plan, noise_multiplier=begun) if same else plan


@contextlib.contextmanager
def open_guard(
    folder: pathlib.Path | str,
    plan: tff_mf.Plan,
    *,
    sampler: str | None = None,
    aggregator: "MFAggregationFactory | None" = None,
    **more: Any,
) -> Iterator[RunGuard]:
    """Yields the guard of a run, a new one or one that is resumed.

    Writes the files that the guarantee follows from (`run.json`, `mechanism.safetensors`) and the planned report before
    the first round. One process at a time can use the folder. With secret cohorts, they state the amplified ε, and no
    client is ever in them.

    Args:
        folder: The run's folder, which is made if it does not exist.
        plan: The mechanism, its noise and the participation schema: `tff_mf.plan(...)`.
        sampler: Name of what draws the cohorts, for the report. If `None`, the plan's sampling does, from the clients
            of `RunGuard.draws_from`; secret cohorts are drawn in no other way.
        aggregator: The aggregator of the pipeline, which is refused unless it has the noise of the plan. The state of
            each released round is compared with it. If `None`, nothing checks that the pipeline runs what is claimed.
        more: Fields of `reports.Configuration` that the plan does not determine, such as `population`,
            `restart_every`, `adaptive_count_stddev` or `evaluation_columns`: see `reports.write_configuration`.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If the folder holds another run, one that has ended, or damaged files, another process uses it,
            or the aggregator does not have the noise of the plan; of secret cohorts also if no theorem covers the run.

    Example:
        >>> import tempfile
        >>> import tff_mf
        >>> plan = tff_mf.plan(mechanism=tff_mf.Identity(), rounds=4, delta=1e-6, clients_per_round=2,
        ...                     sampling=tff_mf.MinSep(min_sep=2, max_participations=2), noise_multiplier=8.0)
        >>> with tempfile.TemporaryDirectory() as out, open_guard(out, plan, sampler="by hand") as guard:
        ...     guard.begin(["ann", "bob"])
        ...     guard.allowed(["ann", "carol"])
        1
        ['carol']
    """
    validation.instance("plan", plan, tff_mf.Plan, "make one with tff_mf.plan")
    if sampler is not None:
        validation.instance("sampler", sampler, str, "name what draws the cohorts")
    folder = pathlib.Path(folder)
    if aggregator is not None:
        _checks.check_aggregator(aggregator, plan, more)
    reports.check_fields(more)
    more = drawing.record_fields(folder, plan, sampler, **more)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputValueError(
            f"folder={str(folder)!r} cannot be made ({error.strerror}): name one that can be written."
        ) from None
    with files.alone(folder):
        _checks.check_folder(folder)
        more.setdefault("versions", folders.versions())
        record = reports.write_configuration(folder, plan, **more)
        if not (folder / LEDGER).exists():
            reports.write(folder, realised=False)
        noise = None if aggregator is None else aggregator.fingerprint
        make = functools.partial(RunGuard, noise=noise, plan=plan, draws=sampler is None)
        with server_loop.open_loop(folder, rules=record.rules, make=make) as guarded:
            yield guarded
