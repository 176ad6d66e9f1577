"""`tff-mf audit`: tests of the noise that actually runs."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import rich_click as click

from tff_mf.planning import mechanism_names

from ..output.present import Block, Callout, Facts
from . import _options
from ._flags import Flags
from ._screens import Answer

if TYPE_CHECKING:
    from ..reports import auditing

_OF_A_RUN = "a run's folder has its own setting; give no other."


@_options.command()
@click.argument("what", metavar="RUN|ARTIFACT")
@_options.option("noise_multiplier")
@_options.setting(
    *("rounds", "sampling", "min_sep", "max_participations", "restart_every"),
    more=("groups", *_options.MORE_OF_SAMPLING),
)
@_options.option("adjacency")
@_options.option("delta")
@click.option(
    "--coordinates",
    type=int,
    help="Number of noise coordinates to sample, each for two canaries; derived from --rounds if not given.",
)
@click.option(
    "--noise-scale", type=float, default=1.0, help="TEST ONLY: multiply the noise by a factor, to see the audit fail."
)
def audit(what: str, flags: Flags, coordinates: int | None, noise_scale: float, **claim: Any) -> Answer:
    """Test the noise of a run or of an artifact: covariance, repeats, sensitivity, and canaries.

    RUN is the folder of a run: the result is written to its audit.json and report. ARTIFACT is a file,
    `production:b100` and so on, or `identity`; if not given, its rounds and participation are those that it was
    optimized for, σ is its sensitivity, so that ρ = 1/2, and δ is 1e-6. Exit status 1 if a test fails.
    """
    import tff_mf
    from tff_mf.base import required_packages, validation

    required_packages.packages("Auditing", "tensorflow")
    from .. import reports
    from ..output import files, progress
    from ..reports import auditing
    from ..runs import names

    folder = pathlib.Path(what)
    more = {"coordinates": coordinates, "noise_scale": validation.positive("noise_scale", noise_scale)}
    current = False
    if folder.is_dir():
        if flags != Flags() or any(value is not None for value in claim.values()):
            raise click.UsageError(_OF_A_RUN)
        run = reports.read_record(folder)
        setting = reports.audit_setting(run, tff_mf.load(folder / names.MECHANISM), **more)
        current = reports.has_report(folder) and not reports.contradictions(folder)
    else:
        setting = auditing.Setting(**_of_artifact(what, flags, **claim), **more)
    with progress.bar("audit", 5 + 2 * setting.rounds * (1 if setting.plan.adaptive_count_stddev is None else 2)):
        found = auditing.audit(setting)
    of_run = folder.is_dir()
    result = _result(found, setting, files.file_hash(folder / names.RUN_JSON) if of_run else None)
    if of_run:
        files.write_atomically(folder / names.AUDIT, json.dumps(result, indent=1) + "\n")
        _report(folder, current=current)
    return Answer(result, words(result, folder if of_run else None), failed=not found.passed)


def _of_artifact(
    what: str,
    flags: Flags,
    *,
    noise_multiplier: float | None,
    adjacency: str | None,
    delta: float | None,
) -> dict[str, Any]:
    """Returns the claims for an artifact; options that were not given are those that it was optimized for."""
    import tff_mf
    from tff_mf.base import validation

    mechanism = mechanism_names.load(what)
    rounds, participation = flags.rounds_for(mechanism), flags.participation_for(mechanism)
    if noise_multiplier is None:
        every = rounds if flags.restart_every is None else flags.restart_every
        noise_multiplier = tff_mf.restart_sensitivity(
            mechanism.cast_to_float32(), rounds, participation, restart_every=every
        ).value
    plan = tff_mf.plan(
        mechanism=mechanism,
        rounds=rounds,
        sampling=participation,
        noise_multiplier=validation.positive("noise_multiplier", noise_multiplier),
        delta=1e-6 if delta is None else delta,
        clients_per_round=1,
        restart_every=flags.restart_every,
    )
    return {"plan": plan, "adjacency": "zero-out" if adjacency is None else adjacency}


def _result(found: "auditing.Audit", setting: "auditing.Setting", run_sha256: str | None) -> dict[str, Any]:
    return {
        "passed": found.passed,
        "run_sha256": run_sha256,
        "coordinates": found.coordinates,
        "noise_scale": setting.noise_scale,
        "rounds": setting.rounds,
        "noise_multiplier": setting.plan.noise_multiplier,
        "claimed_epsilon": found.claimed_epsilon,
        "delta": setting.plan.delta,
        "adjacency": setting.adjacency,
        "canaries": dataclasses.asdict(found.canaries),
        "control": dataclasses.asdict(found.control),
        "tests": [dataclasses.asdict(test) for test in found.tests],
    }


def words(facts: Mapping[str, Any], folder: pathlib.Path | None = None) -> list[Block | None]:
    """Returns the verdict, and a line for each test, from the content of `audit.json`, in a folder if of a run."""
    from ..reports import auditing
    from ..runs import names

    tests = [auditing.Test(**test) for test in facts["tests"]]
    failed = sum(not test.passed for test in tests)
    verdict = f"{failed} of {len(tests)} tests failed" if failed else f"all {len(tests)} tests passed"
    where = "" if folder is None else f"; written to {folder / names.AUDIT}"
    rows = [(f"{'ok  ' if test.passed else 'FAIL'}  {test.name}", test.text) for test in tests]
    return [Callout(verdict + where, bad=failed > 0), Facts(rows)]


def _report(folder: pathlib.Path, *, current: bool) -> None:
    """Rewrites a run's report with the audit in it, unless it was edited."""
    from .. import reports

    if current:
        made = reports.write_anew(folder)
        click.echo(f"the report now contains the audit; its new digest: {made['digest']}", err=True)
    elif reports.has_report(folder):
        click.echo(
            f"the report did not match the files before the audit, and is left unchanged: see `tff-mf report "
            f"{folder} --check`",
            err=True,
        )
