"""States, journal and models of a deployment must be of one time: an older state would release a round twice."""

from collections.abc import Sequence

from ._errors import RefusedError
from ._journal import Journal


def check_times(where: str, states: Sequence[int], journal: Journal, models: Sequence[int]) -> None:
    """Raises unless the files of a deployment can be of one time.

    Formal guarantee: if it returns, no round after the newest state's was released, by the journal and the models
    that are there.

    Args:
        where: The deployment, for the message.
        states: Rounds whose states are stored, in order.
        journal: The journal.
        models: Rounds whose models are stored.

    Raises:
        RefusedError: If there is no state, or the state or the journal is older than the other files.
    """
    if not states:
        raise RefusedError(f"{where} has lost its state: it ends here. What was released keeps its guarantee.")
    begun, released = (journal.last(kind) for kind in ("begun", "released"))
    last = released["round"] if released else 0
    newest = max([last, *models])
    if states[-1] < newest:
        raise RefusedError(
            f"{where} has the state of round {states[-1]}, and round {newest} was released: continuing would release "
            "rounds twice. Put the newest state back, or end the deployment here."
        )
    if states[-1] > (begun["round"] if begun else 0) or states[-1] > last + 1 or max(models, default=0) > last:
        raise RefusedError(f"{where} has a journal that is older than its state or models: put the newest back.")
