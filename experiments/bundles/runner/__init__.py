"""The runner: the program that drives a deployment from the files of its bundle, with TensorFlow alone.

Every bundle carries this package in `runner.pyz`, with the modules of tff-mf that it needs, as they are: `python
runner.pyz` runs it, and with that file on Python's path, `import runner` has its names. For this reason its imports are
relative, and nothing that it imports needs more than NumPy and TensorFlow: see `building.CARRIED`.
"""

from ....base.errors import InputError as InputError
from ....base.tensor_files import decoded as decoded
from ....base.tensor_files import encoded as encoded
from ...runs.ledger import REASONS as REASONS
from ._bundle import INITIAL as INITIAL
from ._bundle import MANIFEST as MANIFEST
from ._bundle import MANIFEST_VERSION as MANIFEST_VERSION
from ._bundle import SIGNATURE as SIGNATURE
from ._bundle import TOKENIZE as TOKENIZE
from ._bundle import Stages as Stages
from ._bundle import Tensors as Tensors
from ._bundle import changes as changes
from ._bundle import check_files as check_files
from ._bundle import manifest_digest as manifest_digest
from ._bundle import parsed as parsed
from ._bundle import read_manifest as read_manifest
from ._deployment import Deployment as Deployment
from ._deployment import opened as opened
from ._deployment import start as start
from .commands import main as main
