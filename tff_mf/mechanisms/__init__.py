"""What C is: one mechanism a file."""

from tff_mf.mechanisms._mechanism import BandedMechanism as BandedMechanism
from tff_mf.mechanisms._mechanism import MadeFor as MadeFor
from tff_mf.mechanisms._mechanism import Mechanism as Mechanism
from tff_mf.mechanisms._mechanism import ToeplitzMechanism as ToeplitzMechanism
from tff_mf.mechanisms.blt import BLT as BLT
from tff_mf.mechanisms.blt import BLTParameters as BLTParameters
from tff_mf.mechanisms.identity import Identity as Identity
