"""What a rule for sensitivity hands back."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class SensitivityResult:
    """A sensitivity, and how it was found.

    Attributes:
        value: sens_Π(C) for clip norm 1.
        exact: Whether some client in Π reaches `value`, to the rounding of float64; otherwise it is a proven upper
            bound.
        rule: Name of the rule, with its source.
    """

    value: float
    exact: bool
    rule: str
