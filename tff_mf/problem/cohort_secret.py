"""A secret that cohorts follow from: independent, uniform, and the same whenever the secret is."""

import dataclasses
import hashlib
import json
import pathlib
import re
import secrets
from collections.abc import Sequence

import numpy as np

from tff_mf.base import files
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.problem.draws import Draws, SystemDraws
from tff_mf.problem.participation import Sampling

_KEY_BYTES = 32
_RUN_DIGITS = 32
_RUN = re.compile("[0-9a-f]{32}")
_FORMAT = b"tff-mf secret of cohorts\n"
_FILE = re.compile(_FORMAT + rb"(?P<run>[0-9a-f]{32})\n(?P<cohorts>[0-9a-f]*)\n(?P<key>.*)", re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CohortSecret:
    """The key that all random choices of a run's cohorts follow from, by keyed hashes.

    It is as secret as the key of the noise: anyone who has it, or a list of the cohorts, gets the ε without
    amplification. So it is neither logged nor printed. It must outlast the run, as a client that is put into another
    group on resumption takes part in rounds of both. It is for one run: ε of two runs with the same groups do not
    add up, as given the sums of one, the groups of the other are no longer uniform. So the identifier of the run goes
    into the hash: random, drawn when the run begins and kept in its checkpoints, which a run that is resumed reads, and
    a second run of the same name does not have. Another one leads to cohorts that are independent of these, even with
    the same key.

    Formal guarantee: to anyone without the key, the choices of runs with different identifiers are independent, and as
    likely as `problem.draws` says, up to a difference of 2⁻¹⁹² and the advantage of an attacker on BLAKE2b or SHAKE256
    as a pseudorandom function, as the noise is up to that on its generator.

    Attributes:
        run: Identifier of the run, 32 random hexadecimal digits, as its checkpoints and its ledger have it.
        key: 32 bytes from the system's randomness.
        cohorts: Hash of the cohorts that a run drew with it, by `keyed`: a resumed run draws the same. Empty before.

    Example:
        >>> import tff_mf
        >>> secret, sampling = CohortSecret.drawn(), tff_mf.BallsInBins(groups=4)
        >>> one, other = (sampling.cohorts(9, 4, draws=secret.draws("abcdefghi", sampling)) for _ in range(2))
        >>> bool((one == other).all()), secret == CohortSecret.drawn(), len(secret.run)
        (True, False, 32)
    """

    run: str
    key: bytes = dataclasses.field(repr=False)
    cohorts: str = dataclasses.field(default="", repr=False)

    def __post_init__(self) -> None:
        _check_run(self.run)
        if not isinstance(self.key, bytes):
            raise InputTypeError("key must be bytes: draw it with CohortSecret.drawn().")
        if len(self.key) != _KEY_BYTES:
            raise InputValueError(
                f"key has {len(self.key)} bytes, not {_KEY_BYTES}: draw it with CohortSecret.drawn()."
            )

    @classmethod
    def drawn(cls, *, run: str | None = None) -> "CohortSecret":
        """Returns a secret for a run that begins, with a new key from the system's randomness.

        Args:
            run: The identifier that the run has drawn; if not given, a new one, which the run has to keep.
        """
        identifier = secrets.token_hex(_RUN_DIGITS // 2) if run is None else run
        return cls(run=identifier, key=secrets.token_bytes(_KEY_BYTES))

    @classmethod
    def load(cls, path: str | pathlib.Path, *, run: str) -> "CohortSecret":
        """Returns the secret that `save` wrote, for a run that is resumed.

        Args:
            path: The file.
            run: The identifier of the run, read from its checkpoints, its ledger or wherever it was kept.

        Raises:
            InputValueError: If the file holds no secret, or the secret of another run.
        """
        _check_run(run)
        content = pathlib.Path(path).read_bytes()
        match = _FILE.fullmatch(content)
        if match is None:
            raise InputValueError(
                f"path={str(path)!r} holds no secret of cohorts: pass a file that CohortSecret.save wrote."
            )
        if match["run"].decode() != run:
            raise InputValueError(
                f"path={str(path)!r} holds the secret of another run than run={run!r}: ε of runs with the same groups "
                "do not add up. Draw a new one with CohortSecret.drawn()."
            )
        return cls(run=run, key=match["key"], cohorts=match["cohorts"].decode())

    def save(self, path: str | pathlib.Path) -> None:
        """Writes the key to a file that only its owner can read, for the rest of the run; never over another."""
        try:
            with files.atomic_file(path, mode=0o600, overwrite=False) as file:
                file.write(b"%b%b\n%b\n%b" % (_FORMAT, self.run.encode(), self.cohorts.encode(), self.key))
        except FileExistsError as error:
            raise InputValueError(
                f"path={str(path)!r} exists: it may hold the secret of a run; load it, or save under another name."
            ) from error

    def keyed(self, digest: str) -> str:
        """Returns a hash of a digest with the secret as key: equal for equal digests, and random without the key."""
        text = json.dumps([self.run, "digest", digest]).encode()
        return hashlib.blake2b(text, key=self.key, digest_size=32).hexdigest()

    def draws(self, client_ids: Sequence[str], sampling: Sampling) -> Draws:
        """Returns the choices of the cohorts of a sampling: the same, whenever they are asked for in the same order."""
        return _KeyedDraws(self, client_ids, sampling)


class _KeyedDraws(SystemDraws):
    """Choices by keyed hashes; orders of clients and their places follow from their ids, however many there are."""

    def __init__(self, secret: CohortSecret, client_ids: Sequence[str], sampling: Sampling) -> None:
        self._secret, self._client_ids, self._sampling, self._choices = secret, client_ids, sampling, 0

    def words(self, count: int) -> np.ndarray:
        text = self._secret.key + self._next("words")
        return np.frombuffer(hashlib.shake_256(text).digest(8 * count), np.uint64)

    def order(self, count: int) -> np.ndarray:
        hashes = self._hashes("order", range(count))
        return np.array(sorted(range(count), key=hashes.__getitem__), np.int64)

    def chosen(self, total: int, count: int) -> np.ndarray:
        # Of rounds, or of those who are free: no list of clients, whose ids would be hashed.
        return super().order(total)[:count]

    def places(self, clients: np.ndarray, among: int) -> np.ndarray:
        return np.array([int.from_bytes(hash_) % among for hash_ in self._hashes("places", clients)], np.int64)

    def _hashes(self, purpose: str, clients: Sequence[int] | np.ndarray) -> list[bytes]:
        prefix = hashlib.blake2b(self._next(purpose), key=self._secret.key, digest_size=32).digest()
        return [
            hashlib.blake2b(self._client_ids[client].encode(), key=prefix, digest_size=32).digest()
            for client in clients
        ]

    def _next(self, purpose: str) -> bytes:
        """Returns what no other choice of any run is made from."""
        self._choices += 1
        return json.dumps([self._secret.run, repr(self._sampling), purpose, self._choices]).encode()


def _check_run(run: str) -> None:
    """Raises unless a run is named by an identifier that no other run has."""
    if not isinstance(run, str):
        raise InputTypeError(f"run={run!r} must be the identifier of the run that the secret is for.")
    if not _RUN.fullmatch(run):
        raise InputValueError(
            f"run={run!r} must be the run's random identifier, {_RUN_DIGITS} hexadecimal digits as in its checkpoints: "
            "a second run can have the same name. CohortSecret.drawn() draws one for a new run."
        )
