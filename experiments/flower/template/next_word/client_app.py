"""What a node does: it trains the model on its own examples, and replies with it. Needs NumPy and Flower only.

`clipping.py` and `mods.py` are copies of tff-mf's.
"""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod

from next_word import mods, task

# The server does both again: the guarantee does not depend on these mods.
app = ClientApp(mods=[mods.integers_mod, fixedclipping_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Replies with the trained model; nothing else in the reply is read."""
    model = {name: array.numpy() for name, array in message.content["arrays"].items()}
    partition = int(context.node_config["partition-id"])
    partitions = int(context.node_config.get("num-partitions", context.run_config["population"]))
    trained = task.train(model, task.examples_of(partition, partitions))
    arrays = ArrayRecord({name: Array(value) for name, value in trained.items()})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)
