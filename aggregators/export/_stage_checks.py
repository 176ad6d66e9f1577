"""Checks on stages that a server and devices will run: secrets stay on the server, and its sums clip."""

from tff_mf.errors import InputValueError

from ._stage_graphs import SEPARATOR, StageGraph, node_name, reachable
from ._stages import NOISE

_SECRETS = tuple(f"{NOISE}{SEPARATOR}{part}" for part in ("keys", "rows"))


def check_secrets_stay(prepare: StageGraph) -> None:
    """Raises if anything that is sent to devices is computed from rows of noise or their keys.

    Raises:
        InputValueError: If it is.
    """
    read = reachable(prepare)
    for name, tensor in prepare.inputs.items():
        if node_name(tensor) in read and any(secret in name for secret in _SECRETS):
            raise InputValueError(f"process computes what it sends to clients from {name}, which is secret.")


def check_clips(accumulate: StageGraph) -> None:
    """Raises if a sum does not clip: in exported stages nothing else bounds a device's contribution.

    Raises:
        InputValueError: If one does not.
    """
    if not any(name.endswith(f"{SEPARATOR}clipped") for name in accumulate.outputs):
        raise InputValueError(
            "process has a sum that does not clip, so that its stages would trust every device: export a process with "
            "the aggregator of build_mf_aggregator, and without adaptive_clipping, whose clip norm is in the state."
        )
