"""Clients that are chosen for a cohort and do not report."""

import dataclasses

import numpy as np

from tff_mf import validation
from tff_mf.errors import InputValueError

from . import _checks
from ._plan import NOBODY, CohortPlan


def without_dropped(plan: CohortPlan, dropout: float, *, seed: int) -> CohortPlan:
    """Returns the plan without the clients that drop out, each with probability `dropout`, independently.

    Train on the result and log `plan`. A client whose update did not arrive added nothing to the round's sum, and
    the guarantee would hold without counting it. But a server cannot always tell an update that was never sent from
    one that was lost later, and the device's timer has started either way. So it is counted: the observed
    participation is then never better than the true one. The noise, and the number that the sum is divided by,
    stay what they are.

    Args:
        plan: Who is in which cohort.
        dropout: Probability to drop out, at least 0 and below 1.
        seed: The same arguments give the same result.

    Example:
        >>> import tff_mf
        >>> plan = CohortPlan(client_ids=("a", "b", "c"), indices=np.array([[0, 1], [2, 0]]),
        ...                   participation=tff_mf.MinSep(min_sep=1, max_participations=2))
        >>> [without_dropped(plan, 0.5, seed=2).cohort(t) for t in range(2)]
        [('a',), ('c', 'a')]

    Raises:
        InputTypeError: If `dropout` is not a number.
        InputValueError: If it is out of range.
    """
    if not 0 <= validation.real("dropout", dropout) < 1:
        raise InputValueError(f"dropout={dropout!r} must lie in [0, 1).")
    if dropout == 0:
        return plan
    gone = _checks.generator(seed, stream=1).random(plan.indices.shape) < dropout
    return dataclasses.replace(plan, indices=np.where(gone, NOBODY, plan.indices))
