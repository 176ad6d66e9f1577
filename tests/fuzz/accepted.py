"""Values that look wrong and are valid, each with a reason."""

from collections.abc import Mapping

from bad_values import BEYOND, LARGEST, Case

_NO_LIMIT = "a bound that is never reached, as without it"
_NOISE = "noise and targets may be as large as they like: ε is what then follows, and is printed"
_LATER = "how many clients there are is known once the data are read, and said then"
_RATE = "a rate in float32, of a run that diverges"
_EMPTY = "an empty file is TOML without settings: those of flags are all there are"

OPTIONS: Mapping[tuple[str, str], str] = {
    ("--restart-every", LARGEST): "noise that never starts anew, as in a run that is shorter",
    ("--population", LARGEST): "a population is only compared with δ and with cohorts",
    ("--max-participations", LARGEST): "`plan` counts what fits, and prints that",
    ("--buffers", LARGEST): "those that do not lower the loss are left out, which the result says",
    ("--dimension", LARGEST): "multiplied with rows, and printed",
    ("--epsilon", BEYOND): _NOISE,
    ("--noise-multiplier", BEYOND): _NOISE,
    ("--noise-scale", BEYOND): _NOISE,
    ("--clients-per-round", LARGEST): _LATER,
    ("--server-learning-rate", BEYOND): _RATE,
    **{(flag, LARGEST): _NO_LIMIT for flag in ("--evaluate-every", "--checkpoint-every", "--jobs")},
    ("--insecure-seed", LARGEST): "any 64 bits are a seed",
    ("--task-name", "nonsense"): "any name of letters is one",
    ("--config", "empty"): _EMPTY,
    ("--config", "/dev/null"): _EMPTY,
}


def why(case: Case) -> str:
    """Returns why a value is accepted; empty if it must be refused."""
    if case.environment:
        return "" if "CACHE" in case.parameter else "a screen of 80 columns, and TensorFlow's log off, as without it"
    if case.settings is None:
        return OPTIONS.get((case.parameter, case.value), "")
    return ""
