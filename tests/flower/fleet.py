"""A grid of Flower in this process: nodes with keys, some of which drop out or send what they should not."""

import contextlib
import copy
import random
import types
import unittest.mock

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import tff_mf
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.experiments import flower
from tff_mf.experiments.flower import clipping, cohorts, mods, strategy
from tff_mf.experiments.runs import ledger
from tff_mf.experiments.runs.names import LEDGER

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def key_of(name):
    return f"public key of {name}".encode()


def record(**arrays):
    return ArrayRecord({name: Array(value) for name, value in arrays.items()})


class Fleet:
    """Nodes by name; `answer(name, arrays, config)` returns the content of a reply, or None for no reply.

    `ids` gives each node another node id in each life of the SuperLink, as a lost database does.
    """

    def __init__(self, names, answer, life=1):
        self.ids = {name: 1000 * life + place for place, name in enumerate(names)}
        self._names = {node: name for name, node in self.ids.items()}
        self.answer, self.sent, self._waiting = answer, [], {}

    def get_nodes(self):
        return [types.SimpleNamespace(node_id=node, public_key=key_of(name)) for name, node in self.ids.items()]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            identifier = f"message {len(self.sent)}"
            message.metadata.__dict__["_message_id"] = identifier
            self.sent.append(message)
            ids.append(identifier)
            self._waiting[identifier] = message
        return ids

    def pull_messages(self, message_ids):
        replies = []
        for identifier in message_ids:
            message = self._waiting.pop(identifier, None)
            if message is None:
                continue
            name = self._names[message.metadata.dst_node_id]
            arrays = {key: array.numpy() for key, array in message.content["arrays"].items()}
            content = self.answer(name, arrays, dict(message.content["config"]))
            replies.extend(self.replies(message, name, content))
        return replies

    def replies(self, message, name, content):
        if content is None:
            return []
        contents = content if isinstance(content, list) else [content]
        return [self._reply(message, each) for each in contents]

    def _reply(self, message, content):
        TaskIdentity.node_id = message.metadata.dst_node_id
        if isinstance(content, Error):
            return Message(content, reply_to=message)
        sender = content.pop("from", None) if isinstance(content, dict) else None
        if isinstance(content, dict):
            content = RecordDict({"arrays": record(**content), "metrics": MetricRecord({"num-examples": 1e30})})
        reply = Message(content, reply_to=message)
        if sender is not None:
            reply.metadata.__dict__["_src_node_id"] = sender
        return copy.deepcopy(reply)


def steps(name, arrays, scale=0.1):
    """What a node adds to the model: a fixed direction of its own."""
    generator = np.random.default_rng(sum(name.encode()))
    return {key: (scale * generator.normal(size=value.shape)).astype(np.float32) for key, value in arrays.items()}


def trained(name, arrays, config):
    """An honest node: it replies with the model after its step."""
    step = steps(name, arrays)
    return {key: value + step[key] for key, value in arrays.items()}


ROUNDS, NODES, COHORT, CLIP = 6, 12, 3, 0.5
# Of the grid of 15 parameters and 1000 clients.
BITS = 14
SCHEMA = tff_mf.MinSep(min_sep=3, max_participations=2)
NAMES = [f"node {index}" for index in range(NODES)]
ARRAYS = {"w": np.zeros((4, 3), np.float32), "b": np.ones(3, np.float32)}
WAITING = flower.Waiting(nodes_seconds=0.0, replies_seconds=1e-6, poll_seconds=1e-6)


def plan_of(noise_multiplier=4.0, rounds=ROUNDS, **more):
    return tff_mf.plan(
        mechanism=tff_mf.BLT.production("b100"),
        rounds=rounds,
        sampling=SCHEMA if rounds > 1 else tff_mf.SingleParticipation(),
        delta=1e-3,
        noise_multiplier=noise_multiplier,
        **{"clip_norm": CLIP, "clients_per_round": COHORT, **more},
    )


def identity(name):
    return next(iter(cohorts.by_public_key(Fleet([name], trained).get_nodes())))


def everybody(allowed, number):
    """All that are allowed, in their order."""
    return list(allowed)


@contextlib.contextmanager
def opened(
    folder, plan=None, optimizer=None, replies="model", floating_point=True, arrays=ARRAYS, draw=cohorts.uniform, **more
):
    own = {name: more.pop(name) for name in ("waiting", "generator") if name in more}
    settings = flower.FlowerSettings(
        optimizer=optimizer or flower.ServerOptimizer(),
        replies=replies,
        floating_point=floating_point,
        **{"waiting": WAITING, **own},
    )
    arguments = {"settings": settings, "initial_arrays": record(**arrays), **more}
    with (
        unittest.mock.patch.object(strategy, "uniform", draw),
        flower.open_strategy(folder, plan or plan_of(), **arguments) as found,
    ):
        yield found


def refused(match, folder, plan=None, **more):
    """A strategy is not opened, for a reason."""
    with pytest.raises((InputTypeError, InputValueError), match=match), opened(folder, plan, **more):
        pass


def sent(name, arrays, **more):
    """The integers that an honest node sends on the grid of `BITS`."""
    return clipping.as_integers(steps(name, arrays, **more), np.float32(CLIP), bits=BITS, dtype=np.dtype("int32"))


def in_integers(name, arrays, config):
    """An honest node that needs no mod."""
    assert (config[mods.BITS], config[mods.TYPE]) == (BITS, "int32")
    return sent(name, arrays)


def arrays_of(found):
    return {name: array.numpy() for name, array in found.items()}


def flat(arrays):
    return np.concatenate([np.ravel(arrays[name]) for name in ARRAYS])


def repeatable(allowed, number):
    """The same cohort in each run, of the same nodes."""
    return random.Random(f"3 {sorted(allowed)}").sample(sorted(allowed), min(number, len(allowed)))


def lives(folder, plan, answer, **more):
    """The model of a run of one process, and of one that is opened anew for each round, by nodes with new ids."""
    with opened(folder / "whole", plan, draw=repeatable, **more) as strategy:
        whole = strategy.start(Fleet(NAMES, answer)).arrays
    for life in range(ROUNDS):
        with opened(folder / "parts", plan, draw=repeatable, **more) as strategy:
            assert strategy.rounds_released == life
            assert (strategy.plan.grid is None) == more.get("floating_point", True)
            parts = strategy.start(Fleet(NAMES, answer, life=life + 1), num_rounds=life + 1).arrays
    return whole, parts


def moved_by_one(folder, change, honest, **more):
    """The counts of a round in which one node sends something else, and how far it moved the model."""

    def answer(name, arrays, config):
        return change(honest) if name == NAMES[0] else honest

    with opened(folder, plan_of(noise_multiplier=0.0, rounds=1), **more) as strategy:
        result = strategy.start(Fleet(NAMES[:COHORT], answer))
    (found,) = counts(folder).values()
    moved = flat(arrays_of(result.arrays)).astype(np.float64) - flat(ARRAYS)
    return {"zeroed": found.zeroed, "clipped": found.clipped, **found.refused}, np.sqrt((moved**2).sum()) * COHORT


def counts(folder):
    return ledger.read_ledger(folder / LEDGER).reports


def rows(folder):
    return [(line.round, client) for line in ledger.read_ledger(folder / LEDGER).begun for client in line.clients]
