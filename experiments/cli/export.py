"""`tff-mf export`: a deployment as files."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import click

from . import _options

_ANSWERS = (
    "are given in the folder of the deployment's run, by `tff-mf report RUN --answer`: those of a simulation are about "
    "other clients, and are not taken over"
)


@click.command()
@click.argument("source", metavar="RUN|CONFIG")
@click.option("--out", metavar="FOLDER", required=True, help="Folder of the bundle; must be new or empty.")
@click.option(
    "--round-minutes",
    type=float,
    default=15.0,
    show_default=True,
    help="The longest that a round takes: devices wait for min-sep of them.",
)
@click.option("--population", type=int, help="Number of devices that can take part, for the report.")
@click.option(
    "--task-name", metavar="NAME", help="Name of the task for devices; by default one that follows from the settings."
)
@click.option("--insecure-seed", type=int, help="Seed of the noise: TEST ONLY, a deployment with it has no privacy.")
@click.option(
    "--sign",
    metavar="KEY",
    help="Sign the bundle with an SSH key: a private one, or the public one of a key that an agent has.",
)
@_options.as_json
def export(
    source: str,
    out: str,
    round_minutes: float,
    population: int | None,
    task_name: str | None,
    insecure_seed: int | None,
    sign: str | None,
    as_json: bool,
) -> None:
    """Write a deployment: graphs for server and devices, artifact, planned report, policy and manifest.

    RUN is a folder of `tff-mf train`, CONFIG a TOML file of its settings. A deployment starts anew, with the whole
    cohort and all of its noise. The digest that is printed stands for the whole bundle: keep it, for `tff-mf verify`.
    So does the signature of --sign, by OpenSSH's ssh-keygen, which becomes manifest.json.sig in the bundle.
    """
    from tff_mf import _requires, _validate

    # First: what would be refused must not wait for a data set.
    _validate.positive("round_minutes", round_minutes)
    if population is not None:
        _validate.whole("population", population)
    _requires.packages("Exporting", "tensorflow", "tensorflow_privacy", "tensorflow_federated")
    from .. import bundles
    from ..bundles import signatures
    from ..output import progress
    from ..run_folder import names

    if task_name is not None:
        bundles.check_task_name(task_name)
    bundles.check_new_folder(pathlib.Path(out))
    key = None if sign is None else pathlib.Path(sign)
    if key is not None:
        signatures.check_key(key)
    found = bundles.read_source(pathlib.Path(source), insecure_seed=insecure_seed)

    from ..bundles import building

    folder = pathlib.Path(out)
    with progress.bar("export", 4):
        digest = building.export(found, folder, round_minutes=round_minutes, population=population, task_name=task_name)
    signed_with = None if key is None else signatures.sign(folder, key, digest=digest)
    manifest, _ = bundles.read_manifest(folder)
    headline = json.loads((folder / names.PLANNED).read_text(encoding="utf-8"))["headline"]
    policy = bundles.read_policy(folder)
    result = {
        "out": str(folder),
        "digest": digest,
        "test_only": manifest.test_only,
        "clients_per_round": found.privacy.clients_per_round,
        "noise_multiplier": found.privacy.noise_multiplier,
        "epsilon": found.privacy.epsilon,
        "delta": found.privacy.delta,
        "headline": headline,
        "min_sep": policy.min_sep,
        "max_participations": policy.max_participations,
        "timer_hours": policy.timer_hours,
        "task_name": bundles.read_device_policy(folder).task_name,
        "largest_graph_bytes": max(stage["graph_bytes"] for stage in manifest.stages.values()),
        "lite": manifest.lite["path"],
        "lite_reason": manifest.lite["reason"] or None,
        "signature": None if key is None else bundles.SIGNATURE,
        "signed_with": signed_with,
    }
    if as_json:
        _options.report(result, as_json=True)
    else:
        _show(result)
        if signed_with is not None:
            click.echo(f"signature: {bundles.SIGNATURE}, {signed_with}")


def _show(result: Mapping[str, Any]) -> None:
    from ..output import digits
    from ..output.digits import rounded_up
    from ..privacy.statements import REFUSED, TEST_ONLY, UNANSWERED

    click.echo(f"wrote a deployment to {result['out']}{': TEST ONLY, without privacy' if result['test_only'] else ''}")
    k, b = result["max_participations"], result["min_sep"]
    # Noise that is there, and not noise to take: what is shown is no more of it.
    sigma = digits.downwards(result["noise_multiplier"])
    often = f"in {k} rounds at most, {b} or more apart" if k > 1 else "in one round"
    planned = f"{rounded_up(result['epsilon'])} at δ = {result['delta']}, if all holds that planned.md assumes"
    # What is known not to hold has no figure; what nobody has answered yet may.
    refused = result["headline"].startswith((REFUSED, TEST_ONLY))
    _options.show(
        [
            ("guarantee", result["headline"]),
            ("answers", _ANSWERS if result["headline"].startswith(UNANSWERED) else ""),
            ("planned ε", "not stated" if refused else planned),
            ("a round", f"{result['clients_per_round']} clients, noise multiplier σ {sigma}"),
            ("a device", f"takes part {often}; its timer runs {result['timer_hours']:g} h"),
            ("largest graph", f"{result['largest_graph_bytes'] / 1e6:.1f} MB"),
            ("TensorFlow Lite", result["lite"] or f"none: {result['lite_reason']}"),
        ]
    )
    click.echo(f"digest: {result['digest']}")
