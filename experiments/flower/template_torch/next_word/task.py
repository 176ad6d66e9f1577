"""Model: a log-bilinear model of the next word, in PyTorch."""

import numpy as np
import torch
from next_word.data import WORDS

WIDTH = 16


class NextWord(torch.nn.Module):
    """Scores of all words, from the mean embedding of the words before."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(WORDS + 1, WIDTH, mode="mean")
        self.output = torch.nn.Linear(WIDTH, WORDS + 1)

    def forward(self, contexts: torch.Tensor) -> torch.Tensor:
        """Returns scores of shape [examples, words] for contexts of shape [examples, CONTEXT]."""
        return self.output(self.embedding(contexts))


def initial_model() -> dict[str, np.ndarray]:
    """Returns the model that training starts from; it depends on no client."""
    generator = torch.Generator().manual_seed(0)
    network = NextWord()
    torch.nn.init.normal_(network.embedding.weight, std=0.1, generator=generator)
    torch.nn.init.zeros_(network.output.weight)
    torch.nn.init.zeros_(network.output.bias)
    return _arrays(network)


def train(model: dict[str, np.ndarray], examples: tuple[np.ndarray, np.ndarray], rate: float = 1.0) -> dict:
    """Returns the model after one pass over a client's examples, in batches of 32."""
    network = _network(model)
    optimizer = torch.optim.SGD(network.parameters(), lr=rate)
    contexts, words = (torch.from_numpy(each).long() for each in examples)
    for begin in range(0, len(words), 32):
        optimizer.zero_grad()
        scores = network(contexts[begin : begin + 32])
        torch.nn.functional.cross_entropy(scores, words[begin : begin + 32]).backward()
        optimizer.step()
    return _arrays(network)


def accuracy(model: dict[str, np.ndarray], examples: tuple[np.ndarray, np.ndarray]) -> float:
    """Returns how often the likeliest word is the next one."""
    with torch.no_grad():
        scores = _network(model)(torch.from_numpy(examples[0]).long())
    return float(np.mean(scores.argmax(dim=1).numpy() == examples[1]))


def _network(model: dict[str, np.ndarray]) -> NextWord:
    network = NextWord()
    network.load_state_dict({name: torch.tensor(value) for name, value in model.items()})
    return network


def _arrays(network: NextWord) -> dict[str, np.ndarray]:
    """Returns float32 arrays. Counters, such as batch normalization's, must stay out of what is sent."""
    return {name: value.detach().numpy().copy() for name, value in network.state_dict().items()}
