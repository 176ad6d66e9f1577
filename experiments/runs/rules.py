"""What a plan allows a server: how many rounds, who may take part in which, and what its sums are bounded by."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tff_mf
from tff_mf.base.errors import InputTypeError, InputValueError


def named(schema: tff_mf.Participation) -> dict[str, Any]:
    """Returns a participation schema by its name and numbers, as files have it."""
    return {
        "participation": type(schema).__name__,
        "min_sep": schema.min_sep,
        "max_participations": schema.max_participations,
    }


def refusal(schema: tff_mf.Participation, past: Sequence[int], round_number: int) -> str:
    """Returns why a client may not take part in a round, given its past rounds; an empty text if it may.

    Past rounds can be later ones, from abandoned attempts. If the round is among them, it counts once.

    Formal guarantee: if the text is empty and the past rounds are a pattern of the schema, the round and they are.

    Args:
        schema: The participation schema.
        past: Rounds for which the client was chosen.
        round_number: The round.

    Example:
        >>> refusal(tff_mf.MinSep(min_sep=3, max_participations=2), [1], 3)
        'took part in round 1: min_sep=3'
        >>> refusal(tff_mf.FixedEpoch(min_sep=3, max_participations=3), [1], 8)
        'took part in round 1: with min_sep=3 it may come in rounds 4, 7 after it'
    """
    others = [number for number in past if number != round_number]
    b, k = schema.min_sep, schema.max_participations
    if len(others) + 1 > k:
        return f"took part in {len(others)} rounds: max_participations={k}"
    near = [number for number in others if abs(round_number - number) < b]
    if near:
        return f"took part in round {near[0]}: min_sep={b}"
    rounds = sorted((*others, round_number))
    if any(later - sooner < b for sooner, later in itertools.pairwise(rounds)):
        return f"took part in rounds {others}, which {schema!r} does not allow together with round {round_number}"
    in_place = all((each - rounds[0]) % b == 0 for each in rounds) and rounds[-1] - rounds[0] <= (k - 1) * b
    if isinstance(schema, tff_mf.FixedEpoch) and not in_place:
        places = ", ".join(str(rounds[0] + index * b) for index in range(1, k))
        return f"took part in round {others[0]}: with min_sep={b} it may come in rounds {places} after it"
    return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of a run's rounds.

    Attributes:
        rounds: Number of rounds that were accounted for.
        schema: The participation schema; `None` if no client is refused, for runs for which no ε is stated.
        divisor: Constant by which noised sums are divided.
        clip_norm: Bound on the norm of a client's update; if it adapts, the first round's.
        restart_every: Rounds after which noise starts anew, or `None`.
    """

    rounds: int
    schema: tff_mf.Participation | None
    divisor: float
    clip_norm: float
    restart_every: int | None = None

    @classmethod
    def of(cls, plan: tff_mf.Plan) -> "Rules":
        """Returns the rules of a plan."""
        return cls(
            rounds=plan.rounds,
            schema=plan.participation,
            divisor=plan.clients_per_round,
            clip_norm=plan.clip_norm,
            restart_every=plan.restart_every,
        )

    def restarts_in(self, round_number: int) -> bool:
        """Returns whether the noise starts anew in a round, counted from 1."""
        return self.restart_every is not None and round_number > 1 and (round_number - 1) % self.restart_every == 0


class RefusedCohortError(InputValueError):
    """A cohort that the participation schema forbids. Nothing was written, and no data may be handed out.

    Attributes:
        clients: The clients that may not take part.
    """

    def __init__(self, message: str, clients: Sequence[str]) -> None:
        super().__init__(message)
        self.clients = list(clients)


def checked_ids(clients: Iterable[str], name: str = "clients") -> list[str]:
    """Returns the ids of clients, read once: what draws them as it is read could differ the next time."""
    if isinstance(clients, str) or not isinstance(clients, Iterable):
        raise InputTypeError(f"{name}={clients!r:.80} must be ids.")
    read = list(clients)
    for client in read:
        if not isinstance(client, str):
            raise InputTypeError(f"{name} has {client!r}; every id must be a string.")
        try:
            client.encode()
        except UnicodeEncodeError as error:
            raise InputValueError(
                f"{name} has {client!r}, which cannot be encoded in UTF-8: {error.reason}. Give the client another id."
            ) from error
    # The text itself, and not what a subclass of `str` returns for it.
    return [str.__str__(client) for client in read]


def check_same(given: Mapping[str, Any], begun: Mapping[str, Any], *, run: str, derived: Sequence[str] = ()) -> None:
    """Raises unless the settings of a run are those that it began with, and names all that differ.

    `run.json`, `configuration.toml` and the settings in the states of other engines are compared by this function.

    Args:
        given: The settings now, by name.
        begun: The settings that the run began with, by name, as read from its folder.
        run: The run's folder, or the file with `begun`, for the message.
        derived: Settings that follow from others: they are named only if nothing else differs.

    Example:
        >>> check_same({"rounds": 8}, {"rounds": 8}, run="out")
        >>> check_same({}, {"rounds": 8}, run="out")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        tff_mf.base.errors.InputValueError: rounds=… missing, a setting that the run in 'out' began with, 8: ...
        >>> check_same({"rounds": 9, "delta": 0.1}, {"rounds": 8, "delta": 0.2}, run="out")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        tff_mf.base.errors.InputValueError: rounds=9 is not the setting that the run in 'out' began with, 8; nor is \
delta=0.1, where it has 0.2: ...
    """
    flat_now, flat_then = _flat(given), _flat(begun)
    changed = [
        (name, flat_now.get(name, _NOT_THERE), flat_then.get(name, _NOT_THERE))
        for name in {**flat_now, **flat_then}
        if flat_now.get(name) != flat_then.get(name)
    ]
    # The one that comes first in the message is what the user changed.
    named = [each for each in changed if each[0] not in derived] or sorted(
        changed, key=lambda change: derived.index(change[0])
    )
    if not named:
        return
    (name, now, then), *others = named
    first = f"{name}=… missing, a" if now is _NOT_THERE else f"{name}={now!r} is not the"
    before = "which has none" if then is _NOT_THERE else repr(then)
    more = "".join(
        f"; nor is {name}={'…' if now is _NOT_THERE else repr(now)}, where it has "
        f"{'none' if then is _NOT_THERE else repr(then)}"
        for name, now, then in others
    )
    raise InputValueError(
        f"{first} setting that the run in {run!r} began with, {before}{more}: resume it with the same settings, "
        "or start another run in another folder."
    )


_NOT_THERE = object()


def _flat(settings: Mapping[str, Any], inside: str = "") -> dict[str, Any]:
    """Returns settings by name, those in a table by the names of both."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{inside}{name}.") if isinstance(value, Mapping) else {inside + name: value}
    return flat
