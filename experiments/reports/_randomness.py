"""What a report says about the random numbers of the noise."""

from typing import Any

from ..run_folder.run_record import RunRecord

# The engine of `tff_mf.experiments.flower`, in the settings of its runs.
_FLOWER = "flwr"
_TABLES = "tables and inverse transform, float64, with a proved error"
_BOX_MULLER = "Box-Muller, float32"

_IN_TENSORFLOW = {
    "algorithm": f"Philox 4x32-10 (TensorFlow stateless random), {_BOX_MULLER}",
    "entropy": "128 bits of /dev/urandom for every round, drawn in the graph when the round runs",
    "secure_mode": False,
}
_ON_GRID = f"Philox 4x32-10, {_TABLES}"

# Of the streams in NumPy, by generator.
_ALGORITHMS = {
    "aes": f"AES-128 in counter mode, {_TABLES}",
    "philox": f"Philox 4x64-10 (NumPy), {_TABLES}",
    "tensorflow": f"Philox 4x32-10 (TensorFlow's, in NumPy), {_BOX_MULLER}",
}
_STATISTICAL = ("philox", "tensorflow")
_ENTROPY = "128 bits of the operating system's generator for every round, drawn when the round runs"

_SECRETS = {
    "severity": "critical",
    "what": "a fixed seed; a state stepped twice with both results released; a state published",
}
_PHILOX = {
    "severity": "theoretical",
    "what": "Philox is not a cryptographic generator: no proof rules out that its output can be predicted",
}
_KEY_BYTES = {"severity": "negligible", "what": "127.8 rather than 128 bits: two byte values cannot occur in a key"}


def randomness_section(record: RunRecord) -> dict[str, Any]:
    """Returns what a run draws its noise from, and what can be wrong with that, as JSON."""
    on_grid = record.grid is not None
    if record.settings.get("engine") != _FLOWER and "generator" not in record.settings:
        return _of_tensorflow(on_grid=on_grid, insecure_seed=record.insecure_seed)
    # Without the setting, the defaults of the streams.
    generator = record.settings.get("generator", "tensorflow" if on_grid else "philox")
    algorithm = _ON_GRID if on_grid and generator == "tensorflow" else _ALGORITHMS.get(str(generator), str(generator))
    return {
        "algorithm": algorithm,
        "entropy": _ENTROPY,
        "secure_mode": generator == "aes" and record.insecure_seed is None,
        "insecure_seed": record.insecure_seed,
        "severities": [_SECRETS, _PHILOX] if generator in _STATISTICAL else [_SECRETS],
    }


def _of_tensorflow(*, on_grid: bool, insecure_seed: int | None) -> dict[str, Any]:
    return {
        **_IN_TENSORFLOW,
        **({"algorithm": _ON_GRID} if on_grid else {}),
        "insecure_seed": insecure_seed,
        "severities": [_SECRETS, _PHILOX, _KEY_BYTES],
    }
