"""Audit of the noise that really runs: tests against its artifact, against itself, and against its claimed ε."""

from ._audit import Audit as Audit
from ._audit import audit as audit
from ._audit import disagreements as disagreements
from ._canaries import CanaryBound as CanaryBound
from ._canaries import canary_bound as canary_bound
from ._canaries import reached_sensitivity as reached_sensitivity
from ._setting import Setting as Setting
from ._setting import Test as Test
