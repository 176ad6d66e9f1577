"""`tff-mf doctor`: which layers work in this environment, and how to fix the others."""

import json

import rich_click as click

from . import _options, _screens


@_options.command()
@click.option("--requirements", is_flag=True, help="Print the pinned packages, for `pip install --no-deps -r`.")
@_options.as_json
def doctor(requirements: bool, as_json: bool) -> None:
    """Check the environment: which layers work, and how to fix the others.

    Exit status 1 if an installed layer would not work. A layer that is not installed is no error: mechanisms and
    accounting do not need TensorFlow.
    """
    import tff_mf

    from . import _environment

    if requirements:
        click.echo(_environment.requirements_text(), nl=False)
        return
    layers, findings = _environment.layers(), _environment.examine()
    sound = all(finding.ok for finding in findings)
    if as_json:
        result = {
            "sound": sound,
            "version": tff_mf.__version__,
            "layers": [
                {"name": layer.name, "installed": layer.installed, "gives": layer.gives, "missing": layer.missing}
                for layer in layers
            ],
            "findings": [vars(finding) for finding in findings],
        }
        click.echo(json.dumps(result))
    else:
        rows = [("ok  " if finding.ok else "FAIL", finding.text) for finding in findings]
        for layer in layers:
            lacks = "" if layer.installed else f": lacks {', '.join(layer.missing)}. {layer.remedy}"
            rows.append(("ok  " if layer.installed else "–   ", f"{layer.name} ({layer.gives}){lacks}"))
        _screens.show(rows)
    if not sound:
        raise SystemExit(1)
