"""Standard normals whose error is proved, for noise that is rounded to a grid: tables, arithmetic, and the bound.

NumPy only. `tff_mf.noise.tensorflow` draws the random words and does the same arithmetic in TensorFlow, bit for bit.
docs/proofs.md has the proof: theorem F5.
"""

from tff_mf.numerics.normals._arithmetic import EDGE_BITS as EDGE_BITS
from tff_mf.numerics.normals._arithmetic import INDEX_BITS as INDEX_BITS
from tff_mf.numerics.normals._arithmetic import POSITION_BITS as POSITION_BITS
from tff_mf.numerics.normals._arithmetic import STATISTICS as STATISTICS
from tff_mf.numerics.normals._arithmetic import UNIFORM_BITS as UNIFORM_BITS
from tff_mf.numerics.normals._arithmetic import WORDS_OF_A_PIECE as WORDS_OF_A_PIECE
from tff_mf.numerics.normals._arithmetic import Tables as Tables
from tff_mf.numerics.normals._arithmetic import from_words as from_words
from tff_mf.numerics.normals._arithmetic import tables as tables
from tff_mf.numerics.normals._error import RoundingError as RoundingError
from tff_mf.numerics.normals._error import rounding_error as rounding_error
from tff_mf.numerics.normals._philox import BLOCKS_OF_A_PIECE as BLOCKS_OF_A_PIECE
from tff_mf.numerics.normals._philox import LEVEL_BITS as LEVEL_BITS
from tff_mf.numerics.normals._philox import PART as PART
from tff_mf.numerics.normals._philox import WORDS_OF_A_BLOCK as WORDS_OF_A_BLOCK
from tff_mf.numerics.normals._philox import draw as draw
from tff_mf.numerics.normals._philox import words as words
from tff_mf.numerics.normals._philox import write as write
