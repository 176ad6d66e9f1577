"""`tff-mf audit`: tests of the noise that really runs."""

import dataclasses
import json
import pathlib

import click

from . import _options


@click.command()
@click.argument("what", metavar="RUN|ARTIFACT")
@click.option("--noise-multiplier", type=float, help="σ of an artifact; its sensitivity, ρ = 1/2, if not given.")
@click.option("--rounds", type=int, help="Number of rounds n; that of the artifact if not given.")
@_options.participation_options
@click.option("--delta", type=float, default=1e-6, show_default=True, help="δ of the claim, for an artifact.")
@click.option("--coordinates", type=int, help="Samples, of which each is two canaries; by the rounds if not given.")
@click.option("--noise-scale", type=float, default=1.0, help="TEST ONLY: multiply the noise, to see it found out.")
@_options.as_json
def audit(
    what: str,
    noise_multiplier: float | None,
    rounds: int | None,
    min_sep: int | None,
    max_participations: int | None,
    delta: float,
    coordinates: int | None,
    noise_scale: float,
    as_json: bool,
) -> None:
    """Test the noise of a run or of an artifact: covariance, repeats, sensitivity, and canaries.

    RUN is a folder, into whose audit.json the result goes, for its report. ARTIFACT is a file, `production:b100` and so
    on, or `identity`. Exit status 1 if a test fails.
    """
    import tff_mf
    from tff_mf import _requires, _validate

    _requires.packages("Auditing", "tensorflow")
    from .. import auditing, progress, reports

    folder = pathlib.Path(what)
    more = {"coordinates": coordinates, "noise_scale": _validate.positive("noise_scale", noise_scale)}
    if folder.is_dir():
        given = [noise_multiplier, rounds, min_sep, max_participations]
        if any(value is not None for value in given):
            raise click.UsageError("the folder of a run says itself what is claimed; give no other setting.")
        run = reports.read_configuration(folder)
        setting = reports.audit_setting(run, tff_mf.load(folder / "mechanism.safetensors"), **more)
    else:
        mechanism = _options.load_mechanism(what)
        made_for = mechanism.made_for
        if made_for is not None and min_sep is None and max_participations is None:
            participation = made_for.participation
        else:
            participation = _options.participation(min_sep, max_participations)
        if rounds is None:
            if made_for is None:
                raise click.UsageError("--rounds is missing, and the mechanism was not made for a number of rounds.")
            rounds = made_for.rounds
        if noise_multiplier is None:
            noise_multiplier = tff_mf.sensitivity(mechanism.as_run(), rounds, participation)
        setting = auditing.Setting(
            mechanism=mechanism,
            rounds=rounds,
            participation=participation,
            noise_multiplier=_validate.positive("noise_multiplier", noise_multiplier),
            delta=_validate.open_unit("delta", delta),
            **more,
        )
    with progress.bar("audit", 5 + 2 * setting.rounds * (1 if setting.count_stddev is None else 2)):
        found = auditing.audit(setting)
    result = {
        "passed": found.passed,
        "run_sha256": reports.file_hash(folder / reports.CONFIGURATION) if folder.is_dir() else None,
        "coordinates": found.coordinates,
        "noise_scale": setting.noise_scale,
        "rounds": setting.rounds,
        "noise_multiplier": setting.noise_multiplier,
        "claimed_epsilon": found.claimed_epsilon,
        "delta": setting.delta,
        "adjacency": setting.adjacency,
        "canaries": dataclasses.asdict(found.canaries),
        "control": dataclasses.asdict(found.control),
        "tests": [dataclasses.asdict(test) for test in found.tests],
    }
    if folder.is_dir():
        (folder / "audit.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if as_json:
        click.echo(json.dumps(result))
    else:
        for test in found.tests:
            click.echo(f"{'ok  ' if test.passed else 'FAIL'}  {test.name}: {test.text}")
    if not found.passed:
        raise SystemExit(1)
