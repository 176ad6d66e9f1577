"""Strategy matrices C: one mechanism per file."""

from tff_mf.mechanisms._mechanism import BandedMechanism as BandedMechanism
from tff_mf.mechanisms._mechanism import Mechanism as Mechanism
from tff_mf.mechanisms._mechanism import OptimizedFor as OptimizedFor
from tff_mf.mechanisms._mechanism import SearchStatus as SearchStatus
from tff_mf.mechanisms._mechanism import ToeplitzMechanism as ToeplitzMechanism
from tff_mf.mechanisms._mechanism import UnknownKindError as UnknownKindError
from tff_mf.mechanisms._mechanism import of_kind as of_kind
from tff_mf.mechanisms.banded import Banded as Banded
from tff_mf.mechanisms.banded import BandedToeplitz as BandedToeplitz
from tff_mf.mechanisms.blt import BLT as BLT
from tff_mf.mechanisms.blt import BLTParameters as BLTParameters
from tff_mf.mechanisms.blt import ScaledBLT as ScaledBLT
from tff_mf.mechanisms.dense import Dense as Dense
from tff_mf.mechanisms.grid import bounds_of as bounds_of
from tff_mf.mechanisms.grid import on_grid as on_grid
from tff_mf.mechanisms.identity import Identity as Identity
from tff_mf.mechanisms.low_rank import BandedPlusLowRank as BandedPlusLowRank
from tff_mf.mechanisms.recursion import NEW as NEW
from tff_mf.mechanisms.recursion import Recursion as Recursion
from tff_mf.mechanisms.tree import Tree as Tree
