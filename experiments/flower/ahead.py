"""Cohorts of nodes that the sampling of a plan draws before the first round, in secret or for the log."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Collection
from typing import Any

import tff_mf
from tff_mf.base.errors import InputValueError

from .. import sampling
from ..runs import amplification
from ..runs.names import CHECKPOINTS, COHORTS, RUN_JSON
from ..runs.run_record import read_record
from ..sampling.settings import SamplingSettings
from .cohorts import Planned

# Of these, each cohort can be drawn when its round begins, from the nodes that are connected.
_IN_ROUNDS = (tff_mf.MinSep, tff_mf.FixedEpoch, tff_mf.SingleParticipation)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ahead:
    """The sampling of a run whose cohorts are drawn before its first round.

    Attributes:
        chosen: Its word and parameters; `None` if no word stands for it.
        drawn_by: The object that draws the cohorts, and that is accounted for.
        nodes: Identities of all nodes, in their order.
        secret: Whether cohorts are secret.
    """

    chosen: SamplingSettings | None
    drawn_by: tff_mf.Sampling
    nodes: tuple[str, ...]
    secret: bool

    def as_json(self) -> dict[str, Any]:
        """Returns what the cohorts follow from beside their key: a resumed run must have the same."""
        names = hashlib.sha256(json.dumps(self.nodes).encode()).hexdigest()
        return {"drawn_by": repr(self.drawn_by), "nodes": names, "secret_cohorts": self.secret}

    def fields(self, folder: pathlib.Path, plan: tff_mf.Plan) -> dict[str, Any]:
        """Returns the fields of `run.json` that follow from it.

        Raises:
            InputError: If cohorts are secret and no theorem here covers the run.
        """
        name = f"tff_mf.{type(self.drawn_by).__name__}"
        found = {"sampler": name, "population": len(self.nodes), "sampling": self.chosen, "secret_cohorts": self.secret}
        return found | ({"amplified_epsilon": self._stated(folder, plan)} if self.secret else {})

    def _stated(self, folder: pathlib.Path, plan: tff_mf.Plan) -> float:
        """Returns the amplified ε that the run states from its beginning on."""
        if (folder / RUN_JSON).exists() and (begun := read_record(folder).amplified_epsilon) is not None:
            # Computed again, a certificate by samples would differ.
            return begun
        return amplification.stated_epsilon(amplification.own(plan, self.chosen, len(self.nodes)).level)

    def cohorts(self, folder: pathlib.Path, plan: tff_mf.Plan, *, run: str, begun: bool) -> Planned:
        """Returns the cohorts of a run, by a key in the folder of its checkpoints.

        Args:
            folder: The run's folder.
            plan: Its plan.
            run: Its identifier.
            begun: Whether a round of it was ever begun.

        Raises:
            InputValueError: If the key is lost, there are too few nodes, or a cohort is larger than a sum has room for.
        """
        path = folder / CHECKPOINTS / COHORTS
        secret = sampling.CohortSecret.kept(path, run=run, begun=begun)
        found = sampling.plan_cohorts(
            client_ids=self.nodes,
            rounds=plan.rounds,
            sampling=self.drawn_by,
            clients_per_round=plan.clients_per_round,
            secret=secret,
        )
        if plan.grid is not None and found.clients_per_round > plan.grid.max_clients:
            raise InputValueError(f"grid={plan.grid} has less room than a cohort needs: take a Grid of more clients.")
        return Planned(plan=found, secret=self.secret)


def of_plan(plan: tff_mf.Plan, nodes: Collection[str] | None) -> Ahead | None:
    """Returns how the sampling of a plan draws cohorts before the first round; `None` if it draws them in each round.

    Raises:
        InputValueError: If nodes are not given, their number is not the plan's, or a timer counts hours.
    """
    if isinstance(plan.sampling, _IN_ROUNDS):
        return None
    if nodes is None:
        raise InputValueError(
            f"nodes=None, and sampling={plan.sampling!r} draws the cohorts of all rounds before the first: give the "
            "identities of all nodes."
        )
    names = tuple(sorted(nodes))
    for of, expected in (("plan", plan.population), ("sampling", getattr(plan.sampling, "population", None))):
        if expected not in (None, len(names)):
            raise InputValueError(f"nodes has {len(names)} identities, and population={expected} in the {of}.")
    if isinstance(plan.sampling, tff_mf.Timer):
        if plan.sampling.hours is not None:
            raise InputValueError(
                f"hours={plan.sampling.hours!r} are of a simulated clock, which nodes do not have: give min_sep."
            )
        return Ahead(chosen=None, drawn_by=plan.sampling, nodes=names, secret=False)
    chosen = SamplingSettings.of(plan.sampling)
    drawn_by = chosen.drawn_by(population=len(names), clients_per_round=plan.clients_per_round)
    if plan.sampling not in (drawn_by, _without_size(drawn_by)):
        raise InputValueError(f"sampling={plan.sampling!r} of the plan must be {drawn_by!r} for {len(names)} nodes.")
    return Ahead(chosen=chosen, drawn_by=drawn_by, nodes=names, secret=plan.secret_cohorts)


def _without_size(sampling_: tff_mf.Sampling) -> tff_mf.Sampling:
    """Returns a sampling that may leave out how large cohorts are, without it."""
    kinds = (tff_mf.BallsInBins, tff_mf.BMinSep, tff_mf.RandomAllocation)
    return dataclasses.replace(sampling_, clients_per_round=None) if isinstance(sampling_, kinds) else sampling_
