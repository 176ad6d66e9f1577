"""The runner: the program that drives a deployment from the files of its bundle, with TensorFlow alone.

Every bundle carries it as one file, `runner.py`, so that it can be read, copied and run without this package.
`bundles.runner_file` joins the modules of this package to that file. For this reason they import each other's names
only as `from ._module import name`, no two of them define the same name, and nothing here imports the rest of tff-mf.
"""

from ._bundle_files import check_files as check_files
from ._deployment import Deployment as Deployment
from ._errors import REASONS as REASONS
from ._errors import RefusedError as RefusedError
from ._errors import RefusedUpdateError as RefusedUpdateError
from ._names import INITIAL as INITIAL
from ._names import MANIFEST as MANIFEST
from ._names import MANIFEST_VERSION as MANIFEST_VERSION
from ._names import SIGNATURE as SIGNATURE
from ._opening import opened as opened
from ._opening import start as start
from ._round_sum import SCALED as SCALED
from ._round_sum import ZEROED as ZEROED
from ._round_sum import RoundSum as RoundSum
from ._safetensors import decoded as decoded
from ._safetensors import encoded as encoded
from ._stages import Stages as Stages
from ._states import StateStore as StateStore
from ._updates import Tensors as Tensors
from ._updates import Types as Types
from ._updates import checked as checked
from ._updates import read_update as read_update
