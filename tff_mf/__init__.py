"""Matrix-factorization noise for differentially private federated learning."""

from importlib.metadata import version as _version

from tff_mf.errors import ArtifactError as ArtifactError
from tff_mf.errors import InputError as InputError
from tff_mf.mechanisms import BLT as BLT
from tff_mf.mechanisms import Identity as Identity
from tff_mf.mechanisms import MadeFor as MadeFor
from tff_mf.mechanisms import Mechanism as Mechanism
from tff_mf.participation import MinSep as MinSep
from tff_mf.participation import Participation as Participation
from tff_mf.participation import SingleParticipation as SingleParticipation

__version__ = _version("tff-mf")
