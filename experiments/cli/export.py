"""`tff-mf export`: a deployment as files."""

import json
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import rich_click as click

from ..runs.names import PLANNED
from . import _options, _screens

if TYPE_CHECKING:
    from .. import bundles

_ANSWERS = (
    "are given in the folder of the deployment's run, by `tff-mf report RUN --answer`: answers for a simulation are "
    "about other clients, and are not copied"
)


@_options.command()
@click.argument("source", metavar="RUN|CONFIG")
@_options.option("out", required=True)
@click.option(
    "--longest-round",
    "round_minutes",
    type=float,
    metavar="MINUTES",
    default=15.0,
    show_default=True,
    help="Minutes of the longest round: devices wait for min-sep of them.",
)
@_options.option("population")
@click.option("--task-name", metavar="NAME", help="Name of the task for devices; by default derived from the settings.")
@_options.option("grid")
@_options.option("insecure_seed")
@_options.as_json
def export(
    source: str,
    out: str,
    round_minutes: float,
    population: int | None,
    task_name: str | None,
    grid: int | str | None,
    insecure_seed: int | None,
    as_json: bool,
) -> None:
    """Write a deployment: graphs for server and devices, artifact, planned report, policy and manifest.

    RUN is a folder of `tff-mf train`, CONFIG a TOML file of its settings; --grid is theirs if not given. A deployment
    starts from the beginning, with the whole cohort and all of its noise. The printed digest identifies the whole
    bundle: keep it for `tff-mf verify`.
    """
    from tff_mf.base import required_packages, validation

    # First, so that wrong values are refused before a data set is made.
    validation.positive("round_minutes", round_minutes)
    if population is not None:
        validation.whole("population", population)
    required_packages.packages("Exporting", "tensorflow", "tensorflow_privacy", "tensorflow_federated")
    from .. import bundles
    from ..output import progress

    if task_name is not None:
        bundles.check_task_name(task_name)
    folder = pathlib.Path(out)
    bundles.check_new_folder(folder)
    found = bundles.read_source(pathlib.Path(source), insecure_seed=insecure_seed, grid=grid)

    from ..bundles import building

    with progress.bar("export", 4):
        digest = building.export(found, folder, round_minutes=round_minutes, population=population, task_name=task_name)
    result = _result(folder, found, digest)
    if as_json:
        _screens.report(result, as_json=True)
    else:
        _show(result)


def _result(folder: pathlib.Path, found: "bundles.Source", digest: str) -> dict[str, Any]:
    """Returns the result for a written bundle."""
    from .. import bundles, reports

    manifest, _ = bundles.read_manifest(folder)
    policy = bundles.read_policy(folder)
    planned = json.loads((folder / PLANNED).read_text(encoding="utf-8"))
    return {
        "out": str(folder),
        "digest": digest,
        "test_only": manifest.test_only,
        "clients_per_round": found.privacy.clients_per_round,
        "noise_multiplier": found.privacy.noise_multiplier,
        "epsilon": planned["claim"]["epsilon"],
        "delta": found.privacy.delta,
        "state": planned["claim"]["state"],
        "headline": reports.headline(planned),
        "min_sep": policy.min_sep,
        "max_participations": policy.max_participations,
        "timer_hours": policy.timer_hours,
        "task_name": bundles.read_device_policy(folder).task_name,
        "largest_graph_bytes": max(stage.graph_bytes for stage in manifest.stages.values()),
        "grid": manifest.grid and msgspec.structs.asdict(manifest.grid),
        "lite": manifest.lite.path,
        "lite_reason": manifest.lite.reason or None,
    }


def _show(result: Mapping[str, Any]) -> None:
    from tff_mf.numerics import digits

    from ..runs.statements import PROVISIONAL

    click.echo(f"wrote a deployment to {result['out']}{': TEST ONLY, without privacy' if result['test_only'] else ''}")
    k, b = result["max_participations"], result["min_sep"]
    # Rounded down: the bundle has at least this noise.
    sigma = digits.downwards(result["noise_multiplier"])
    often = f"in at most {k} rounds, at least {b} apart" if k > 1 else "in one round"
    _screens.show(
        [
            ("guarantee", result["headline"]),
            ("answers", _ANSWERS if result["state"] == PROVISIONAL else ""),
            ("a round", f"{result['clients_per_round']} clients, noise multiplier σ {sigma}"),
            ("a device", f"takes part {often}; its timer runs {result['timer_hours']:g} h"),
            ("numbers", _numbers(result["grid"])),
            ("largest graph", f"{result['largest_graph_bytes'] / 1e6:.1f} MB"),
            ("TensorFlow Lite", result["lite"] or f"none: {result['lite_reason']}"),
        ]
    )
    click.echo(f"digest: {result['digest']}")


def _numbers(grid: Mapping[str, Any] | None) -> str:
    if grid is None:
        return "floats: the guarantee holds for real numbers only, and --grid auto closes the difference"
    return f"integers of {grid['bits']} bits; at most {grid['max_clients']} clients in a sum of {grid['integers']}"
