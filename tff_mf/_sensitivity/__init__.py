"""Sensitivity of a strategy matrix: how far one client can move the stream that noise is added to.

One file a structure of C, and one a mechanism with a closed form of its own, which it registers.
"""

from tff_mf._sensitivity._api import explain_sensitivity as explain_sensitivity
from tff_mf._sensitivity._api import sensitivity as sensitivity
from tff_mf._sensitivity._blt import blt_sensitivity as blt_sensitivity
from tff_mf._sensitivity._result import SensitivityResult as SensitivityResult
from tff_mf._sensitivity._tree import tree_sensitivity as tree_sensitivity
