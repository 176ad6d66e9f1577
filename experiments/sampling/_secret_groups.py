"""Groups of clients that follow from a secret key: independent, uniform, and the same whenever the key is."""

import dataclasses
import hashlib
import json
import pathlib
import re
import secrets
from collections.abc import Sequence

from tff_mf import files, validation
from tff_mf.errors import InputTypeError, InputValueError

_KEY_BYTES = 32
_RUN_DIGITS = 32
_RUN = re.compile("[0-9a-f]{32}")
_FORMAT = b"tff-mf secret groups 2\n"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecretGroups:
    """The group of every client, by a keyed hash (BLAKE2b) of its id.

    It is as secret as the key of the noise: anyone who has it, or a list of the groups, gets the ε without
    amplification. So it is neither logged nor printed. It must outlast the run, as a client that is put into another
    group on resumption takes part in rounds of both. It is for one run: ε of two runs with the same groups do not
    add up, as given the sums of one, the groups of the other are no longer uniform. So the identifier of the run goes
    into the hash: random, drawn when the run begins and kept in its checkpoints, which a run that is resumed reads, and
    a second run of the same name does not have. Another one leads to groups that are independent of these, even with
    the same key.

    Formal guarantee: to anyone without the key, the groups of runs with different identifiers are independent and
    uniform, up to a difference of 2⁻¹⁹² and the advantage of an attacker on BLAKE2b as a pseudorandom function, as the
    noise is up to that on its generator.

    Attributes:
        groups: Number of groups b.
        run: Identifier of the run, 32 random hexadecimal digits, as its checkpoints and its ledger have it.
        key: 32 bytes from the system's randomness.

    Example:
        >>> groups = SecretGroups.drawn(4)
        >>> groups.group_of("a") == groups.group_of("a"), 0 <= groups.group_of("b") < 4
        (True, True)
        >>> groups == SecretGroups.drawn(4), len(groups.run)
        (False, 32)

    Raises:
        InputTypeError: If a field is of the wrong type.
        InputValueError: If a field is out of range.
    """

    groups: int
    run: str
    key: bytes = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        validation.whole("groups", self.groups)
        _check_run(self.run)
        if not isinstance(self.key, bytes):
            raise InputTypeError("key must be bytes: draw it with SecretGroups.drawn(groups).")
        if len(self.key) != _KEY_BYTES:
            raise InputValueError(f"key has {len(self.key)} bytes, not {_KEY_BYTES}: draw it with SecretGroups.drawn.")

    @classmethod
    def drawn(cls, groups: int, *, run: str | None = None) -> "SecretGroups":
        """Returns groups for a run that begins, with a new key from the system's randomness.

        Args:
            groups: Number of groups b.
            run: The identifier that the run has drawn; if not given, a new one, which the run has to keep.
        """
        identifier = secrets.token_hex(_RUN_DIGITS // 2) if run is None else run
        return cls(groups=groups, run=identifier, key=secrets.token_bytes(_KEY_BYTES))

    @classmethod
    def load(cls, path: str | pathlib.Path, *, run: str) -> "SecretGroups":
        """Returns the groups that `save` wrote, for a run that is resumed.

        Args:
            path: The file.
            run: The identifier of the run, read from its checkpoints, its ledger or wherever it was kept.

        Raises:
            InputValueError: If the file holds no groups, or groups of another run.
        """
        _check_run(run)
        content = pathlib.Path(path).read_bytes()
        number, _, rest = content.removeprefix(_FORMAT).partition(b"\n")
        name, newline, key = rest.partition(b"\n")
        if not content.startswith(_FORMAT) or not newline or not number.isdigit():
            raise InputValueError(
                f"path={str(path)!r} holds no secret groups: pass a file that SecretGroups.save wrote."
            )
        if name != _named(run):
            raise InputValueError(
                f"path={str(path)!r} holds the groups of another run than run={run!r}: ε of runs with the same groups "
                "do not add up. Draw new ones with SecretGroups.drawn."
            )
        return cls(groups=int(number), run=run, key=key)

    def save(self, path: str | pathlib.Path) -> None:
        """Writes the key to a file that only its owner can read, for the rest of the run; never over another."""
        try:
            with files.atomic_file(path, mode=0o600, overwrite=False) as file:
                file.write(_FORMAT + str(self.groups).encode() + b"\n" + _named(self.run) + b"\n" + self.key)
        except FileExistsError as error:
            raise InputValueError(
                f"path={str(path)!r} exists: it may hold the groups of a run; load them, or save under another name."
            ) from error

    def group_of(self, client_id: str) -> int:
        """Returns the group of a client, counted from 0."""
        return int.from_bytes(self._hash(b"group", client_id)) % self.groups

    def chosen(self, client_ids: Sequence[str], count: int) -> list[int]:
        """Returns the places of `count` clients, chosen uniformly and independently of all groups."""
        order = sorted(range(len(client_ids)), key=lambda index: self._hash(b"chosen", client_ids[index]))
        return order[:count]

    def _hash(self, purpose: bytes, client_id: str) -> bytes:
        # The identifier ends with a line break, which JSON has nowhere inside.
        text = _named(self.run) + b"\n" + client_id.encode()
        return hashlib.blake2b(text, key=self.key, person=purpose, digest_size=32).digest()


def _named(run: str) -> bytes:
    """Returns the identifier of a run on one line."""
    return json.dumps(run).encode()


def _check_run(run: str) -> None:
    """Raises unless a run is named by an identifier that no other run has."""
    if not isinstance(run, str):
        raise InputTypeError(f"run={run!r} must be the identifier of the run that the groups are for.")
    if not _RUN.fullmatch(run):
        raise InputValueError(
            f"run={run!r} must be the run's random identifier, {_RUN_DIGITS} hexadecimal digits as in its checkpoints: "
            "a second run can have the same name. SecretGroups.drawn(groups) draws one for a new run."
        )
