"""Which stream belongs to which mechanism."""

from tff_mf import _validate
from tff_mf.errors import InputTypeError
from tff_mf.mechanisms import (
    BLT,
    Banded,
    BandedInverse,
    BandedPlusLowRank,
    BandedToeplitz,
    Dense,
    Identity,
    Mechanism,
    Tree,
)
from tff_mf.noise._stream import NoiseStream
from tff_mf.noise.banded import BandedStream
from tff_mf.noise.banded_inverse import BandedInverseStream
from tff_mf.noise.banded_plus_low_rank import BandedPlusLowRankStream
from tff_mf.noise.banded_toeplitz import BandedToeplitzStream
from tff_mf.noise.blt import BLTStream
from tff_mf.noise.dense import DenseStream
from tff_mf.noise.identity import IdentityStream
from tff_mf.noise.tree_full import FullTreeStream
from tff_mf.noise.tree_online import OnlineTreeStream

_STREAMS: dict[type[Mechanism], type[NoiseStream]] = {
    Banded: BandedStream,
    BandedInverse: BandedInverseStream,
    BandedToeplitz: BandedToeplitzStream,
    BLT: BLTStream,
    Dense: DenseStream,
    Identity: IdentityStream,
    BandedPlusLowRank: BandedPlusLowRankStream,
}
_TREES: dict[str, type[NoiseStream]] = {"full": FullTreeStream, "online": OnlineTreeStream}


def build_stream(
    mechanism: Mechanism, *, dimension: int, stddev: float, insecure_seed: int | None = None
) -> NoiseStream:
    """Returns the noise stream of a mechanism; see `NoiseStream` for arguments and guarantee.

    Example:
        >>> import tff_mf
        >>> stream = build_stream(tff_mf.BLT.production("b400"), dimension=3, stddev=2.0)
        >>> row, state = stream.next(stream.init())
        >>> row.shape, int(state.round), len(state.rows)
        (TensorShape([3]), 1, 4)

    Raises:
        InputTypeError: If there is no stream for the mechanism.
    """
    _validate.instance("mechanism", mechanism, Mechanism, "pass a mechanism, such as the result of tff_mf.load")
    stream = _TREES[mechanism.variant] if isinstance(mechanism, Tree) else _STREAMS.get(type(mechanism))
    if stream is None:
        raise InputTypeError(f"mechanism of type {type(mechanism).__name__} has no noise stream.")
    return stream(mechanism, dimension=dimension, stddev=stddev, insecure_seed=insecure_seed)
