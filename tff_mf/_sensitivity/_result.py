"""The result of a rule for sensitivity."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class SensitivityResult:
    """A sensitivity, with the rule that gave it.

    Attributes:
        value: sens_Π(C) for clip norm 1.
        exact: Whether some client in Π attains `value`, up to the rounding of float64; otherwise it is a proven upper
            bound.
        rule: Name of the rule, with its source.
    """

    value: float
    exact: bool
    rule: str
