"""Checks by the server's state that there is one release, with the claimed noise and no adaptive bound."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tff_mf.noise import NoiseState

from ._result import Findings

_WORD = np.dtype("<i8")
_COUNTS = "count_noise"
# Name of an adaptive bound in the state of TFF's and TensorFlow Privacy's quantile estimators.
_ESTIMATE = "current_estimate"

_ONE_RELEASE = (
    "Release one noised aggregate: model_aggregator=build_mf_aggregator(...) once, for all trainable weights, and no "
    "other noised or exact aggregate, such as full_gradient_aggregator of build_unweighted_mime_lite."
)
_CONSTANT = (
    "Give clipping and zeroing around model_aggregator a constant bound instead of an adaptive quantile estimate."
)
_NOT_ADAPTIVE = (
    "Build the aggregator without adaptive_clipping; or take the guarantee from its dp_event, and check a process "
    "built without it."
)
_SAME_CLAIM = (
    "Give build_mf_aggregator and check_process the same mechanism, clip_norm, noise_multiplier and restart_every, and "
    "build_mf_aggregator no insecure_seed."
)
_OURS = "Pass model_aggregator=build_mf_aggregator(...)."


def noise_states(leaves: Mapping[str, Any]) -> list[str]:
    """Returns the paths of all noise states of this package in a state, given by its leaves.

    They are recognized by their field names: TFF does not always keep classes.
    """
    last = f"/{NoiseState._fields[0]}"
    parents = [path.removesuffix(last) for path in leaves if path.endswith(last)]
    return [path for path in parents if {f"{path}/round", f"{path}/keys"} <= leaves.keys()]


def check(leaves: Mapping[str, Any], fingerprint: str, findings: Findings) -> list[str]:
    """Checks that a state contains one noised aggregate, with the claimed noise.

    Args:
        leaves: The state before the first round, by path.
        fingerprint: Fingerprint of the claimed noise, in hexadecimal.
        findings: Receives the findings.

    Returns:
        Paths of the noise states of this package.
    """
    found = noise_states(leaves)
    counts = [path for path in found if path.rsplit("/", 1)[-1] == _COUNTS]
    sums = [path for path in found if path not in counts]
    ours = [path for path in sums if path.startswith("aggregator/")][:1]
    for path in counts:
        text = (
            f"The clip norm is adaptive: {path} is the noise of counts of clients, a second release, which clip_norm "
            "and noise_multiplier alone do not describe."
        )
        findings.failed("state", text, _NOT_ADAPTIVE)
    for path in sums:
        if path not in ours:
            text = f"{path} is the noise of a release beside the model: a client contributes to two releases a round."
            findings.failed("state", text, _ONE_RELEASE)
    _adapting(leaves, findings)
    if not ours:
        text = "The aggregator's state contains no noise of tff_mf: rounds after the measured ones are unknown."
        findings.unjudged(("noise",), text, _OURS)
    elif not counts and (held := _hex(leaves[f"{ours[0]}/fingerprint"])) != fingerprint:
        text = (
            f"The noise has the fingerprint {held[:12]}, the claim {fingerprint[:12]}: mechanism (also in "
            "later rounds), clip_norm, noise_multiplier, restart_every or insecure_seed differ."
        )
        findings.failed("noise", text, _SAME_CLAIM)
    return found


def _adapting(leaves: Iterable[str], findings: Findings) -> None:
    """Adds findings for adaptive bounds: made-up clients cannot tell how far real clients' data would move them."""
    for path in leaves:
        if path.rsplit("/", 1)[-1] == _ESTIMATE:
            text = (
                f"{path} is a bound of clipping or zeroing that adapts to clients: either exact, or a second noised "
                "release, which clip_norm and noise_multiplier alone do not describe."
            )
            findings.failed("state", text, _CONSTANT)


def _hex(words: Any) -> str:
    return np.asarray(words).astype(_WORD).tobytes().hex()
