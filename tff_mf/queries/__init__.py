"""TensorFlow Privacy queries that add a mechanism's correlated noise to a sum of clipped records."""

from tff_mf import required_packages

required_packages.packages("A query", "tensorflow", "tensorflow_privacy")

from tff_mf.queries._adaptive_clipping import AdaptiveClipping as AdaptiveClipping  # noqa: E402
from tff_mf.queries._adaptive_clipping import AdaptiveClippingQuery as AdaptiveClippingQuery  # noqa: E402
from tff_mf.queries._adaptive_clipping import AdaptiveClippingState as AdaptiveClippingState  # noqa: E402
from tff_mf.queries._base import MatrixFactorizationQuery as MatrixFactorizationQuery  # noqa: E402
from tff_mf.queries._base import QueryState as QueryState  # noqa: E402
from tff_mf.queries._mechanisms import BandedInverseQuery as BandedInverseQuery  # noqa: E402
from tff_mf.queries._mechanisms import BandedPlusLowRankQuery as BandedPlusLowRankQuery  # noqa: E402
from tff_mf.queries._mechanisms import BandedQuery as BandedQuery  # noqa: E402
from tff_mf.queries._mechanisms import BLTQuery as BLTQuery  # noqa: E402
from tff_mf.queries._mechanisms import DenseQuery as DenseQuery  # noqa: E402
from tff_mf.queries._mechanisms import IdentityQuery as IdentityQuery  # noqa: E402
from tff_mf.queries._mechanisms import PseudoInverseTreeQuery as PseudoInverseTreeQuery  # noqa: E402
from tff_mf.queries._mechanisms import TreeQuery as TreeQuery  # noqa: E402
from tff_mf.queries._mechanisms import VanillaTreeQuery as VanillaTreeQuery  # noqa: E402
from tff_mf.queries._mechanisms import build_query as build_query  # noqa: E402
from tff_mf.queries._restarts import RestartedQuery as RestartedQuery  # noqa: E402
from tff_mf.queries._variables import VariableQuery as VariableQuery  # noqa: E402
