"""The sum of a round's updates."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ._errors import RefusedUpdateError
from ._stages import Stages
from ._updates import Tensors

# Endings of the scalars in a sum that count the updates that the graphs scaled, or replaced with zero.
SCALED, ZEROED = "__clipped", "__zeroed"


class RoundSum:
    """The sum of a round's updates, and the number of reports by what became of them.

    Args:
        stages: The bundle's stages.
        chosen: The devices of the round.
        earlier: What was added before, if anything: the sum, the devices in it, and the numbers of refused reports by
            reason.
    """

    def __init__(
        self,
        stages: Stages,
        chosen: Sequence[str],
        earlier: tuple[Tensors, Sequence[str], Mapping[str, int]] | None = None,
    ) -> None:
        self._stages, self._chosen = stages, frozenset(chosen)
        self._earlier = earlier[0] if earlier else None
        self._added: Tensors = stages.zero()
        self.counted: set[str] = set(earlier[1] if earlier else ())
        self.refused = Counter(earlier[2] if earlier else {})

    def take(self, device: Any, read: Any) -> str:
        """Adds the report of a device, or refuses it.

        Args:
            device: The device that the server received it from.
            read: Returns its update, with names, types and shapes checked, or raises RefusedUpdateError.

        Returns:
            The reason for which it was refused, one of `REASONS`, or an empty text.
        """
        try:
            if not isinstance(device, str) or device not in self._chosen:
                raise RefusedUpdateError("not chosen")
            if device in self.counted:
                raise RefusedUpdateError("duplicate")
            self._added = self._stages.accumulate(self._added, read())
        except RefusedUpdateError as error:
            return self.refuse(str(error))
        self.counted.add(device)
        return ""

    def refuse(self, reason: str) -> str:
        """Counts a report as refused without reading it, and returns the reason, one of `REASONS`."""
        self.refused[reason] += 1
        return reason

    def total(self) -> dict[str, Any]:
        """Returns the sum."""
        return dict(self._added if self._earlier is None else self._stages.merge(self._earlier, self._added))

    def counts(self) -> dict[str, Any]:
        """Returns the exact numbers of reports that came, were added, scaled, zeroed or refused: for the operator."""
        total, counted = self.total(), len(self.counted)
        found: dict[str, Any] = {"came": counted + sum(self.refused.values()), "counted": counted}
        for name, ending in (("clipped", SCALED), ("zeroed", ZEROED)):
            found[name] = sum(int(value) for each, value in total.items() if each.endswith(ending))
        return {**found, "refused": dict(sorted(self.refused.items()))}
