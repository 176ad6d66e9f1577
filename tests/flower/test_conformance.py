"""Our strategy, judged by the conformance check; `OfStrategy` takes any strategy of Flower."""

import copy
import types

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from tff_mf import conformance
from tff_mf.experiments import flower

from .fleet import arrays_of, everybody, key_of, opened, plan_of, record

LIKE = {"w": np.zeros((20, 29), np.float32), "b": np.zeros(20, np.float32)}
CLIENTS = 10


class OfStrategy:
    """A strategy of Flower, whose nodes reply with `update`, or with the model that they were sent plus their update.

    A state is a copy of the strategy, with the model and the round that it has come to.
    """

    def __init__(self, strategy, model, reply="model"):
        self._strategy, self._model, self._reply = strategy, record(**model), reply

    def start(self):
        return self._strategy, self._model, 0

    def step(self, state, updates):
        strategy, model, done = copy.deepcopy(state)
        nodes = [types.SimpleNamespace(node_id=2 + i, public_key=key_of(str(i))) for i in range(len(updates))]
        grid = types.SimpleNamespace(get_nodes=lambda: nodes, get_node_ids=lambda: [node.node_id for node in nodes])
        asked = list(strategy.configure_train(done + 1, model, ConfigRecord(), grid))
        replies = [self._replied(message, update) for message, update in zip(asked, updates, strict=True)]
        after, metrics = strategy.aggregate_train(done + 1, replies)
        old, new = arrays_of(model), arrays_of(after)
        released = conformance.Released(
            estimate={name: new[name] - old[name] for name in old}, beside=dict(metrics or {})
        )
        return (strategy, after, done + 1), released

    def _replied(self, message, update):
        message.metadata.__dict__["_message_id"] = f"to {message.metadata.dst_node_id}"
        TaskIdentity.node_id = message.metadata.dst_node_id
        arrays = {name: np.asarray(value) for name, value in dict(update).items()}
        if self._reply == "model":
            arrays = {name: array.numpy() + arrays[name] for name, array in message.content["arrays"].items()}
        content = {"arrays": record(**arrays), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)


class Everybody:
    """A guard that lets everybody take part in every round, and writes nothing."""

    last_round = 0

    def allowed(self, clients):
        return clients

    def begin(self, cohort):
        self.last_round += 1
        return self.last_round

    def finish(self, state, reports):
        pass


def our_strategy(folder, reply, *, floating_point):
    """Our strategy as a subject, and what it claims."""
    plan = plan_of(noise_multiplier=0.5, clients_per_round=CLIENTS)
    with opened(
        folder,
        plan,
        replies=reply,
        floating_point=floating_point,
        arrays=LIKE,
        waiting=flower.Waiting(nodes_seconds=0.0, fewest=0),
        draw=everybody,
    ) as strategy:
        plan, strategy.guard = strategy.plan, Everybody()
        return OfStrategy(strategy, strategy.arrays, reply), {
            "mechanism": plan.mechanism,
            "clip_norm": plan.clip_norm,
            "noise_multiplier": plan.noise_multiplier_as_run,
            "divisor": plan.clients_per_round,
            "rounds": plan.rounds,
            "grid": plan.grid,
        }


@pytest.mark.parametrize(("reply", "floating_point"), [("model", True), ("update", False)])
def test_our_strategy_keeps_its_claim(tmp_path, reply, floating_point):
    subject, claim = our_strategy(tmp_path, reply, floating_point=floating_point)
    claim = conformance.Claim(**claim, not_promised=["low_bits"] if floating_point else ())
    verdict = conformance.check(subject, claim, like=LIKE, clients=CLIENTS // 2, effort=0.03)
    assert verdict.status != "failed", str(verdict)
    # Two processes are not compared, and floats of 24 bits do not show whether they are on the grid.
    assert {outcome.law for outcome in verdict.outcomes if outcome.status == "not judged"} <= {"processes", "low_bits"}
