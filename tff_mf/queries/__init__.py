"""TensorFlow Privacy queries that add a mechanism's correlated noise to a sum of clipped records."""

from tff_mf.base import required_packages

required_packages.packages("A query", "tensorflow", "tensorflow_privacy")

from tff_mf.queries._adaptive_clipping import AdaptiveClipping as AdaptiveClipping  # noqa: E402
from tff_mf.queries._adaptive_clipping import AdaptiveClippingQuery as AdaptiveClippingQuery  # noqa: E402
from tff_mf.queries._adaptive_clipping import AdaptiveClippingState as AdaptiveClippingState  # noqa: E402
from tff_mf.queries._around import RestartedQuery as RestartedQuery  # noqa: E402
from tff_mf.queries._query import MatrixFactorizationQuery as MatrixFactorizationQuery  # noqa: E402
from tff_mf.queries._query import QueryState as QueryState  # noqa: E402
from tff_mf.queries._query import build_query as build_query  # noqa: E402
