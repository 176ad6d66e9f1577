"""Groups of clients that follow from a secret key: independent, uniform, and the same whenever the key is."""

import dataclasses
import hashlib
import json
import pathlib
import secrets
from collections.abc import Sequence

from tff_mf import files, validation
from tff_mf.errors import InputTypeError, InputValueError

_KEY_BYTES = 32
_FORMAT = b"tff-mf secret groups 2\n"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecretGroups:
    """The group of every client, by a keyed hash (BLAKE2b) of its id.

    It is as secret as the key of the noise: anyone who has it, or a list of the groups, gets the ε without
    amplification. So it is neither logged nor printed. It must outlast the run, as a client that is put into another
    group on resumption takes part in rounds of both. It is for one run: ε of two runs with the same groups do not add
    up, as given the sums of one, the groups of the other are no longer uniform. So the name of the run goes into the
    hash, and another name leads to groups that are independent of these, even with the same key.

    Formal guarantee: to anyone without the key, the groups of all runs of different names are independent and uniform,
    up to a difference of 2⁻¹⁹² and the advantage of an attacker on BLAKE2b as a pseudorandom function, as the noise is
    up to that on its generator.

    Attributes:
        groups: Number of groups b.
        run: Name of the run; one that is resumed keeps it, and no other run may have it. Nothing notices a second run
            of the same name: it is taken for a resumption.
        key: 32 bytes from the system's randomness.

    Example:
        >>> groups = SecretGroups.drawn(4, run="first")
        >>> groups.group_of("a") == groups.group_of("a"), 0 <= groups.group_of("b") < 4
        (True, True)
        >>> groups
        SecretGroups(groups=4, run='first')

    Raises:
        InputTypeError: If a field is of the wrong type.
        InputValueError: If a field is out of range.
    """

    groups: int
    run: str
    key: bytes = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        validation.whole("groups", self.groups)
        if not isinstance(self.run, str) or not self.run:
            raise InputTypeError(f"run={self.run!r} must be the name of the run that the groups are for.")
        if not isinstance(self.key, bytes):
            raise InputTypeError("key must be bytes: draw it with SecretGroups.drawn(groups, run=…).")
        if len(self.key) != _KEY_BYTES:
            raise InputValueError(f"key has {len(self.key)} bytes, not {_KEY_BYTES}: draw it with SecretGroups.drawn.")

    @classmethod
    def drawn(cls, groups: int, *, run: str) -> "SecretGroups":
        """Returns groups for a run, with a new key from the system's randomness."""
        return cls(groups=groups, run=run, key=secrets.token_bytes(_KEY_BYTES))

    @classmethod
    def load(cls, path: str | pathlib.Path, *, run: str) -> "SecretGroups":
        """Returns the groups that `save` wrote for a run.

        Raises:
            InputValueError: If the file holds none, or those of another run.
        """
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
        # The name ends with a line break, which JSON has nowhere inside.
        text = _named(self.run) + b"\n" + client_id.encode()
        return hashlib.blake2b(text, key=self.key, person=purpose, digest_size=32).digest()


def _named(run: str) -> bytes:
    """Returns the name of a run on one line."""
    return json.dumps(run).encode()
