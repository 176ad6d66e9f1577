"""Checks of populations, schemas and seeds that all samplers share."""

from collections.abc import Sequence

import numpy as np

import tff_mf
from tff_mf import validation
from tff_mf.errors import InputTypeError, InputValueError

# Schemas of nothing but how often, and how far apart, a client takes part.
COUNTED = (tff_mf.MinSep, tff_mf.SingleParticipation)
# Those that cohorts can be planned for, and checked in a log.
PLANNED = (*COUNTED, tff_mf.FixedEpoch)


def population(client_ids: Sequence[str]) -> tuple[str, ...]:
    """Returns the ids of a population, no id twice."""
    if isinstance(client_ids, str) or not isinstance(client_ids, Sequence):
        raise InputTypeError(f"client_ids={client_ids!r:.80} must be a sequence of strings.")
    strange = next((client_id for client_id in client_ids if not isinstance(client_id, str)), None)
    if strange is not None:
        raise InputTypeError(f"client_ids has {strange!r}; every id must be a string.")
    if not client_ids:
        raise InputValueError("client_ids=[] is an empty population; pass at least one client.")
    if len(set(client_ids)) < len(client_ids):
        raise InputValueError(f"client_ids has {len(client_ids)} ids, only {len(set(client_ids))} of them different.")
    return tuple(client_ids)


def check_participation(
    participation: tff_mf.Participation, schemas: tuple[type[tff_mf.Participation], ...] = COUNTED
) -> None:
    """Raises unless the schema is of one of these classes, and of no class derived from them."""
    if type(participation) not in schemas:
        names = " or ".join(each.__name__ for each in schemas)
        raise InputTypeError(
            f"participation={participation!r} must be of the class {names}: these cohorts keep no other schema; pass "
            "tff_mf.MinSep(min_sep=..., max_participations=...)."
        )


def generator(seed: int, stream: int = 0) -> np.random.Generator:
    """Returns a generator for cohorts, of a stream of its own for each use of one seed."""
    seed = validation.whole("seed", seed, at_least=0)
    # Stream 0 is the plain seed, of which the cohorts of all published results were drawn.
    entropy = seed if stream == 0 else np.random.SeedSequence(entropy=seed, spawn_key=(stream,))
    return np.random.Generator(np.random.PCG64(entropy))
