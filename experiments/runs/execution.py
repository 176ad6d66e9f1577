"""Where a run computes, and how it is saved and resumed."""

import dataclasses
import re

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

_MOST_AT_ONCE = 1024
_ADDRESS = re.compile(r"[^\s:/]+:([0-9]{1,5})|unix:/[^\s,]+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutionSettings:
    """Where a run computes, and how it is saved and resumed. None of these settings changes the model.

    More threads may change the order of sums inside an operation, and so their rounding. For the models of a run, 1, 2
    and 4 threads gave the same numbers, bit for bit.

    Attributes:
        checkpoint_every: Rounds between checkpoints, which are also saved before each evaluation is
            released; 0 for no checkpoints at all.
        resume: Whether to resume the run that is in the folder, from its last checkpoint.
        workers: Addresses (`host:port`, or `unix:/path`) of running workers; one of its own on this machine if empty.
        clients_at_once: Number of clients that each worker runs at the same time; as many as this machine has cores if
            `None`. Their updates are added in the same order.
        threads: Number of threads inside an operation of the run's own worker; 1 if `None`. Workers that run already
            have theirs.
        restarts: How often a run whose worker dies is resumed from its last checkpoint automatically.
    """

    checkpoint_every: int = 25
    resume: bool = False
    workers: tuple[str, ...] = ()
    clients_at_once: int | None = None
    threads: int | None = None
    restarts: int = 0

    def __post_init__(self) -> None:
        for name in ("checkpoint_every", "restarts"):
            validation.whole(name, getattr(self, name), at_least=0)
        for name in ("clients_at_once", "threads"):
            given = getattr(self, name)
            if given is not None and validation.whole(name, given, at_least=1) > _MOST_AT_ONCE:
                raise InputValueError(f"{name}={given} must be at most {_MOST_AT_ONCE:,}.")
        if self.workers and self.threads is not None:
            raise InputValueError(
                f"threads={self.threads} is for a worker that the run starts: give it to `tff-mf worker --threads`."
            )
        for address in self.workers:
            found = _ADDRESS.fullmatch(address)
            if found is None or not 0 < int(found[1] or 1) < 2**16:
                raise InputValueError(
                    f"workers={address!r} is not an address: write host:port, as localhost:7000, or unix:/path."
                )
        if not self.checkpoint_every and (self.resume or self.restarts):
            raise InputValueError(
                f"checkpoint_every={self.checkpoint_every} saves no checkpoints, and resume and restarts need them: "
                "give at least 1, or neither of the two."
            )
