"""How far one client can move the stream Cx that noise is added to, and the error of A·C⁻¹.

`general` has the rules for any C and for banded ones, `toeplitz` the rule for a Toeplitz C. `tff_mf._builtin` says
which kinds have a rule of their own.
"""

from tff_mf.sensitivities._api import explain_sensitivity as explain_sensitivity
from tff_mf.sensitivities._api import pattern_sensitivity as pattern_sensitivity
from tff_mf.sensitivities._api import sensitivity as sensitivity
from tff_mf.sensitivities._check import as_released as as_released
from tff_mf.sensitivities._check import check_mechanism as check_mechanism
from tff_mf.sensitivities._check import check_outside as check_outside
from tff_mf.sensitivities.general import SensitivityResult as SensitivityResult
from tff_mf.sensitivities.scaled_columns import scaled_columns_sensitivity as scaled_columns_sensitivity
from tff_mf.sensitivities.toeplitz import blt_sensitivity as blt_sensitivity
from tff_mf.sensitivities.tree_nodes import tree_sensitivity as tree_sensitivity
