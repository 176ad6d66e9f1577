"""A Flower app to begin with: next-word prediction on docstrings, and the files of its deployment."""

import importlib.resources
import json
import pathlib
import re
from collections.abc import Mapping

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from ..output import files
from ..runs.names import MECHANISM
from ..runs.run_record import RunRecord, file_hash, read_record
from ..runs.settings import ADAPTIVE_OPTIMIZERS
from ..sampling.settings import SamplingSettings

# Parameters of samplings that an app has in its configuration.
_OF_APP = ("min_sep", "max_participations", "groups", "participations", "epochs")
# PyTorch's files replace NumPy's files of the same name.
_TEMPLATES = {"numpy": ("template",), "torch": ("template", "template_torch")}
_NEEDED = {"numpy": "", "torch": ', "torch>=2"'}
_PROJECT, _FLOWER = "pyproject.toml", '"flwr>=1.41,<1.43"'
# Nodes have no tff-mf: what they need of it is part of the app.
_FOR_NODES, _PACKAGE = ("clipping.py", "mods.py"), "next_word"


def write(
    folder: pathlib.Path | str, *, of: pathlib.Path | str | None = None, framework: str = "numpy"
) -> list[pathlib.Path]:
    """Writes the app to a folder, and returns its files.

    Args:
        folder: A folder that does not exist, or is empty.
        of: Folder of a run or of a bundle, whose deployment the app then has: see `settings_of`. Model and
            data stay the app's own.
        framework: "numpy" or "torch": what the model is written in.

    Raises:
        InputValueError: If it has files, the framework is another one, or the run has what is not supported on Flower.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as out:
        ...     sorted(path.name for path in write(out) if path.suffix == ".toml")
        ['pyproject.toml']
    """
    validation.one_of("framework", framework, tuple(_TEMPLATES))
    folder = pathlib.Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputValueError(f"folder={str(folder)!r} is not empty: name another one.")
    settings = {} if of is None else dict(settings_of(pathlib.Path(of)))
    settings["noise-engine"] = "numpy" if settings.get("restart-every") else framework
    root = importlib.resources.files("tff_mf.experiments.flower")
    with importlib.resources.as_file(root) as package:
        targets = {}
        for template in (package / name for name in _TEMPLATES[framework]):
            found = [each for each in template.rglob("*") if each.is_file() and each.suffix != ".pyc"]
            targets |= {folder / each.relative_to(template): each for each in found}
        targets |= {folder / _PACKAGE / name: package / name for name in _FOR_NODES}
        for target, path in sorted(targets.items()):
            target.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="utf-8")
            files.write_atomically(target, _configured(text, settings, framework) if path.name == _PROJECT else text)
    return sorted(targets)


def _configured(project: str, settings: Mapping[str, str | int | float], framework: str) -> str:
    """Returns the text of an app's `pyproject.toml` with what it needs, and other values in its configuration."""
    project = project.replace(_FLOWER, _FLOWER + _NEEDED[framework])
    for name, value in settings.items():
        # JSON writes numbers and texts as TOML does, except for its surrogates, and DEL.
        text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        line = f"{name} = {text}"
        project, found = re.subn(rf"(?m)^{name} = .*$", lambda match, line=line: line, project)
        assert found == 1, name
    return project


def settings_of(folder: pathlib.Path) -> Mapping[str, str | int | float]:
    """Returns what a Flower app is configured with to run the deployment that a run or a bundle stands for.

    Formal guarantee: the app has the mechanism, σ, rounds, participation schema, restarts, bits of the grid and clip
    norm of the folder's `run.json`, with the whole cohort that its σ is for. What Flower does not run is refused.
    """
    record = read_record(folder)
    if file_hash(folder / MECHANISM) != record.mechanism_sha256:
        raise InputValueError(f"{MECHANISM} in {str(folder)!r} differs from its run.json: take an intact folder.")
    for name in ("adaptive_count_stddev", "insecure_seed"):
        if getattr(record, name) is not None:
            raise InputValueError(f"{name}={getattr(record, name)!r} of {str(folder)!r} is not supported on Flower.")
    if not record.noise_multiplier:
        raise InputValueError(
            f"noise_multiplier={record.noise_multiplier!r} of {str(folder)!r} is not supported by the app, where "
            "0 stands for the noise of its epsilon."
        )
    if record.adjacency != "zero-out":
        raise InputValueError(
            f"adjacency={record.adjacency!r} of {str(folder)!r} is not supported by the app: its report would state a "
            "smaller ε, of zero-out. Pass adjacency to open_strategy in an app of your own."
        )
    # As many nodes as the rounds need.
    fewest = -(-record.cohort * record.rounds // record.max_participations)
    # How cohorts of a sampling at random were drawn; of all others, the schema that their guarantee is for.
    drawn = record.drawn
    chosen = drawn if drawn is not None and drawn.is_secret else SamplingSettings.of(record.schema)
    return {
        "mechanism": str((folder / MECHANISM).absolute()),
        "rounds": record.rounds,
        "sampling": chosen.sampling,
        **{name.replace("_", "-"): chosen.parameters.get(name, 0) for name in _OF_APP},
        "secret-cohorts": record.is_secret,
        "clients-per-round": record.cohort,
        "population": record.population or fewest,
        "noise-multiplier": record.noise_multiplier,
        "restart-every": record.restart_every or 0,
        "delta": record.delta,
        "grid": "none" if record.grid_bits is None else record.grid_bits,
        "clip-norm": record.clip_norm,
        **_server(record),
    }


def _server(record: RunRecord) -> dict[str, float]:
    """Returns the server's rate and momentum, of a run of `tff-mf train` or of one on Flower."""
    settings = record.settings
    if settings is not None and settings.server_optimizer in ADAPTIVE_OPTIMIZERS:
        raise InputValueError(
            f"server_optimizer={settings.server_optimizer!r} is not supported by the app, whose server steps by SGD: "
            "write the step of open_strategy in an app of your own."
        )
    momentum = record.about.get("server_momentum", 0.0) if settings is None else settings.server_momentum
    return {"server-learning-rate": record.server_learning_rate or 1.0, "server-momentum": float(momentum)}
