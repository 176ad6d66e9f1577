"""TensorFlow Privacy queries that add a mechanism's correlated noise to a sum of clipped records."""

from tff_mf.base import required_packages

required_packages.packages("A query", "tensorflow", "tensorflow_privacy")

from tff_mf.queries.adaptive_clipping import AdaptiveClipping as AdaptiveClipping  # noqa: E402
from tff_mf.queries.adaptive_clipping import AdaptiveClippingQuery as AdaptiveClippingQuery  # noqa: E402
from tff_mf.queries.adaptive_clipping import AdaptiveClippingState as AdaptiveClippingState  # noqa: E402
from tff_mf.queries.query import MatrixFactorizationQuery as MatrixFactorizationQuery  # noqa: E402
from tff_mf.queries.query import QueryState as QueryState  # noqa: E402
from tff_mf.queries.query import RestartedQuery as RestartedQuery  # noqa: E402
from tff_mf.queries.query import build_query as build_query  # noqa: E402
