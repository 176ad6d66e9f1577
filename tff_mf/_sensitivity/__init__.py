"""Sensitivity of a strategy matrix: how far one client can move the stream that noise is added to.

One file a structure of C. A mechanism that knows more of itself registers a function with `rule`, and is imported here.
"""

from tff_mf._sensitivity import _banded as _banded
from tff_mf._sensitivity import _blt as _blt
from tff_mf._sensitivity import _toeplitz as _toeplitz
from tff_mf._sensitivity import _tree as _tree
from tff_mf._sensitivity._api import explain_sensitivity as explain_sensitivity
from tff_mf._sensitivity._api import sensitivity as sensitivity
from tff_mf._sensitivity._general import rule as rule
from tff_mf._sensitivity._result import SensitivityResult as SensitivityResult
