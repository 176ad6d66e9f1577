"""A grid of Flower in this process: nodes with keys, some of which drop out or send what they should not."""

import copy
import types

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

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
