"""How far one client can move the stream Cx that noise is added to, and the error of A·C⁻¹.

`general` has the rules for any C and for banded ones, `toeplitz` the rule for a Toeplitz C.
`_api` says which kinds have a rule of their own.
"""

from tff_mf.sensitivities._api import explain_sensitivity as explain_sensitivity
from tff_mf.sensitivities._api import pattern_sensitivity as pattern_sensitivity
from tff_mf.sensitivities._api import sensitivity as sensitivity
from tff_mf.sensitivities.general import SensitivityResult as SensitivityResult
